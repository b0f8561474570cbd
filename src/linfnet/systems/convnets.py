"""The small convolutional nets of the literature on interval bounds, and boxes through their layers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linfnet.errors import ArgumentError
from linfnet.systems.linear_bounds import linear_bounds


@dataclass(frozen=True)
class Architecture:
    """Convolutions (channels, kernel, stride), each padded by 1, then hidden linear layers; ReLU after each."""

    convolutions: tuple[tuple[int, int, int], ...]
    linear: tuple[int, ...]


ARCHITECTURES = {
    # ConvSmall of Wong and Kolter; DM-medium of Gowal et al.; the seven layers of Shi et al. (with batch norm there).
    "small": Architecture(((16, 4, 2), (32, 4, 2)), (100,)),
    "medium": Architecture(((32, 3, 1), (32, 4, 2), (64, 3, 1), (64, 4, 2)), (512, 512)),
    "cnn7": Architecture(((64, 3, 1), (64, 3, 1), (128, 3, 2), (128, 3, 1), (128, 3, 1)), (512,)),
}


def conv_layers(name: str, image_shape: Sequence[int], batch_norm: bool) -> tuple[nn.Sequential, int]:
    """All layers but the last linear one, and the number of features they give.

    >>> conv_layers("small", (1, 28, 28), False)[1]
    100
    """
    if name not in ARCHITECTURES:
        raise ArgumentError(f"architecture is {name!r}; wanted one of {', '.join(ARCHITECTURES)}")
    architecture, (channels, height, width) = ARCHITECTURES[name], image_shape
    layers: list[nn.Module] = []
    for out, kernel, stride in architecture.convolutions:
        layers.append(nn.Conv2d(channels, out, kernel, stride, padding=1))
        layers += [nn.BatchNorm2d(out), nn.ReLU()] if batch_norm else [nn.ReLU()]
        channels, height, width = out, (height + 2 - kernel) // stride + 1, (width + 2 - kernel) // stride + 1
    if min(height, width) < 1:
        raise ArgumentError(f"architecture {name!r} is too deep for images of shape {tuple(image_shape)}")
    features = channels * height * width
    layers.append(nn.Flatten())
    for out in architecture.linear:
        layers.append(nn.Linear(features, out))
        layers += [nn.BatchNorm1d(out), nn.ReLU()] if batch_norm else [nn.ReLU()]
        features = out
    return nn.Sequential(*layers), features


@torch.no_grad()
def bound_preserving_init(net: nn.Module) -> None:
    """Draw weights from N(0, 2 pi / fan_in^2): interval bounds then neither grow nor shrink from layer to layer.

    With more usual widths of the distribution they grow with the number of inputs (Shi et al., 2021).
    """
    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.normal_(module.weight, std=math.sqrt(2 * math.pi) / module.weight[0].numel())


@dataclass(frozen=True)
class Box:
    """What is known of a batch [B, ...] at some layer: its ends, and the unperturbed values where they are wanted."""

    lower: Tensor
    upper: Tensor
    centre: Tensor | None = None


def through(layer: nn.Module, box: Box) -> Box:
    """A box after one layer. In training, batch norm takes its statistics from the unperturbed values."""
    plain = None if box.centre is None else layer(box.centre)
    if isinstance(layer, nn.Conv2d):
        middle, reach = (box.lower + box.upper) / 2, (box.upper - box.lower) / 2
        moved = layer(middle)
        spread = F.conv2d(reach, layer.weight.abs(), None, layer.stride, layer.padding)  # pyright: ignore
        return Box(moved - spread, moved + spread, plain)
    if isinstance(layer, nn.Linear):
        return Box(*linear_bounds(box.lower, box.upper, layer.weight, layer.bias), plain)
    if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
        return Box(*_through_batch_norm(layer, box), plain)
    if isinstance(layer, nn.ReLU | nn.Flatten):
        return Box(layer(box.lower), layer(box.upper), plain)
    raise ArgumentError(f"boxes do not know how to go through a {type(layer).__name__}")


def _through_batch_norm(layer: nn.BatchNorm1d | nn.BatchNorm2d, box: Box) -> tuple[Tensor, Tensor]:
    assert layer.running_mean is not None
    assert layer.running_var is not None
    mean, variance = layer.running_mean, layer.running_var
    if layer.training:
        if box.centre is None:
            raise ArgumentError("batch norm in training needs the unperturbed values")
        others = [dim for dim in range(box.centre.dim()) if dim != 1]
        mean, variance = box.centre.mean(others), box.centre.var(others, unbiased=False)
    scale = layer.weight * (variance + layer.eps).rsqrt()
    shape = [-1 if dim == 1 else 1 for dim in range(box.lower.dim())]
    middle, reach = (box.lower + box.upper) / 2, (box.upper - box.lower) / 2
    moved = (middle - mean.view(shape)) * scale.view(shape) + layer.bias.view(shape)
    spread = reach * scale.abs().view(shape)
    return moved - spread, moved + spread
