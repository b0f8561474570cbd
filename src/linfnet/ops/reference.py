"""The reference: l_p distances in plain torch, on any device, computed in blocks to limit memory.

    y[b, o] = m * (sum_i (|x[b, i] - w[o, i]| / m)^p)^(1/p),   m = max_i |x[b, i] - w[o, i]|

The maximum is factored out, so that powers are computed of numbers in [0, 1] and the sum neither overflows nor
underflows for any p. Kernels must agree with this file; at p = infinity, bit for bit.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from linfnet.ops.implementations import KERNELS, bounds_like, gradients_like

# Largest number of elements of an intermediate tensor [rows, outs, in]: 16 MiB in float32.
BLOCK_ELEMENTS = 1 << 22


def blocks(x: Tensor, w: Tensor) -> Iterator[tuple[slice, slice]]:
    """Divide [n, out] into blocks of at most BLOCK_ELEMENTS (row, output, feature) triples, or of one pair."""
    (n, features), out = x.shape, w.shape[0]
    if features == 0:
        return
    pairs = max(1, BLOCK_ELEMENTS // features)
    outs = min(max(1, out), pairs)
    rows = max(1, pairs // outs)
    for top in range(0, n, rows):
        for left in range(0, out, outs):
            yield slice(top, min(top + rows, n)), slice(left, min(left + outs, out))


def _difference(x: Tensor, w: Tensor) -> Tensor:
    return x.unsqueeze(1) - w.unsqueeze(0)


def _finite_distance(x: Tensor, w: Tensor, p: float) -> Tensor:
    size = _difference(x, w).abs_()
    largest = size.amax(-1)
    scale = torch.where((largest > 0) & (largest < math.inf), largest, 1.0)
    return scale * size.div_(scale.unsqueeze(-1)).pow_(p).sum(-1).pow_(1 / p)


@KERNELS.register("reference")
class Reference:
    """Plain torch; implements `linfnet.ops.implementations.Implementation`."""

    def supports(self, device_type: str, dtype: torch.dtype) -> bool:
        return dtype in (torch.float32, torch.float64)

    def forward(self, x: Tensor, w: Tensor, p: float) -> Tensor:
        y = x.new_zeros(x.shape[0], w.shape[0])
        for rows, outs in blocks(x, w):
            if math.isinf(p):
                y[rows, outs] = _difference(x[rows], w[outs]).abs_().amax(-1)
            else:
                y[rows, outs] = _finite_distance(x[rows], w[outs], p)
        return y

    def forward_saving(self, x: Tensor, w: Tensor, p: float) -> tuple[Tensor, Tensor]:
        index = self.saved_like(x, w, p).zero_()
        if not math.isinf(p):
            return self.forward(x, w, p), index
        y = x.new_zeros(x.shape[0], w.shape[0])
        for rows, outs in blocks(x, w):
            y[rows, outs], index[rows, outs] = _difference(x[rows], w[outs]).abs_().max(-1)
        return y, index

    def saved_like(self, x: Tensor, w: Tensor, p: float) -> Tensor:
        shape = (x.shape[0], w.shape[0]) if math.isinf(p) else (0,)
        return x.new_empty(shape, dtype=torch.int32)

    def backward(
        self, grad: Tensor, x: Tensor, w: Tensor, y: Tensor, saved: Tensor, p: float, need_x: bool, need_w: bool
    ) -> tuple[Tensor, Tensor]:
        grad_x, grad_w = (gradient.zero_() for gradient in gradients_like(x, w, need_x, need_w))
        if x.shape[1] == 0 or grad.numel() == 0:
            return grad_x, grad_w
        if math.isinf(p):
            index = saved.long()
            flow = grad * (x.gather(1, index) - w.t().gather(0, index)).sign_()
            if need_x:
                grad_x.scatter_add_(1, index, flow)
            if need_w:
                grad_w.scatter_add_(1, index.t(), flow.neg().t())
            return grad_x, grad_w
        for rows, outs in blocks(x, w):
            difference = _difference(x[rows], w[outs])
            scale = torch.where(y[rows, outs] == 0, 1.0, y[rows, outs]).unsqueeze(-1)
            # dy/dx_i = sign(d_i) * (|d_i| / y)^(p - 1); the sign makes it zero where x = w, even at p = 1.
            slope = difference.abs().div_(scale).pow_(p - 1).mul_(difference.sign_())
            if need_x:
                grad_x[rows] += torch.einsum("bo,boi->bi", grad[rows, outs], slope)
            if need_w:
                grad_w[outs] -= torch.einsum("bo,boi->oi", grad[rows, outs], slope)
        return grad_x, grad_w

    def bounds(self, lower: Tensor, upper: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        smallest, largest, _, _ = self.bounds_saving(lower, upper, w)
        return smallest, largest

    def bounds_saving(self, lower: Tensor, upper: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        smallest, largest = (bound.zero_() for bound in bounds_like(lower, w))
        near, far = (index.zero_() for index in bounds_like(lower, w, torch.int32))
        for rows, outs in blocks(lower, w):
            below, above = _difference(lower[rows], w[outs]), _difference(upper[rows], w[outs])
            gap = torch.maximum(below, above.neg()).clamp_(min=0)
            farthest = torch.maximum(below.abs_(), above.abs_())
            smallest[rows, outs], near[rows, outs] = gap.max(-1)
            largest[rows, outs], far[rows, outs] = farthest.max(-1)
        return smallest, largest, near, far
