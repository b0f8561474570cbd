"""Dropout of the inputs of distance layers by smaller layers: dropped inputs and outputs are not computed.

A group of consecutive samples shares a mask. The layer of a group has the kept rows and columns of the weights, which
are copied to a smaller matrix.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from linfnet.errors import at_least
from linfnet.nn.distance import DistanceModule
from linfnet.nn.normalization import MeanShift
from linfnet.ops import lp_distance


@dataclass(frozen=True)
class Kept:
    """The features of one layer that a training step keeps."""

    index: Tensor
    """int64 [groups, count], ascending in each group."""
    features: int
    """The number of features of the layer."""


def mask_sources(seed: int, device: torch.device) -> tuple[torch.Generator, torch.Generator]:
    """Return the arguments `counts` and `subsets` of `draw_kept`."""
    counts = torch.Generator().manual_seed(seed)
    return counts, torch.Generator(device).manual_seed(int(torch.randint(2**62, (), generator=counts)))


def draw_kept(features: int, keep: float, groups: int, counts: torch.Generator, subsets: torch.Generator) -> Kept:
    """Draw how many features are kept, once, and then a random subset of this size for each group.

    Args:
        features: the number of features.
        keep: the probability with which a feature is kept. The number of kept features has a binomial distribution; it
            is at least 1.
        groups: the number of groups.
        counts: source of the number, on the CPU: it determines the shapes of tensors.
        subsets: source of the subsets, on the device of the net.
    """
    count = max(1, int((torch.rand(features, generator=counts) < keep).sum()))
    scores = torch.rand(groups, features, generator=subsets, device=subsets.device)
    return Kept(scores.topk(count).indices.sort(1).values, features)


class _Parts(torch.autograd.Function):
    """Copy the kept rows and columns of a weight for each group; the gradients of all groups are added in place."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, rows: Tensor | None, columns: Tensor | None) -> tuple[Tensor, ...]:
        ctx.rows, ctx.columns, ctx.shape = rows, columns, weight.shape
        groups = len(rows) if rows is not None else 1 if columns is None else len(columns)
        parts: list[Tensor] = []
        for group in range(groups):
            part = weight if rows is None else weight.index_select(0, rows[group])
            parts.append(part if columns is None else part.index_select(1, columns[group]))
        return tuple(parts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        total = grads[0].new_zeros(ctx.shape)
        for group, grad in enumerate(grads):
            wide = grad
            if ctx.columns is not None:
                wide = grad.new_zeros(len(grad), ctx.shape[1])
                wide.scatter_(1, ctx.columns[group].expand(len(grad), -1), grad)
            if ctx.rows is None:
                total += wide
            else:
                total.index_add_(0, ctx.rows[group], wide)
        return total, None, None


def kept_distances(
    x: Tensor, weight: Tensor, inputs: Kept | None, outputs: Kept | None, group: int, p: float
) -> Tensor:
    """Return the l_p distances of the kept inputs to the weights of the kept outputs.

    Args:
        x: [B, kept inputs]; every `group` consecutive rows are a group.
        weight: [out, in].
        inputs: the inputs that x consists of, or None for all of them.
        outputs: the outputs to compute, or None for all of them.
        group: number of samples in a group; the last group may be smaller.
        p: a number >= 1, or infinity.

    Returns:
        [B, kept outputs], differentiable in x and weight.
    """
    rows, columns = outputs and outputs.index, inputs and inputs.index
    if rows is None and columns is None:
        return lp_distance(x, weight, p)
    parts: Sequence[Tensor] = _Parts.apply(weight, rows, columns)  # pyright: ignore[reportAssignmentType]
    return torch.cat([lp_distance(own, part, p) for own, part in zip(x.split(group), parts, strict=True)])


def shift_kept(shift: MeanShift, x: Tensor, kept: Kept, group: int) -> Tensor:
    """Apply a mean shift in training to kept outputs: the mean of a feature is over the samples that kept it.

    The running mean of a feature that no sample kept does not change.

    Args:
        shift: in training mode.
        x: [B, kept outputs], the outputs of `kept_distances`.
        kept: the outputs that x consists of.
        group: as in `kept_distances`.
    """
    groups = len(kept.index)
    padded = F.pad(x, (0, 0, 0, groups * group - len(x))).unflatten(0, (groups, group))
    samples = torch.full_like(kept.index, group, dtype=x.dtype)
    samples[-1] = len(x) - (groups - 1) * group
    # A matrix with a row for each group, and then a sum over rows: unlike `index_add`, its order is fixed on a GPU.
    empty = x.new_zeros(groups, kept.features)
    total = empty.scatter(1, kept.index, padded.sum(1)).sum(0)
    count = empty.scatter(1, kept.index, samples).sum(0)
    mean = total / count.clamp(min=1)
    assert shift.momentum is not None
    with torch.no_grad():
        shift.running_mean.lerp_(mean, count.clamp(max=1) * shift.momentum)
    return (padded - mean[kept.index].unsqueeze(1)).flatten(0, 1)[: len(x)]


def dropped_distances(layers: Sequence[DistanceModule], x: Tensor, keep: float, seed: int, group: int) -> Tensor:
    """Return the outputs of distance layers under dropout, at any p and with the means of the batch.

    The mask of the inputs of a layer is drawn before the previous layer is computed, which then computes only the
    outputs that are kept. Neither the inputs of the first layer nor the outputs of the last one are dropped.

    Args:
        layers: fully connected layers in training mode; those before the last one have no bias.
        x: [B, d], the inputs of the first layer.
        keep: the probability with which an output of a layer is kept; 1 draws no masks.
        seed: of the masks.
        group: number of consecutive samples that share a mask; 0 for the whole batch.
    """
    at_least("group", group, 0)
    sources, size = mask_sources(seed, x.device), group or len(x)
    groups, kept = -(-len(x) // size), None
    for layer in layers:
        keeps = keep < 1 and layer is not layers[-1]
        following = draw_kept(len(layer.weight), keep, groups, *sources) if keeps else None
        x = layer.with_slopes(partial(kept_distances, x, layer.weight, kept, following, size))
        if layer.shift is not None:
            x = layer.shift(x) if following is None else shift_kept(layer.shift, x, following, size)
        x, kept = x if layer.bias is None else x + layer.bias, following
    return x
