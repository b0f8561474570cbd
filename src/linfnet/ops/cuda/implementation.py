"""`lp_distance` by CUDA kernels: which kernels run for which p.

Nothing here waits for the device, and no shape depends on values: the calls can be captured in a CUDA graph. Where few
features count (`pruned`) or matrix products serve (`expanded`) a flag on the device says when they do not; the dense
kernels stand behind it as a gate and return at once while it is closed.
"""

import math
import warnings
from functools import cache

import torch
from torch import Tensor

from linfnet.errors import LinfnetError
from linfnet.ops.addition_chain import snapped_after, snapped_p
from linfnet.ops.cuda import dense, nvrtc, pruned, tensor_core
from linfnet.ops.cuda.dense import Dense
from linfnet.ops.cuda.linf import Infinite, maximum_kernel
from linfnet.ops.cuda.nvrtc import Kernel, Launcher

# A snapped p stays for few steps in a short run: kernels of so many further ones are compiled meanwhile.
SNAPPED_AHEAD = 2


def kernels_ahead(p: float, n: int, shared: int) -> list[Kernel]:
    """What a training step of n rows compiles for p and for the next p of a rising schedule."""
    if math.isinf(p):
        return [*pruned.kernels(p, n), maximum_kernel(True)]
    snapped = p == snapped_p(p) and p < pruned.LARGEST_PAIRED  # beyond, all p have the same kernels
    rising = [p]
    for _ in range(SNAPPED_AHEAD if snapped else 1):
        rising.append(snapped_after(rising[-1]) if snapped else p + 1)
    kernels: list[Kernel] = []
    for q in rising:
        kernels += dense.kernels(q, shared)
        if q in tensor_core.POWERS:
            kernels += [tensor_core.kernel(function, int(q)) for function in ("powers", "add_close")]
        if q >= pruned.SMALLEST_P:
            kernels += pruned.kernels(q, n)
    return kernels


def _same_kernels(p: float) -> tuple[bool, float]:
    """The same for all p whose kernels have the same source."""
    if math.isinf(p):
        return True, p
    special = p > pruned.LARGEST_PAIRED or p != math.floor(p)
    return special, math.floor(min(p, pruned.LARGEST_PAIRED + 1)) if special else p


@cache
def _trouble() -> str | None:
    """Why the kernels cannot run here, in a line, or None; compiles a first kernel."""
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    try:
        device = torch.device("cuda", torch.cuda.current_device())
        major, minor = torch.cuda.get_device_capability(device)
        if major < 8:  # no asynchronous copies
            return f"{torch.cuda.get_device_name(device)} is of architecture sm_{major}{minor}; wanted sm_80 or later"
        probe = torch.ones(1, device=device)
        Dense(Launcher()).largest(probe)
    except (LinfnetError, OSError) as error:  # no compiler for this GPU, or a driver that does not take what it made
        return str(error).splitlines()[0]
    return None


@cache
def _warn_once(trouble: str) -> None:
    warnings.warn(f"linfnet's CUDA kernels cannot run; the slow reference serves instead: {trouble}", stacklevel=4)


def status() -> str:
    """One line about the CUDA kernels on this machine."""
    if trouble := _trouble():
        return f"cuda kernels: not available ({trouble})"
    major, minor = nvrtc.nvrtc_version()
    return f"cuda kernels: {torch.cuda.get_device_name()}, NVRTC {major}.{minor}, cache {nvrtc.cache_folder()}"


