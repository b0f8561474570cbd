"""Dense kernels for finite p: they read all features and compute powers by multiplication or by log2 and exp2."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from linfnet.ops.cuda.infinity import FINISH_DEFINITIONS, Infinity
from linfnet.ops.cuda.layout import (
    BLOCK_DEFINITIONS,
    BLOCK_FEATURES,
    BLOCK_OUTS,
    TILE_DEFINITIONS,
    WARPS,
    Grid,
    Layer,
    aligned,
    backward_plan,
    line,
)
from linfnet.ops.cuda.nvrtc import Kernel
from linfnet.ops.powers import LARGEST_CHAINED, power_source

_ABSOLUTE_MAX = Kernel("scale.cu", "absolute_max")
_COUNT_UNSAFE = Kernel("finish.cu", "count_unsafe", FINISH_DEFINITIONS)
_CHOOSE_POWERS = Kernel("finish.cu", "choose_powers", FINISH_DEFINITIONS)
_FINISH_SUM = Kernel("finish.cu", "finish_sum", FINISH_DEFINITIONS)
_COEFFICIENTS = Kernel("gradients.cu", "coefficients")
_ADD_PARTS = Kernel("gradients.cu", "add_parts")
_REPAIR = Kernel("gradients.cu", "repair")
# Rows per iteration of the backward kernel: the first number for which the device has enough shared memory is used.
ROWS = (16, 8)
# Largest p whose chains have one scale per layer in both passes. Above it, up to LARGEST_CHAINED, the float range holds
# the powers of distances that differ by a factor of 3 only: gradients have one scale per pair, and distances are
# computed by special functions if more than MOST_UNSAFE of all sums are out of range.
LARGEST_SINGLE_SCALE, MOST_UNSAFE, LEAST_UNSAFE = 48, 0.01, 64


def chained(p: float) -> bool:
    """Whether the whole part of p is computed by multiplication and only its fraction by special functions.

    The error of the special functions is then multiplied by the fraction, not by p.
    """
    return p <= LARGEST_CHAINED


def paired(p: float) -> bool:
    """Whether the chains of the gradients have one scale per pair."""
    return LARGEST_SINGLE_SCALE < p <= LARGEST_CHAINED


@lru_cache(64)  # limited, because a schedule may use a different p in every step
def forward_kernel(p: float | None) -> Kernel:
    """Return the kernel that sums powers: by multiplication for one p, or by special functions for any p (None)."""
    definitions = (*TILE_DEFINITIONS, ("GENERAL", int(p is None)), ("UNROLL", 2 if p is None else 4))
    return Kernel("forward.cu", "dense_sums", definitions, power_source("power", p, signed=False))


@lru_cache(64)
def backward_kernel(p: float | None, need_x: bool, need_w: bool, rows: int) -> Kernel:
    """Return the gradient kernel: by multiplication for one p, or by special functions for any p (None)."""
    flags = (
        ("GENERAL", int(p is None)),
        ("PAIRED", int(p is not None and paired(p))),
        ("NEED_X", int(need_x)),
        ("NEED_W", int(need_w)),
    )
    definitions = (*BLOCK_DEFINITIONS, *flags, ("ROWS", rows), ("UNROLL", 4))
    source = power_source("slope", None if p is None else p - 1, signed=True)
    return Kernel("backward.cu", "dense_gradients", definitions, source)


def kernels(p: float, shared: int) -> list[Kernel]:
    """Return the kernels of a training step at p, on a device with `shared` bytes of shared memory per block."""
    power, rows = p if chained(p) else None, backward_rows(p, shared)
    general = [forward_kernel(None)] if paired(p) else []
    return [*general, forward_kernel(power), *(backward_kernel(power, need_x, True, rows) for need_x in (True, False))]


def backward_memory(rows: int, p: float) -> tuple[int, int]:
    """Return the bytes of static and, for grad_x, dynamic shared memory per block of the backward kernel.

    Static memory: two buffers for the coefficients (and offsets) and the features of each row. Dynamic memory: two
    buffers for the partial sums of each warp for these features.
    """
    planes = 1 if chained(p) and not paired(p) else 2
    return 2 * 4 * rows * (BLOCK_OUTS * planes + BLOCK_FEATURES), 2 * 4 * rows * BLOCK_FEATURES * WARPS


def backward_rows(p: float, shared: int) -> int:
    """Return the rows per iteration of the backward kernel: fewer for p > 64 on GPUs with only 99 KiB per block.

    >>> [backward_rows(p, kib << 10) for p in (8.0, 200.5) for kib in (227, 99)]
    [16, 16, 16, 8]
    """
    return next((rows for rows in ROWS if sum(backward_memory(rows, p)) <= shared), ROWS[-1])


def sum_exponent(p: float) -> int:
    """Return the target exponent of x and w: the p-th powers of their scaled differences stay below 2^100."""
    return target_exponent(100, p) if chained(p) else 0


def target_exponent(budget: float, exponent: float) -> int:
    """Return e so that the power of a number scaled to at most 2^e stays below 2^budget."""
    return min(30, math.floor(budget / exponent)) if exponent > 0 else 0


@dataclass(frozen=True)
class Coefficients:
    """The coefficients c[b, o] = g (s y)^(1 - p), and flags for rows and outputs that have pairs out of range.

    `scale` contains the kernel arguments that define s: `output_max`, the bits of the largest y and |g|, and
    `target_exponent`, the exponent to which s scales the largest y.
    """

    value: Tensor
    offset: Tensor | None
    flags: Tensor
    scale: dict[str, Any]


class Dense(Layer):
    """A layer at finite p, computed from all features."""

    def saved_like(self) -> Tensor:
        return self.x.new_empty(self.n, self.out)

    def largest(self, first: Tensor, second: Tensor | None = None) -> Tensor:
        """Return the largest absolute value of each tensor as bits of a float, int32 [2]; zero for a missing tensor."""
        max_bits = torch.zeros(2, dtype=torch.int32, device=first.device)
        sizes = first.numel(), 0 if second is None else second.numel()
        blocks = min(4 * self.multiprocessors(), -(-max(sizes) // (4 * _ABSOLUTE_MAX.threads)))
        self.launch_flagged(
            _ABSOLUTE_MAX, (blocks, 1 if second is None else 2, 1), max_bits=max_bits,
            first_matrix=first, first_size=sizes[0], second_matrix=second, second_size=sizes[1],
        )  # fmt: skip
        return max_bits

    def forward(self, saved: Tensor | None = None, into: Tensor | None = None) -> Tensor:
        """Return the distances; write the residuals (exact minus rounded distances) to `saved`."""
        if not chained(self.p):
            return self._forward_by_special_functions(saved, into)
        grid, input_max = self.forward_plan()[0], self.largest(self.x, self.w)
        sums = self.x.new_empty(grid[2], self.n, self.out)
        self._sum(sums, None, input_max)
        if not paired(self.p):
            return self.finish(sums, input_max, saved, into, None)
        y = self.x.new_empty(self.n, self.out) if into is None else into
        chain, special = self._choose_powers(sums).split(1)
        Dense(self.launcher, self.x, self.w, self.p, chain).finish(sums, input_max, saved, y, None)
        layer = Dense(self.launcher, self.x, self.w, self.p, special)
        return layer._forward_by_special_functions(saved, y)

    def _forward_by_special_functions(self, saved: Tensor | None, into: Tensor | None) -> Tensor:
        pair_max = Infinity(self.launcher, self.x, self.w, math.inf, self.use_dense).forward()
        input_max = self.largest(pair_max)
        sums = self.x.new_empty(self.forward_plan()[0][2], self.n, self.out)
        self._sum(sums, pair_max, input_max)
        return self.finish(sums, input_max, saved, into, pair_max)

    def _sum(self, sums: Tensor, pair_max: Tensor | None, input_max: Tensor) -> None:
        """Sum powers: by a chain, or by special functions if `pair_max` is given."""
        grid, span = self.forward_plan()
        self.launch_flagged(
            forward_kernel(self.p if pair_max is None else None), grid,
            x=self.x, w=self.w, sums=sums, pair_max=pair_max, input_max=input_max, **self.sizes, span=span,
            aligned=aligned(self.features, self.x, self.w), p=self.p, target_exponent=sum_exponent(self.p),
        )  # fmt: skip

    def _choose_powers(self, sums: Tensor) -> Tensor:
        """Return two flags, int32 [2]: whether the sums of the chain are used, and whether special functions are."""
        pairs, device = self.n * self.out, self.x.device
        count, flags = (torch.zeros(size, dtype=torch.int32, device=device) for size in (1, 2))
        grid = line(pairs, _COUNT_UNSAFE.threads)
        self.launch_flagged(_COUNT_UNSAFE, grid, part=sums, parts=sums.shape[0], count=count, pairs=pairs)
        most = max(LEAST_UNSAFE, int(pairs * MOST_UNSAFE))
        self.launch(_CHOOSE_POWERS, (1, 1, 1), count=count, most=most, active=self.use_dense, flags=flags)
        return flags

    def finish(
        self, sums: Tensor, input_max: Tensor, saved: Tensor | None, into: Tensor | None, pair_max: Tensor | None
    ) -> Tensor:
        """Return the distances from partial sums [parts, n, out] of scaled powers; recompute pairs out of range."""
        y = self.x.new_empty(self.n, self.out) if into is None else into
        self.launch_flagged(
            _FINISH_SUM, line(y.numel(), _FINISH_SUM.threads),
            part=sums, parts=sums.shape[0], x=self.x, w=self.w, pair_max=pair_max, input_max=input_max, y=y,
            residual=saved, **self.sizes, p=self.p, target_exponent=sum_exponent(self.p),
        )  # fmt: skip
        return y

    def backward(
        self, grad: Tensor, y: Tensor, saved: Tensor, results: tuple[Tensor, Tensor], output_max: Tensor | None = None
    ) -> None:
        """Write the gradients into `results`; `output_max`: bits of the largest y and |grad|, if known."""
        p, coefficients = self.p, self.coefficients(grad, y, saved, output_max)
        grid, out_span, row_span = backward_plan(self.n, self.out, self.features, self.multiprocessors())
        part_x, part_w = parts = self.parts(results, grid)
        rows = backward_rows(p, self.launcher.shared_memory(self.x.device))
        self.launch_flagged(
            backward_kernel(p if chained(p) else None, part_x is not None, part_w is not None, rows), grid,
            shared=0 if part_x is None else backward_memory(rows, p)[1],
            x=self.x, w=self.w, coefficient=coefficients.value, offset=coefficients.offset, part_x=part_x,
            part_w=part_w, **self.sizes, out_span=out_span, row_span=row_span,
            aligned=aligned(self.out, coefficients.value), exponent=p - 1, **coefficients.scale,
        )  # fmt: skip
        self.add_parts(parts, results)
        self.repair(grad, y, coefficients.flags, coefficients.scale, results)

    def parts(self, results: tuple[Tensor, Tensor], grid: Grid) -> tuple[Tensor | None, Tensor | None]:
        """Return tensors for the partial gradients of x and w on a grid; None for a gradient that is not needed."""
        part_x, part_w = (
            (result[None] if count == 1 else result.new_empty(count, *result.shape)) if result.numel() else None
            for result, count in zip(results, grid[1:], strict=True)
        )
        return part_x, part_w

    def add_parts(self, parts: tuple[Tensor | None, Tensor | None], results: tuple[Tensor, Tensor]) -> None:
        """Add the partial gradients in a fixed order."""
        for part, result in zip(parts, results, strict=True):
            if part is not None and part.shape[0] > 1:
                size = result.numel()
                grid = (min(8 * self.multiprocessors(), -(-size // _ADD_PARTS.threads)), 1, 1)
                self.launch_flagged(_ADD_PARTS, grid, part=part, parts=part.shape[0], sum=result, size=size)

    def coefficients(self, grad: Tensor, y: Tensor, residual: Tensor, output_max: Tensor | None = None) -> Coefficients:
        """Return the factors of the slopes of each pair."""
        general, pair_scales = not chained(self.p), paired(self.p)
        output_max = self.largest(y, grad) if output_max is None else output_max
        scale = {"output_max": output_max, "target_exponent": 0 if general else target_exponent(48, self.p - 1)}
        flags = torch.zeros(self.n + self.out, dtype=torch.int32, device=y.device)
        value, offset = torch.empty_like(y), torch.empty_like(y) if general or pair_scales else None
        self.launch_flagged(
            _COEFFICIENTS, line(y.numel(), _COEFFICIENTS.threads),
            grad=grad, y=y, residual=residual, coefficient=value, offset=offset, flags=flags, n=self.n, out=self.out,
            exponent=self.p - 1, general=general, paired=pair_scales, **scale,
        )  # fmt: skip
        return Coefficients(value, offset, flags, scale)

    def repair(
        self,
        grad: Tensor,
        y: Tensor,
        flags: Tensor,
        scale: dict[str, Any],
        results: tuple[Tensor, Tensor],
        *,
        general: bool | None = None,
    ) -> None:
        """Add the slopes of the pairs out of range to the gradients of x and w; `scale` as in Coefficients."""
        general = not chained(self.p) if general is None else general
        for result, of_x in zip(results, (True, False), strict=True):
            if result.numel():
                self.launch_flagged(
                    _REPAIR, (result.shape[0], 1, 1),
                    grad=grad, x=self.x, w=self.w, y=y, flags=flags, result=result, **self.sizes,
                    exponent=self.p - 1, general=general, of_x=of_x, **scale,
                )  # fmt: skip
