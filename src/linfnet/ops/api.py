"""The operations as users call them: arguments are checked, shapes folded to matrices, the kernel chosen."""

import math

import torch
from torch import Tensor

from linfnet.errors import ArgumentError
from linfnet.ops import registry, torch_ops


def _check_pair(name: str, x: Tensor, w: Tensor) -> None:
    if w.dim() != 2:
        raise ArgumentError(f"w has shape {tuple(w.shape)}; wanted [out, in]")
    if x.dim() == 0 or x.shape[-1] != w.shape[1]:
        raise ArgumentError(f"{name} has shape {tuple(x.shape)}; wanted [..., {w.shape[1]}] as w is {tuple(w.shape)}")
    if x.dtype != w.dtype:
        raise ArgumentError(f"{name} has dtype {x.dtype} and w {w.dtype}; wanted the same")
    if x.device != w.device:
        raise ArgumentError(f"{name} is on {x.device} and w on {w.device}; wanted the same")


def check_p(p: float, name: str = "p") -> float:
    """p as a float, or an error if it is not a number from 1 to infinity."""
    if not isinstance(p, int | float):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ArgumentError(f"{name} is {p!r}; wanted a number")
    if not p >= 1:
        raise ArgumentError(f"{name} is {p}; wanted a number >= 1 or math.inf")
    return float(p)


def lp_distance(x: Tensor, w: Tensor, p: float = math.inf, *, impl: str | None = None) -> Tensor:
    """The l_p distance of every row of x to every row of w.

    Args:
        x: [..., in], float32 or float64.
        w: [out, in], of the same dtype and device.
        p: a number >= 1, or `math.inf`.
        impl: an implementation by name ("reference"); by default the fastest that serves the tensors.

    Returns:
        [..., out]. Differentiable in x and w with the exact gradients: zero where x = w; at infinity the first largest
        coordinate receives it.

    >>> x, w = torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0], [1.0, -1.0]])
    >>> lp_distance(x, w, 2.0)
    tensor([[5.0000, 1.4142]])
    >>> lp_distance(x, w, math.inf)
    tensor([[4., 1.]])
    """
    p = check_p(p)
    _check_pair("x", x, w)
    name = registry.choose(x.device.type, x.dtype, impl)
    rows = x.contiguous() if x.dim() == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    w = w.contiguous()
    if torch.is_grad_enabled() and (x.requires_grad or w.requires_grad):
        y = torch_ops.lp_distance_saving(rows, w, p, name)[0]
    else:
        y = torch_ops.lp_distance_inference(rows, w, p, name)
    return y if x.dim() == 2 else y.reshape(*x.shape[:-1], w.shape[0])


def linf_distance_bounds(lower: Tensor, upper: Tensor, w: Tensor, *, impl: str | None = None) -> tuple[Tensor, Tensor]:
    """The smallest and largest infinity distance to each row of w over the box lower <= x <= upper.

    Subtraction, absolute value and maximum are monotone as floating-point operations too: the bounds enclose the result
    of `lp_distance(x, w, math.inf)`, rounding included, for every x in the box.

    Args:
        lower: [..., in].
        upper: [..., in], nowhere below `lower`.
        w: [out, in].
        impl: as in `lp_distance`.

    Returns:
        two tensors [..., out], differentiable in all three arguments.

    >>> w = torch.tensor([[0.0, 1.0]])
    >>> linf_distance_bounds(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.5, 0.25]]), w)
    (tensor([[0.7500]]), tensor([[1.]]))
    """
    _check_pair("lower", lower, w)
    _check_pair("upper", upper, w)
    if lower.shape != upper.shape:
        raise ArgumentError(f"lower has shape {tuple(lower.shape)} and upper {tuple(upper.shape)}; wanted the same")
    name = registry.choose(lower.device.type, lower.dtype, impl)
    shape = (math.prod(lower.shape[:-1]), lower.shape[-1])
    box = lower.reshape(shape).contiguous(), upper.reshape(shape).contiguous()
    if torch.is_grad_enabled() and (lower.requires_grad or upper.requires_grad or w.requires_grad):
        bounds = torch_ops.bounds_saving(*box, w.contiguous(), name)[:2]
    else:
        bounds = torch_ops.bounds_inference(*box, w.contiguous(), name)
    smallest, largest = (b.reshape(*lower.shape[:-1], w.shape[0]) for b in bounds)
    return smallest, largest
