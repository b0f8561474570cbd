"""Sparse distances by CUDA kernels, at infinity with the bits of the reference; no call waits for the device.

The exception is the first call with new connections, which checks them. At infinity, gradients are sums in ascending
order of the outputs (grad_x) and of the rows (grad_weight), like those of the reference on a CPU.
"""

import math
import weakref
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from linfnet.ops import implementations
from linfnet.ops.cuda.layout import line
from linfnet.ops.cuda.nvrtc import Argument, Grid, Kernel, Launcher
from linfnet.ops.powers import LARGEST_CHAINED
from linfnet.ops.sparse_reference import SPARSE_KERNELS, bounds_like, check_connections, gradients_like, outputs_like

# Threads per block of the forward kernels, and outputs that their warps process at a time.
THREADS = 1024
_BLOCK_OUTS = THREADS // 32 * 4
# Most rows of x per block, at infinity and at a finite p: each connection is read once for all of them.
MOST_ROWS, MOST_POWER_ROWS = 8, 4
# Slopes below 2^-SLOPE_BITS are dropped unless they are computed by multiplication; as in the CPU kernels.
SLOPE_BITS = 48
# The time to start a block and to copy its rows, relative to the time for all outputs of its rows; it only affects the
# choice between few long and many short blocks.
_START = 0.1
# Most warps per block of the gradient kernels, and most bytes of shared memory for the rows of grad_x.
_WARPS, _MOST_SHARED = 8, 160 * 1024
_GRADIENT = Kernel("sparse_gradients.cu", "sparse_gradient")


@cache
def forward_kernel(function: str, rows: int, save: bool) -> Kernel:
    """Return `sparse_distance` or `sparse_bounds` for blocks of some rows, optionally storing connections."""
    return Kernel("sparse.cu", function, (("ROWS", rows), ("SAVE", int(save))))


@cache
def power_kernel(function: str, rows: int) -> Kernel:
    """Return a kernel of sparse_power.cu for blocks of some rows."""
    return Kernel("sparse_power.cu", function, (("ROWS", rows),))


def _whole(p: float) -> int:
    """Return p if powers are computed by multiplication, otherwise -1."""
    return int(p) if p <= LARGEST_CHAINED and p == int(p) else -1


