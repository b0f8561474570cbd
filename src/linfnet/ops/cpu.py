"""C++ kernels for float32 on the CPU; float64 is computed by the reference.

The extension takes addresses and sizes and is not built against torch. It contains the same source compiled for
AVX-512, AVX2+FMA and other machines (plain) and selects the best level when it is loaded; `use_level` selects another.

At p = infinity the result has the same bits as the reference. Powers with whole p up to 10, and with some p up to 32,
are computed by multiplication, all others by log2 and exp2. If few terms of a sum matter, only these are computed. The
sources are in `csrc`.

The kernels use at most `torch.get_num_threads()` threads: those of torch, or a pool if these sleep or if the machine is
busy (`csrc/threads.cpp`). Neither the number of threads nor their order changes a bit of the result.
"""

import contextlib
import importlib
import math
from collections.abc import Generator, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from linfnet.errors import ArgumentError
from linfnet.ops.implementations import KERNELS, bounds_like, gradients_like
from linfnet.ops.reference import Reference

_kernels: Any
try:
    _kernels, _import_error = importlib.import_module("linfnet.ops._cpu"), ""
except ImportError as error:
    _kernels, _import_error = None, str(error)
_TRIPLES_PER_THREAD: int = getattr(_kernels, "TRIPLES_PER_THREAD", 1)


def status() -> str:
    """Return one line: the instruction set in use, or why the kernels are missing.

    >>> "CPU kernels" in status()
    True
    """
    if _kernels is None:
        return f"CPU kernels missing, using the reference ({_import_error})"
    levels = ", ".join(_kernels.levels())
    return f"CPU kernels: {_kernels.level()} (compiled: {levels}); threads: {_kernels.thread_runtime()}"


def levels() -> tuple[str, ...]:
    """Return the instruction-set levels that run on this machine, best first; empty without the extension."""
    return () if _kernels is None else tuple(cast("list[str]", _kernels.levels()))


@contextlib.contextmanager
def use_level(level: str) -> Generator[None]:
    """Use one of `levels()` within a `with` block, in all threads."""
    if level not in levels():
        raise ArgumentError(f"level is {level!r}; this machine has {', '.join(levels()) or 'no kernels'}")
    previous = _kernels.level()
    _kernels.use(level)
    try:
        yield
    finally:
        _kernels.use(previous)


def elementary(which: int, a: Tensor, p: float = 1.0) -> Tensor:
    """Return log2 (0), exp2 (1) or the p-th root (2) of a float32 vector by the kernels, to test their errors."""
    a, result = a.contiguous(), torch.empty_like(a)
    _kernels.elementary(which, a.data_ptr(), result.data_ptr(), p, a.numel())
    return result


def is_accurate(p: float) -> bool:
    """Whether the kernels meet their error bound at p; otherwise (p near 1 or above 1e5) the reference is used."""
    return p == 1 or 1.5 <= p <= 1e5 or p == math.inf


def threads_for(n: int, out: int, features: int) -> int:
    """Return the number of threads for a layer: as many as torch uses, but fewer for a small layer."""
    most = n * out * features // _TRIPLES_PER_THREAD
    return 1 if most < 2 else min(most, torch.get_num_threads())


