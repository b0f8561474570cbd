"""`lp_distance` by CUDA kernels: selects the kernels for each p and layer.

No call waits for the device, and no shape depends on values, so calls can be captured in a CUDA graph. The kernels that
read few features (`pruned`) or use matrix products (`tensor_core`) set the flag `use_dense` on the device if they
cannot compute a layer. The dense kernels are launched after them and return at once if the flag is 0.
"""

import math
import warnings
from functools import cache

import torch
from torch import Tensor

from linfnet.errors import LinfnetError
from linfnet.ops.cuda import dense, half, nvrtc, pruned, pruned_half, tensor_core
from linfnet.ops.cuda.dense import Dense
from linfnet.ops.cuda.half import Half
from linfnet.ops.cuda.infinity import Infinity, maximum_kernel
from linfnet.ops.cuda.layout import Layer
from linfnet.ops.cuda.nvrtc import Kernel, Launcher
from linfnet.ops.cuda.pruned import Pruned
from linfnet.ops.cuda.tensor_core import TensorCore
from linfnet.ops.implementations import KERNELS, bounds_like, gradients_like
from linfnet.ops.powers import LARGEST_PAIRED, snapped_after, snapped_p, uses_ratio
from linfnet.ops.reference import Reference

# Number of next values of p whose kernels are compiled ahead: a short run uses each value for few steps only, and above
# p = 32 for less time than the compilation takes, so that it must start long before.
SNAPPED_AHEAD = 6
# Layers with at most so many outputs and at least so many rows, such as convolutions, are trained with x and w
# exchanged: |x - w| is symmetric, and a block of the backward kernels has many outputs but few rows. The largest number
# of rows keeps the grids within the limits of CUDA, which are lower for outputs.
FEW_OUTS, MANY_ROWS, MOST_ROWS = 31, 4096, 1 << 20


def exchanges(x: Tensor, w: Tensor) -> bool:
    """Whether a training step exchanges x and w."""
    return w.shape[0] <= FEW_OUTS and MANY_ROWS <= x.shape[0] <= MOST_ROWS


def kernels_ahead(p: float, n: int, shared: int) -> list[Kernel]:
    """Return the kernels of a training step with n rows at p and at the next values of p."""
    if math.isinf(p):
        return [*pruned.kernels(p, n), maximum_kernel(True)]
    snapped = p == snapped_p(p) and p < LARGEST_PAIRED  # all larger p have the same kernels
    rising = [p]
    for _ in range(SNAPPED_AHEAD if snapped else 1):
        rising.append(snapped_after(rising[-1]) if snapped else p + 1)
    kernels: list[Kernel] = []
    for q in rising:
        kernels += dense.kernels(q, shared)
        kernels += tensor_core.kernels(q, single=half.enabled())
        if half.applies(q):
            kernels += half.kernels(q)
        if pruned.applies(q):
            kernels += pruned.kernels(q, n)
            if pruned_half.applies(q, n):
                kernels += pruned_half.kernels(q, n)
    return kernels


def _kernel_key(p: float) -> tuple[bool, float]:
    """Return a key that is equal for all p whose kernels have the same source."""
    if math.isinf(p):
        return True, p
    return uses_ratio(p), math.floor(min(p, LARGEST_PAIRED + 1)) if uses_ratio(p) else p


@cache
def _obstacle() -> str | None:
    """Compile and run a first kernel; return in one line why kernels cannot run on this machine, or None."""
    if not torch.cuda.is_available():
        return "torch finds no CUDA device"
    try:
        device = torch.device("cuda", torch.cuda.current_device())
        major, minor = torch.cuda.get_device_capability(device)
        if major < 8:  # has no asynchronous copies
            return f"{torch.cuda.get_device_name(device)} has architecture sm_{major}{minor}; expected sm_80 or later"
        probe = torch.ones((1, 1), device=device)
        Dense(Launcher(), probe, probe, 1.0).largest(probe)
    except (LinfnetError, OSError) as error:  # no compiler for this GPU, or a driver that rejects its output
        return str(error).splitlines()[0]
    return None


@cache
def _warn_once(obstacle: str) -> None:
    warnings.warn(f"linfnet's CUDA kernels cannot run; using the slow reference instead: {obstacle}", stacklevel=4)


