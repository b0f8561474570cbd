"""An upper bound on the cross-entropy itself instead of on each margin (loss fusion, Xu et al., 2020)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from linfnet.bounds.backward import lower_bounds, steps_of
from linfnet.bounds.boxes import Box
from linfnet.bounds.intervals import margin_ends
from linfnet.bounds.layers import Layers, layers_of
from linfnet.bounds.lines import Slope, ratio
from linfnet.errors import ArgumentError


def fused_cross_entropy(
    net: Layers, boxes: Sequence[Box], labels: Tensor, share: float | Tensor, slope: Slope = "adaptive"
) -> Tensor:
    """Return upper bounds [B] on the cross-entropy over a box, with one linear function backwards per sample.

    The cross-entropy is log S with S = sum_j exp(z_j - z_y). Over the interval bounds of z_j - z_y, each exponential is
    below its chord, so S is below a linear function of the logits, which is bounded by linear relaxation backwards. The
    bound that is returned is log(share * this bound + (1 - share) * the interval bound on S).

    Args:
        net: the layers; the last is linear, and its outputs are the logits [B, K].
        boxes: bounds of the inputs of each layer, such as `interval_boxes`.
        labels: [B].
        share: the weight of the linear relaxation, from 0 to 1.
        slope: how the lines of activations are chosen.
    """
    layers = layers_of(net)
    last, end = layers[-1], boxes[len(layers) - 1]
    if not isinstance(last, nn.Linear):
        raise ArgumentError(f"the last layer is {type(last).__name__}; expected Linear")
    low, high = margin_ends(end.lower, end.upper, last.weight, last.bias, labels)
    low, high = -high, -low  # of z_j - z_y
    top = high.detach().amax(1, keepdim=True)  # subtracted from all exponents; the result does not depend on it
    at_low, at_high = (low - top).exp(), (high - top).exp()
    total = at_high.sum(1)
    if isinstance(share, Tensor) or share > 0:
        chord = ratio(at_high - at_low, high - low, at_high)
        rows = chord.scatter_add(1, labels.unsqueeze(1), -chord.sum(1, keepdim=True))
        largest = -lower_bounds(steps_of(layers, boxes), boxes, -rows.unsqueeze(1), slope).squeeze(1)
        relaxed = largest + (at_high - chord * high).sum(1)
        total = share * relaxed + (1 - share) * total
    # The summand of j = y is 1.
    least = torch.maximum((-top).exp(), torch.full_like(top, torch.finfo(top.dtype).tiny))
    return torch.maximum(total, least.squeeze(1)).log() + top.squeeze(1)
