"""The public functions: they check arguments, flatten shapes to matrices and call a `torch.library` operator.

`linfnet::lp_distance` is differentiable and saves what its backward pass needs; `linfnet::lp_distance_inference` saves
nothing.
"""

import math
from typing import Any

import torch
from torch import Tensor

from linfnet.errors import ArgumentError
from linfnet.ops.implementations import bounds_like, choose, get, gradients_like
from linfnet.ops.operators import calling, define, refuse_second_gradients, set_gradients


def _inference_fake(x: Tensor, w: Tensor, p: float, impl: str) -> Tensor:
    return x.new_empty(x.shape[0], w.shape[0])


def _forward_fake(x: Tensor, w: Tensor, p: float, impl: str) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape[0], w.shape[0]), get(impl).saved_like(x, w, p)


def _backward_fake(
    grad: Tensor, x: Tensor, w: Tensor, y: Tensor, saved: Tensor, p: float, need_x: bool, need_w: bool, impl: str
) -> tuple[Tensor, Tensor]:
    return gradients_like(x, w, need_x, need_w)


def _bounds_inference_fake(lower: Tensor, upper: Tensor, w: Tensor, impl: str) -> tuple[Tensor, Tensor]:
    return bounds_like(lower, w)


def _bounds_fake(lower: Tensor, upper: Tensor, w: Tensor, impl: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (*bounds_like(lower, w), *bounds_like(lower, w, torch.int32))


lp_distance_inference = define(
    "lp_distance_inference(Tensor x, Tensor w, float p, str impl) -> Tensor", calling("forward", get), _inference_fake
)
lp_distance_saving = define(
    "lp_distance(Tensor x, Tensor w, float p, str impl) -> (Tensor, Tensor)",
    calling("forward_saving", get),
    _forward_fake,
)
lp_distance_backward = define(
    "lp_distance_backward(Tensor grad, Tensor x, Tensor w, Tensor y, Tensor saved, float p, bool need_x, bool need_w, "
    "str impl) -> (Tensor, Tensor)",
    calling("backward", get),
    _backward_fake,
)
bounds_inference = define(
    "linf_distance_bounds_inference(Tensor lower, Tensor upper, Tensor w, str impl) -> (Tensor, Tensor)",
    calling("bounds", get),
    _bounds_inference_fake,
)
bounds_saving = define(
    "linf_distance_bounds(Tensor lower, Tensor upper, Tensor w, str impl) -> (Tensor, Tensor, Tensor, Tensor)",
    calling("bounds_saving", get),
    _bounds_fake,
)


def _save_distance(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, w, ctx.p, ctx.impl = inputs
    ctx.save_for_backward(x, w, *output)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _distance_gradients(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    if grad is None:
        return None, None, None, None
    need_x, need_w = ctx.needs_input_grad[:2]
    grad_x, grad_w = lp_distance_backward(grad.contiguous(), *ctx.saved_tensors, ctx.p, need_x, need_w, ctx.impl)
    return grad_x if need_x else None, grad_w if need_w else None, None, None


def _save_bounds(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    lower, upper, w, _ = inputs
    ctx.save_for_backward(lower, upper, w, output[2], output[3])
    ctx.mark_non_differentiable(output[2], output[3])
    ctx.set_materialize_grads(False)


def bound_flow(grad: Tensor, below: Tensor, above: Tensor, farthest: bool) -> tuple[Tensor, Tensor]:
    """Return the gradients of bounds in the end points that decide them, and whether these are lower end points.

    Args:
        grad: the gradients of the bounds.
        below, above: the deciding lower and upper end points minus the weights.
        farthest: whether the bounds are the largest distances, not the smallest.
    """
    if farthest:
        at_lower = below.abs() > above.abs()
        return grad * torch.where(at_lower, below, above).sign(), at_lower
    at_lower = below > 0
    return grad * at_lower.to(grad.dtype) - grad * (above < 0).to(grad.dtype), at_lower


def _bounds_gradients(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    """Return sparse gradients, in plain torch: each bound depends on one end point of one feature."""
    lower, upper, w, near, far = ctx.saved_tensors
    grad_lower, grad_upper, grad_w = torch.zeros_like(lower), torch.zeros_like(upper), torch.zeros_like(w)
    for grad, index, farthest in ((grads[0], near.long(), False), (grads[1], far.long(), True)):
        if grad is None or lower.shape[1] == 0:
            continue
        anchor = w.t().gather(0, index)
        below, above = lower.gather(1, index) - anchor, upper.gather(1, index) - anchor
        flow, at_lower = bound_flow(grad, below, above, farthest)
        grad_lower.scatter_add_(1, index, torch.where(at_lower, flow, 0))
        grad_upper.scatter_add_(1, index, torch.where(at_lower, 0, flow))
        grad_w.scatter_add_(1, index.t(), flow.neg().t())
    return grad_lower, grad_upper, grad_w, None


refuse_second_gradients("lp_distance")
set_gradients("lp_distance", _distance_gradients, _save_distance)
set_gradients("linf_distance_bounds", _bounds_gradients, _save_bounds)


def check_pair(name: str, x: Tensor, w: Tensor) -> None:
    """Raise an error unless x [..., in] and w [out, in] have fitting shapes, one dtype and one device."""
    if w.dim() != 2:
        raise ArgumentError(f"w has shape {tuple(w.shape)}; expected [out, in]")
    if x.dim() == 0 or x.shape[-1] != w.shape[1]:
        raise ArgumentError(
            f"{name} has shape {tuple(x.shape)}; expected [..., {w.shape[1]}] as w has {tuple(w.shape)}"
        )
    if x.dtype != w.dtype:
        raise ArgumentError(f"{name} has dtype {x.dtype} and w {w.dtype}; expected the same")
    if x.device != w.device:
        raise ArgumentError(f"{name} is on {x.device} and w on {w.device}; expected the same")


def check_p(p: float, name: str = "p") -> float:
    """Return p as a float; raise an error if it is not a number from 1 to infinity."""
    if not isinstance(p, int | float):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ArgumentError(f"{name} is {p!r}; expected a number")
    if not p >= 1:
        raise ArgumentError(f"{name} is {p}; expected a number >= 1, or infinity")
    return float(p)


def lp_distance(x: Tensor, w: Tensor, p: float = math.inf, *, impl: str | None = None) -> Tensor:
    """Compute the l_p distance of every row of x to every row of w.

    Args:
        x: [..., in], float32 or float64.
        w: [out, in], of the same dtype and device.
        p: a number >= 1, or `math.inf`.
        impl: the name of an implementation ("reference"); by default, the preferred one that supports the tensors.

    Returns:
        [..., out]. Differentiable in x and w with the exact gradients: zero where x = w; at infinity the first
        coordinate that attains the maximum receives the gradient.

    >>> x, w = torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0], [1.0, -1.0]])
    >>> lp_distance(x, w, 2.0)
    tensor([[5.0000, 1.4142]])
    >>> lp_distance(x, w, math.inf)
    tensor([[4., 1.]])
    """
    p = check_p(p)
    check_pair("x", x, w)
    name = choose(x.device.type, x.dtype, impl)
    rows = x.contiguous() if x.dim() == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    w = w.contiguous()
    if torch.is_grad_enabled() and (x.requires_grad or w.requires_grad):
        y = lp_distance_saving(rows, w, p, name)[0]
    else:
        y = lp_distance_inference(rows, w, p, name)
    return y if x.dim() == 2 else y.reshape(*x.shape[:-1], w.shape[0])


def linf_distance_bounds(lower: Tensor, upper: Tensor, w: Tensor, *, impl: str | None = None) -> tuple[Tensor, Tensor]:
    """Compute the smallest and largest infinity distance to each row of w over the box lower <= x <= upper.

    Subtraction, absolute value and maximum are monotone even in floating-point arithmetic, so the bounds enclose the
    result of `lp_distance(x, w, math.inf)`, including rounding, for every x in the box.

    Args:
        lower: [..., in].
        upper: [..., in], at least `lower` in every element.
        w: [out, in].
        impl: as in `lp_distance`.

    Returns:
        Two tensors [..., out], differentiable in all three arguments.

    >>> w = torch.tensor([[0.0, 1.0]])
    >>> linf_distance_bounds(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.5, 0.25]]), w)
    (tensor([[0.7500]]), tensor([[1.]]))
    """
    check_pair("lower", lower, w)
    check_pair("upper", upper, w)
    if lower.shape != upper.shape:
        raise ArgumentError(f"lower has shape {tuple(lower.shape)} and upper {tuple(upper.shape)}; expected the same")
    name = choose(lower.device.type, lower.dtype, impl)
    shape = (math.prod(lower.shape[:-1]), lower.shape[-1])
    box = lower.reshape(shape).contiguous(), upper.reshape(shape).contiguous()
    if torch.is_grad_enabled() and (lower.requires_grad or upper.requires_grad or w.requires_grad):
        bounds = bounds_saving(*box, w.contiguous(), name)[:2]
    else:
        bounds = bounds_inference(*box, w.contiguous(), name)
    smallest, largest = (b.reshape(*lower.shape[:-1], w.shape[0]) for b in bounds)
    return smallest, largest
