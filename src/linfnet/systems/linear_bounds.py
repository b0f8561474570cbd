"""Interval bounds through matrix products and monotone functions, in real arithmetic, as pure functions.

A box is (centre, radius) where that is cheaper: a product moves the centre and stretches the radius by |W|.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def linear_bounds(lower: Tensor, upper: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Bounds on x W^T + b over lower <= x <= upper: [..., in] -> [..., out]; both ends are attained.

    >>> linear_bounds(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 1.0]), torch.tensor([[1.0, -2.0]]), None)
    (tensor([-2.]), tensor([1.]))
    """
    centre = F.linear((lower + upper) / 2, weight, bias)
    radius = F.linear((upper - lower) / 2, weight.abs())
    return centre - radius, centre + radius


def worst_margins(lower: Tensor, upper: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
    """For each class j, the least of (w_y - w_j) x + b_y - b_j over lower <= x <= upper: [B, K], 0 at j = y.

    The last layer is merged with the margin: bounding both logits apart and subtracting would be weaker.

    Args:
        lower: [B, d], the lower ends of the last layer's inputs.
        upper: [B, d].
        weight: [K, d] of the last layer.
        bias: [K].
        labels: [B].
    """
    centre, radius = (lower + upper) / 2, (upper - lower) / 2
    scores = F.linear(centre, weight, bias)
    gaps = scores.gather(1, labels.unsqueeze(1)) - scores
    # |w_y - w_j| for all pairs of classes, then each sample takes the row of its label.
    spread = (weight.unsqueeze(1) - weight.unsqueeze(0)).abs()
    return gaps - torch.einsum("bd,bkd->bk", radius, spread[labels])


def least_margin(margins: Tensor, labels: Tensor) -> Tensor:
    """The smallest entry of each row but the label's own: [B, K] -> [B]."""
    return margins.scatter(1, labels.unsqueeze(1), torch.inf).amin(1)
