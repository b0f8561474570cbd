"""`lp_distance` by CUDA kernels: which kernels run for which p, with which buffers.

Nothing here waits for the device, and no shape depends on values: the calls can be captured in a CUDA graph.
"""

import math
import warnings
from dataclasses import dataclass
from functools import cache
from itertools import count

import torch
from torch import Tensor

from linfnet.ops.chains import LARGEST_CHAINED, power_source, snapped_p
from linfnet.ops.cuda import expanded, loader, pruned
from linfnet.ops.cuda.loader import Kernel, Launcher, Long, NoKernelsError
from linfnet.ops.cuda.plans import backward_plan, forward_plan

MAX, MAX_RUN, SUM, SUM_GENERAL = range(4)
_ABSOLUTE_MAX = Kernel("scale.cu", "absolute_max")
_FINISH_SUM = Kernel("finish.cu", "finish_sum")
_FINISH_MAX = Kernel("finish.cu", "finish_max")
_FINISH_INDEX = Kernel("finish.cu", "finish_index")
_COEFFICIENTS = Kernel("gradients.cu", "coefficients")
_ADD_PARTS = Kernel("gradients.cu", "add_parts")
_REPAIR = Kernel("gradients.cu", "repair")
_SCATTER = Kernel("sparse.cu", "scatter")
# Dynamic shared memory that one block of `scatter` may take, on every GPU served.
_MOST_SHARED = 160 * 1024
# Rows that the dense backward takes at a time, and its dynamic shared memory: the shares of 8 warps in them, twice.
ROWS = 16
_SHARES = 2 * 8 * ROWS * 64 * 4


@cache
def chained(p: float) -> int | None:
    """The whole part of p if that power is taken by multiplication (what is left of p, by special functions), or None.

    The error of the special functions is then multiplied by the fraction alone, not by p.
    """
    return math.floor(p) if p <= LARGEST_CHAINED else None


@cache
def forward_kernel(mode: int, p: float = math.inf) -> Kernel:
    """The kernel of one pass over the features: maximum.cu or forward.cu."""
    if mode in (MAX, MAX_RUN):
        return Kernel("maximum.cu", "distance", (("RUNS", int(mode == MAX_RUN)),))
    if mode == SUM_GENERAL:
        return Kernel("forward.cu", "distance", (("MODE", mode), ("UNROLL", 2)))
    whole = math.floor(p)
    before = power_source("power", whole, signed=False, fraction=p != whole)
    return Kernel("forward.cu", "distance", (("MODE", mode), ("UNROLL", 4)), before)


@cache
def backward_kernel(p: float | None, need_x: bool, need_w: bool) -> Kernel:
    """The dense backward for p by multiplication, or for any p by special functions (None)."""
    flags = (
        ("GENERAL", int(p is None)),
        ("NEED_X", int(need_x)),
        ("NEED_W", int(need_w)),
        ("ROWS", ROWS),
        ("UNROLL", 4),
    )
    if p is None:
        return Kernel("backward.cu", "slopes", flags)
    whole = math.floor(p - 1)
    return Kernel("backward.cu", "slopes", flags, power_source("slope", whole, signed=True, fraction=p - 1 != whole))


def kernels_ahead(p: float, n: int) -> list[Kernel]:
    """What a training step compiles for p and for the next p of a rising schedule."""
    if math.isinf(p):
        return [*pruned.kernels(p, n), forward_kernel(MAX_RUN)]
    following = p + 1
    if p == snapped_p(p):
        following = next(float(q) for q in count(int(p) + 1) if q == snapped_p(q))
    kernels: list[Kernel] = []
    for q in (p, following):
        mode, power = (SUM, q) if chained(q) is not None else (SUM_GENERAL, None)
        kernels += [forward_kernel(mode, q if power else math.inf)]
        kernels += [backward_kernel(power, need_x, True) for need_x in (True, False)]
        if q in expanded.POWERS:
            kernels += [expanded.kernel("powers", int(q))]
        if q >= pruned.SMALLEST_P:
            kernels += pruned.kernels(q, n)
    return kernels


