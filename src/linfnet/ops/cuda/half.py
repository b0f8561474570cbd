"""Training at even p in float16: two features per instruction, with sums in float32.

A term has a relative error of about p 2^-11; terms below 2^-25 of a typical sum, and slopes below 2^-34 of the largest
of their pair, are lost. This is far below the noise of a batch, but not exact: these kernels are used only while
training (`forward_saving`), and only if they are enabled. They never compute p = infinity, on which certificates
depend, and `forward` without a backward pass never uses them.

Pairs out of range are recomputed in float32. If there are many, a flag on the device makes the dense float32 kernels
compute the layer.
"""

from collections.abc import Generator
from contextlib import contextmanager
from functools import lru_cache

import torch
from torch import Tensor

from linfnet.ops.cuda.dense import Dense
from linfnet.ops.cuda.layout import (
    DEPTH,
    TILE,
    WARPS,
    Layer,
    aligned_copy,
    aligned_parts,
    backward_plan,
    filled,
    forward_plan,
    line,
)
from linfnet.ops.cuda.nvrtc import Kernel, Launcher
from linfnet.ops.powers import addition_chain, half_source

# The smallest and the largest p for which these kernels are used.
SMALLEST_P, LARGEST_P = 12.0, 32.0
# Smallest number of (row, output, feature) triples.
SMALLEST = 1 << 24
# Rows of x from which the factors of the outputs are estimated.
SAMPLES = 8
# Outputs and features per block of the backward kernel, and rows per iteration.
OUTS, FEATURES, ROWS = 64, 128, 32
# Iterations by which the inner loops of the forward (for short chains) and of the backward kernel are unrolled.
UNROLLED = (2, 2)
# Bytes of shared memory per block of the backward kernel: dynamic memory for the sums of the warps, and static memory.
SHARES = 8 * WARPS * ROWS * 32
MOST_SHARED = SHARES + 2 * ROWS * (6 * OUTS + 2 * FEATURES)
# Length of the saved head: the largest |x| and |w| as bits, and the flag that makes the float32 kernels compute the
# layer.
HEAD = 3
# Largest fraction of pairs that are recomputed, each by a warp; above it, the dense kernels compute the layer.
MOST_UNTRUSTED = 0.1
_GRADIENT_MAX = Kernel("scale.cu", "half_gradient_max")


@lru_cache(64)
def forward_kernel(function: str, p: int) -> Kernel:
    """Return a kernel of the forward pass."""
    unroll = UNROLLED[0] if len(addition_chain(p)) <= 5 else 1
    definitions = (("TILE", TILE), ("DEPTH", DEPTH), ("SAMPLES", SAMPLES), ("UNROLL", unroll))
    return Kernel("half_forward.cu", function, definitions, half_source("add_power", p, add=True))


@lru_cache(64)
def backward_kernel(function: str, p: int, need_x: bool = True, need_w: bool = True) -> Kernel:
    """Return a kernel of the backward pass."""
    flags = (("NEED_X", int(need_x)), ("NEED_W", int(need_w)))
    sizes = (
        ("WARPS", WARPS),
        ("HALF_OUTS", OUTS),
        ("HALF_FEATURES", FEATURES),
        ("ROWS", ROWS),
        ("UNROLL", UNROLLED[1]),
    )
    return Kernel("half_backward.cu", function, (*flags, *sizes), half_source("slope", p - 1, add=False))


def kernels(p: float) -> list[Kernel]:
    """Return the kernels of a training step at p."""
    backward = [backward_kernel("half_gradients", int(p), need_x) for need_x in (True, False)]
    return [forward_kernel("half_sums", int(p)), *backward]


# Not thread-local: on a GPU, autograd computes gradients in another thread.
_enabled = False


def enabled() -> bool:
    """Whether training in float16 is enabled, in all threads."""
    return _enabled


@contextmanager
def training_in_float16(enabled: bool = True) -> Generator[None]:
    """Compute training steps at finite p in float16 inside a `with` block, on GPUs, in all threads.

    Only calls of `lp_distance` that need gradients are affected; p = infinity, bounds and certificates never are.

    >>> with training_in_float16():
    ...     pass  # a training step
    """
    global _enabled
    before, _enabled = _enabled, enabled
    try:
        yield
    finally:
        _enabled = before


def applies(p: float) -> bool:
    """Whether the kernels are enabled and exist for p."""
    return SMALLEST_P <= p <= LARGEST_P and p % 2 == 0 and enabled()


def supports(launcher: Launcher, x: Tensor, w: Tensor, p: float) -> bool:
    """Whether training uses these kernels for a layer."""
    (n, features), out = x.shape, w.shape[0]
    if not applies(p) or n * out * features < SMALLEST or launcher.shared_memory(x.device) < MOST_SHARED:
        return False
    return features % 4 == 0 and out % 8 == 0 and out >= OUTS


