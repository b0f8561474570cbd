"""Distances at p = infinity from all features: maximum, index, bounds over boxes, and the sparse backward pass."""

from enum import IntEnum
from functools import cache

import torch
from torch import Tensor

from linfnet.ops.cuda.layout import RUN, TILE_DEFINITIONS, aligned, forward_plan, line
from linfnet.ops.cuda.nvrtc import Kernel, Launcher


class Measure(IntEnum):
    """The number of one feature whose maximum `finish_index` searches."""

    DISTANCE = 0
    GAP = 1
    FARTHEST = 2


FINISH_DEFINITIONS = (("RUN", RUN), *((measure.name, measure.value) for measure in Measure))
_FINISH_MAX = Kernel("finish.cu", "finish_max", FINISH_DEFINITIONS)
_FINISH_INDEX = Kernel("finish.cu", "finish_index", FINISH_DEFINITIONS)
_SCATTER = Kernel("sparse.cu", "scatter")
# Limit for the shared memory of one block of `scatter`: rows of 5,120 features for 8 warps.
_MOST_SHARED = 160 * 1024


@cache
def maximum_kernel(find_run: bool) -> Kernel:
    """The largest |x - w| of each pair, optionally with the run of features that contains it."""
    return Kernel("maximum.cu", "dense_maximum", (*TILE_DEFINITIONS, ("FIND_RUN", int(find_run))))


@cache
def bounds_kernel(find_run: bool) -> Kernel:
    """Interval bounds, optionally with the runs that attain them."""
    return Kernel("bounds.cu", "bounds", (*TILE_DEFINITIONS, ("FIND_RUN", int(find_run))))


def decoded_index(saved: Tensor) -> Tensor:
    """The index of the maximum from what the forward pass at infinity saved: the lower 31 bits."""
    return saved & 0x7FFFFFFF


