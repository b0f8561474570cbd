"""The operations as `torch.library` sees them: schemas, fake kernels and gradients.

`linfnet::lp_distance` is differentiable and keeps what its backward needs; `linfnet::lp_distance_inference` keeps
nothing. Low-level registration, because `torch.library.custom_op` alone costs more than a small layer does.
"""

from typing import Any

import torch
from torch import Tensor

from linfnet.ops.registry import get

_library = torch.library.Library("linfnet", "DEF")


def _define(schema: str, function: Any, fake: Any) -> None:
    name = schema.split("(")[0]
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(name, function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"linfnet::{name}", fake, lib=_library)


def _inference(x: Tensor, w: Tensor, p: float, impl: str) -> Tensor:
    return get(impl).forward(x, w, p)


def _inference_fake(x: Tensor, w: Tensor, p: float, impl: str) -> Tensor:
    return x.new_empty(x.shape[0], w.shape[0])


def _forward(x: Tensor, w: Tensor, p: float, impl: str) -> tuple[Tensor, Tensor]:
    return get(impl).forward_saving(x, w, p)


def _forward_fake(x: Tensor, w: Tensor, p: float, impl: str) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape[0], w.shape[0]), get(impl).saved_like(x, w, p)


def _backward(
    grad: Tensor, x: Tensor, w: Tensor, y: Tensor, saved: Tensor, p: float, impl: str, need_x: bool, need_w: bool
) -> tuple[Tensor, Tensor]:
    return get(impl).backward(grad, x, w, y, saved, p, need_x, need_w)


def _backward_fake(
    grad: Tensor, x: Tensor, w: Tensor, y: Tensor, saved: Tensor, p: float, impl: str, need_x: bool, need_w: bool
) -> tuple[Tensor, Tensor]:
    return (
        torch.empty_like(x) if need_x else x.new_empty(0),
        torch.empty_like(w) if need_w else w.new_empty(0),
    )


def _bounds_inference(lower: Tensor, upper: Tensor, w: Tensor, impl: str) -> tuple[Tensor, Tensor]:
    return get(impl).bounds(lower, upper, w)


def _bounds_inference_fake(lower: Tensor, upper: Tensor, w: Tensor, impl: str) -> tuple[Tensor, Tensor]:
    shape = (lower.shape[0], w.shape[0])
    return lower.new_empty(shape), lower.new_empty(shape)


def _bounds(lower: Tensor, upper: Tensor, w: Tensor, impl: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return get(impl).bounds_saving(lower, upper, w)


def _bounds_fake(lower: Tensor, upper: Tensor, w: Tensor, impl: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    shape = (lower.shape[0], w.shape[0])
    near, far = (lower.new_empty(shape, dtype=torch.int32) for _ in range(2))
    return lower.new_empty(shape), lower.new_empty(shape), near, far


_define("lp_distance_inference(Tensor x, Tensor w, float p, str impl) -> Tensor", _inference, _inference_fake)
_define("lp_distance(Tensor x, Tensor w, float p, str impl) -> (Tensor, Tensor)", _forward, _forward_fake)
_define(
    "lp_distance_backward(Tensor grad, Tensor x, Tensor w, Tensor y, Tensor saved, float p, str impl, "
    "bool need_x, bool need_w) -> (Tensor, Tensor)",
    _backward,
    _backward_fake,
)
_define(
    "linf_distance_bounds_inference(Tensor lower, Tensor upper, Tensor w, str impl) -> (Tensor, Tensor)",
    _bounds_inference,
    _bounds_inference_fake,
)
_define(
    "linf_distance_bounds(Tensor lower, Tensor upper, Tensor w, str impl) -> (Tensor, Tensor, Tensor, Tensor)",
    _bounds,
    _bounds_fake,
)

lp_distance_inference = torch.ops.linfnet.lp_distance_inference.default
lp_distance_saving = torch.ops.linfnet.lp_distance.default
lp_distance_backward = torch.ops.linfnet.lp_distance_backward.default
bounds_inference = torch.ops.linfnet.linf_distance_bounds_inference.default
bounds_saving = torch.ops.linfnet.linf_distance_bounds.default


def _save_distance(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, w, ctx.p, ctx.impl = inputs
    ctx.save_for_backward(x, w, *output)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _distance_gradients(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    if grad is None:
        return None, None, None, None
    need_x, need_w = ctx.needs_input_grad[:2]
    grad_x, grad_w = lp_distance_backward(grad.contiguous(), *ctx.saved_tensors, ctx.p, ctx.impl, need_x, need_w)
    return grad_x if need_x else None, grad_w if need_w else None, None, None


def _save_bounds(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    lower, upper, w, _ = inputs
    ctx.save_for_backward(lower, upper, w, output[2], output[3])
    ctx.mark_non_differentiable(output[2], output[3])
    ctx.set_materialize_grads(False)


def _bounds_gradients(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    """Each bound flows to one end point of one coordinate: sparse, so plain torch serves every implementation."""
    lower, upper, w, near, far = ctx.saved_tensors
    grad_lower, grad_upper, grad_w = torch.zeros_like(lower), torch.zeros_like(upper), torch.zeros_like(w)
    for grad, index, farthest in ((grads[0], near.long(), False), (grads[1], far.long(), True)):
        if grad is None or lower.shape[1] == 0:
            continue
        anchor = w.t().gather(0, index)
        below, above = lower.gather(1, index) - anchor, upper.gather(1, index) - anchor
        if farthest:
            at_lower = below.abs() > above.abs()
            flow = grad * torch.where(at_lower, below, above).sign()
        else:
            at_lower = below > 0
            flow = grad * (below > 0).to(grad.dtype) - grad * (above < 0).to(grad.dtype)
        grad_lower.scatter_add_(1, index, torch.where(at_lower, flow, 0))
        grad_upper.scatter_add_(1, index, torch.where(at_lower, 0, flow))
        grad_w.scatter_add_(1, index.t(), flow.neg().t())
    return grad_lower, grad_upper, grad_w, None


def _no_second_gradients(ctx: Any, *grads: Tensor | None) -> None:
    raise NotImplementedError("lp_distance can be differentiated once, not twice")


torch.library.register_autograd("linfnet::lp_distance_backward", _no_second_gradients, lib=_library)
torch.library.register_autograd("linfnet::lp_distance", _distance_gradients, setup_context=_save_distance, lib=_library)
torch.library.register_autograd(
    "linfnet::linf_distance_bounds", _bounds_gradients, setup_context=_save_bounds, lib=_library
)
