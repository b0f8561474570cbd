"""The base of systems that train a conventional convolutional net and certify it by bounds on its layers."""

import contextlib
from collections.abc import Generator
from fractions import Fraction
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from linfnet.bounds import Box, Ramp, smallest_margin
from linfnet.certificates.product_net import check_settings
from linfnet.errors import ArgumentError
from linfnet.nn.classifier import Classifier
from linfnet.nn.proven import check_precision, check_std, check_unchanged
from linfnet.systems.layers import StandardNet, channels_last


class ConvNet(StandardNet):
    """A convolutional net with ReLU, certified by bounds on its margins in real arithmetic.

    A subclass defines `margins`. For the arguments, see `StandardNet`.
    """

    arithmetic: ClassVar[Literal["float32", "real"]] = "real"
    other_layers: ClassVar[frozenset[type[nn.Module]]] = frozenset(
        (nn.Linear, nn.Conv2d, nn.BatchNorm1d, nn.BatchNorm2d, nn.AvgPool2d, nn.Flatten, nn.ReLU, nn.Identity, Ramp)
    )
    part: ClassVar[int] = 100
    """Number of images that are certified at once: rows of linear functions take memory."""

    @property
    def body(self) -> list[nn.Module]:
        """All layers after the normalisation."""
        return [*self.layers, self.last]

    def forward(self, images: Tensor) -> Tensor:
        """Map images [B, C, H, W] in [0, 1] to logits [B, classes]."""
        x = self.normalize(self.check_shape(images))
        if self.training:
            return self.last(self.layers(x))
        with full_precision(x):
            return self.last(self.layers(x))

    def normalized(self, lower: Tensor, upper: Tensor, centre: Tensor | None = None) -> Box:
        """Return the box of normalised pixels, for the layers of `body`."""
        ends = self.normalize.bounds(self.check_shape(lower), self.check_shape(upper))
        return Box(*ends, None if centre is None else self.normalize(centre))

    def box_around(self, pixels: Tensor, eps: float | Tensor, *, centre: bool = True) -> Box:
        """Return the normalised box of all images in [0, 1] within eps of images [B, C, H, W].

        `centre`: whether the unperturbed values are needed at all layers, for logits or for batch norm in training.
        """
        pixels = channels_last(pixels)
        return self.normalized((pixels - eps).clamp(min=0), (pixels + eps).clamp(max=1), pixels if centre else None)

    def margins(self, box: Box, labels: Tensor) -> Tensor:
        """Return lower bounds [B, K] on the margins of the labels over a normalised box; 0 at the labels."""
        raise NotImplementedError

    def certified(self, images: Tensor, labels: Tensor, epsilon: Fraction | Tensor) -> Tensor:
        net = self.frozen()
        check_unchanged(net)
        check_precision(net, images.dtype)
        check_settings(images)
        check_std(net.normalize.std.item())
        for module in net.modules():
            if isinstance(module, Ramp) and not 0 <= module.slope.item() <= 1:
                raise ArgumentError(f"the slope of a ramp is {module.slope.item():g}; expected a number from 0 to 1")
        return Classifier.certified(net, images, labels, epsilon)

    def certified_in_training(self, images: Tensor, labels: Tensor, epsilon: Fraction | Tensor) -> Tensor:
        return Classifier.certified(self, images, labels, epsilon)

    def least_margin(self, lower: Tensor, upper: Tensor, labels: Tensor) -> Tensor:
        if len(lower) == 0:
            return lower.new_zeros(0)
        parts = zip(*(each.split(self.part) for each in (lower, upper, labels)), strict=True)
        with full_precision(lower):
            return torch.cat([smallest_margin(self.margins(self.normalized(a, b), y), y) for a, b, y in parts])

    def describe(self) -> str:
        return (
            f"A convolutional net ({self.architecture}{', batch norm' if self.batch_norm else ''}), trained by system "
            f"`{self.system}` and certified by bounds on its layers ({', '.join(self.certificate_names)})."
        )


@contextlib.contextmanager
def full_precision(images: Tensor) -> Generator[None]:
    """Context in which layers compute in float32, without autocast and without TensorFloat-32, the default on GPUs."""
    cudnn = torch.backends.cudnn
    flags = cudnn.flags(cudnn.enabled, cudnn.benchmark, deterministic=cudnn.deterministic, allow_tf32=False)
    with flags if images.is_cuda else contextlib.nullcontext(), torch.autocast(images.device.type, enabled=False):
        yield
