"""Distances and gradients at finite p from every feature: chains of multiplications, or special functions."""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from linfnet.ops.addition_chain import LARGEST_CHAINED, power_source
from linfnet.ops.cuda.linf import Infinite
from linfnet.ops.cuda.nvrtc import Kernel, Launcher, Long
from linfnet.ops.cuda.tiling import backward_plan, forward_plan, line, vector

_ABSOLUTE_MAX = Kernel("scale.cu", "absolute_max")
_FINISH_SUM = Kernel("finish.cu", "finish_sum")
_COEFFICIENTS = Kernel("gradients.cu", "coefficients")
_ADD_PARTS = Kernel("gradients.cu", "add_parts")
_REPAIR = Kernel("gradients.cu", "repair")
# Rows that the backward takes at a time: as many as the shared memory of the device has room for.
ROWS = (16, 8)


def chained(p: float) -> bool:
    """Whether the whole part of p is taken by multiplication, and only what is left of p by other functions.

    Their error is then multiplied by the fraction alone, not by p.
    """
    return p <= LARGEST_CHAINED


@lru_cache(64)  # of the last p: a schedule may bring another every step
def forward_kernel(p: float | None) -> Kernel:
    """The sums for p by multiplication, or for any p by special functions (None)."""
    if p is None:
        return Kernel("forward.cu", "distance", (("GENERAL", 1), ("UNROLL", 2)))
    return Kernel("forward.cu", "distance", (("GENERAL", 0), ("UNROLL", 4)), power_source("power", p, signed=False))


@lru_cache(64)
def backward_kernel(p: float | None, need_x: bool, need_w: bool, rows: int) -> Kernel:
    """The slopes for p by multiplication, or for any p by special functions (None)."""
    flags = (
        ("GENERAL", int(p is None)),
        ("NEED_X", int(need_x)),
        ("NEED_W", int(need_w)),
        ("ROWS", rows),
        ("UNROLL", 4),
    )
    if p is None:
        return Kernel("backward.cu", "slopes", flags)
    return Kernel("backward.cu", "slopes", flags, power_source("slope", p - 1, signed=True))


def kernels(p: float, shared: int) -> list[Kernel]:
    """What a training step compiles for p, on a device with so much shared memory for a block."""
    power, rows = p if chained(p) else None, backward_rows(p, shared)
    return [forward_kernel(power), *(backward_kernel(power, need_x, True, rows) for need_x in (True, False))]


def backward_memory(rows: int, p: float) -> tuple[int, int]:
    """Bytes of shared memory in a block of the backward, of its own and, for grad_x, asked for.

    Its own: coefficients (and offsets) of 128 outputs and 64 features of every row, twice; asked for: the shares of 8
    warps in these features, twice.
    """
    return 2 * 4 * rows * (128 * (1 if chained(p) else 2) + 64), 2 * 4 * rows * 64 * 8


def backward_rows(p: float, shared: int) -> int:
    """How many rows the backward takes at a time: on consumer GPUs, with 99 KiB for a block, fewer above p = 64.

    >>> [backward_rows(p, kib << 10) for p in (8.0, 200.5) for kib in (227, 99)]
    [16, 16, 16, 8]
    """
    return next((rows for rows in ROWS if sum(backward_memory(rows, p)) <= shared), ROWS[-1])


def sum_lift(p: float) -> int:
    """The power of two that the largest number is scaled to before its p-th power: that stays below 2^100."""
    return _lift(100, p) if chained(p) else 0


def _lift(budget: float, exponent: float) -> int:
    """To which power of two the largest number is scaled, so that its power stays below 2^budget."""
    return min(30, math.floor(budget / exponent)) if exponent > 0 else 0


def gradients_like(x: Tensor, w: Tensor, need_x: bool, need_w: bool) -> tuple[Tensor, Tensor]:
    """Room for the gradients; one that is not needed is empty."""
    return torch.empty_like(x) if need_x else x.new_empty(0), torch.empty_like(w) if need_w else w.new_empty(0)


@dataclass(frozen=True)
class Coefficients:
    """c[b, o] = g (s y)^(1 - p): the numbers, which pairs are out of range, and what s follows from."""

    value: Tensor
    offset: Tensor | None
    flags: Tensor
    tops: Tensor
    lift: int


