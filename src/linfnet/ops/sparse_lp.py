"""Distances of neurons that have connections to some inputs only, at any p: the public function and its operators.

Attacks follow the gradients at a finite p. The operator at p = infinity is in `linfnet.ops.sparse`.
"""

import math
from typing import Any

from torch import Tensor

from linfnet.ops.api import check_p
from linfnet.ops.operators import calling, define, refuse_second_gradients, set_gradients
from linfnet.ops.sparse import check_sparse, distance_fake, gradients_fake, sparse_linf_distance
from linfnet.ops.sparse_reference import choose_sparse, get_sparse

power = define(
    "sparse_lp_distance(Tensor x, Tensor weight, Tensor index, Tensor offsets, float p, str impl) -> Tensor",
    calling("power", get_sparse),
    distance_fake,
)
power_backward = define(
    "sparse_lp_distance_backward(Tensor grad, Tensor x, Tensor weight, Tensor index, Tensor offsets, Tensor y, "
    "float p, bool need_x, bool need_w, str impl) -> (Tensor, Tensor)",
    calling("power_backward", get_sparse),
    gradients_fake,
)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, index, offsets, ctx.p, ctx.impl = inputs
    ctx.save_for_backward(x, weight, index, offsets, output)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    need_x, need_w = ctx.needs_input_grad[:2]
    grad_x, grad_w = power_backward(grad.contiguous(), *ctx.saved_tensors, ctx.p, need_x, need_w, ctx.impl)
    return grad_x if need_x else None, grad_w if need_w else None, None, None, None, None


refuse_second_gradients("sparse_lp_distance")
set_gradients("sparse_lp_distance", _gradients, _save)


def sparse_lp_distance(
    x: Tensor, weight: Tensor, index: Tensor, offsets: Tensor, p: float = math.inf, *, impl: str | None = None
) -> Tensor:
    """Compute the l_p norm of x[..., index[c]] - weight[c] over the connections c of each neuron.

    Args:
        x, weight, index, offsets, impl: as in `sparse_linf_distance`, which computes the result at infinity.
        p: a number >= 1, or `math.inf`.

    Returns:
        [..., out]. Differentiable in x and weight with the exact gradients: zero where x equals the weight.

    >>> import torch
    >>> x, weight = torch.tensor([[0.0, 1.0, 2.0]]), torch.tensor([3.0, -2.0, 4.0])
    >>> index, offsets = torch.tensor([0, 2, 1], dtype=torch.int32), torch.tensor([0, 2, 3], dtype=torch.int32)
    >>> sparse_lp_distance(x, weight, index, offsets, 2.0)
    tensor([[5., 3.]])
    """
    p = check_p(p)
    if math.isinf(p):
        return sparse_linf_distance(x, weight, index, offsets, impl=impl)
    check_sparse("x", x, weight, index, offsets)
    name = choose_sparse(x.device.type, x.dtype, impl)
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1]).contiguous()
    y = power(rows, weight.contiguous(), index.contiguous(), offsets.contiguous(), p, name)
    return y.reshape(*x.shape[:-1], offsets.shape[0] - 1)