def status() -> str:
    """Return one line about the CUDA kernels on this machine."""
    if obstacle := _obstacle():
        return f"cuda kernels: not available ({obstacle})"
    major, minor = nvrtc.nvrtc_version()
    return f"cuda kernels: {torch.cuda.get_device_name()}, NVRTC {major}.{minor}, cache {nvrtc.cache_folder()}"


def _accurate(p: float) -> bool:
    """Whether the gradients of the kernels meet their error bound at p; otherwise the reference is used."""
    return p < 1e6 or math.isinf(p)


@KERNELS.register("cuda")
class Cuda:
    """NVRTC kernels; implements `linfnet.ops.implementations.Implementation` for float32 on CUDA devices."""

    def __init__(self, launcher: Launcher | None = None) -> None:
        self._launcher = launcher or Launcher()
        self._reference = Reference()

    def supports(self, device_type: str, dtype: torch.dtype) -> bool:
        if device_type != "cuda" or dtype != torch.float32:
            return False
        obstacle = _obstacle()
        if obstacle and torch.cuda.is_available():
            _warn_once(obstacle)
        return obstacle is None

    def _layer(self, x: Tensor, w: Tensor, p: float, *, training: bool = True) -> Layer:
        single = training and half.enabled()
        if tensor_core.supports(x, w, p, single=single):
            return TensorCore(self._launcher, x, w, p, single=single)
        if pruned.supports(x, w, p):
            kind = Pruned
        elif training and half.supports(self._launcher, x, w, p):
            kind = Half
        else:
            kind = Infinity if math.isinf(p) else Dense
        return kind(self._launcher, x, w, p)

    def forward(self, x: Tensor, w: Tensor, p: float) -> Tensor:
        if 0 in (x.shape[0], *w.shape):
            return x.new_zeros(x.shape[0], w.shape[0])
        return self._layer(x, w, p, training=False).forward() if _accurate(p) else self._reference.forward(x, w, p)

    def forward_saving(self, x: Tensor, w: Tensor, p: float) -> tuple[Tensor, Tensor]:
        if not _accurate(p):
            return self._reference.forward_saving(x, w, p)
        if exchanges(x, w):
            y, saved = self.forward_saving(w, x, p)
            return y.t().contiguous(), saved
        layer, n = self._layer(x, w, p), x.shape[0]
        saved = layer.saved_like()
        if 0 in (n, *w.shape):
            return self.forward(x, w, p), saved.zero_()
        shared = self._launcher.shared_memory
        self._launcher.prepare(x.device, (_kernel_key(p), n), lambda: kernels_ahead(p, n, shared(x.device)))
        return layer.forward(saved), saved

    def saved_like(self, x: Tensor, w: Tensor, p: float) -> Tensor:
        if not _accurate(p):
            return self._reference.saved_like(x, w, p)
        return self._layer(*((w, x) if exchanges(x, w) else (x, w)), p).saved_like()

    def backward(
        self, grad: Tensor, x: Tensor, w: Tensor, y: Tensor, saved: Tensor, p: float, need_x: bool, need_w: bool
    ) -> tuple[Tensor, Tensor]:
        if not _accurate(p):
            return self._reference.backward(grad, x, w, y, saved, p, need_x, need_w)
        if exchanges(x, w):
            grad, y = grad.t().contiguous(), y.t().contiguous()
            # Kernels for the first of two gradients alone are not compiled ahead.
            grad_w, grad_x = self.backward(grad, w, x, y, saved, p, need_w, True)
            return grad_x if need_x else x.new_empty(0), grad_w
        results = gradients_like(x, w, need_x, need_w)
        if grad.numel() == 0 or x.shape[1] == 0 or not (need_x or need_w):
            return results[0].zero_(), results[1].zero_()
        self._layer(x, w, p).backward(grad, y, saved, results)
        return results

    def bounds(self, lower: Tensor, upper: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        results = bounds_like(lower, w)
        self._bounds(lower, upper, w, results)
        return results

    def bounds_saving(self, lower: Tensor, upper: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        results = (*bounds_like(lower, w), *bounds_like(lower, w, torch.int32))
        self._bounds(lower, upper, w, results)
        return results

    def _bounds(self, lower: Tensor, upper: Tensor, w: Tensor, results: tuple[Tensor, ...]) -> None:
        if 0 not in (lower.shape[0], *w.shape):
            Infinity(self._launcher, lower, w, math.inf).bounds(upper, results)
            return
        for result in results:
            result.zero_()
