"""Interval bounds of a net and of its margins.

Bounds hold in real arithmetic. They are propagated as middle and reach: a matrix product multiplies the middle by W and
the reach by |W|.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linfnet.bounds.boxes import Box
from linfnet.bounds.layers import Layers, layers_of, through


def interval_boxes(net: Layers, box: Box) -> list[Box]:
    """Return the box before each layer of a net, and the box of its outputs, by interval bounds."""
    boxes = [box]
    for layer in layers_of(net):
        boxes.append(through(layer, boxes[-1]))
    return boxes


def interval_margins(net: Layers, boxes: Sequence[Box], labels: Tensor) -> Tensor:
    """Return for each class j a lower bound on the margin between the label and j: [B, K], 0 at the label.

    `boxes` has the box before each layer, and that of the outputs. In real arithmetic.
    """
    layers = layers_of(net)
    last, box = layers[-1], boxes[len(layers) - 1]
    if isinstance(last, nn.Linear):
        return worst_margins(box.lower, box.upper, last.weight, last.bias, labels)
    lower, upper = boxes[len(layers)].ends
    return worst_margins(lower, upper, torch.eye(lower.shape[1], dtype=lower.dtype, device=lower.device), None, labels)


def linear_bounds(lower: Tensor, upper: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the exact minimum and maximum [..., out] of x W^T + b over lower <= x <= upper, each [..., in].

    >>> linear_bounds(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 1.0]), torch.tensor([[1.0, -2.0]]), None)
    (tensor([-2.]), tensor([1.]))
    """
    centre = F.linear((lower + upper) / 2, weight, bias)
    radius = F.linear((upper - lower) / 2, weight.abs())
    return centre - radius, centre + radius


def margin_ends(
    lower: Tensor, upper: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """Return for each class j the minimum and maximum of (w_y - w_j) x + b_y - b_j over lower <= x <= upper.

    Each is [B, K], 0 at j = y. The margin is bounded directly through the last layer, which is tighter than the
    difference of bounds on the logits.

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
    reach = torch.einsum("bd,bkd->bk", radius, spread[labels])
    return gaps - reach, gaps + reach


def worst_margins(lower: Tensor, upper: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> Tensor:
    """Return for each class j the minimum of (w_y - w_j) x + b_y - b_j over a box: [B, K], as `margin_ends` does."""
    return margin_ends(lower, upper, weight, bias, labels)[0]


def smallest_margin(margins: Tensor, labels: Tensor) -> Tensor:
    """Return the smallest entry of each row except the entry of the label: [B, K] -> [B]."""
    return margins.scatter(1, labels.unsqueeze(1), torch.inf).amin(1)
