"""Distances and gradients at finite p from all features, by chains of multiplications or by special functions."""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from linfnet.ops.cuda.layout import (
    BLOCK_DEFINITIONS,
    BLOCK_FEATURES,
    BLOCK_OUTS,
    TILE_DEFINITIONS,
    WARPS,
    aligned,
    backward_plan,
    forward_plan,
    line,
)
from linfnet.ops.cuda.linf import FINISH_DEFINITIONS, Linf
from linfnet.ops.cuda.nvrtc import Kernel, Launcher
from linfnet.ops.powers import LARGEST_CHAINED, power_source

_ABSOLUTE_MAX = Kernel("scale.cu", "absolute_max")
_FINISH_SUM = Kernel("finish.cu", "finish_sum", FINISH_DEFINITIONS)
_COEFFICIENTS = Kernel("gradients.cu", "coefficients")
_ADD_PARTS = Kernel("gradients.cu", "add_parts")
_REPAIR = Kernel("gradients.cu", "repair")
# Rows per iteration of the backward kernel: the first number for which the shared memory of the device suffices.
ROWS = (16, 8)


def chained(p: float) -> bool:
    """Whether the whole part of p is computed by multiplication and only its fraction by special functions.

    The error of the special functions is then multiplied by the fraction, not by p.
    """
    return p <= LARGEST_CHAINED


@lru_cache(64)  # a schedule may use another p in every step
def forward_kernel(p: float | None) -> Kernel:
    """Sums of powers: for one p by multiplication, or for any p by special functions (None)."""
    definitions = (*TILE_DEFINITIONS, ("GENERAL", int(p is None)), ("UNROLL", 2 if p is None else 4))
    return Kernel("forward.cu", "dense_sums", definitions, power_source("power", p, signed=False))


@lru_cache(64)
def backward_kernel(p: float | None, need_x: bool, need_w: bool, rows: int) -> Kernel:
    """Gradients: for one p by multiplication, or for any p by special functions (None)."""
    flags = (("GENERAL", int(p is None)), ("NEED_X", int(need_x)), ("NEED_W", int(need_w)))
    definitions = (*BLOCK_DEFINITIONS, *flags, ("ROWS", rows), ("UNROLL", 4))
    source = power_source("slope", None if p is None else p - 1, signed=True)
    return Kernel("backward.cu", "dense_gradients", definitions, source)


def kernels(p: float, shared: int) -> list[Kernel]:
    """What a training step compiles for p, on a device with `shared` bytes of shared memory per block."""
    power, rows = p if chained(p) else None, backward_rows(p, shared)
    return [forward_kernel(power), *(backward_kernel(power, need_x, True, rows) for need_x in (True, False))]


def backward_memory(rows: int, p: float) -> tuple[int, int]:
    """Bytes of static and, for grad_x, of dynamic shared memory per block of the backward kernel.

    Static: two buffers of coefficients (and offsets) and of features of each row; dynamic: two buffers of the sums
    that each warp contributes to these features.
    """
    planes = 1 if chained(p) else 2
    return 2 * 4 * rows * (BLOCK_OUTS * planes + BLOCK_FEATURES), 2 * 4 * rows * BLOCK_FEATURES * WARPS


def backward_rows(p: float, shared: int) -> int:
    """Rows per iteration of the backward kernel: fewer above p = 64 on consumer GPUs, with 99 KiB per block.

    >>> [backward_rows(p, kib << 10) for p in (8.0, 200.5) for kib in (227, 99)]
    [16, 16, 16, 8]
    """
    return next((rows for rows in ROWS if sum(backward_memory(rows, p)) <= shared), ROWS[-1])


def sum_exponent(p: float) -> int:
    """The exponent to which x and w are scaled before their p-th powers, which then stay below 2^100."""
    return target_exponent(100, p) if chained(p) else 0


def target_exponent(budget: float, exponent: float) -> int:
    """The exponent to which the largest number is scaled, so that its power stays below 2^budget."""
    return min(30, math.floor(budget / exponent)) if exponent > 0 else 0


