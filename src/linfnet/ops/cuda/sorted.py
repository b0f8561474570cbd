"""Weighted sums of the largest |x - w|, their bounds and their gradients, by CUDA kernels."""

import math
from collections.abc import Callable, Sequence
from functools import cache

from torch import Tensor

from linfnet.ops.cuda.infinity import Measure
from linfnet.ops.cuda.layout import aligned, line
from linfnet.ops.cuda.nvrtc import Kernel, Launcher

# Rows of x and of w per block, and the number of factors of the kernel; both are in its source.
SIDE, MOST_TERMS = 32, 16
_SCATTER = Kernel("scatter.cu", "scatter")
# Largest shared memory of one block of `scatter`, in bytes.
_MOST_SHARED = 160 * 1024


@cache
def sums_kernel(terms: int, measure: Measure, save: bool) -> Kernel:
    """Return the kernel for sums of the largest sizes, optionally with their features."""
    measures = ((each.name, each.value) for each in Measure)
    definitions = (*measures, ("TERMS", terms), ("MEASURE", measure.value), ("SAVE", int(save)))
    return Kernel("sorted.cu", "sorted_sums", definitions)


def _sums(
    launcher: Launcher,
    measure: Measure,
    x: Tensor,
    upper: Tensor | None,
    w: Tensor,
    factors: Sequence[float],
    index: Tensor | None,
) -> Tensor:
    (n, features), out = x.shape, w.shape[0]
    y = x.new_empty(n, out)
    rest, grid = [0.0] * (MOST_TERMS - len(factors)), (math.ceil(n / SIDE), math.ceil(out / SIDE), 1)
    launch: Callable[..., None] = launcher.launch
    launch(
        x.device, sums_kernel(len(factors), measure, index is not None), grid,
        x=x, upper=upper, w=w, y=y, index=index, n=n, out=out, features=features,
        aligned=aligned(features, x, w) and (upper is None or aligned(features, upper)),
        **{f"f{t}": factor for t, factor in enumerate([*factors, *rest])},
    )  # fmt: skip
    return y


def distance(launcher: Launcher, x: Tensor, w: Tensor, factors: Sequence[float], index: Tensor | None) -> Tensor:
    """Return `linfnet.ops.sorted_linf_distance` of contiguous tensors that are not empty.

    `index` (int32 [n, out, terms], or None) receives the features of the largest |x - w|, the largest first.
    """
    return _sums(launcher, Measure.DISTANCE, x, None, w, factors, index)


def bounds(
    launcher: Launcher, lower: Tensor, upper: Tensor, w: Tensor, factors: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """Return `linfnet.ops.sorted_linf_bounds` of contiguous tensors that are not empty."""
    smallest = _sums(launcher, Measure.GAP, lower, upper, w, factors, None)
    return smallest, _sums(launcher, Measure.FARTHEST, lower, upper, w, factors, None)


def scatter_add(launcher: Launcher, index: Tensor, flow: Tensor, features: int) -> Tensor:
    """Return [rows, features]: the sums of flow [rows, items] at the indices int32 [rows, items], in a fixed order."""
    rows, items = flow.shape
    result = flow.new_empty(rows, features)
    most = min(_MOST_SHARED, launcher.shared_memory(flow.device)) // (4 * features)
    share = 1 if most < 4 else 4
    warps = min(share, most)
    launcher.launch(
        flow.device, _SCATTER, line(rows, max(1, warps) // share), threads=32 * max(1, warps),
        shared=4 * features * warps, grad=flow, y=flow, saved=index, result=result, rows=rows, items=items,
        features=features, stride_row=items, stride_item=1, sign=1.0, share=share, shared_rows=warps > 0,
    )  # fmt: skip
    return result
