"""Distances of neurons that have connections to some inputs only, at p = infinity: public functions and operators.

The connections of all neurons are stored in compressed rows (CSR): connections offsets[o] to offsets[o + 1] - 1 belong
to neuron o, connection c leads to input index[c] and has the weight weight[c]. The functions check arguments, flatten
shapes to matrices and call a `torch.library` operator, as in `linfnet.ops.api`.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from linfnet.errors import ArgumentError
from linfnet.ops.api import bound_flow
from linfnet.ops.operators import calling, define, refuse_second_gradients, set_gradients
from linfnet.ops.sparse_cpu import SparseCpu
from linfnet.ops.sparse_reference import SPARSE_KERNELS as SPARSE_KERNELS
from linfnet.ops.sparse_reference import Layer as Layer
from linfnet.ops.sparse_reference import SparseImplementation as SparseImplementation
from linfnet.ops.sparse_reference import bounds_like, choose_sparse, get_sparse, gradients_like, outputs_like
from linfnet.ops.sparse_reference import check_connections as check_connections

_CSR = "Tensor weight, Tensor index, Tensor offsets"


def distance_fake(x: Tensor, weight: Tensor, index: Tensor, offsets: Tensor, *others: Any) -> Tensor:
    """Return distances without data, for the operators at infinity and at a finite p."""
    return outputs_like(x, offsets)


def gradients_fake(grad: Tensor, x: Tensor, weight: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    """Return gradients without data, for backward operators: their last arguments are need_x, need_w and impl."""
    return gradients_like(x, weight, *others[-3:-1])


def _saving_fake(x: Tensor, weight: Tensor, index: Tensor, offsets: Tensor, impl: str) -> tuple[Tensor, Tensor]:
    return outputs_like(x, offsets), outputs_like(x, offsets, torch.int32)


def _bounds_fake(
    lower: Tensor, upper: Tensor, weight: Tensor, index: Tensor, offsets: Tensor, impl: str
) -> tuple[Tensor, Tensor]:
    return bounds_like(lower, offsets)


def _bounds_saving_fake(
    lower: Tensor, upper: Tensor, weight: Tensor, index: Tensor, offsets: Tensor, impl: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (*bounds_like(lower, offsets), *bounds_like(lower, offsets, torch.int32))


distance_inference = define(
    f"sparse_linf_distance_inference(Tensor x, {_CSR}, str impl) -> Tensor",
    calling("forward", get_sparse),
    distance_fake,
)
distance_saving = define(
    f"sparse_linf_distance(Tensor x, {_CSR}, str impl) -> (Tensor, Tensor)",
    calling("forward_saving", get_sparse),
    _saving_fake,
)
distance_backward = define(
    "sparse_linf_distance_backward(Tensor grad, Tensor x, Tensor weight, Tensor index, Tensor decisive, bool need_x, "
    "bool need_w, str impl) -> (Tensor, Tensor)",
    calling("backward", get_sparse),
    gradients_fake,
)
bounds_inference = define(
    f"sparse_linf_bounds_inference(Tensor lower, Tensor upper, {_CSR}, str impl) -> (Tensor, Tensor)",
    calling("bounds", get_sparse),
    _bounds_fake,
)
bounds_saving = define(
    f"sparse_linf_bounds(Tensor lower, Tensor upper, {_CSR}, str impl) -> (Tensor, Tensor, Tensor, Tensor)",
    calling("bounds_saving", get_sparse),
    _bounds_saving_fake,
)


def _save_distance(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, index, _, ctx.impl = inputs
    ctx.save_for_backward(x, weight, index, output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _distance_gradients(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    if grad is None:
        return None, None, None, None, None
    need_x, need_w = ctx.needs_input_grad[:2]
    grad_x, grad_w = distance_backward(grad.contiguous(), *ctx.saved_tensors, need_x, need_w, ctx.impl)
    return grad_x if need_x else None, grad_w if need_w else None, None, None, None


def _save_bounds(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    lower, upper, weight, index, _, _ = inputs
    ctx.save_for_backward(lower, upper, weight, index, output[2], output[3])
    ctx.mark_non_differentiable(output[2], output[3])
    ctx.set_materialize_grads(False)


def _bounds_gradients(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    """Return the gradients in plain torch: each bound depends on one end point of one input."""
    lower, upper, weight, index, near, far = ctx.saved_tensors
    grad_lower, grad_upper, grad_w = torch.zeros_like(lower), torch.zeros_like(upper), torch.zeros_like(weight)
    for grad, decisive, farthest in ((grads[0], near.long(), False), (grads[1], far.long(), True)):
        if grad is None:
            continue
        features, anchor = index[decisive].long(), weight[decisive]
        below, above = lower.gather(1, features) - anchor, upper.gather(1, features) - anchor
        flow, at_lower = bound_flow(grad, below, above, farthest)
        grad_lower.scatter_add_(1, features, torch.where(at_lower, flow, 0))
        grad_upper.scatter_add_(1, features, torch.where(at_lower, 0, flow))
        grad_w.scatter_add_(0, decisive.flatten(), flow.neg().flatten())
    return grad_lower, grad_upper, grad_w, None, None, None


refuse_second_gradients("sparse_linf_distance")
set_gradients("sparse_linf_distance", _distance_gradients, _save_distance)
set_gradients("sparse_linf_bounds", _bounds_gradients, _save_bounds)


def check_sparse(name: str, x: Tensor, weight: Tensor, index: Tensor, offsets: Tensor) -> None:
    """Raise an error for tensors whose shapes, dtypes or devices do not fit."""
    if weight.dim() != 1 or index.shape != weight.shape:
        raise ArgumentError(
            f"weight has shape {tuple(weight.shape)} and index {tuple(index.shape)}; expected the same [connections]"
        )
    if offsets.dim() != 1 or offsets.shape[0] < 1:
        raise ArgumentError(f"offsets has shape {tuple(offsets.shape)}; expected [out + 1]")
    if index.dtype != torch.int32 or offsets.dtype != torch.int32:
        raise ArgumentError(f"index has dtype {index.dtype} and offsets {offsets.dtype}; expected torch.int32")
    if x.dim() == 0:
        raise ArgumentError(f"{name} has shape (); expected [..., in]")
    if x.dtype != weight.dtype:
        raise ArgumentError(f"{name} has dtype {x.dtype} and weight {weight.dtype}; expected the same")
    if not x.device == weight.device == index.device == offsets.device:
        raise ArgumentError(
            f"{name} is on {x.device}, weight on {weight.device}, index on {index.device} and offsets on "
            f"{offsets.device}; expected the same"
        )


def sparse_linf_distance(
    x: Tensor, weight: Tensor, index: Tensor, offsets: Tensor, *, impl: str | None = None
) -> Tensor:
    """Compute y[..., o] = max |x[..., index[c]] - weight[c]| over the connections c of each neuron o.

    Args:
        x: [..., in], float32 or float64.
        weight: [connections], of the same dtype and device.
        index: int32 [connections], the input of each connection, from 0 to in - 1.
        offsets: int32 [out + 1], from 0 to the number of connections; every neuron has at least one connection.
        impl: the name of an implementation ("reference"); by default, the preferred one that supports the tensors.

    Returns:
        [..., out]. Differentiable in x and weight with the exact gradients: zero where x equals the weight; the first
        connection that attains the maximum receives the gradient.

    >>> x, weight = torch.tensor([[0.0, 1.0, 2.0]]), torch.tensor([3.0, 0.5, 4.0])
    >>> index, offsets = torch.tensor([0, 2, 1], dtype=torch.int32), torch.tensor([0, 2, 3], dtype=torch.int32)
    >>> sparse_linf_distance(x, weight, index, offsets)
    tensor([[3., 3.]])
    """
    check_sparse("x", x, weight, index, offsets)
    name = choose_sparse(x.device.type, x.dtype, impl)
    rows = x.contiguous() if x.dim() == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    weight, index, offsets = weight.contiguous(), index.contiguous(), offsets.contiguous()
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        y = distance_saving(rows, weight, index, offsets, name)[0]
    else:
        y = distance_inference(rows, weight, index, offsets, name)
    return y if x.dim() == 2 else y.reshape(*x.shape[:-1], offsets.shape[0] - 1)


def sparse_linf_measured(x: Tensor, layers: Sequence[Layer]) -> tuple[Tensor, Tensor] | None:
    """Compute a stack of layers, without gradients, and bounds on the magnitudes of their steps, for certificates.

    Args:
        x: [n, in].
        layers: weight, index and offsets of each layer, as in `sparse_linf_distance`, the mean [out] or None, which is
            subtracted from the distances, and the bias [out] or None, which is added after that.

    Returns:
        The outputs [n, out] of the last layer, with the bits of separate steps, and bounds [steps, n] on the magnitudes
        of the results of all steps that round: for each layer of the distances (without a mean: of the outputs), of the
        differences from the mean, and of the sums with the bias. None if no kernel computes this for such tensors.

    >>> weight, index = torch.tensor([0.0, 1.0]), torch.tensor([0, 1], dtype=torch.int32)
    >>> x, offsets = torch.tensor([[2.0, -3.0]]), torch.tensor([0, 1, 2], dtype=torch.int32)
    >>> found = sparse_linf_measured(x, [(weight, index, offsets, torch.tensor([1.0, 3.0]), None)])
    >>> found is None or (found[0].tolist(), found[1].tolist()) == ([[1.0, 1.0]], [[4.0], [7.0]])
    True
    """
    chosen = get_sparse(choose_sparse(x.device.type, x.dtype))
    if x.dim() != 2 or not layers or not isinstance(chosen, SparseCpu) or not chosen.measures:
        return None
    for weight, index, offsets, mean, bias in layers:
        check_sparse("x", x, weight, index, offsets)
        for name, term in (("mean", mean), ("bias", bias)):
            if term is None:
                continue
            if term.shape != (outs := offsets.shape[0] - 1,) or term.dtype != x.dtype or term.device != x.device:
                raise ArgumentError(
                    f"{name} has shape {tuple(term.shape)} and dtype {term.dtype} on {term.device}; expected [{outs}] "
                    f"and {x.dtype} on {x.device}"
                )
    return chosen.measured(x, layers)


def sparse_linf_bounds(
    lower: Tensor, upper: Tensor, weight: Tensor, index: Tensor, offsets: Tensor, *, impl: str | None = None
) -> tuple[Tensor, Tensor]:
    """Compute the smallest and largest sparse distance of each neuron over the box lower <= x <= upper.

    The bounds enclose the result of `sparse_linf_distance`, including rounding, for every x in the box, for the same
    reason as those of `linf_distance_bounds`.

    Args:
        lower: [..., in].
        upper: [..., in], at least `lower` in every element.
        weight, index, offsets, impl: as in `sparse_linf_distance`.

    Returns:
        Two tensors [..., out], differentiable in lower, upper and weight.

    >>> weight, index = torch.tensor([0.0, 1.0]), torch.tensor([0, 1], dtype=torch.int32)
    >>> box = torch.tensor([[0.0, 0.0]]), torch.tensor([[0.5, 0.25]])
    >>> sparse_linf_bounds(*box, weight, index, torch.tensor([0, 2], dtype=torch.int32))
    (tensor([[0.7500]]), tensor([[1.]]))
    """
    check_sparse("lower", lower, weight, index, offsets)
    check_sparse("upper", upper, weight, index, offsets)
    if lower.shape != upper.shape:
        raise ArgumentError(f"lower has shape {tuple(lower.shape)} and upper {tuple(upper.shape)}; expected the same")
    name = choose_sparse(lower.device.type, lower.dtype, impl)
    shape = (math.prod(lower.shape[:-1]), lower.shape[-1])
    box = lower.reshape(shape).contiguous(), upper.reshape(shape).contiguous()
    csr = weight.contiguous(), index.contiguous(), offsets.contiguous()
    if torch.is_grad_enabled() and (lower.requires_grad or upper.requires_grad or weight.requires_grad):
        bounds = bounds_saving(*box, *csr, name)[:2]
    else:
        bounds = bounds_inference(*box, *csr, name)
    smallest, largest = (b.reshape(*lower.shape[:-1], offsets.shape[0] - 1) for b in bounds)
    return smallest, largest