class Cuda:
    """NVRTC kernels; implements `linfnet.ops.registry.Implementation` for float32 on CUDA devices."""

    name = "cuda"

    def __init__(self, launcher: Launcher | None = None) -> None:
        self._launcher = launcher or Launcher()

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
        if tensor_core.serves(x, w, p):
            return self._expanded_distance(x, w, p)
        if not _is_pruned(x, w, p):
            return self._infinite().maximum(x, w) if math.isinf(p) else self._dense().distance(x, w, p)
        serve = self._pruned_maximum if math.isinf(p) else self._pruned_distance
        parts = [serve(part, w, p) for part in x.split(pruned.MOST_ROWS)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def forward_saving(self, x: Tensor, w: Tensor, p: float) -> tuple[Tensor, Tensor]:
        if 0 in (x.shape[0], *w.shape):
            return self.forward(x, w, p), self.saved_like(x, w, p).zero_()
        shared = self._launcher.shared_memory(x.device)
        self._launcher.prepare(x.device, (_same_kernels(p), x.shape[0]), lambda: kernels_ahead(p, x.shape[0], shared))
        if math.isinf(p):
            if not _is_pruned(x, w, p):
                return self._infinite().maximum_and_index(x, w)
            y, index, flag = pruned.maximum(self._launcher, x, w, index=True)
            return self._infinite(flag).maximum_and_index(x, w, y, index)
        saved = self.saved_like(x, w, p)
        if tensor_core.serves(x, w, p):
            serve = self._expanded_distance
        else:
            serve = self._pruned_distance if _is_pruned(x, w, p) else self._dense().distance
        return serve(x, w, p, saved), saved

    def saved_like(self, x: Tensor, w: Tensor, p: float) -> Tensor:
        if _is_pruned(x, w, p) and not math.isinf(p):
            return x.new_empty(pruned.saved_size(x.shape[0], w.shape[0], w.shape[1], p), dtype=torch.int32)
        if tensor_core.serves(x, w, p):
            return x.new_empty(tensor_core.saved_size(x.shape[0], w.shape[0]), dtype=torch.int32)
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
            scatter = self._infinite().scatter
            return (
                scatter(grad, y, saved, x, transposed=False) if need_x else x.new_empty(0),
                scatter(grad, y, saved, w, transposed=True) if need_w else w.new_empty(0),
            )
        if tensor_core.serves(x, w, p):
            serve = self._expanded_backward
        else:
            serve = self._pruned_backward if _is_pruned(x, w, p) else self._dense().backward
        return serve(grad, x, w, y, saved, p, need_x, need_w)

    def bounds(self, lower: Tensor, upper: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return self._infinite().bounds(lower, upper, w)

    def bounds_saving(self, lower: Tensor, upper: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self._infinite().bounds_saving(lower, upper, w)

    def _dense(self, gate: Tensor | None = None) -> Dense:
        return Dense(self._launcher, gate)

    def _infinite(self, gate: Tensor | None = None) -> Infinite:
        return Infinite(self._launcher, gate)

    def _pruned_maximum(self, x: Tensor, w: Tensor, p: float) -> Tensor:
        y, _, flag = pruned.maximum(self._launcher, x, w, index=False)
        return self._infinite(flag).maximum(x, w, into=y)

    def _pruned_distance(self, x: Tensor, w: Tensor, p: float, saved: Tensor | None = None) -> Tensor:
        """Distances from the features that can count; behind a gate, the dense kernels for layers with too many."""
        y, flag = pruned.forward(self._launcher, x, w, p, saved)
        rest = None if saved is None else pruned.kept_of(saved, y.numel())
        return self._dense(flag).distance(x, w, p, rest, into=y)

    def _pruned_backward(
        self, grad: Tensor, x: Tensor, w: Tensor, y: Tensor, saved: Tensor, p: float, need_x: bool, need_w: bool
    ) -> tuple[Tensor, Tensor]:
        flag, rest = pruned.flag_of(saved), pruned.kept_of(saved, y.numel())
        behind = self._dense(flag)
        # Where slopes are at most 1 the lists need no unit: the largest are found if the dense kernels serve.
        largest = (behind if pruned.is_special(p) else self._dense()).largest(y, grad)
        results = pruned.backward(self._launcher, grad, x, w, y, saved, largest, p, (need_x, need_w))
        return behind.backward(grad, x, w, y, rest, p, need_x, need_w, into=results, tops=largest)

    def _expanded_distance(self, x: Tensor, w: Tensor, p: float, saved: Tensor | None = None) -> Tensor:
        """Distances by matrix products; behind a gate, the dense kernels for layers where too much cancels."""
        pairs = x.shape[0] * w.shape[0]
        flag = torch.empty(1, dtype=torch.int32, device=x.device) if saved is None else pruned.flag_of(saved)
        rest = None if saved is None else pruned.kept_of(saved, pairs)
        close = None if saved is None else tensor_core.close_of(saved, pairs)
        tops = self._dense().largest(x, w)
        sums = tensor_core.forward(self._launcher, x, w, tops, p, dense.sum_lift(p), flag, close)
        y = self._dense().finish(sums[None], x, w, tops, p, rest)
        return self._dense(flag).distance(x, w, p, rest, into=y)

    def _expanded_backward(
        self, grad: Tensor, x: Tensor, w: Tensor, y: Tensor, saved: Tensor, p: float, need_x: bool, need_w: bool
    ) -> tuple[Tensor, Tensor]:
        flag, rest = pruned.flag_of(saved), pruned.kept_of(saved, y.numel())
        kernels = self._dense()
        coefficients = kernels.coefficients(grad, y, rest, p)
        results = dense.gradients_like(x, w, need_x, need_w)
        wanted = results[0] if need_x else None, results[1] if need_w else None
        close, inputs = tensor_core.close_of(saved, y.numel()), (x, w, kernels.largest(x, w))
        slopes = tensor_core.Slopes(coefficients.value, close, *inputs, coefficients.tops, coefficients.lift)
        tensor_core.backward(self._launcher, slopes, p, wanted)
        kernels.repair(grad, x, w, y, p, coefficients, wanted)
        behind, tops = self._dense(flag), coefficients.tops
        return behind.backward(grad, x, w, y, rest, p, need_x, need_w, into=results, tops=tops)


def _is_pruned(x: Tensor, w: Tensor, p: float) -> bool:
    return pruned.serves(x.shape[0], w.shape[0], w.shape[1], p)