class Linf:
    """The kernels for p = inf that read all features."""

    def __init__(self, launcher: Launcher, use_dense: Tensor | None = None) -> None:
        """`use_dense`: int32 [1] on the device; if it is 0 when the kernels run, they return at once."""
        self._launcher, self._use_dense = launcher, use_dense

    def maximum(self, x: Tensor, w: Tensor, into: Tensor | None = None) -> Tensor:
        """The largest |x - w| of every pair."""
        maxima, _ = self._maxima(x, w, find_run=False, into=into)
        return maxima[0] if len(maxima) == 1 else self._finish_max(maxima, into)

    def maximum_and_index(
        self, x: Tensor, w: Tensor, y: Tensor | None = None, index: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The largest |x - w| and the first feature that attains it; bit 31 says that x < w there."""
        n, out = x.shape[0], w.shape[0]
        maxima, run = self._maxima(x, w, find_run=True)
        y = x.new_empty(n, out) if y is None else y
        index = x.new_empty(n, out, dtype=torch.int32) if index is None else index
        self._finish_index(maxima, run, x, None, w, y, index, Measure.DISTANCE)
        return y, index

    def scatter(self, grad: Tensor, y: Tensor, saved: Tensor, like: Tensor, *, transposed: bool) -> Tensor:
        """The gradient of x, or of w (transposed), at infinity: each pair contributes to one feature."""
        result = torch.empty_like(like)
        (rows, features), items = like.shape, grad.shape[0 if transposed else 1]
        # Rows of x are few and long: four warps share one. Eight neighbouring columns of `saved` are in one sector.
        most = min(_MOST_SHARED, self._launcher.shared_memory(like.device)) // (4 * features)
        share = 1 if transposed or most < 4 else 4
        warps = min(8, most) if transposed else min(share, most)
        stride = grad.shape[1]
        self._launcher.launch(
            _SCATTER, grad.device, line(rows, max(1, warps) // share),
            threads=32 * max(1, warps), shared=4 * features * warps,
            grad=grad, y=y, saved=saved, result=result, rows=rows, items=items, features=features,
            stride_row=1 if transposed else stride, stride_item=stride if transposed else 1,
            sign=-1.0 if transposed else 1.0, share=share, shared_rows=warps > 0,
        )  # fmt: skip
        return result

    def bounds(self, lower: Tensor, upper: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """The smallest and the largest distance over boxes."""
        n, out = lower.shape[0], w.shape[0]
        if 0 in (n, *w.shape):
            return lower.new_zeros(n, out), lower.new_zeros(n, out)
        smallest, largest, _, _ = self._bounds(lower, upper, w, find_run=False)
        if len(smallest) == 1:
            return smallest[0], largest[0]
        return self._finish_max(smallest), self._finish_max(largest)

    def bounds_saving(self, lower: Tensor, upper: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The same, and the first features that attain them."""
        n, out = lower.shape[0], w.shape[0]
        results = [lower.new_zeros(n, out) for _ in range(2)]
        indices = [lower.new_zeros(n, out, dtype=torch.int32) for _ in range(2)]
        if 0 not in (n, *w.shape):
            smallest, largest, near, far = self._bounds(lower, upper, w, find_run=True)
            self._finish_index(smallest, near, lower, upper, w, results[0], indices[0], Measure.GAP)
            self._finish_index(largest, far, lower, upper, w, results[1], indices[1], Measure.FARTHEST)
        return results[0], results[1], indices[0], indices[1]

    def _maxima(
        self, x: Tensor, w: Tensor, *, find_run: bool, into: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """One pass over the features: partial maxima [parts, n, out] and the runs that attain them."""
        n, out, features = x.shape[0], *w.shape
        plan = forward_plan(n, out, features, self._launcher.multiprocessors(x.device))
        maxima = into[None] if into is not None and plan.parts == 1 else x.new_empty(plan.parts, n, out)
        run = x.new_empty(plan.parts, n, out, dtype=torch.int32) if find_run else None
        self._launcher.launch(
            maximum_kernel(find_run), x.device, plan.grid,
            x=x, w=w, maxima=maxima, run=run, n=n, out=out, features=features, span=plan.span,
            aligned=aligned(features, x, w), use_dense=self._use_dense,
        )  # fmt: skip
        return maxima, run

    def _bounds(
        self, lower: Tensor, upper: Tensor, w: Tensor, *, find_run: bool
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        n, out, features = lower.shape[0], *w.shape
        plan = forward_plan(n, out, features, self._launcher.multiprocessors(lower.device))
        smallest, largest = (lower.new_empty(plan.parts, n, out) for _ in range(2))
        near, far = (torch.empty_like(smallest, dtype=torch.int32) if find_run else None for _ in range(2))
        self._launcher.launch(
            bounds_kernel(find_run), lower.device, plan.grid,
            lower=lower, upper=upper, w=w, smallest=smallest, largest=largest, near_run=near, far_run=far,
            n=n, out=out, features=features, span=plan.span, aligned=aligned(features, lower, upper, w),
        )  # fmt: skip
        return smallest, largest, near, far

    def _finish_max(self, part: Tensor, into: Tensor | None = None) -> Tensor:
        y = torch.empty_like(part[0]) if into is None else into
        grid = line(y.numel(), _FINISH_MAX.threads)
        self._launcher.launch(
            _FINISH_MAX, y.device, grid, part=part, parts=len(part), y=y, pairs=y.numel(), use_dense=self._use_dense
        )
        return y

    def _finish_index(
        self,
        part: Tensor,
        run: Tensor | None,
        lower: Tensor,
        upper: Tensor | None,
        w: Tensor,
        y: Tensor,
        index: Tensor,
        measure: Measure,
    ) -> None:
        """Reduce partial maxima to y, and search the winning runs for the first feature that attains y."""
        n, out, features = lower.shape[0], *w.shape
        boxes = (lower,) if upper is None else (lower, upper)
        self._launcher.launch(
            _FINISH_INDEX, w.device, line(n * out, _FINISH_INDEX.threads),
            part=part, run=run, parts=len(part), lower=lower, upper=upper, w=w, y=y, index=index,
            n=n, out=out, features=features, measure=measure.value, sign=measure is Measure.DISTANCE,
            aligned=aligned(features, *boxes, w), use_dense=self._use_dense,
        )  # fmt: skip
