"""Gradients from the lists of `pruned` in float16, for training at even p: two rows per instruction.

As for `half`, these kernels are used only if they are enabled, and only in the backward pass; the distances from lists
are always float32. Slopes have a relative error of about p 2^-11 each. If a distance is small relative to the layer's
largest |x| + |w|, or if a number is not finite, a flag on the device makes the float32 kernels compute the gradients.
"""

from functools import lru_cache

import torch
from torch import Tensor

from linfnet.ops.cuda import half
from linfnet.ops.cuda.layout import LANE_GROUP, SQUARE, Grid, Layer, line, row_groups, squares
from linfnet.ops.cuda.nvrtc import Kernel
from linfnet.ops.powers import half_source

# The largest p for which these kernels are used.
LARGEST_P = 128.0
# Rows that a warp of 32 lanes processes with one uint4 (8 float16) per lane.
WORD_GROUP = 2 * LANE_GROUP
# Largest number of uint4 (of rows) that a lane processes.
GRAD_W_VECTORS, GRAD_X_VECTORS = 2, 2
_PAIRS, _DECIDE, _WORDS = (
    Kernel("pruned_half_pairs.cu", f"half_listed_{name}", (("SQUARE", SQUARE),))
    for name in ("pairs", "decide", "words")
)


@lru_cache(64)  # limited, because a schedule may use a different p in every step
def kernel(function: str, p: int, vectors: int) -> Kernel:
    """Return a kernel for lanes with `vectors` uint4."""
    definitions = (("LANE_GROUP", LANE_GROUP), ("GROUP_ROWS", WORD_GROUP * vectors))
    return Kernel("pruned_half_backward.cu", function, definitions, half_source("slope", p - 1, add=False))


def kernels(p: float, n: int) -> list[Kernel]:
    """Return the kernels of a training step with n rows at p."""
    return [
        kernel("half_listed_grad_w", int(p), _vectors(n, GRAD_W_VECTORS)),
        kernel("half_listed_grad_x", int(p), _vectors(n, GRAD_X_VECTORS)),
    ]


def _vectors(n: int, most: int) -> int:
    return min(most, row_groups(n)[0] // WORD_GROUP)


def applies(p: float, n: int) -> bool:
    """Whether the kernels are enabled and exist for n rows at p."""
    return p <= LARGEST_P and p % 2 == 0 and n > LANE_GROUP and half.enabled()


def supports(x: Tensor, w: Tensor, p: float) -> bool:
    """Whether training uses these kernels for a layer with lists."""
    return applies(p, x.shape[0]) and x.shape[0] * w.numel() >= half.SMALLEST


class ListedGradients:
    """Factors and coefficients of all pairs, and the kernels that compute the gradients from them.

    `skip_half`, `skip_float` and `run_float` are flags on the device: whether the kernels in float16 return at once,
    whether those in float32 do, and its opposite.
    """

    def __init__(
        self, layer: Layer, grad: Tensor, y: Tensor, x_transposed: Tensor, input_max: Tensor, maxima: Tensor,
        use_dense: Tensor,
    ) -> None:  # fmt: skip
        """`maxima`: bits of the largest |grad| of each row and each output; `input_max`: of the layer's |x| and |w|."""
        self._layer, self._p, self._padded = layer, int(layer.p), row_groups(layer.n)[0]
        n, out, device = layer.n, layer.out, grad.device
        self._known = {"input_max": input_max, "padded": self._padded}
        self._row_max, self._out_max = maxima[:n], maxima[n:]
        factors, of_x, of_w = (torch.empty(out * self._padded, dtype=torch.float16, device=device) for _ in range(3))
        unfit, flags = (torch.zeros(size, dtype=torch.int32, device=device) for size in (1, 3))
        layer.launch(
            _PAIRS, squares(self._padded, out),
            **self._known, grad=grad, y=y, row_max=self._row_max, out_max=self._out_max, factors=factors, of_x=of_x,
            of_w=of_w, unfit=unfit, n=n, out=out, exponent=layer.p - 1, use_dense=use_dense,
        )  # fmt: skip
        layer.launch(
            _DECIDE, (1, 1, 1),
            unfit=unfit, too_long=use_dense, skip=flags[:2], run=flags[2:],
        )  # fmt: skip
        self.skip_half, self.skip_float, self.run_float = flags.split(1)
        words = torch.empty(x_transposed.numel() // 2, dtype=torch.int32, device=device)
        grid = line(min(words.numel(), 16 * layer.multiprocessors() * _WORDS.threads), _WORDS.threads)
        layer.launch(
            _WORDS, grid,
            x_transposed=x_transposed, input_max=input_max, words=words, size=words.numel(), use_dense=self.skip_half,
        )  # fmt: skip
        self._known |= {"words": words, "factors": factors.view(torch.int32), "use_dense": self.skip_half}
        self._of_x, self._of_w = of_x.view(torch.int32), of_w.view(torch.int32)

    def _kernel(self, function: str, most: int, first: int, *, split: bool) -> tuple[Kernel, Grid]:
        """Return a kernel and its grid: one block per output or feature, and per group of rows if `split`."""
        vectors = _vectors(self._layer.n, most)
        groups = self._padded // (WORD_GROUP * vectors) if split else 1
        return kernel(function, self._p, vectors), (first, groups, 1)

    def write_grad_w(self, entries: Tensor, counts: Tensor, grad_w: Tensor) -> None:
        """Write the gradient of w, from the lists by output."""
        layer = self._layer
        self._layer.launch(
            *self._kernel("half_listed_grad_w", GRAD_W_VECTORS, layer.out, split=False),
            **self._known, entries=entries, counts=counts, of_w=self._of_w, out_max=self._out_max, grad_w=grad_w,
            features=layer.features,
        )  # fmt: skip

    def write_grad_x(self, entries: Tensor, counts: Tensor, transposed: Tensor) -> None:
        """Write the transposed gradient of x, from the lists by feature."""
        layer = self._layer
        self._layer.launch(
            *self._kernel("half_listed_grad_x", GRAD_X_VECTORS, layer.features, split=True),
            **self._known, entries=entries, counts=counts, of_x=self._of_x, row_max=self._row_max,
            grad_x_transposed=transposed, n=layer.n, out=layer.out,
        )  # fmt: skip
