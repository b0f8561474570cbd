"""An l_inf-distance net whose first layers are convolutional."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from linfnet.errors import ArgumentError
from linfnet.nn.distance import LpDistance, LpDistanceConv2d
from linfnet.nn.nonexpansive import Rounding
from linfnet.nn.proven import ProvenNet

# The first convolution divides height and width by this number.
STRIDE = 2
# Largest number of convolutions, so that a model file cannot describe an endless net.
MOST_CONVOLUTIONS = 16


class ConvStemNet(ProvenNet):
    """Convolutional distance layers on normalised pixels, followed by fully connected ones.

    The first convolution has patches of 4x4 pixels and stride 2, the others have patches of 3x3 features and stride 1;
    all edges are padded by one. The weights of a convolution are the same at all positions. With four channels for each
    channel of the image, the stem has as many features as there are pixels, and they are initially the pixels, up to
    their order and constants. Like `LinfNet`, the net is `lipschitz`-Lipschitz in the l_inf norm of the pixels at
    p = inf and in eval mode, hidden layers subtract the means of their outputs (of each channel in convolutions), the
    last layer has a bias, and the logits are negated distances.

    Args:
        image_shape: (C, H, W), with H and W of at least 2.
        classes, mean, std: as in `Classifier`.
        hidden: width of each fully connected hidden layer.
        channels: the number of channels of each convolution.
        convolutions: the number of convolutions, from 1 to 16.
        p: initial exponent of all layers.

    >>> import torch
    >>> net = ConvStemNet((1, 8, 8), 10, hidden=(32, 32), channels=4, convolutions=2, mean=0.3, std=0.4)
    >>> net(torch.rand(5, 1, 8, 8)).shape, net.lipschitz
    (torch.Size([5, 10]), 2.5)
    """

    system: ClassVar[str] = "conv-stem"

    def __init__(
        self,
        image_shape: Sequence[int],
        classes: int,
        hidden: Sequence[int] = (),
        *,
        channels: int,
        convolutions: int = 2,
        mean: float | Sequence[float] = 0.0,
        std: float = 1.0,
        p: float = math.inf,
    ) -> None:
        if not isinstance(hidden, Sequence) or any(width < 1 for width in hidden):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentError(f"hidden is {hidden}; expected a sequence of widths above 0, such as (128, 128)")
        if len(image_shape) != 3 or min(image_shape[1:]) < STRIDE:
            raise ArgumentError(f"image_shape is {tuple(image_shape)}; expected (C, H, W) with H and W of at least 2")
        if channels < 1:
            raise ArgumentError(f"channels is {channels}; expected a number of at least 1")
        if not 1 <= convolutions <= MOST_CONVOLUTIONS:
            raise ArgumentError(f"convolutions is {convolutions}; expected a number from 1 to {MOST_CONVOLUTIONS}")
        super().__init__(image_shape, classes, mean=mean, std=std, learn_scale=True)
        self.hidden, self.channels, self.convolutions = tuple(hidden), channels, convolutions
        copies: dict[str, Any] = {"identity_init": True, "p": p}
        first = LpDistanceConv2d(
            self.image_shape[0], channels, STRIDE + 2, stride=STRIDE, padding=1, mean_shift=True, **copies
        )
        others = (
            LpDistanceConv2d(channels, channels, 3, padding=1, mean_shift=True, **copies)
            for _ in range(convolutions - 1)
        )
        self.stem = nn.Sequential(first, *others)
        features = channels * math.prod(size // STRIDE for size in self.image_shape[1:])
        widths = [features, *hidden]
        inner = [LpDistance(a, b, mean_shift=True, **copies) for a, b in itertools.pairwise(widths)]
        self.layers = nn.Sequential(*inner, LpDistance(widths[-1], classes, bias=True, **copies))

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits [B, classes] of images [B, C, H, W] in [0, 1]."""
        return -self.layers(self.stem(self.normalize(self.check_shape(images))).flatten(1))

    def _steps(self) -> Iterator[tuple[LpDistanceConv2d | LpDistance, bool]]:
        """Yield each layer, and whether its input is a vector for each image."""
        for kind, part in ((LpDistanceConv2d, self.stem), (LpDistance, self.layers)):
            for layer in part:
                if not isinstance(layer, kind):
                    raise ArgumentError(
                        f"a layer of the net is a {type(layer).__name__}; use linfnet.Classifier.wrap for other layers"
                    )
                yield layer, kind is LpDistance

    def bounds(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        low, high = self.normalize.bounds(self.check_shape(lower), self.check_shape(upper))
        for layer, flat in self._steps():
            low, high = layer.bounds(*((low.flatten(1), high.flatten(1)) if flat else (low, high)))
        return -high, -low

    def measure(self, images: Tensor) -> tuple[Tensor, Rounding]:
        values, rounding = self.normalize(self.check_shape(images)), Rounding()
        for layer, flat in self._steps():
            values, sizes = layer.measure(values.flatten(1) if flat else values)
            rounding = rounding.then(sizes)
        return -values, rounding

    def settings(self) -> dict[str, Any]:
        return {"hidden": list(self.hidden), "channels": self.channels, "convolutions": self.convolutions}

    def describe(self) -> str:
        hidden = "×".join(map(str, self.hidden)) or "none"
        return (
            f"An ℓ∞-distance net with {self.convolutions} convolutional layers of {self.channels} channels, then "
            f"hidden layers {hidden}. It is {self.lipschitz:.6g}-Lipschitz in the ℓ∞ norm of the pixels: one forward "
            "pass certifies a radius inside which its class cannot change. Certificates hold for the float32 program "
            "itself."
        )