@lru_cache(1024)
def plan(
    n: int, out: int, row_bytes: int, shared: int, multiprocessors: int, most_rows: int = MOST_ROWS
) -> tuple[Grid, int]:
    """Return the grid of the forward kernels and the rows per block; there are n rows of `row_bytes` in all.

    `shared` is the shared memory of a block. Rows that do not fit are processed one by one, without shared memory.

    >>> plan(512, 5120, 4 * 5120, 227 * 1024, 132), plan(1, 5120, 4 * 5120, 227 * 1024, 132)
    (((64, 2, 1), 8), ((1, 40, 1), 1))
    """
    rows = most_rows
    while rows > 1 and (rows >= 2 * n or rows * row_bytes > shared):
        rows //= 2
    groups = math.ceil(n / rows)
    most = min(math.ceil(out / _BLOCK_OUTS), max(1, 4 * multiprocessors // groups))
    # A multiprocessor runs one block at a time: the registers do not suffice for two.
    waves = {parts: math.ceil(groups * parts / multiprocessors) for parts in range(1, most + 1)}
    parts = min(waves, key=lambda parts: waves[parts] * (1 / parts + _START))
    return (groups, parts, 1), rows


@SPARSE_KERNELS.register("cuda")
class SparseCuda:
    """NVRTC kernels; implements `linfnet.ops.sparse.SparseImplementation` for float32 on CUDA devices."""

    def __init__(self, launcher: Launcher | None = None) -> None:
        self._launcher = launcher or Launcher()
        # For each checked `index`: with which offsets, numbers of changes and features, the order of the outputs, and
        # the result of `_by_input` once it was needed.
        self._known = WeakIdKeyDictionary()

    def supports(self, device_type: str, dtype: torch.dtype) -> bool:
        return implementations.get("cuda").supports(device_type, dtype)

    def forward(self, x: Tensor, weight: Tensor, index: Tensor, offsets: Tensor) -> Tensor:
        y = outputs_like(x, offsets)
        self._launch("sparse_distance", x, weight, index, offsets, {"x": x}, {"y": y, "decisive": None})
        return y

    def forward_saving(self, x: Tensor, weight: Tensor, index: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        y, decisive = outputs_like(x, offsets), outputs_like(x, offsets, torch.int32)
        self._launch("sparse_distance", x, weight, index, offsets, {"x": x}, {"y": y, "decisive": decisive})
        return y, decisive

    def power(self, x: Tensor, weight: Tensor, index: Tensor, offsets: Tensor, p: float) -> Tensor:
        y = outputs_like(x, offsets)
        (n, features), out = x.shape, y.shape[1]
        order = self._order(index, offsets, features)
        if y.numel() == 0:
            return y
        whole = _whole(p)
        # Terms that together change y by less than 2^-26 of its value are dropped.
        cut = 0.0 if whole >= 0 else 2.0 ** (-(26 + math.log2(features) - math.log2(p)) / p)
        self._launch_power(
            "sparse_power", x.device, n, out, 4 * features,
            x=x, weight=weight, index=index, offsets=offsets, order=order, y=y, p=p, whole=whole, cut=cut,
            out=out, features=features,
        )  # fmt: skip
        return y

    def power_backward(
        self,
        grad: Tensor,
        x: Tensor,
        weight: Tensor,
        index: Tensor,
        offsets: Tensor,
        y: Tensor,
        p: float,
        need_x: bool,
        need_w: bool,
    ) -> tuple[Tensor, Tensor]:
        grad_x, grad_w = results = gradients_like(x, weight, need_x, need_w)
        (n, features), out = x.shape, grad.shape[1]
        self._order(index, offsets, features)
        if grad.numel() == 0:
            return grad_x.zero_(), grad_w.zero_()
        whole = _whole(p)
        cut = 0.0 if whole >= 0 else 2.0 ** (-SLOPE_BITS / (p - 1))
        slopes: dict[str, Any] = {"exponent": p - 1, "whole": max(-1, whole - 1), "cut": cut}
        slopes |= {"out": out, "features": features}
        tensors = {"grad": grad, "y": y, "x": x}
        if grad_x.numel():
            entries, neuron, starts, order = self._by_input(index, offsets, features)
            self._launch_power(
                "sparse_power_inputs", x.device, n, features, 8 * out,
                **tensors, weight=weight[entries], neuron=neuron, starts=starts, order=order, grad_x=grad_x, **slopes,
            )  # fmt: skip
        if grad_w.numel():
            self._launcher.launch(
                x.device, power_kernel("sparse_power_weights", 1), line(out, _WARPS), threads=32 * _WARPS,
                **tensors, weight=weight, index=index, offsets=offsets, grad_w=grad_w, n=n, **slopes,
            )  # fmt: skip
        return results

    def _launch_power(
        self, function: str, device: torch.device, n: int, results: int, row_bytes: int, **arguments: Argument
    ) -> None:
        """Launch a kernel that computes `results` numbers for each of n rows, from rows of `row_bytes`."""
        shared, multiprocessors = self._launcher.shared_memory(device), self._launcher.multiprocessors(device)
        grid, rows = plan(n, results, row_bytes, shared, multiprocessors, MOST_POWER_ROWS)
        self._launcher.launch(
            device, power_kernel(function, rows), grid,
            threads=THREADS, shared=rows * row_bytes if rows > 1 else 0, n=n, **arguments,
        )  # fmt: skip

    def bounds(
        self, lower: Tensor, upper: Tensor, weight: Tensor, index: Tensor, offsets: Tensor
    ) -> tuple[Tensor, Tensor]:
        smallest, largest = bounds_like(lower, offsets)
        results = {"smallest": smallest, "largest": largest, "near": None, "far": None}
        self._launch("sparse_bounds", lower, weight, index, offsets, {"lower": lower, "upper": upper}, results)
        return smallest, largest

    def bounds_saving(
        self, lower: Tensor, upper: Tensor, weight: Tensor, index: Tensor, offsets: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        smallest, largest = bounds_like(lower, offsets)
        near, far = bounds_like(lower, offsets, torch.int32)
        results = {"smallest": smallest, "largest": largest, "near": near, "far": far}
        self._launch("sparse_bounds", lower, weight, index, offsets, {"lower": lower, "upper": upper}, results)
        return smallest, largest, near, far

    def backward(
        self, grad: Tensor, x: Tensor, weight: Tensor, index: Tensor, decisive: Tensor, need_x: bool, need_w: bool
    ) -> tuple[Tensor, Tensor]:
        grad_x, grad_w = results = gradients_like(x, weight, need_x, need_w)
        (n, features), out = x.shape, grad.shape[1]
        # Warps whose rows fit into shared memory; without any, the rows are summed in the result.
        fitting = min(_MOST_SHARED, self._launcher.shared_memory(x.device)) // (4 * max(1, features))
        shared_rows = need_x and fitting > 0
        if not shared_rows:
            grad_x.zero_()
        grad_w.zero_()
        if grad.numel() == 0:
            grad_x.zero_()
            return results
        for result, of_x in ((grad_x, True), (grad_w, False)):
            if result.numel() == 0:
                continue
            in_shared = of_x and shared_rows
            # Few rows of x with many outputs: a warp per block. Weights: neighbouring warps read the same sectors.
            warps = 1 if of_x else _WARPS
            self._launcher.launch(
                x.device, _GRADIENT, line(n if of_x else out, warps),
                threads=32 * warps, shared=4 * features * warps if in_shared else 0,
                grad=grad, x=x, weight=weight, index=index, decisive=decisive, result=result,
                n=n, out=out, features=features, of_x=of_x, shared_rows=in_shared,
            )  # fmt: skip
        return results

    def _launch(
        self,
        function: str,
        x: Tensor,
        weight: Tensor,
        index: Tensor,
        offsets: Tensor,
        inputs: dict[str, Tensor],
        results: Mapping[str, Tensor | None],
    ) -> None:
        (n, features), out = x.shape, offsets.shape[0] - 1
        order = self._order(index, offsets, features)
        if n * out == 0:
            return
        shared, multiprocessors = self._launcher.shared_memory(x.device), self._launcher.multiprocessors(x.device)
        row_bytes, save = 4 * features * len(inputs), all(result is not None for result in results.values())
        grid, rows = plan(n, out, row_bytes, shared, multiprocessors)
        self._launcher.launch(
            x.device, forward_kernel(function, rows, save), grid,
            threads=THREADS, shared=rows * row_bytes if rows > 1 else 0,
            **inputs, weight=weight, index=index, offsets=offsets, order=order, **results, n=n, out=out,
            features=features,
        )  # fmt: skip

    def _order(self, index: Tensor, offsets: Tensor, features: int) -> Tensor:
        """Return the outputs by falling number of connections; first check connections that are new or were changed.

        With wrong connections the kernels would read beyond the ends of x. Changes of tensors that were created in
        `torch.inference_mode` are not noticed.
        """
        versions = *(0 if tensor.is_inference() else tensor._version for tensor in (index, offsets)), features
        known = self._known.get(index)
        if known is None or known[0]() is not offsets or known[1] != versions:
            check_connections(index, offsets, features)
            order = offsets.diff().argsort(descending=True, stable=True).int()
            known = self._known[index] = weakref.ref(offsets), versions, order, []
        return known[2]

    def _by_input(self, index: Tensor, offsets: Tensor, features: int) -> tuple[Tensor, ...]:
        """Return all connections ordered by their inputs, for checked connections.

        Returns the connections, their neurons, where the list of each input starts, and the inputs by falling length of
        their lists.
        """
        stored: list[tuple[Tensor, ...]] = self._known[index][3]
        if not stored:
            entries = index.argsort(stable=True)
            neurons = torch.repeat_interleave(offsets.long().diff())
            counts = torch.bincount(index, minlength=features)
            starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)]).int()
            order = counts.argsort(descending=True, stable=True).int()
            stored.append((entries, neurons[entries].int(), starts, order))
        return stored[0]