@KERNELS.register("cpu")
class Cpu:
    """C++ kernels; implements `linfnet.ops.implementations.Implementation`."""

    def __init__(self) -> None:
        self._reference = Reference()

    def supports(self, device_type: str, dtype: torch.dtype) -> bool:
        return device_type == "cpu" and dtype is torch.float32 and _kernels is not None

    def forward(self, x: Tensor, w: Tensor, p: float) -> Tensor:
        return self._forward(x, w, p, None)

    def forward_saving(self, x: Tensor, w: Tensor, p: float) -> tuple[Tensor, Tensor]:
        saved = self.saved_like(x, w, p)
        return self._forward(x, w, p, saved if p == math.inf else None), saved

    def _forward(self, x: Tensor, w: Tensor, p: float, index: Tensor | None) -> Tensor:
        if not is_accurate(p):
            return self._reference.forward(x, w, p)
        (n, features), out = x.shape, w.shape[0]
        y = x.new_empty((n, out))
        if n * out * features == 0:
            if index is not None:
                index.zero_()
            return y.zero_()
        # Assigned to variables, so that copies of strided tensors live until the call returns.
        x, w = x.contiguous(), w.contiguous()
        saved, threads = 0 if index is None else index.data_ptr(), threads_for(n, out, features)
        _kernels.forward(x.data_ptr(), w.data_ptr(), y.data_ptr(), saved, p, n, out, features, threads)
        return y

    def saved_like(self, x: Tensor, w: Tensor, p: float) -> Tensor:
        # For finite p, it is faster to search again for the terms that matter than to store and load them.
        return self._reference.saved_like(x, w, p)

    def backward(
        self, grad: Tensor, x: Tensor, w: Tensor, y: Tensor, saved: Tensor, p: float, need_x: bool, need_w: bool
    ) -> tuple[Tensor, Tensor]:
        if not is_accurate(p):
            return self._reference.backward(grad, x, w, y, saved, p, need_x, need_w)
        (n, features), out = x.shape, w.shape[0]
        grad_x, grad_w = gradients_like(x, w, need_x, need_w)
        if n * out * features == 0:
            return grad_x.zero_(), grad_w.zero_()
        grad, x, w, y, saved = (t.contiguous() for t in (grad, x, w, y, saved))
        # `data_ptr()` of an empty tensor is 0, which tells the kernel to skip that gradient.
        addresses = [t.data_ptr() for t in (grad, x, w, y, saved, grad_x, grad_w)]
        _kernels.backward(*addresses, p, n, out, features, threads_for(n, out, features))
        return grad_x, grad_w

    def bounds(self, lower: Tensor, upper: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        results = bounds_like(lower, w)
        self._bounds(lower, upper, w, results)
        return results

    def bounds_saving(self, lower: Tensor, upper: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        results = (*bounds_like(lower, w), *bounds_like(lower, w, torch.int32))
        self._bounds(lower, upper, w, results)
        return results

    def _bounds(self, lower: Tensor, upper: Tensor, w: Tensor, results: tuple[Tensor, ...]) -> None:
        (n, features), out = lower.shape, w.shape[0]
        if n * out * features == 0:
            for result in results:
                result.zero_()
            return
        inputs = [t.contiguous() for t in (lower, upper, w)]
        addresses = [t.data_ptr() for t in (*inputs, *results)] + [0] * (4 - len(results))
        _kernels.bounds(*addresses, n, out, features, threads_for(n, out, features))


def sorts() -> bool:
    """Whether the extension has the kernels of `sorted_distance` and `sorted_bounds`."""
    return hasattr(_kernels, "sorted_bounds")


def sorted_distance(x: Tensor, w: Tensor, factors: Sequence[float], index: Tensor | None) -> Tensor:
    """Return `linfnet.ops.sorted_linf_distance` of contiguous tensors that are not empty.

    `index` (int32 [n, out, terms], or None) receives the features of the largest |x - w|, the largest first.
    """
    (n, features), out = x.shape, w.shape[0]
    y = x.new_empty(n, out)
    saved = 0 if index is None else index.data_ptr()
    threads = threads_for(n, out, features)
    _kernels.sorted_forward(x.data_ptr(), w.data_ptr(), y.data_ptr(), saved, factors, n, out, features, threads)
    return y


def sorted_bounds(lower: Tensor, upper: Tensor, w: Tensor, factors: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Return `linfnet.ops.sorted_linf_bounds` of contiguous tensors that are not empty."""
    (n, features), out = lower.shape, w.shape[0]
    results = bounds_like(lower, w)
    addresses = [t.data_ptr() for t in (lower, upper, w, *results)]
    _kernels.sorted_bounds(*addresses, factors, n, out, features, threads_for(n, out, features))
    return results
