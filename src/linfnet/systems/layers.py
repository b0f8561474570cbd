"""The standard convolutional nets of the field, which the baseline systems train.

Bounds for training, which can be differentiated and ignore rounding, are in `linfnet.bounds`; bounds of certificates
that include rounding are in `linfnet.certificates.outward`.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from linfnet.bounds import Box as Box
from linfnet.bounds import linear_bounds as linear_bounds
from linfnet.bounds import smallest_margin as smallest_margin
from linfnet.bounds import through as through
from linfnet.bounds import worst_margins as worst_margins
from linfnet.errors import ArgumentError
from linfnet.nn import CheckedNet

Net = TypeVar("Net", bound=nn.Module)

# Convolutions (channels, kernel, stride) with padding 1, then the widths of hidden linear layers. A ReLU follows each.
ARCHITECTURES = {
    # In this order: the small and the large net of Wong and Kolter; the latter is DM-medium of Gowal et al. Then
    # DM-large of Gowal et al., which is CNN-7 of Shi et al. if it has batch norm.
    "small": (((16, 4, 2), (32, 4, 2)), (100,)),
    "medium": (((32, 3, 1), (32, 4, 2), (64, 3, 1), (64, 4, 2)), (512, 512)),
    "cnn7": (((64, 3, 1), (64, 3, 1), (128, 3, 2), (128, 3, 1), (128, 3, 1)), (512,)),
}


def check_architecture(name: str, key: str = "system.architecture") -> None:
    """Raise an error that names the key unless `name` is the name of an architecture."""
    if name not in ARCHITECTURES:
        raise ArgumentError(f"{key} is {name!r}; expected one of {', '.join(ARCHITECTURES)}")


def conv_layers(
    name: str,
    image_shape: Sequence[int],
    batch_norm: bool,
    activation: Callable[[tuple[int, ...]], nn.Module] = lambda shape: nn.ReLU(),
) -> tuple[nn.Sequential, int]:
    """Return all layers except the last linear one, and the number of their output features.

    `activation` creates an activation for values of a shape.

    >>> conv_layers("small", (1, 28, 28), False)[1]
    100
    """
    check_architecture(name, "architecture")
    if len(image_shape) != 3:
        raise ArgumentError(f"image_shape is {tuple(image_shape)}; expected (channels, height, width)")
    (convolutions, widths), (channels, height, width) = ARCHITECTURES[name], image_shape
    layers: list[nn.Module] = []
    for out, kernel, stride in convolutions:
        layers.append(nn.Conv2d(channels, out, kernel, stride, padding=1))
        channels, height, width = out, (height + 2 - kernel) // stride + 1, (width + 2 - kernel) // stride + 1
        layers += [nn.BatchNorm2d(out)] if batch_norm else []
        layers.append(activation((channels, height, width)))
    if min(height, width) < 1:
        raise ArgumentError(f"architecture {name!r} is too deep for images of shape {tuple(image_shape)}")
    features = channels * height * width
    layers.append(nn.Flatten())
    for out in widths:
        layers.append(nn.Linear(features, out))
        layers += [nn.BatchNorm1d(out)] if batch_norm else []
        layers.append(activation((out,)))
        features = out
    return nn.Sequential(*layers), features


class StandardNet(CheckedNet):
    """Base class of convolutional nets with ReLU: `layers`, then a linear layer `last`.

    Args:
        architecture: a key of `ARCHITECTURES`.
        batch_norm: whether there is batch norm before each ReLU. For the other arguments, see `Classifier`.
    """

    def __init__(
        self,
        image_shape: Sequence[int],
        classes: int,
        architecture: str,
        batch_norm: bool,
        *,
        mean: float | Sequence[float] = 0.0,
        std: float = 1.0,
    ) -> None:
        super().__init__(image_shape, classes, mean=mean, std=std)
        self.architecture, self.batch_norm = architecture, batch_norm
        self.layers, features = conv_layers(architecture, image_shape, batch_norm)
        self.last = nn.Linear(features, classes)

    def settings(self) -> dict[str, Any]:
        return {"architecture": self.architecture, "batch_norm": self.batch_norm}


def preserve_widths(net: nn.Module) -> None:
    """Draw all weights from N(0, 2 pi / fan_in^2), in place, which preserves the widths of boxes (Shi et al., 2021).

    With the usual initialisation, the widths of interval bounds grow from layer to layer with the number of inputs.
    """
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.normal_(layer.weight, std=math.sqrt(2 * math.pi) / layer.weight[0].numel())


def default_weights(net: Net) -> Net:
    """Draw all weights again by torch's default initialisation, in place, and return the net."""
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.reset_parameters()
    return net


def channels_last(pixels: Tensor) -> Tensor:
    """Return images in the layout that is fastest on their device: on a GPU, the channels of a pixel are adjacent."""
    if pixels.is_cuda and pixels.dim() == 4:
        return pixels.contiguous(memory_format=torch.channels_last)
    return pixels