def gradients_like(x: Tensor, w: Tensor, need_x: bool, need_w: bool) -> tuple[Tensor, Tensor]:
    """Uninitialised gradients; one that is not needed is empty."""
    return torch.empty_like(x) if need_x else x.new_empty(0), torch.empty_like(w) if need_w else w.new_empty(0)


@dataclass(frozen=True)
class Coefficients:
    """c[b, o] = g (s y)^(1 - p): the numbers, which rows and outputs have pairs out of range, and what defines s."""

    value: Tensor
    offset: Tensor | None
    flags: Tensor
    output_max: Tensor
    target_exponent: int


class Dense:
    """The kernels for finite p that read all features."""

    def __init__(self, launcher: Launcher, use_dense: Tensor | None = None) -> None:
        """`use_dense`: int32 [1] on the device; if it is 0 when the kernels run, they return at once."""
        self._launcher, self._use_dense = launcher, use_dense

    def largest(self, first: Tensor, second: Tensor | None = None) -> Tensor:
        """The largest |a| of each tensor, as bits of a float: int32 [2]; zero for a missing tensor."""
        max_bits = torch.zeros(2, dtype=torch.int32, device=first.device)
        sizes = first.numel(), 0 if second is None else second.numel()
        blocks = min(4 * self._launcher.multiprocessors(first.device), -(-max(sizes) // (4 * _ABSOLUTE_MAX.threads)))
        self._launcher.launch(
            _ABSOLUTE_MAX, first.device, (blocks, 1 if second is None else 2, 1),
            first_matrix=first, first_size=sizes[0], second_matrix=second, second_size=sizes[1],
            max_bits=max_bits, use_dense=self._use_dense,
        )  # fmt: skip
        return max_bits

    def distance(
        self, x: Tensor, w: Tensor, p: float, residual: Tensor | None = None, into: Tensor | None = None
    ) -> Tensor:
        """Distances; `residual`, if given, receives the exact distances minus the rounded ones."""
        if chained(p):
            pair_max, input_max = None, self.largest(x, w)
        else:
            pair_max = Linf(self._launcher, self._use_dense).maximum(x, w)
            input_max = self.largest(pair_max)
        n, out, features = x.shape[0], *w.shape
        plan = forward_plan(n, out, features, self._launcher.multiprocessors(x.device))
        sums = x.new_empty(plan.parts, n, out)
        self._launcher.launch(
            forward_kernel(p if chained(p) else None), x.device, plan.grid,
            x=x, w=w, sums=sums, pair_max=pair_max, input_max=input_max, n=n, out=out, features=features,
            span=plan.span, aligned=aligned(features, x, w), p=p, target_exponent=sum_exponent(p),
            use_dense=self._use_dense,
        )  # fmt: skip
        return self.finish(sums, x, w, input_max, p, residual, into, pair_max)

    def finish(
        self,
        sums: Tensor,
        x: Tensor,
        w: Tensor,
        input_max: Tensor,
        p: float,
        residual: Tensor | None,
        into: Tensor | None = None,
        pair_max: Tensor | None = None,
    ) -> Tensor:
        """Distances from partial sums [parts, n, out] of scaled powers; pairs out of range are recomputed."""
        n, out, features = x.shape[0], *w.shape
        y = x.new_empty(n, out) if into is None else into
        self._launcher.launch(
            _FINISH_SUM, x.device, line(n * out, _FINISH_SUM.threads),
            part=sums, parts=sums.shape[0], x=x, w=w, pair_max=pair_max, input_max=input_max, y=y, residual=residual,
            n=n, out=out, features=features, p=p, target_exponent=sum_exponent(p), use_dense=self._use_dense,
        )  # fmt: skip
        return y

    def backward(
        self,
        grad: Tensor,
        x: Tensor,
        w: Tensor,
        y: Tensor,
        residual: Tensor,
        p: float,
        need_x: bool,
        need_w: bool,
        into: tuple[Tensor, Tensor] | None = None,
        output_max: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Gradients of x and w; `output_max`: bits of the largest y and |grad|, if known."""
        n, out, features = x.shape[0], *w.shape
        coefficients = self.coefficients(grad, y, residual, p, output_max)
        plan = backward_plan(n, out, features, self._launcher.multiprocessors(x.device))
        results = into or gradients_like(x, w, need_x, need_w)
        part_x, part_w = (
            (result[None] if parts == 1 else x.new_empty(parts, *result.shape)) if need else None
            for result, parts, need in zip(results, plan.grid[1:], (need_x, need_w), strict=True)
        )
        rows = backward_rows(p, self._launcher.shared_memory(x.device))
        self._launcher.launch(
            backward_kernel(p if chained(p) else None, need_x, need_w, rows), x.device, plan.grid,
            shared=backward_memory(rows, p)[1] if need_x else 0,
            x=x, w=w, coefficient=coefficients.value, offset=coefficients.offset, output_max=coefficients.output_max,
            part_x=part_x, part_w=part_w, n=n, out=out, features=features, out_span=plan.out_span,
            row_span=plan.row_span, aligned=aligned(out, coefficients.value), exponent=p - 1,
            target_exponent=coefficients.target_exponent, use_dense=self._use_dense,
        )  # fmt: skip
        for part, result in zip((part_x, part_w), results, strict=True):
            if part is not None:
                self._add(part, result)
        self.repair(grad, x, w, y, p, coefficients, (results[0] if need_x else None, results[1] if need_w else None))
        return results

    def coefficients(
        self, grad: Tensor, y: Tensor, residual: Tensor, p: float, output_max: Tensor | None = None
    ) -> Coefficients:
        """The numbers by which the slopes of each pair are multiplied."""
        (n, out), general = y.shape, not chained(p)
        exponent = 0 if general else target_exponent(48, p - 1)
        output_max = self.largest(y, grad) if output_max is None else output_max
        flags = torch.zeros(n + out, dtype=torch.int32, device=y.device)
        value, offset = torch.empty_like(y), torch.empty_like(y) if general else None
        self._launcher.launch(
            _COEFFICIENTS, y.device, line(n * out, _COEFFICIENTS.threads),
            grad=grad, y=y, residual=residual, output_max=output_max, coefficient=value, offset=offset, flags=flags,
            n=n, out=out, exponent=p - 1, target_exponent=exponent, general=general, use_dense=self._use_dense,
        )  # fmt: skip
        return Coefficients(value, offset, flags, output_max, exponent)

    def repair(
        self,
        grad: Tensor,
        x: Tensor,
        w: Tensor,
        y: Tensor,
        p: float,
        coefficients: Coefficients,
        results: tuple[Tensor | None, Tensor | None],
    ) -> None:
        """Add the slopes of the pairs out of range to the gradients of x and w."""
        for result, of_x in zip(results, (True, False), strict=True):
            if result is not None:
                self._launcher.launch(
                    _REPAIR, x.device, (result.shape[0], 1, 1),
                    grad=grad, x=x, w=w, y=y, output_max=coefficients.output_max, flags=coefficients.flags,
                    result=result, n=y.shape[0], out=w.shape[0], features=w.shape[1], exponent=p - 1,
                    target_exponent=coefficients.target_exponent, general=not chained(p), of_x=of_x,
                    use_dense=self._use_dense,
                )  # fmt: skip

    def _add(self, part: Tensor, result: Tensor) -> None:
        if part.shape[0] == 1:
            return
        blocks = min(8 * self._launcher.multiprocessors(part.device), -(-result.numel() // _ADD_PARTS.threads))
        self._launcher.launch(
            _ADD_PARTS, part.device, (blocks, 1, 1),
            part=part, parts=part.shape[0], sum=result, size=result.numel(), use_dense=self._use_dense,
        )  # fmt: skip