@cache
def bounds_kernel(index: bool) -> Kernel:
    """Interval bounds, with or without the runs that attain them."""
    return Kernel("bounds.cu", "bounds", (("INDEX", int(index)),))


def decoded_index(saved: Tensor) -> Tensor:
    """The winning coordinate from what the forward at infinity saved: its lower 31 bits."""
    return saved & 0x7FFFFFFF


def _lift(budget: float, exponent: float) -> int:
    """To which power of two the largest number is scaled, so that its power stays below 2^budget."""
    return min(30, math.floor(budget / exponent)) if exponent > 0 else 0


def _vector(features: int, *tensors: Tensor) -> int:
    return int(features % 4 == 0 and all(tensor.data_ptr() % 16 == 0 for tensor in tensors))


def _line(count: int, threads: int = 256) -> tuple[int, int, int]:
    return (-(-count // threads), 1, 1)


@cache
def _trouble() -> str | None:
    """Why the kernels cannot run here, or None; compiles a first kernel."""
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    try:
        device = torch.device("cuda", torch.cuda.current_device())
        probe = torch.ones(1, device=device)
        Cuda().largest(probe)
    except (NoKernelsError, OSError) as error:
        return str(error)
    return None


@cache
def _warn_once(trouble: str) -> None:
    warnings.warn(f"linfnet's CUDA kernels cannot run; the slow reference serves instead: {trouble}", stacklevel=4)


def status() -> str:
    """One line about the CUDA kernels on this machine."""
    if trouble := _trouble():
        return f"cuda kernels: not available ({trouble.splitlines()[0]})"
    major, minor = loader.nvrtc_version()
    return f"cuda kernels: {torch.cuda.get_device_name()}, NVRTC {major}.{minor}, cache {loader.cache_folder()}"


@dataclass(frozen=True)
class _Coefficients:
    """c[b, o] = g (s y)^(1 - p): the numbers, which pairs are out of range, and what s follows from."""

    value: Tensor
    offset: Tensor | None
    flags: Tensor
    tops: Tensor
    lift: int


class Cuda:
    """NVRTC kernels; implements `linfnet.ops.implementations.Implementation` for float32 on CUDA devices."""

    name = "cuda"

    def __init__(self, launcher: Launcher | None = None, gate: Tensor | None = None) -> None:
        """`gate`: int32 [1] on the device; if it is zero when they run, the dense kernels return at once."""
        self._launcher = launcher or Launcher()
        self._gate = gate

    def serves(self, device_type: str, dtype: torch.dtype) -> bool:
        if device_type != "cuda" or dtype != torch.float32:
            return False
        trouble = _trouble()
        if trouble and torch.cuda.is_available():
            _warn_once(trouble)
        return trouble is None

    def forward(self, x: Tensor, w: Tensor, p: float) -> Tensor:
        if 0 in (x.shape[0], *w.shape):
            return x.new_zeros(x.shape[0], w.shape[0])
        if expanded.serves(x, w, p):
            return self._expanded_distance(x, w, p)
        if not self._is_pruned(x, w, p):
            return self._largest_difference(x, w) if math.isinf(p) else self._distance(x, w, p)
        serve = self._pruned_maximum if math.isinf(p) else self._pruned_distance
        parts = [serve(part, w, p) for part in x.split(pruned.MOST_ROWS)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def forward_saving(self, x: Tensor, w: Tensor, p: float) -> tuple[Tensor, Tensor]:
        if 0 in (x.shape[0], *w.shape):
            return self.forward(x, w, p), self.saved_like(x, w, p).zero_()
        self._launcher.prepare(x.device, (p, x.shape[0]), lambda: kernels_ahead(p, x.shape[0]))
        if not math.isinf(p):
            saved = self.saved_like(x, w, p)
            if expanded.serves(x, w, p):
                return self._expanded_distance(x, w, p, saved), saved
            pruned_p = self._is_pruned(x, w, p)
            return (self._pruned_distance if pruned_p else self._distance)(x, w, p, saved), saved
        if not self._is_pruned(x, w, p):
            return self._largest_index(x, w)
        y, index, flag = pruned.maximum(self._launcher, x, w, index=True)
        return Cuda(self._launcher, flag)._largest_index(x, w, y, index)

    def saved_like(self, x: Tensor, w: Tensor, p: float) -> Tensor:
        if self._is_pruned(x, w, p) and not math.isinf(p):
            return x.new_empty(pruned.saved_size(x.shape[0], w.shape[0], p), dtype=torch.int32)
        if expanded.serves(x, w, p):
            return x.new_empty(expanded.saved_size(x.shape[0], w.shape[0]), dtype=torch.int32)
        # At infinity the winning coordinate and its sign; else what y lost when it was rounded.
        return x.new_empty(x.shape[0], w.shape[0], dtype=torch.int32 if math.isinf(p) else x.dtype)

    def backward(
        self, grad: Tensor, x: Tensor, w: Tensor, y: Tensor, saved: Tensor, p: float, need_x: bool, need_w: bool
    ) -> tuple[Tensor, Tensor]:
        if grad.numel() == 0 or x.shape[1] == 0 or not (need_x or need_w):
            return (
                torch.zeros_like(x) if need_x else x.new_empty(0),
                torch.zeros_like(w) if need_w else w.new_empty(0),
            )
        if math.isinf(p):
            return (
                self._scatter(grad, y, saved, x, transposed=False) if need_x else x.new_empty(0),
                self._scatter(grad, y, saved, w, transposed=True) if need_w else w.new_empty(0),
            )
        if expanded.serves(x, w, p):
            serve = self._expanded_backward
        else:
            serve = self._pruned_backward if self._is_pruned(x, w, p) else self._dense_backward
        return serve(grad, x, w, y, saved, p, need_x, need_w)

    def bounds(self, lower: Tensor, upper: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        n, out = lower.shape[0], w.shape[0]
        if 0 in (n, *w.shape):
            return lower.new_zeros(n, out), lower.new_zeros(n, out)
        smallest, largest, _, _, parts = self._bounds_pass(lower, upper, w, index=False)
        if parts == 1:
            return smallest[0], largest[0]
        return self._finish_max(smallest), self._finish_max(largest)

    def bounds_saving(self, lower: Tensor, upper: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        n, out, features = lower.shape[0], *w.shape
        results = [lower.new_zeros(n, out) for _ in range(2)]
        indices = [lower.new_zeros(n, out, dtype=torch.int32) for _ in range(2)]
        if 0 not in (n, out, features):
            smallest, largest, near, far, parts = self._bounds_pass(lower, upper, w, index=True)
            for place, (part, run) in enumerate(((smallest, near), (largest, far))):
                vector = _vector(features, lower, upper, w)
                made = (results[place], indices[place], n, out, features, place + 1, 0, vector, None)
                self._run(_FINISH_INDEX, lower, _line(n * out), 256, part, run, parts, lower, upper, w, *made)
        return results[0], results[1], indices[0], indices[1]

    def largest(self, first: Tensor, second: Tensor | None = None) -> Tensor:
        """The largest |a| of each tensor, as the bits of a float: int32 [2]; zero where there is none."""
        tops = torch.zeros(2, dtype=torch.int32, device=first.device)
        sizes = first.numel(), 0 if second is None else second.numel()
        blocks = min(4 * self._launcher.multiprocessors(first.device), -(-max(sizes) // 1024))
        grid = (blocks, 1 if second is None else 2, 1)
        self._run(_ABSOLUTE_MAX, first, grid, 256, first, Long(sizes[0]), second, Long(sizes[1]), tops, self._gate)
        return tops

    def _run(
        self,
        kernel: Kernel,
        like: Tensor,
        grid: tuple[int, int, int],
        threads: int,
        *arguments: loader.Argument,
        shared: int = 0,
    ) -> None:
        self._launcher.launch(kernel, like.device, grid, threads, *arguments, shared=shared)

    def _pass(
        self,
        x: Tensor,
        w: Tensor,
        mode: int,
        p: float = math.inf,
        peak: Tensor | None = None,
        tops: Tensor | None = None,
        into: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None, int]:
        """One pass over the features: partial results [parts, n, out], the runs of 32 that won, and parts."""
        n, out, features = x.shape[0], *w.shape
        plan = forward_plan(n, out, features, self._launcher.multiprocessors(x.device))
        part = into[None] if into is not None and plan.parts == 1 else x.new_empty(plan.parts, n, out)
        run = x.new_empty(plan.parts, n, out, dtype=torch.int32) if mode == MAX_RUN else None
        kernel = forward_kernel(mode, p if mode == SUM else math.inf)
        sizes = (n, out, features, plan.span, _vector(features, x, w))
        if mode in (MAX, MAX_RUN):
            self._run(kernel, x, plan.grid, 128, x, w, part, run, *sizes, self._gate)
        else:
            lift = _lift(100, p) if mode == SUM else 0
            self._run(kernel, x, plan.grid, 128, x, w, part, peak, tops, *sizes, p, lift, self._gate)
        return part, run, plan.parts

    def _finish_max(self, part: Tensor, into: Tensor | None = None) -> Tensor:
        y = torch.empty_like(part[0]) if into is None else into
        self._run(_FINISH_MAX, y, _line(y.numel()), 256, part, part.shape[0], y, Long(y.numel()), self._gate)
        return y

    def _largest_difference(self, x: Tensor, w: Tensor, into: Tensor | None = None) -> Tensor:
        part, _, parts = self._pass(x, w, MAX, into=into)
        return part[0] if parts == 1 else self._finish_max(part, into)

    def _largest_index(
        self, x: Tensor, w: Tensor, y: Tensor | None = None, index: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        n, out, features = x.shape[0], *w.shape
        part, run, parts = self._pass(x, w, MAX_RUN)
        y = x.new_empty(n, out) if y is None else y
        index = x.new_empty(n, out, dtype=torch.int32) if index is None else index
        sizes = (n, out, features, 0, 1, _vector(features, x, w), self._gate)
        self._run(_FINISH_INDEX, x, _line(n * out), 256, part, run, parts, x, None, w, y, index, *sizes)
        return y, index

    def _pruned_maximum(self, x: Tensor, w: Tensor, p: float) -> Tensor:
        y, _, flag = pruned.maximum(self._launcher, x, w, index=False)
        return Cuda(self._launcher, flag)._largest_difference(x, w, into=y)

    def _distance(
        self, x: Tensor, w: Tensor, p: float, rest: Tensor | None = None, into: Tensor | None = None
    ) -> Tensor:
        n, out, features = x.shape[0], *w.shape
        if chained(p) is not None:
            peak, tops, lift = None, self.largest(x, w), _lift(100, p)
            part, _, parts = self._pass(x, w, SUM, p, tops=tops)
        else:
            peak = self._largest_difference(x, w)
            tops, lift = self.largest(peak), 0
            part, _, parts = self._pass(x, w, SUM_GENERAL, p, peak, tops)
        y = x.new_empty(n, out) if into is None else into
        made = (y, rest, n, out, features, p, lift, self._gate)
        self._run(_FINISH_SUM, x, _line(n * out), 256, part, parts, x, w, peak, tops, *made)
        return y

    def _is_pruned(self, x: Tensor, w: Tensor, p: float) -> bool:
        return pruned.serves(x.shape[0], w.shape[0], w.shape[1], p)

    def _pruned_distance(self, x: Tensor, w: Tensor, p: float, saved: Tensor | None = None) -> Tensor:
        """Distances from the features that can count; behind a gate, the dense kernels for layers with too many."""
        y, flag = pruned.forward(self._launcher, x, w, p, saved)
        rest = None if saved is None else pruned.kept_of(saved, y.numel())
        return Cuda(self._launcher, flag)._distance(x, w, p, rest, into=y)

    def _pruned_backward(
        self, grad: Tensor, x: Tensor, w: Tensor, y: Tensor, saved: Tensor, p: float, need_x: bool, need_w: bool
    ) -> tuple[Tensor, Tensor]:
        flag, rest = pruned.flag_of(saved), pruned.kept_of(saved, y.numel())
        dense = Cuda(self._launcher, flag)
        # Where slopes are at most 1 the lists need no unit: the largest are found if the dense kernels serve.
        largest = (dense if pruned.powers(p) == pruned.SPECIAL else self).largest(y, grad)
        results = pruned.backward(self._launcher, grad, x, w, y, saved, largest, p, (need_x, need_w))
        return dense._dense_backward(grad, x, w, y, rest, p, need_x, need_w, into=results, tops=largest)

    def _expanded_distance(self, x: Tensor, w: Tensor, p: float, saved: Tensor | None = None) -> Tensor:
        """Distances by matrix products; behind a gate, the dense kernels for layers where too much cancels."""
        n, out, features = x.shape[0], *w.shape
        flag = torch.empty(1, dtype=torch.int32, device=x.device) if saved is None else pruned.flag_of(saved)
        rest = None if saved is None else pruned.kept_of(saved, n * out)
        tops, lift, y = self.largest(x, w), _lift(100, p), x.new_empty(n, out)
        sums = expanded.forward(self._launcher, x, w, tops, p, lift, flag)
        made = (y, rest, n, out, features, p, lift, None)
        self._run(_FINISH_SUM, x, _line(n * out), 256, sums, 1, x, w, None, tops, *made)
        return Cuda(self._launcher, flag)._distance(x, w, p, rest, into=y)

    def _expanded_backward(
        self, grad: Tensor, x: Tensor, w: Tensor, y: Tensor, saved: Tensor, p: float, need_x: bool, need_w: bool
    ) -> tuple[Tensor, Tensor]:
        flag, rest = pruned.flag_of(saved), pruned.kept_of(saved, y.numel())
        coefficients = self._coefficients(grad, y, rest, p)
        results = (torch.empty_like(x) if need_x else x.new_empty(0), torch.empty_like(w) if need_w else w.new_empty(0))
        wanted = results[0] if need_x else None, results[1] if need_w else None
        inputs = (coefficients.value, x, w, self.largest(x, w), coefficients.tops)
        expanded.backward(self._launcher, *inputs, p, coefficients.lift, wanted)
        self._repair(grad, x, w, y, p, coefficients, wanted)
        dense, tops = Cuda(self._launcher, flag), coefficients.tops
        return dense._dense_backward(grad, x, w, y, rest, p, need_x, need_w, into=results, tops=tops)

    def _scatter(self, grad: Tensor, y: Tensor, saved: Tensor, like: Tensor, *, transposed: bool) -> Tensor:
        """The gradient of x, or of w (transposed), at infinity: each pair's flow to its winning coordinate."""
        result = torch.empty_like(like)
        (rows, features), items = like.shape, grad.shape[0 if transposed else 1]
        # Rows of x are few and long: four warps share one. Eight neighbouring columns of `saved` lie in one sector.
        most = _MOST_SHARED // (4 * features)
        share = 1 if transposed or most < 4 else 4
        warps = min(8, most) if transposed else min(share, most)
        strides = (Long(1), Long(grad.shape[1])) if transposed else (Long(grad.shape[1]), Long(1))
        sizes = (rows, items, features, *strides, -1.0 if transposed else 1.0, share, int(warps > 0))
        grid, threads = _line(rows, max(1, warps) // share), 32 * max(1, warps)
        self._run(_SCATTER, grad, grid, threads, grad, y, saved, result, *sizes, shared=4 * features * warps)
        return result

    def _dense_backward(
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
        n, out, features = x.shape[0], *w.shape
        coefficients = self._coefficients(grad, y, rest, p, tops)
        plan = backward_plan(n, out, features, self._launcher.multiprocessors(x.device))
        results = list(
            into
            or (torch.empty_like(x) if need_x else x.new_empty(0), torch.empty_like(w) if need_w else w.new_empty(0))
        )
        part_x, part_w = (
            (result[None] if parts == 1 else x.new_empty(parts, *result.shape)) if need else None
            for result, parts, need in zip(results, plan.grid[1:], (need_x, need_w), strict=True)
        )
        sizes = (n, out, features, plan.out_span, plan.row_span, _vector(out, coefficients.value))
        shared = _SHARES if need_x else 0
        kernel = backward_kernel(None if chained(p) is None else p, need_x, need_w)
        inputs = (x, w, coefficients.value, coefficients.offset, coefficients.tops, part_x, part_w)
        lift = coefficients.lift
        self._run(kernel, x, plan.grid, 256, *inputs, *sizes, p - 1, lift, self._gate, shared=shared)
        for part, result in zip((part_x, part_w), results, strict=True):
            if part is not None:
                self._add(part, result)
        wanted = results[0] if need_x else None, results[1] if need_w else None
        self._repair(grad, x, w, y, p, coefficients, wanted)
        return results[0], results[1]

    def _coefficients(
        self, grad: Tensor, y: Tensor, rest: Tensor, p: float, tops: Tensor | None = None
    ) -> _Coefficients:
        """What each pair's slopes are multiplied by."""
        (n, out), general = y.shape, chained(p) is None
        lift = 0 if general else _lift(48, p - 1)
        tops = self.largest(y, grad) if tops is None else tops
        flags = torch.zeros(n + out, dtype=torch.int32, device=y.device)
        value, offset = torch.empty_like(y), torch.empty_like(y) if general else None
        made = (value, offset, flags, n, out, p - 1, lift, int(general), self._gate)
        self._run(_COEFFICIENTS, y, _line(n * out), 256, grad, y, rest, tops, *made)
        return _Coefficients(value, offset, flags, tops, lift)

    def _repair(
        self,
        grad: Tensor,
        x: Tensor,
        w: Tensor,
        y: Tensor,
        p: float,
        coefficients: _Coefficients,
        results: tuple[Tensor | None, Tensor | None],
    ) -> None:
        """Add the slopes of the pairs that are out of range."""
        sizes = (y.shape[0], *w.shape, p - 1, coefficients.lift, int(chained(p) is None))
        inputs = (grad, x, w, y, coefficients.tops, coefficients.flags)
        for place, result in enumerate(results):
            if result is not None:
                made = (result, *sizes, int(place == 0), self._gate)
                self._run(_REPAIR, x, (result.shape[0], 1, 1), 256, *inputs, *made)

    def _add(self, part: Tensor, result: Tensor) -> None:
        if part.shape[0] == 1:
            return
        blocks = min(8 * self._launcher.multiprocessors(part.device), -(-result.numel() // 256))
        made = (result, Long(result.numel()), self._gate)
        self._run(_ADD_PARTS, part, (blocks, 1, 1), 256, part, part.shape[0], *made)

    def _bounds_pass(
        self, lower: Tensor, upper: Tensor, w: Tensor, *, index: bool
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, int]:
        n, out, features = lower.shape[0], *w.shape
        plan = forward_plan(n, out, features, self._launcher.multiprocessors(lower.device))
        smallest, largest = (lower.new_empty(plan.parts, n, out) for _ in range(2))
        near, far = (torch.empty_like(smallest, dtype=torch.int32) if index else None for _ in range(2))
        sizes = (n, out, features, plan.span, _vector(features, lower, upper, w))
        made = (smallest, largest, near, far)
        self._run(bounds_kernel(index), lower, plan.grid, 128, lower, upper, w, *made, *sizes)
        return smallest, largest, near, far, plan.parts
