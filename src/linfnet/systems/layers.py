"""Building blocks of the baseline systems: small convolutional nets, and interval bounds through their layers.

These bounds are for training: they can be differentiated, and ignore rounding. The bounds of certificates are in
`linfnet.certificates.outward`. Boxes are propagated as centre and radius: a matrix product multiplies the centre by W
and the radius by |W|.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linfnet.errors import ArgumentError

# Convolutions (channels, kernel, stride) with padding 1, then the widths of hidden linear layers. A ReLU follows each.
ARCHITECTURES = {
    # In this order: ConvSmall of Wong and Kolter; DM-medium of Gowal et al.; CNN-7 of Shi et al. (with batch norm).
    "small": (((16, 4, 2), (32, 4, 2)), (100,)),
    "medium": (((32, 3, 1), (32, 4, 2), (64, 3, 1), (64, 4, 2)), (512, 512)),
    "cnn7": (((64, 3, 1), (64, 3, 1), (128, 3, 2), (128, 3, 1), (128, 3, 1)), (512,)),
}


def check_architecture(name: str, key: str = "system.architecture") -> None:
    """Raise an error that names the key unless `name` is the name of an architecture."""
    if name not in ARCHITECTURES:
        raise ArgumentError(f"{key} is {name!r}; expected one of {', '.join(ARCHITECTURES)}")


def conv_layers(name: str, image_shape: Sequence[int], batch_norm: bool) -> tuple[nn.Sequential, int]:
    """Return all layers except the last linear one, and the number of their output features.

    >>> conv_layers("small", (1, 28, 28), False)[1]
    100
    """
    check_architecture(name, "architecture")
    (convolutions, widths), (channels, height, width) = ARCHITECTURES[name], image_shape
    layers: list[nn.Module] = []
    for out, kernel, stride in convolutions:
        layers.append(nn.Conv2d(channels, out, kernel, stride, padding=1))
        layers += [nn.BatchNorm2d(out), nn.ReLU()] if batch_norm else [nn.ReLU()]
        channels, height, width = out, (height + 2 - kernel) // stride + 1, (width + 2 - kernel) // stride + 1
    if min(height, width) < 1:
        raise ArgumentError(f"architecture {name!r} is too deep for images of shape {tuple(image_shape)}")
    features = channels * height * width
    layers.append(nn.Flatten())
    for out in widths:
        layers.append(nn.Linear(features, out))
        layers += [nn.BatchNorm1d(out), nn.ReLU()] if batch_norm else [nn.ReLU()]
        features = out
    return nn.Sequential(*layers), features


@dataclass(frozen=True)
class Box:
    """Interval bounds of a batch [B, ...] at some layer, and the unperturbed values if they are needed (`centre`)."""

    lower: Tensor
    upper: Tensor
    centre: Tensor | None = None


def through(layer: nn.Module, box: Box) -> Box:
    """Propagate a box through one layer. In training, batch norm uses the statistics of the unperturbed values."""
    plain = None if box.centre is None else layer(box.centre)
    if isinstance(layer, nn.ReLU | nn.Flatten):
        return Box(layer(box.lower), layer(box.upper), plain)
    middle, reach = (box.lower + box.upper) / 2, (box.upper - box.lower) / 2
    if isinstance(layer, nn.Conv2d):
        weight = layer.weight.abs()
        middle, reach = layer(middle), F.conv2d(reach, weight, None, layer.stride, layer.padding)  # pyright: ignore
    elif isinstance(layer, nn.Linear):
        middle, reach = layer(middle), F.linear(reach, layer.weight.abs())
    elif isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
        mean, scale, bias = _batch_norm(layer, box.centre)
        shape = [-1 if dim == 1 else 1 for dim in range(middle.dim())]
        middle = (middle - mean.view(shape)) * scale.view(shape) + bias.view(shape)
        reach = reach * scale.abs().view(shape)
    else:
        raise ArgumentError(f"interval bounds are not implemented for {type(layer).__name__}")
    return Box(middle - reach, middle + reach, plain)


def _batch_norm(layer: nn.BatchNorm1d | nn.BatchNorm2d, centre: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean, the scale and the bias of each channel."""
    mean, variance = layer.running_mean, layer.running_var
    if layer.training:
        if centre is None:
            raise ArgumentError("batch norm in training needs the unperturbed values")
        others = [dim for dim in range(centre.dim()) if dim != 1]
        mean, variance = centre.mean(others), centre.var(others, unbiased=False)
    assert mean is not None
    assert variance is not None
    return mean, layer.weight * (variance + layer.eps).rsqrt(), layer.bias


def linear_bounds(lower: Tensor, upper: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the exact minimum and maximum [..., out] of x W^T + b over lower <= x <= upper, each [..., in].

    >>> linear_bounds(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 1.0]), torch.tensor([[1.0, -2.0]]), None)
    (tensor([-2.]), tensor([1.]))
    """
    centre = F.linear((lower + upper) / 2, weight, bias)
    radius = F.linear((upper - lower) / 2, weight.abs())
    return centre - radius, centre + radius


def worst_margins(lower: Tensor, upper: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
    """Return for each class j the minimum of (w_y - w_j) x + b_y - b_j over lower <= x <= upper: [B, K], 0 at j = y.

    The margin is bounded directly through the last layer, which is tighter than the difference of bounds on the logits.

    Args:
        lower: [B, d], lower bounds on the inputs of the last layer; `upper` has the upper bounds.
        weight: [K, d], the weight of the last layer; `bias` is [K].
        labels: [B].
    """
    centre, radius = (lower + upper) / 2, (upper - lower) / 2
    scores = F.linear(centre, weight, bias)
    gaps = scores.gather(1, labels.unsqueeze(1)) - scores
    # This has |w_y - w_j| for all pairs of classes; each sample then selects the row of its label.
    spread = (weight.unsqueeze(1) - weight.unsqueeze(0)).abs()
    return gaps - torch.einsum("bd,bkd->bk", radius, spread[labels])


def smallest_margin(margins: Tensor, labels: Tensor) -> Tensor:
    """Return the smallest entry of each row except the entry of the label: [B, K] -> [B]."""
    return margins.scatter(1, labels.unsqueeze(1), torch.inf).amin(1)
