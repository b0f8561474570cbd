"""`lp_distance` by CUDA kernels: which kernels run for which p and layer.

Nothing here waits for the device, and no shape depends on values: calls can be captured in a CUDA graph. If few
features contribute (`pruned`) or if matrix products can be used (`tensor_core`), the flag `use_dense` on the device
tells whether that failed. The dense kernels are launched after them and return at once if the flag is 0.
"""

import math
import warnings
from functools import cache

import torch
from torch import Tensor

from linfnet.errors import LinfnetError
from linfnet.ops.cuda import dense, nvrtc, pruned, tensor_core
from linfnet.ops.cuda.dense import Dense
from linfnet.ops.cuda.linf import Linf, maximum_kernel
from linfnet.ops.cuda.nvrtc import Kernel, Launcher
from linfnet.ops.implementations import KERNELS
from linfnet.ops.powers import LARGEST_PAIRED, snapped_after, snapped_p, uses_ratio

# In a short run a snapped p is used for few steps: kernels for the next values of p are compiled ahead.
SNAPPED_AHEAD = 2


def kernels_ahead(p: float, n: int, shared: int) -> list[Kernel]:
    """What a training step of n rows compiles for p and for the next values of p."""
    if math.isinf(p):
        return [*pruned.kernels(p, n), maximum_kernel(True)]
    snapped = p == snapped_p(p) and p < LARGEST_PAIRED  # all larger p have the same kernels
    rising = [p]
    for _ in range(SNAPPED_AHEAD if snapped else 1):
        rising.append(snapped_after(rising[-1]) if snapped else p + 1)
    kernels: list[Kernel] = []
    for q in rising:
        kernels += dense.kernels(q, shared)
        if q in tensor_core.POWERS:
            kernels += [tensor_core.kernel(function, int(q)) for function in ("powers", "add_unexpanded")]
        if q >= pruned.SMALLEST_P:
            kernels += pruned.kernels(q, n)
    return kernels


def _kernel_key(p: float) -> tuple[bool, float]:
    """A key that is equal for all p whose kernels have the same source."""
    if math.isinf(p):
        return True, p
    return uses_ratio(p), math.floor(min(p, LARGEST_PAIRED + 1)) if uses_ratio(p) else p


@cache
def _obstacle() -> str | None:
    """Why the kernels cannot run on this machine, in one line, or None; compiles and runs a first kernel."""
    if not torch.cuda.is_available():
        return "torch finds no CUDA device"
    try:
        device = torch.device("cuda", torch.cuda.current_device())
        major, minor = torch.cuda.get_device_capability(device)
        if major < 8:  # no asynchronous copies
            return f"{torch.cuda.get_device_name(device)} has architecture sm_{major}{minor}; wanted sm_80 or later"
        probe = torch.ones(1, device=device)
        Dense(Launcher()).largest(probe)
    except (LinfnetError, OSError) as error:  # no compiler for this GPU, or a driver that rejects its output
        return str(error).splitlines()[0]
    return None


@cache
def _warn_once(obstacle: str) -> None:
    warnings.warn(f"linfnet's CUDA kernels cannot run; using the slow reference instead: {obstacle}", stacklevel=4)


def status() -> str:
    """One line about the CUDA kernels on this machine."""
    if obstacle := _obstacle():
        return f"cuda kernels: not available ({obstacle})"
    major, minor = nvrtc.nvrtc_version()
    return f"cuda kernels: {torch.cuda.get_device_name()}, NVRTC {major}.{minor}, cache {nvrtc.cache_folder()}"


