"""Distances at infinity: the maximum, the coordinate that attains it, bounds over boxes, and the sparse backward."""

from functools import cache

import torch
from torch import Tensor

from linfnet.ops.cuda.nvrtc import Kernel, Launcher, Long
from linfnet.ops.cuda.tiling import forward_plan, line, vector

_FINISH_MAX = Kernel("finish.cu", "finish_max")
_FINISH_INDEX = Kernel("finish.cu", "finish_index")
_SCATTER = Kernel("sparse.cu", "scatter")
# Shared memory that one block of `scatter` takes at most: rows of 5,120 features for 8 warps.
_MOST_SHARED = 160 * 1024


@cache
def maximum_kernel(runs: bool) -> Kernel:
    """The largest |x - w| of a pair, with or without the run of 32 features that holds it."""
    return Kernel("maximum.cu", "distance", (("RUNS", int(runs)),))


@cache
def bounds_kernel(index: bool) -> Kernel:
    """Interval bounds, with or without the runs that attain them."""
    return Kernel("bounds.cu", "bounds", (("INDEX", int(index)),))


def decoded_index(saved: Tensor) -> Tensor:
    """The winning coordinate from what the forward at infinity saved: its lower 31 bits."""
    return saved & 0x7FFFFFFF


class Infinite:
    """The kernels for p = inf that look at every feature."""

    def __init__(self, launcher: Launcher, gate: Tensor | None = None) -> None:
        """`gate`: int32 [1] on the device; if it is zero when they run, the kernels return at once."""
        self._launcher, self._gate = launcher, gate

    def maximum(self, x: Tensor, w: Tensor, into: Tensor | None = None) -> Tensor:
        """The largest |x - w| of every pair."""
        part, _, parts = self._pass(x, w, runs=False, into=into)
        return part[0] if parts == 1 else self._finish_max(part, into)

    def maximum_and_index(
        self, x: Tensor, w: Tensor, y: Tensor | None = None, index: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The largest |x - w| and the first coordinate that attains it; bit 31 says that x < w there."""
        n, out, features = x.shape[0], *w.shape
        part, run, parts = self._pass(x, w, runs=True)
        y = x.new_empty(n, out) if y is None else y
        index = x.new_empty(n, out, dtype=torch.int32) if index is None else index
        sizes = (n, out, features, 0, 1, vector(features, x, w), self._gate)
        self._launcher.launch(
            _FINISH_INDEX, x.device, line(n * out), 256, part, run, parts, x, None, w, y, index, *sizes
        )
        return y, index

    def scatter(self, grad: Tensor, y: Tensor, saved: Tensor, like: Tensor, *, transposed: bool) -> Tensor:
        """The gradient of x, or of w (transposed), at infinity: each pair's flow to its winning coordinate."""
        result = torch.empty_like(like)
        (rows, features), items = like.shape, grad.shape[0 if transposed else 1]
        # Rows of x are few and long: four warps share one. Eight neighbouring columns of `saved` lie in one sector.
        most = min(_MOST_SHARED, self._launcher.shared_memory(like.device)) // (4 * features)
        share = 1 if transposed or most < 4 else 4
        warps = min(8, most) if transposed else min(share, most)
        strides = (Long(1), Long(grad.shape[1])) if transposed else (Long(grad.shape[1]), Long(1))
        sizes = (rows, items, features, *strides, -1.0 if transposed else 1.0, share, int(warps > 0))
        grid, threads = line(rows, max(1, warps) // share), 32 * max(1, warps)
        self._launcher.launch(
            _SCATTER, grad.device, grid, threads, grad, y, saved, result, *sizes, shared=4 * features * warps
        )
        return result

    def bounds(self, lower: Tensor, upper: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """The smallest and the largest distance over boxes."""
        n, out = lower.shape[0], w.shape[0]
        if 0 in (n, *w.shape):
            return lower.new_zeros(n, out), lower.new_zeros(n, out)
        smallest, largest, _, _, parts = self._bounds_pass(lower, upper, w, index=False)
        if parts == 1:
            return smallest[0], largest[0]
        return self._finish_max(smallest), self._finish_max(largest)

    def bounds_saving(self, lower: Tensor, upper: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The same, and the first coordinates that attain them."""
        n, out, features = lower.shape[0], *w.shape
        results = [lower.new_zeros(n, out) for _ in range(2)]
        indices = [lower.new_zeros(n, out, dtype=torch.int32) for _ in range(2)]
        if 0 not in (n, out, features):
            smallest, largest, near, far, parts = self._bounds_pass(lower, upper, w, index=True)
            for place, (part, run) in enumerate(((smallest, near), (largest, far))):
                sizes = (n, out, features, place + 1, 0, vector(features, lower, upper, w), None)
                made = (results[place], indices[place], *sizes)
                self._launcher.launch(
                    _FINISH_INDEX, lower.device, line(n * out), 256, part, run, parts, lower, upper, w, *made
                )
        return results[0], results[1], indices[0], indices[1]

    def _pass(
        self, x: Tensor, w: Tensor, *, runs: bool, into: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None, int]:
        """One pass over the features: partial results [parts, n, out], the runs of 32 that won, and parts."""
        n, out, features = x.shape[0], *w.shape
        plan = forward_plan(n, out, features, self._launcher.multiprocessors(x.device))
        part = into[None] if into is not None and plan.parts == 1 else x.new_empty(plan.parts, n, out)
        run = x.new_empty(plan.parts, n, out, dtype=torch.int32) if runs else None
        sizes = (n, out, features, plan.span, vector(features, x, w))
        self._launcher.launch(maximum_kernel(runs), x.device, plan.grid, 128, x, w, part, run, *sizes, self._gate)
        return part, run, plan.parts

    def _finish_max(self, part: Tensor, into: Tensor | None = None) -> Tensor:
        y = torch.empty_like(part[0]) if into is None else into
        self._launcher.launch(
            _FINISH_MAX, y.device, line(y.numel()), 256, part, part.shape[0], y, Long(y.numel()), self._gate
        )
        return y

    def _bounds_pass(
        self, lower: Tensor, upper: Tensor, w: Tensor, *, index: bool
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, int]:
        n, out, features = lower.shape[0], *w.shape
        plan = forward_plan(n, out, features, self._launcher.multiprocessors(lower.device))
        smallest, largest = (lower.new_empty(plan.parts, n, out) for _ in range(2))
        near, far = (torch.empty_like(smallest, dtype=torch.int32) if index else None for _ in range(2))
        sizes = (n, out, features, plan.span, vector(features, lower, upper, w))
        made = (smallest, largest, near, far)
        self._launcher.launch(bounds_kernel(index), lower.device, plan.grid, 128, lower, upper, w, *made, *sizes)
        return smallest, largest, near, far, plan.parts
