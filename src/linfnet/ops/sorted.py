"""Weighted sums of the largest |x - w| of a neuron, the neurons of SortNet, and their bounds over boxes.

    y[b, o] = sum over t of factors[t] * (the (t + 1)-th largest |x[b, i] - w[o, i]|)

Products and sums are rounded one by one, from the smallest term to the largest: the result has the same bits on every
device and in every implementation. All factors are at least 0, so that every step is monotone even in floating point.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from linfnet.errors import ArgumentError
from linfnet.ops import cpu
from linfnet.ops.api import check_pair
from linfnet.ops.cuda import sorted as cuda
from linfnet.ops.cuda.nvrtc import Launcher
from linfnet.ops.implementations import bounds_like, choose
from linfnet.ops.operators import define, set_gradients
from linfnet.ops.reference import blocks

# Largest number of factors: the kernels find so many largest numbers.
MOST_TERMS = 16


def _weighted(sizes: Tensor, factors: Sequence[float]) -> Tensor:
    """Return the sum over the last dimension of sizes [..., terms], in descending order, times the factors."""
    *rest, last = zip(sizes.unbind(-1), factors, strict=True)
    total = last[0] * last[1]
    for size, factor in reversed(rest):
        total = total + size * factor
    return total


def _reference(x: Tensor, w: Tensor, factors: Sequence[float], index: Tensor | None) -> Tensor:
    y = x.new_zeros(x.shape[0], w.shape[0])
    for rows, outs in blocks(x, w):
        sizes = (x[rows].unsqueeze(1) - w[outs]).abs_()
        if index is None:
            largest = sizes.topk(len(factors)).values
        else:
            largest, order = sizes.sort(dim=-1, descending=True, stable=True)
            largest, index[rows, outs] = largest[..., : len(factors)], order[..., : len(factors)].int()
        y[rows, outs] = _weighted(largest, factors)
    return y


def _reference_bounds(lower: Tensor, upper: Tensor, w: Tensor, factors: Sequence[float]) -> tuple[Tensor, Tensor]:
    smallest, largest = (bound.zero_() for bound in bounds_like(lower, w))
    for rows, outs in blocks(lower, w):
        below, above = lower[rows].unsqueeze(1) - w[outs], upper[rows].unsqueeze(1) - w[outs]
        # The absolute value makes a negative zero positive.
        gap = torch.maximum(below, above.neg()).clamp_(min=0).abs_()
        farthest = torch.maximum(below.abs_(), above.abs_())
        smallest[rows, outs] = _weighted(gap.topk(len(factors)).values, factors)
        largest[rows, outs] = _weighted(farthest.topk(len(factors)).values, factors)
    return smallest, largest


def _distance(x: Tensor, w: Tensor, factors: Sequence[float], impl: str, index: Tensor | None) -> Tensor:
    if 0 not in (x.shape[0], w.shape[0]):
        if impl == "cpu" and cpu.sorts():
            return cpu.sorted_distance(x.contiguous(), w.contiguous(), factors, index)
        if impl == "cuda":
            return cuda.distance(Launcher(), x.contiguous(), w.contiguous(), factors, index)
    return _reference(x, w, factors, index)


def _call(x: Tensor, w: Tensor, factors: Sequence[float], impl: str) -> Tensor:
    return _distance(x, w, factors, impl, None)


def _call_saving(x: Tensor, w: Tensor, factors: Sequence[float], impl: str) -> tuple[Tensor, Tensor]:
    index = _index_like(x, w, factors)
    return _distance(x, w, factors, impl, index), index


def _call_bounds(lower: Tensor, upper: Tensor, w: Tensor, factors: Sequence[float], impl: str) -> tuple[Tensor, Tensor]:
    if 0 not in (lower.shape[0], w.shape[0]):
        if impl == "cpu" and cpu.sorts():
            return cpu.sorted_bounds(lower.contiguous(), upper.contiguous(), w.contiguous(), factors)
        if impl == "cuda":
            return cuda.bounds(Launcher(), lower.contiguous(), upper.contiguous(), w.contiguous(), factors)
    return _reference_bounds(lower, upper, w, factors)


def _index_like(x: Tensor, w: Tensor, factors: Sequence[float]) -> Tensor:
    return x.new_empty((x.shape[0], w.shape[0], len(factors)), dtype=torch.int32)


def _fake(x: Tensor, w: Tensor, factors: Sequence[float], impl: str) -> Tensor:
    return x.new_empty(x.shape[0], w.shape[0])


def _saving_fake(x: Tensor, w: Tensor, factors: Sequence[float], impl: str) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape[0], w.shape[0]), _index_like(x, w, factors)


def _bounds_fake(lower: Tensor, upper: Tensor, w: Tensor, factors: Sequence[float], impl: str) -> tuple[Tensor, Tensor]:
    return bounds_like(lower, w)


sorted_inference = define(
    "sorted_linf_distance_inference(Tensor x, Tensor w, float[] factors, str impl) -> Tensor", _call, _fake
)
sorted_saving = define(
    "sorted_linf_distance(Tensor x, Tensor w, float[] factors, str impl) -> (Tensor, Tensor)",
    _call_saving,
    _saving_fake,
)
sorted_bounds = define(
    "sorted_linf_bounds(Tensor lower, Tensor upper, Tensor w, float[] factors, str impl) -> (Tensor, Tensor)",
    _call_bounds,
    _bounds_fake,
)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, w, ctx.factors, ctx.impl = inputs
    ctx.save_for_backward(x, w, output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    """Return the gradients: each output depends on one input for each factor."""
    if grad is None:
        return None, None, None, None
    x, w, index = ctx.saved_tensors
    (n, out, terms), (need_x, need_w) = index.shape, ctx.needs_input_grad[:2]
    by_row, by_neuron = index.view(n, out * terms), index.transpose(0, 1).reshape(out, n * terms)
    anchor = w.gather(1, by_neuron.long()).view(out, n, terms).transpose(0, 1)
    sign = (x.gather(1, by_row.long()).view(n, out, terms) - anchor).sign_()
    flow = sign.mul_(grad.new_tensor(ctx.factors)).mul_(grad.unsqueeze(-1))
    grad_x, grad_w = None, None
    if need_x:
        grad_x = _added(by_row, flow.view(n, out * terms), x.shape[1], ctx.impl)
    if need_w:
        grad_w = _added(by_neuron, flow.neg().transpose(0, 1).reshape(out, n * terms), x.shape[1], ctx.impl)
    return grad_x, grad_w, None, None


def _added(index: Tensor, flow: Tensor, features: int, impl: str) -> Tensor:
    """Return [rows, features]: the sums of flow [rows, items] at the indices [rows, items]."""
    if impl == "cuda" and flow.numel():
        return cuda.scatter_add(Launcher(), index, flow, features)
    return flow.new_zeros(len(flow), features).scatter_add_(1, index.long(), flow)


set_gradients("sorted_linf_distance", _gradients, _save)


def _check_factors(factors: Sequence[float], features: int) -> list[float]:
    if not 1 <= len(factors) <= min(MOST_TERMS, features):
        raise ArgumentError(
            f"factors has {len(factors)} numbers; expected from 1 to {min(MOST_TERMS, features)} for {features} inputs"
        )
    if not all(0 <= factor <= 1 for factor in factors):
        raise ArgumentError(f"factors is {list(factors)}; expected numbers from 0 to 1")
    return [float(factor) for factor in factors]


def sorted_linf_distance(x: Tensor, w: Tensor, factors: Sequence[float], *, impl: str | None = None) -> Tensor:
    """Compute the weighted sum of the largest |x - w| for every row of x and every row of w.

    Args:
        x: [..., in], float32 or float64.
        w: [out, in], of the same dtype and device.
        factors: of the largest, the second largest ... |x - w|: from 1 to 16 numbers from 0 to 1, at most `in`, which
            the dtype represents exactly. The result is 1-Lipschitz in the l_inf norm of x if their sum is at most 1.
        impl: the name of an implementation, as in `lp_distance`.

    Returns:
        [..., out], with the same bits in every implementation. Differentiable in x and w: the t-th largest |x - w|
        receives the gradient times factors[t]; of equal ones, the first is the larger one.

    >>> x, w = torch.tensor([[0.0, 0.0, 0.0]]), torch.tensor([[3.0, 4.0, 1.0]])
    >>> sorted_linf_distance(x, w, [0.75, 0.25])
    tensor([[3.7500]])
    """
    check_pair("x", x, w)
    numbers, name = _check_factors(factors, w.shape[1]), choose(x.device.type, x.dtype, impl)
    rows = x.contiguous() if x.dim() == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    if torch.is_grad_enabled() and (x.requires_grad or w.requires_grad):
        y = sorted_saving(rows, w, numbers, name)[0]
    else:
        y = sorted_inference(rows, w, numbers, name)
    return y if x.dim() == 2 else y.reshape(*x.shape[:-1], w.shape[0])


@torch.no_grad()
def sorted_linf_bounds(
    lower: Tensor, upper: Tensor, w: Tensor, factors: Sequence[float], *, impl: str | None = None
) -> tuple[Tensor, Tensor]:
    """Compute the smallest and largest result of `sorted_linf_distance` over the box lower <= x <= upper.

    The bounds enclose the computed results, including rounding, for every x in the box: the t-th largest of some
    numbers is monotone in each of them, and so are the products with factors >= 0 and their rounded sums.

    Args:
        lower: [..., in].
        upper: [..., in], at least `lower` in every element.
        w, factors, impl: as in `sorted_linf_distance`.

    Returns:
        Two tensors [..., out], without gradients.

    >>> w = torch.tensor([[0.0, 1.0]])
    >>> sorted_linf_bounds(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.5, 0.25]]), w, [0.5, 0.5])
    (tensor([[0.3750]]), tensor([[0.7500]]))
    """
    check_pair("lower", lower, w)
    check_pair("upper", upper, w)
    if lower.shape != upper.shape:
        raise ArgumentError(f"lower has shape {tuple(lower.shape)} and upper {tuple(upper.shape)}; expected the same")
    numbers, name = _check_factors(factors, w.shape[1]), choose(lower.device.type, lower.dtype, impl)
    shape = (math.prod(lower.shape[:-1]), lower.shape[-1])
    bounds = sorted_bounds(lower.reshape(shape), upper.reshape(shape), w, numbers, name)
    smallest, largest = (bound.reshape(*lower.shape[:-1], w.shape[0]) for bound in bounds)
    return smallest, largest