@KERNELS.register("cuda")
class Cuda:
    """NVRTC kernels; implements `linfnet.ops.implementations.Implementation` for float32 on CUDA devices."""

    def __init__(self, launcher: Launcher | None = None) -> None:
        self._launcher = launcher or Launcher()

    def supports(self, device_type: str, dtype: torch.dtype) -> bool:
        if device_type != "cuda" or dtype != torch.float32:
            return False
        obstacle = _obstacle()
        if obstacle and torch.cuda.is_available():
            _warn_once(obstacle)
        return obstacle is None

    def forward(self, x: Tensor, w: Tensor, p: float) -> Tensor:
        if 0 in (x.shape[0], *w.shape):
            return x.new_zeros(x.shape[0], w.shape[0])
        if tensor_core.supports(x, w, p):
            return self._tensor_core_distance(x, w, p)
        if not _is_pruned(x, w, p):
            return self._linf().maximum(x, w) if math.isinf(p) else self._dense().distance(x, w, p)
        compute = self._pruned_maximum if math.isinf(p) else self._pruned_distance
        parts = [compute(part, w, p) for part in x.split(pruned.MOST_ROWS)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def forward_saving(self, x: Tensor, w: Tensor, p: float) -> tuple[Tensor, Tensor]:
        if 0 in (x.shape[0], *w.shape):
            return self.forward(x, w, p), self.saved_like(x, w, p).zero_()
        shared = self._launcher.shared_memory(x.device)
        self._launcher.prepare(x.device, (_kernel_key(p), x.shape[0]), lambda: kernels_ahead(p, x.shape[0], shared))
        if math.isinf(p):
            if not _is_pruned(x, w, p):
                return self._linf().maximum_and_index(x, w)
            y, index, use_dense = pruned.maximum(self._launcher, x, w, index=True)
            return self._linf(use_dense).maximum_and_index(x, w, y, index)
        saved = self.saved_like(x, w, p)
        if tensor_core.supports(x, w, p):
            compute = self._tensor_core_distance
        else:
            compute = self._pruned_distance if _is_pruned(x, w, p) else self._dense().distance
        return compute(x, w, p, saved), saved

    def saved_like(self, x: Tensor, w: Tensor, p: float) -> Tensor:
        if _is_pruned(x, w, p) and not math.isinf(p):
            return x.new_empty(pruned.saved_layout(x, w, p).size, dtype=torch.int32)
        if tensor_core.supports(x, w, p):
            return x.new_empty(tensor_core.saved_layout(x.shape[0], w.shape[0]).size, dtype=torch.int32)
        # At infinity the index of the maximum and its sign; otherwise the residual of y.
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
            scatter = self._linf().scatter
            return (
                scatter(grad, y, saved, x, transposed=False) if need_x else x.new_empty(0),
                scatter(grad, y, saved, w, transposed=True) if need_w else w.new_empty(0),
            )
        if tensor_core.supports(x, w, p):
            compute = self._tensor_core_backward
        else:
            compute = self._pruned_backward if _is_pruned(x, w, p) else self._dense().backward
        return compute(grad, x, w, y, saved, p, need_x, need_w)

    def bounds(self, lower: Tensor, upper: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return self._linf().bounds(lower, upper, w)

    def bounds_saving(self, lower: Tensor, upper: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self._linf().bounds_saving(lower, upper, w)

    def _dense(self, use_dense: Tensor | None = None) -> Dense:
        return Dense(self._launcher, use_dense)

    def _linf(self, use_dense: Tensor | None = None) -> Linf:
        return Linf(self._launcher, use_dense)

    def _pruned_maximum(self, x: Tensor, w: Tensor, p: float) -> Tensor:
        y, _, use_dense = pruned.maximum(self._launcher, x, w, index=False)
        return self._linf(use_dense).maximum(x, w, into=y)

    def _pruned_distance(self, x: Tensor, w: Tensor, p: float, saved: Tensor | None = None) -> Tensor:
        """Distances from the lists, or by the dense kernels for layers with too long lists."""
        y, use_dense = pruned.forward(self._launcher, x, w, p, saved)
        layout = pruned.saved_layout(x, w, p)
        residual = None if saved is None else layout.residual(saved, *y.shape)
        return self._dense(use_dense).distance(x, w, p, residual, into=y)

    def _pruned_backward(
        self, grad: Tensor, x: Tensor, w: Tensor, y: Tensor, saved: Tensor, p: float, need_x: bool, need_w: bool
    ) -> tuple[Tensor, Tensor]:
        layout = pruned.saved_layout(x, w, p)
        fallback, residual = self._dense(layout.use_dense(saved)), layout.residual(saved, *y.shape)
        # Slopes from ratios are at most 1 and need no scale: then only the dense kernels need the maxima.
        output_max = (fallback if uses_ratio(p) else self._dense()).largest(y, grad)
        results = pruned.backward(self._launcher, grad, x, w, y, saved, output_max, p, need_x, need_w)
        return fallback.backward(grad, x, w, y, residual, p, need_x, need_w, into=results, output_max=output_max)

    def _tensor_core_distance(self, x: Tensor, w: Tensor, p: float, saved: Tensor | None = None) -> Tensor:
        """Distances by matrix products, or by the dense kernels for layers with too much cancellation."""
        layout, residual, unexpanded = tensor_core.saved_layout(x.shape[0], w.shape[0]), None, None
        if saved is None:
            use_dense = torch.empty(1, dtype=torch.int32, device=x.device)
        else:
            use_dense, residual, unexpanded = layout.use_dense(saved), layout.plane(saved, 0), layout.extra(saved)
        input_max, exponent = self._dense().largest(x, w), dense.sum_exponent(p)
        sums = tensor_core.forward(self._launcher, x, w, input_max, p, exponent, use_dense, unexpanded)
        y = self._dense().finish(sums[None], x, w, input_max, p, residual)
        return self._dense(use_dense).distance(x, w, p, residual, into=y)

    def _tensor_core_backward(
        self, grad: Tensor, x: Tensor, w: Tensor, y: Tensor, saved: Tensor, p: float, need_x: bool, need_w: bool
    ) -> tuple[Tensor, Tensor]:
        layout, kernels = tensor_core.saved_layout(*y.shape), self._dense()
        residual, unexpanded = layout.plane(saved, 0), layout.extra(saved)
        coefficients = kernels.coefficients(grad, y, residual, p)
        results = dense.gradients_like(x, w, need_x, need_w)
        needed = results[0] if need_x else None, results[1] if need_w else None
        output_max, exponent = coefficients.output_max, coefficients.target_exponent
        inputs = (coefficients.value, unexpanded, x, w, kernels.largest(x, w), output_max, exponent)
        tensor_core.backward(self._launcher, tensor_core.Slopes(*inputs), p, needed)
        kernels.repair(grad, x, w, y, p, coefficients, needed)
        fallback = self._dense(layout.use_dense(saved))
        return fallback.backward(grad, x, w, y, residual, p, need_x, need_w, into=results, output_max=output_max)


def _is_pruned(x: Tensor, w: Tensor, p: float) -> bool:
    return pruned.supports(x.shape[0], w.shape[0], w.shape[1], p)