class Dense:
    """The kernels for finite p that look at every feature."""

    def __init__(self, launcher: Launcher, gate: Tensor | None = None) -> None:
        """`gate`: int32 [1] on the device; if it is zero when they run, the kernels return at once."""
        self._launcher, self._gate = launcher, gate

    def largest(self, first: Tensor, second: Tensor | None = None) -> Tensor:
        """The largest |a| of each tensor, as the bits of a float: int32 [2]; zero where there is none."""
        tops = torch.zeros(2, dtype=torch.int32, device=first.device)
        sizes = first.numel(), 0 if second is None else second.numel()
        blocks = min(4 * self._launcher.multiprocessors(first.device), -(-max(sizes) // 1024))
        grid = (blocks, 1 if second is None else 2, 1)
        self._launcher.launch(
            _ABSOLUTE_MAX, first.device, grid, 256, first, Long(sizes[0]), second, Long(sizes[1]), tops, self._gate
        )
        return tops

    def distance(
        self, x: Tensor, w: Tensor, p: float, rest: Tensor | None = None, into: Tensor | None = None
    ) -> Tensor:
        """Distances; in `rest`, if given, what rounding them drops."""
        if chained(p):
            peak, tops = None, self.largest(x, w)
        else:
            peak = Infinite(self._launcher, self._gate).maximum(x, w)
            tops = self.largest(peak)
        n, out, features = x.shape[0], *w.shape
        plan = forward_plan(n, out, features, self._launcher.multiprocessors(x.device))
        part = x.new_empty(plan.parts, n, out)
        sizes = (n, out, features, plan.span, vector(features, x, w))
        kernel = forward_kernel(p if chained(p) else None)
        self._launcher.launch(
            kernel, x.device, plan.grid, 128, x, w, part, peak, tops, *sizes, p, sum_lift(p), self._gate
        )
        return self.finish(part, x, w, tops, p, rest, into, peak)

    def finish(
        self,
        sums: Tensor,
        x: Tensor,
        w: Tensor,
        tops: Tensor,
        p: float,
        rest: Tensor | None,
        into: Tensor | None = None,
        peak: Tensor | None = None,
    ) -> Tensor:
        """Distances from partial sums [parts, n, out] of scaled powers; pairs out of range are computed again."""
        n, out, features = x.shape[0], *w.shape
        y = x.new_empty(n, out) if into is None else into
        made = (y, rest, n, out, features, p, sum_lift(p), self._gate)
        self._launcher.launch(_FINISH_SUM, x.device, line(n * out), 256, sums, sums.shape[0], x, w, peak, tops, *made)
        return y

    def backward(
        self,
        grad: Tensor,
        x: Tensor,
        w: Tensor,
        y: Tensor,
        rest: Tensor,
        p: float,
        need_x: bool,
        need_w: bool,
        into: tuple[Tensor, Tensor] | None = None,
        tops: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Gradients of x and w; `tops`: bits of the largest y and |grad|, if they are known."""
        n, out, features = x.shape[0], *w.shape
        coefficients = self.coefficients(grad, y, rest, p, tops)
        plan = backward_plan(n, out, features, self._launcher.multiprocessors(x.device))
        results = into or gradients_like(x, w, need_x, need_w)
        part_x, part_w = (
            (result[None] if parts == 1 else x.new_empty(parts, *result.shape)) if need else None
            for result, parts, need in zip(results, plan.grid[1:], (need_x, need_w), strict=True)
        )
        sizes = (n, out, features, plan.out_span, plan.row_span, vector(out, coefficients.value))
        rows = backward_rows(p, self._launcher.shared_memory(x.device))
        shared = backward_memory(rows, p)[1] if need_x else 0
        kernel = backward_kernel(p if chained(p) else None, need_x, need_w, rows)
        inputs = (x, w, coefficients.value, coefficients.offset, coefficients.tops, part_x, part_w)
        lift = coefficients.lift
        self._launcher.launch(kernel, x.device, plan.grid, 256, *inputs, *sizes, p - 1, lift, self._gate, shared=shared)
        for part, result in zip((part_x, part_w), results, strict=True):
            if part is not None:
                self._add(part, result)
        wanted = results[0] if need_x else None, results[1] if need_w else None
        self.repair(grad, x, w, y, p, coefficients, wanted)
        return results

    def coefficients(self, grad: Tensor, y: Tensor, rest: Tensor, p: float, tops: Tensor | None = None) -> Coefficients:
        """What each pair's slopes are multiplied by."""
        (n, out), general = y.shape, not chained(p)
        lift = 0 if general else _lift(48, p - 1)
        tops = self.largest(y, grad) if tops is None else tops
        flags = torch.zeros(n + out, dtype=torch.int32, device=y.device)
        value, offset = torch.empty_like(y), torch.empty_like(y) if general else None
        made = (value, offset, flags, n, out, p - 1, lift, int(general), self._gate)
        self._launcher.launch(_COEFFICIENTS, y.device, line(n * out), 256, grad, y, rest, tops, *made)
        return Coefficients(value, offset, flags, tops, lift)

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
        """Add the slopes of the pairs that are out of range."""
        sizes = (y.shape[0], *w.shape, p - 1, coefficients.lift, int(not chained(p)))
        inputs = (grad, x, w, y, coefficients.tops, coefficients.flags)
        for place, result in enumerate(results):
            if result is not None:
                made = (result, *sizes, int(place == 0), self._gate)
                self._launcher.launch(_REPAIR, x.device, (result.shape[0], 1, 1), 256, *inputs, *made)

    def _add(self, part: Tensor, result: Tensor) -> None:
        if part.shape[0] == 1:
            return
        blocks = min(8 * self._launcher.multiprocessors(part.device), -(-result.numel() // 256))
        made = (result, Long(result.numel()), self._gate)
        self._launcher.launch(_ADD_PARTS, part.device, (blocks, 1, 1), 256, part, part.shape[0], *made)