class Half(Layer):
    """A layer at even p, in float16; `use_dense` is None or a flag on the device: 0 disables all kernels."""

    def _lengths(self) -> tuple[int, int]:
        """Return the lengths of the saved parts: HEAD, and the residuals of the float32 kernels."""
        return (HEAD, self.n * self.out)

    def saved_like(self) -> Tensor:
        return self.x.new_empty(sum(filled(self._lengths())), dtype=torch.int32)

    def forward(self, saved: Tensor | None = None) -> Tensor:
        assert saved is not None
        head, residual = aligned_parts(saved, self._lengths())
        return self.distances(head, residual.view(torch.float32))

    def backward(self, grad: Tensor, y: Tensor, saved: Tensor, results: tuple[Tensor, Tensor]) -> None:
        head, residual = aligned_parts(saved, self._lengths())
        self.gradients(grad, y, head, residual.view(torch.float32), results)

    def distances(self, head: Tensor, residual: Tensor, into: Tensor | None = None, *, known: bool = False) -> Tensor:
        """Return the distances; write `head`, and `residual` if the float32 kernels compute the layer.

        `known`: the largest |x| and |w| are already in `head`.
        """
        x, w, p = self.x, self.w, int(self.p)
        y = x.new_empty(self.n, self.out) if into is None else into
        input_max, fallback, words = head[:2], head[2:], self.words
        if not known:
            input_max.copy_(Dense(self.launcher, x, w, self.p, self.use_dense).largest(x, w))
        factors = x.new_empty(self.out, dtype=torch.int32)
        factor_kernel = forward_kernel("half_factors", p)
        self.launch_flagged(
            factor_kernel, line(self.out, 4), x=x, w=w, input_max=input_max, factors=factors, **self.sizes, p=self.p
        )  # fmt: skip
        of_x, of_w = (self._words(matrix, scales, input_max) for matrix, scales in ((x, None), (w, factors)))
        grid, span = forward_plan(self.n, self.out, words, self.multiprocessors())
        sums = x.new_empty(grid[2], self.n, self.out)
        self.launch_flagged(
            forward_kernel("half_sums", p), grid,
            x=of_x, w=of_w, factors=factors, sums=sums, n=self.n, out=self.out, words=words, span=span,
        )  # fmt: skip
        count = torch.zeros(1, dtype=torch.int32, device=x.device)
        common = {"sums": sums, "parts": grid[2], "factors": factors, "input_max": input_max, "p": self.p}
        pairs = line(y.numel(), 256)
        self.launch_flagged(
            forward_kernel("half_untrusted", p), pairs, **common, count=count, n=self.n, out=self.out
        )  # fmt: skip
        most = int(y.numel() * MOST_UNTRUSTED)
        self.launch(
            forward_kernel("half_decide", p), (1, 1, 1),
            count=count, most=most, active=self.use_dense, fallback=fallback,
        )  # fmt: skip
        self.launch_flagged(
            forward_kernel("half_finish", p), pairs, **common, x=x, w=w, fallback=fallback, y=y, **self.sizes
        )  # fmt: skip
        return Dense(self.launcher, x, w, self.p, fallback).forward(residual, y)

    @property
    def words(self) -> int:
        """The number of pairs of float16 in a row: a multiple of 4, so that rows start at multiples of 16 bytes."""
        return -(-self.features // 8) * 4

    def _words(self, a: Tensor, factors: Tensor | None, input_max: Tensor) -> Tensor:
        """Return a matrix as pairs of float16, int32 [rows, words]."""
        target = a.new_empty(a.shape[0], self.words, dtype=torch.int32)
        kernel = forward_kernel("half_words", int(self.p))
        blocks = min(16 * self.multiprocessors(), -(-target.numel() // kernel.threads))
        self.launch_flagged(
            kernel, (blocks, 1, 1),
            a=a, factors=factors, input_max=input_max, target=target, size=target.numel(), features=self.features,
            words=self.words,
        )  # fmt: skip
        return target

    def gradient_maxima(self, grad: Tensor) -> Tensor:
        """Return the bits of the largest |grad| of each row and each output, int32 [n + out]."""
        n, out = self.n, self.out
        maxima = torch.zeros(n + out, dtype=torch.int32, device=grad.device)
        self.launch_flagged(
            _GRADIENT_MAX, (-(-out // 256), -(-n // 64), 1),
            grad=grad, row_max=maxima[:n], out_max=maxima[n:], n=n, out=out,
        )  # fmt: skip
        return maxima

    def gradients(
        self, grad: Tensor, y: Tensor, head: Tensor, residual: Tensor, results: tuple[Tensor, Tensor],
        maxima: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Write the gradients into `results`; `maxima`: what `gradient_maxima` returns, if known."""
        x, w, n, out, p = self.x, aligned_copy(self.w), self.n, self.out, int(self.p)
        # The kernels also run if the float32 kernels compute the layer afterwards, which is rare.
        dense = Dense(self.launcher, x, w, self.p, self.use_dense)
        output_max = dense.largest(y, grad)
        maxima = self.gradient_maxima(grad) if maxima is None else maxima
        flags = torch.zeros(n + out, dtype=torch.int32, device=x.device)
        input_max, fallback = head[:2], head[2:]
        known = {"input_max": input_max, "row_max": maxima[:n], "out_max": maxima[n:]}
        coefficient = x.new_empty(n, out, dtype=torch.int32)
        factor = x.new_empty(n, out, dtype=torch.float16)
        pairs = {"coefficient": coefficient, "factor": factor}
        self.launch_flagged(
            backward_kernel("half_coefficients", p), line(n * out, 256),
            **known, **pairs, output_max=output_max, grad=grad, y=y, flags=flags, n=n, out=out, exponent=self.p - 1,
        )  # fmt: skip
        grid, out_span, row_span = backward_plan(n, out, self.features, self.multiprocessors(), OUTS, FEATURES)
        parts = dense.parts(results, grid)
        self.launch_flagged(
            backward_kernel("half_gradients", p, *(part is not None for part in parts)), grid,
            shared=0 if parts[0] is None else SHARES,
            **known, **pairs, x=self._words(x, None, input_max), w=w, words=self.words,
            part_x=parts[0], part_w=parts[1], **self.sizes, out_span=out_span, row_span=row_span,
        )  # fmt: skip
        dense.add_parts(parts, results)
        dense.repair(grad, y, flags, {"output_max": output_max, "target_exponent": 0}, results, general=True)
        Dense(self.launcher, x, w, self.p, fallback).backward(grad, y, residual, results, output_max)
