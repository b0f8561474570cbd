"""Dense kernels for p = infinity: maximum and its index, bounds over boxes, and the sparse backward pass."""

from enum import IntEnum
from functools import cache

import torch
from torch import Tensor

from linfnet.ops.cuda.layout import RUN, TILE_DEFINITIONS, Layer, aligned, line
from linfnet.ops.cuda.nvrtc import Kernel


class Measure(IntEnum):
    """The quantity of each feature that `finish_index` maximises."""

    DISTANCE = 0
    GAP = 1
    FARTHEST = 2


FINISH_DEFINITIONS = (("RUN", RUN), *((measure.name, measure.value) for measure in Measure))
_FINISH_MAX = Kernel("finish.cu", "finish_max", FINISH_DEFINITIONS)
_FINISH_INDEX = Kernel("finish.cu", "finish_index", FINISH_DEFINITIONS)
_SCATTER = Kernel("scatter.cu", "scatter")
# Largest shared memory of one block of `scatter`, in bytes: 8 warps with rows of 5,120 features.
_MOST_SHARED = 160 * 1024


@cache
def maximum_kernel(find_run: bool) -> Kernel:
    """Return the kernel for the largest |x - w| of each pair, optionally with the run of features that contains it."""
    return Kernel("maximum.cu", "dense_maximum", (*TILE_DEFINITIONS, ("FIND_RUN", int(find_run))))


@cache
def bounds_kernel(find_run: bool) -> Kernel:
    """Return the kernel for bounds over boxes, optionally with the run of features that attains each."""
    return Kernel("bounds.cu", "bounds", (*TILE_DEFINITIONS, ("FIND_RUN", int(find_run))))


class Infinity(Layer):
    """A layer at p = infinity, computed from all features."""

    def saved_like(self) -> Tensor:
        return self.x.new_empty(self.n, self.out, dtype=torch.int32)

    def forward(self, saved: Tensor | None = None, into: Tensor | None = None) -> Tensor:
        """Return the largest |x - w|; save the first feature that attains it, with bit 31 set if x < w."""
        (grid, span), find_run = self.forward_plan(), saved is not None
        y = self.x.new_empty(self.n, self.out) if into is None else into
        maxima, run = self._partial(y, grid[2], find_run)
        self.launch_flagged(
            maximum_kernel(find_run), grid,
            x=self.x, w=self.w, maxima=maxima, run=run, **self.sizes, span=span,
            aligned=aligned(self.features, self.x, self.w),
        )  # fmt: skip
        self._finish(maxima, run, y, saved, Measure.DISTANCE, None)
        return y

    def backward(self, grad: Tensor, y: Tensor, saved: Tensor, results: tuple[Tensor, Tensor]) -> None:
        """Write the gradients; each pair contributes to one feature of x and of w."""
        stride, most = self.out, min(_MOST_SHARED, self.launcher.shared_memory(self.x.device)) // (4 * self.features)
        for result, transposed in zip(results, (False, True), strict=True):
            if not result.numel():
                continue
            rows, items = (self.out, self.n) if transposed else (self.n, self.out)
            # x has few rows with many items: four warps share a row. For w, eight warps read neighbouring columns of
            # `saved`, which are in the same sector of memory.
            share = 1 if transposed or most < 4 else 4
            warps = min(8, most) if transposed else min(share, most)
            self.launch(
                _SCATTER, line(rows, max(1, warps) // share),
                threads=32 * max(1, warps), shared=4 * self.features * warps,
                grad=grad, y=y, saved=saved, result=result, rows=rows, items=items, features=self.features,
                stride_row=1 if transposed else stride, stride_item=stride if transposed else 1,
                sign=-1.0 if transposed else 1.0, share=share, shared_rows=warps > 0,
            )  # fmt: skip

    def bounds(self, upper: Tensor, results: tuple[Tensor, ...]) -> None:
        """Compute the smallest and the largest distance over the boxes from x to `upper`.

        `results` contains two tensors for the bounds, optionally followed by two for the first features that attain
        them.
        """
        (grid, span), find_run = self.forward_plan(), len(results) == 4
        (smallest, near), (largest, far) = (self._partial(y, grid[2], find_run) for y in results[:2])
        self.launch(
            bounds_kernel(find_run), grid,
            lower=self.x, upper=upper, w=self.w, smallest=smallest, largest=largest, near_run=near, far_run=far,
            **self.sizes, span=span, aligned=aligned(self.features, self.x, upper, self.w),
        )  # fmt: skip
        indices = results[2:] or (None, None)
        self._finish(smallest, near, results[0], indices[0], Measure.GAP, upper)
        self._finish(largest, far, results[1], indices[1], Measure.FARTHEST, upper)

    def _partial(self, y: Tensor, parts: int, find_run: bool) -> tuple[Tensor, Tensor | None]:
        """Return tensors for partial maxima [parts, n, out] (y if possible) and for the runs that attain them."""
        maxima = y[None] if parts == 1 and not find_run else y.new_empty(parts, *y.shape)
        return maxima, torch.empty_like(maxima, dtype=torch.int32) if find_run else None

    def _finish(
        self, part: Tensor, run: Tensor | None, y: Tensor, index: Tensor | None, measure: Measure, upper: Tensor | None
    ) -> None:
        """Reduce partial maxima to y; if `run` is given, find the first feature that attains y in its run."""
        parts, pairs = part.shape[0], y.numel()
        if run is not None:
            boxes = (self.x,) if upper is None else (self.x, upper)
            self.launch_flagged(
                _FINISH_INDEX, line(pairs, _FINISH_INDEX.threads),
                part=part, parts=parts, run=run, lower=self.x, upper=upper, w=self.w, y=y, index=index, **self.sizes,
                measure=measure.value, sign=measure is Measure.DISTANCE, aligned=aligned(self.features, *boxes, self.w),
            )  # fmt: skip
        elif parts > 1:
            self.launch_flagged(_FINISH_MAX, line(pairs, _FINISH_MAX.threads), part=part, parts=parts, y=y, pairs=pairs)
