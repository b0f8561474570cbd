"""An l_inf-distance net whose first layers are convolutional."""

import itertools
import math
import operator
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar

from torch import Tensor, nn

from linfnet.errors import ArgumentError
from linfnet.nn.distance import DistanceModule, LpDistance, LpDistanceConv2d
from linfnet.nn.nonexpansive import Rounding
from linfnet.nn.proven import ProvenNet, check_hidden

Layer = TypeVar("Layer", bound=DistanceModule)

# The first convolution. It halves height and width, without the last row or column of an odd size.
KERNEL, STRIDE, PADDING = 4, 2, 1
# Largest number of convolutions, so that a model file cannot describe an endless net.
MOST_CONVOLUTIONS = 16


class ConvStem(nn.Sequential):
    """Convolutional distance layers, the first layers of a net; `ConvStemNet` describes them.

    Args:
        image_shape, channels, convolutions, p: as in `ConvStemNet`.
    """

    def __init__(
        self, image_shape: Sequence[int], *, channels: int, convolutions: int = 2, p: float = math.inf
    ) -> None:
        if len(image_shape) != 3 or min(image_shape[1:]) < STRIDE:
            raise ArgumentError(f"image_shape is {tuple(image_shape)}; expected (C, H, W) with H and W of at least 2")
        self.channels = _whole("channels", channels, math.inf)
        self.convolutions = _whole("convolutions", convolutions, MOST_CONVOLUTIONS)
        convolution = partial(LpDistanceConv2d, mean_shift=True, identity_init=True, p=p)
        super().__init__(
            convolution(image_shape[0], self.channels, KERNEL, stride=STRIDE, padding=PADDING),
            *(convolution(self.channels, self.channels, 3, padding=1) for _ in range(self.convolutions - 1)),
        )
        self.features = self.channels * math.prod(size // STRIDE for size in image_shape[1:])
        """The number of outputs of the last convolution."""

    def bounds(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Return bounds on the outputs over a box of normalised pixels, at p = inf and in eval mode."""
        for layer in distance_layers(self, LpDistanceConv2d):
            lower, upper = layer.bounds(lower, upper)
        return lower, upper

    def measure(self, x: Tensor) -> tuple[Tensor, Rounding]:
        """Return the outputs, and the rounding of their computation from normalised pixels."""
        rounding = Rounding()
        for layer in distance_layers(self, LpDistanceConv2d):
            x, sizes = layer.measure(x)
            rounding = rounding.then(sizes)
        return x, rounding


class ConvStemNet(ProvenNet):
    """Convolutional distance layers on normalised pixels, followed by fully connected ones.

    The first convolution has patches of 4x4 pixels and stride 2, the others have patches of 3x3 features and stride 1;
    all of them pad their input by one zero on each side. The weights of a convolution are the same at all positions.
    Initially each channel of the stem copies a pixel, up to a constant. If height and width are even and there are four
    channels for each channel of the image, the stem has as many features as there are pixels and copies all of them.

    Like `LinfNet`, the net is `lipschitz`-Lipschitz in the l_inf norm of the pixels at p = inf and in eval mode, hidden
    layers subtract the means of their outputs (of each channel in convolutions), the last layer has a bias, and the
    logits are negated distances.

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
    other_layers: ClassVar[frozenset[type[nn.Module]]] = frozenset({ConvStem})
    negate_logits: ClassVar[bool] = True
    """The class with the nearest prototype is predicted, as by default in `LinfNet`."""

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
        check_hidden(hidden)
        super().__init__(image_shape, classes, mean=mean, std=std, learn_scale=True)
        self.hidden = tuple(hidden)
        self.stem = ConvStem(self.image_shape, channels=channels, convolutions=convolutions, p=p)
        layer = partial(LpDistance, identity_init=True, p=p)
        widths = [self.stem.features, *hidden]
        inner = [layer(a, b, mean_shift=True) for a, b in itertools.pairwise(widths)]
        self.layers = nn.Sequential(*inner, layer(widths[-1], classes, bias=True))

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits [B, classes] of images [B, C, H, W] in [0, 1]."""
        return -self.layers(self.stem(self.normalize(self.check_shape(images))).flatten(1))

    def bounds(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        box = self.normalize.bounds(self.check_shape(lower), self.check_shape(upper))
        low, high = (end.flatten(1) for end in self.stem.bounds(*box))
        for layer in distance_layers(self.layers, LpDistance):
            low, high = layer.bounds(low, high)
        return -high, -low

    def measure(self, images: Tensor) -> tuple[Tensor, Rounding]:
        values, rounding = self.stem.measure(self.normalize(self.check_shape(images)))
        values = values.flatten(1)
        for layer in distance_layers(self.layers, LpDistance):
            values, sizes = layer.measure(values)
            rounding = rounding.then(sizes)
        return -values, rounding

    def settings(self) -> dict[str, Any]:
        stem = {"channels": self.stem.channels, "convolutions": self.stem.convolutions}
        return {"hidden": list(self.hidden), **stem}

    def describe(self) -> str:
        hidden = "×".join(map(str, self.hidden)) or "none"
        return (
            f"An ℓ∞-distance net with {self.stem.convolutions} convolutional layers of {self.stem.channels} channels, "
            f"then hidden layers {hidden}. It is {self.lipschitz:.6g}-Lipschitz in the ℓ∞ norm of the pixels: one "
            "forward pass certifies a radius inside which its class cannot change. Certificates hold for the float32 "
            "program itself."
        )


def _whole(name: str, value: int, most: float) -> int:
    """Return a whole number from 1 to `most` as an int; raise an error if it is not one."""
    try:
        number = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = 0
    if not 1 <= number <= most:
        expected = "of at least 1" if math.isinf(most) else f"from 1 to {most}"
        raise ArgumentError(f"{name} is {value!r}; expected a whole number {expected}")
    return number


def distance_layers(part: nn.Module, kind: type[Layer]) -> list[Layer]:
    """Return the layers of a part of a net; raise an error unless all of them are of one kind."""
    modules = list(part) if isinstance(part, nn.Sequential) else [part]
    layers = [module for module in modules if isinstance(module, kind)]
    if not layers or len(layers) != len(modules):
        raise ArgumentError(
            f"a layer of the net is not an {kind.__name__}; use linfnet.Classifier.wrap for other layers"
        )
    return layers
