"""Small even p by matrix products on the tensor cores: (x - w)^p is expanded into products of powers of x and of w.

    sum_i (x_i - w_i)^p = sum_i x_i^p + sum_i w_i^p + sum_(0 < j < p) C(p, j) sum_i (-x_i)^(p - j) w_i^j

Each power is stored as two float16 numbers with 22 bits together; sums are float32. If x and w have opposite signs, all
terms are positive. Otherwise terms may cancel: if the sum of the even terms is much larger than the total, the sum of
the pair is computed again without expansion. If there are many such pairs, a flag on the device (`use_dense`) makes the
dense kernels compute the layer. Gradients are expanded in the same way. Their error is relative to
sum |c| (|x| + |w|)^(p - 1), which is much larger than the gradient if x and w are close to each other: the forward pass
marks such pairs, and their slopes are computed without expansion.

With `single`, for training in float16 (see `half`), each power is one float16 number: one product instead of three. The
p-th root divides the error of a sum by p.
"""

from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from linfnet.ops.cuda import half
from linfnet.ops.cuda.dense import Dense, sum_exponent
from linfnet.ops.cuda.half import HEAD, Half
from linfnet.ops.cuda.layout import Grid, Layer, aligned_copy, aligned_parts, filled, line
from linfnet.ops.cuda.nvrtc import Kernel, Launcher
from linfnet.ops.cuda.pruned import decide_dense

# Values of p for which matrix products are used. For larger p the dense kernels are faster: the number of products and
# the cancellation grow with p.
POWERS = (6.0, 8.0, 10.0)
# The same for powers of one float16 number.
SINGLE_POWERS = (6.0, 8.0, 10.0, 12.0)
# Smallest number of (row, output, feature) triples for which matrix products save time.
SMALLEST = 1 << 28
# Largest number of terms per sum: the tensor cores truncate instead of rounding, with an error of about two units in
# the last place for every 16 terms. Powers of one float16 number have larger errors: their sums are not divided.
MOST_TERMS = 1536
# Largest fraction of pairs whose sums are computed again; above it, the dense kernels compute the layer. An unexpanded
# pair counts as 1 + UNEXPANDED_COST such pairs.
MOST_REPEATED, UNEXPANDED_COST = 0.25, 7
# Largest ratio of the even terms of a pair to its sum for which slopes are expanded: cancellation multiplies the error
# of a slope (22 bits) by at most (2 * 128)^((p - 1) / p) < 2^8.
MOST_SLOPE_LOSS = 128.0
# The same for powers of one float16 number, whose error is at most 2^-12: that of a slope is at most
# (2 * 64)^((p - 1) / p) 2^-12 < 2 % of the largest of its pair.
SINGLE_SLOPE_LOSS = 64.0
# Smallest sum that is expanded, relative to the p-th power of the layer's largest |x| or |w|: too many terms of smaller
# sums are below the range of float16, which causes an error of up to 2^-36 of that power for each feature.
LEAST_SUM = 2.0**-16
# Largest size of the powers and products of a layer, in bytes; the dense kernels compute larger layers.
MOST_BYTES = 4 << 30


@cache
def kernel(function: str, p: int, *, single: bool) -> Kernel:
    """Return one of the kernels that run before and after the matrix products."""
    file = "tensor_core_forward.cu" if function in ("powers", "combine") else "tensor_core_backward.cu"
    return Kernel(file, function, (("P", p), ("SINGLE", int(single)), ("UNEXPANDED_COST", UNEXPANDED_COST)))


def kernels(p: float, *, single: bool) -> list[Kernel]:
    """Return the kernels of a training step at p."""
    if p not in (SINGLE_POWERS if single else POWERS):
        return []
    return [kernel(function, int(p), single=single) for function in ("powers", "add_unexpanded")]


def most_loss(p: float, *, single: bool = False) -> float:
    """Return the largest ratio of even terms to sum for expanded distances; the p-th root divides errors by p.

    With `single`, the error of a term is at most 2^-11, and all terms together are at most twice the even ones: the
    error of a distance is at most 1.5 * 2^-10, and about half of it if roundings are independent.
    """
    return 1.5 * p if single else 2 * p


def chunks_of(terms: int) -> int | None:
    """Return the number of equal parts of a sum, each a multiple of 8 terms; None if it cannot be divided so.

    >>> [chunks_of(terms) for terms in (784, 3072, 5120, 5000, 5121)]
    [1, 2, 4, 5, None]
    """
    fits = (parts for parts in range(1, 65) if terms % (8 * parts) == 0 and terms // parts <= MOST_TERMS)
    return next(fits, None)


def most_bytes(n: int, out: int, features: int, p: float) -> int:
    """Return the bytes of powers (float16) and products (float32): the maximum over distances and both gradients.

    >>> [most_bytes(n, 5120, 5120, 8.0) >> 20 for n in (512, 1000, 10000)]
    [1190, 1657, 10270]
    """
    parts, out_parts = chunks_of(features) or 1, chunks_of(out) or 1
    distances = 4 * features * (n + out) + 4 * n * out * (parts + 2)
    grad_x = 4 * features * out + 4 * n * features * (out_parts + 2)
    grad_w = 6 * features * n + 4 * features * out
    return (int(p) - 1) * max(distances, grad_x, grad_w)


def supports(x: Tensor, w: Tensor, p: float, *, single: bool = False) -> bool:
    """Whether matrix products save time: p is in POWERS (or SINGLE_POWERS), and the size of the layer is suitable."""
    if p not in (SINGLE_POWERS if single else POWERS):
        return False
    (n, features), out = x.shape, w.shape[0]
    if n < 64 or n > 65535 or out > 65535 or n * out * features < SMALLEST:
        return False
    if chunks_of(features) is None or chunks_of(out) is None or most_bytes(n, out, features, p) > MOST_BYTES:
        return False
    # Requires a torch that multiplies float16 matrices with a float32 result; tests run on the CPU.
    return x.device.type == "cpu" or hasattr(torch.ops.aten.bmm, "dtype")


def _products(a: Tensor, b: Tensor, into: Tensor | None = None) -> Tensor:
    """Multiply float16 matrices [B, m, k] and [B, k, n]; return float32 [B, m, n]."""
    into = a.new_empty(a.shape[0], a.shape[1], b.shape[2], dtype=torch.float32) if into is None else into
    if a.device.type == "cpu":
        return torch.bmm(a.float(), b.float(), out=into)
    return torch.ops.aten.bmm.dtype_out(a, b, torch.float32, out=into)


def _by_sums(halves: Tensor, chunks: int) -> Tensor:
    """View [rows, p - 1, features] as [(p - 1) * chunks, rows, features / chunks], without a copy."""
    rows, terms, features = halves.shape
    return halves.view(rows, terms * chunks, features // chunks).transpose(0, 1)


class TensorCore(Layer):
    """A layer computed by matrix products, or by the dense kernels if the terms of too many pairs cancel.

    `single`: powers are one float16 number instead of two, and the kernels of `half` replace the dense kernels if they
    support the layer.
    """

    def __init__(self, launcher: Launcher, x: Tensor, w: Tensor, p: float, *, single: bool = False) -> None:
        super().__init__(launcher, x, w, p)
        self.power, self._dense = int(p), partial(Dense, launcher, x, w, p)
        self._single, self._halves, self._kernel = single, 1 if single else 2, partial(kernel, p=int(p), single=single)
        # Lengths of the saved parts: the use_dense flag, a residual for each pair, a bit for each pair that says
        # whether its slopes are not expanded, and what `Half` saves.
        pairs, head = self.n * self.out, [HEAD] if single and half.supports(launcher, x, w, p) else []
        self.lengths = (1, pairs, -(-pairs // 32), *head)

    def saved_like(self) -> Tensor:
        return self.x.new_empty(sum(filled(self.lengths)), dtype=torch.int32)

    def forward(self, saved: Tensor | None = None) -> Tensor:
        if saved is None:
            use_dense, residual, unexpanded, head = self.x.new_empty(1, dtype=torch.int32), None, None, []
        else:
            use_dense, residual, unexpanded, *head = aligned_parts(saved, self.lengths)
            residual = residual.view(torch.float32)
        input_max = self._dense().largest(self.x, self.w)
        sums = self._sums(input_max, use_dense, unexpanded)
        y = self._dense().finish(sums[None], input_max, residual, None, None)
        if head and residual is not None:
            return Half(self.launcher, self.x, self.w, self.p, use_dense).distances(head[0], residual, y)
        return self._dense(use_dense).forward(residual, y)

    def _sums(self, input_max: Tensor, use_dense: Tensor, unexpanded: Tensor | None) -> Tensor:
        """Return sums of scaled powers [n, out]; set `use_dense` and the bits of `unexpanded`."""
        x, w, pairs = aligned_copy(self.x), aligned_copy(self.w), self.n * self.out
        chunks = self._chunks(self.features)
        of_x, power_sum_x = self._layer_powers(x, input_max, of_x=True)
        of_w, power_sum_w = self._layer_powers(w, input_max, of_x=False)
        main = _products(_by_sums(of_x[0], chunks), _by_sums(of_w[0], chunks).mT)
        cross = None if self._single else x.new_empty(2, self.power - 1, self.n, self.out)
        if cross is not None:
            for first in range(2):
                _products(_by_sums(of_x[1 - first], 1), _by_sums(of_w[first], 1).mT, cross[first])
        sums, count = x.new_empty(self.n, self.out), torch.zeros(1, dtype=torch.int32, device=x.device)
        combine = self._kernel("combine")
        self.launch(
            combine, line(pairs, combine.threads),
            main=main, chunks=chunks, cross=cross, power_sum_x=power_sum_x, power_sum_w=power_sum_w, x=x, w=w,
            input_max=input_max, sums=sums, count=count, unexpanded=unexpanded, **self.sizes,
            most_loss=most_loss(self.p, single=self._single),
            most_slope_loss=SINGLE_SLOPE_LOSS if self._single else MOST_SLOPE_LOSS,
            least_sum=LEAST_SUM, target_exponent=sum_exponent(self.p),
        )  # fmt: skip
        decide_dense(self, count, int(pairs * MOST_REPEATED), use_dense)
        return sums

    def _chunks(self, terms: int) -> int:
        """Return the number of parts into which sums are divided."""
        return 1 if self._single else chunks_of(terms) or 1

    def _layer_powers(self, a: Tensor, input_max: Tensor, *, of_x: bool) -> tuple[Tensor, Tensor]:
        """Return powers in float16 [halves, rows, p - 1, features], one scale per layer, and sums of a^p [rows]."""
        halves = a.new_empty(self._halves, a.shape[0], self.power - 1, self.features, dtype=torch.float16)
        power_sum = a.new_empty(a.shape[0])
        self.launch(
            self._kernel("powers"), (a.shape[0], 1, 1),
            a=a, input_max=input_max, halves_out=halves, stride=halves[0].numel(), power_sum=power_sum,
            features=self.features, of_x=of_x,
        )  # fmt: skip
        return halves, power_sum

    def backward(self, grad: Tensor, y: Tensor, saved: Tensor, results: tuple[Tensor, Tensor]) -> None:
        use_dense, residual, unexpanded, *head = aligned_parts(saved, self.lengths)
        residual = residual.view(torch.float32)
        coefficients = self._dense().coefficients(grad, y, residual)
        input_max = self._dense().largest(self.x, self.w)
        self.x, self.w = aligned_copy(self.x), aligned_copy(self.w)
        slopes = {"c": coefficients.value, "unexpanded": unexpanded}
        for result, of_x in zip(results, (True, False), strict=True):
            if result.numel():
                expand = self._gradient_of_x if of_x else self._gradient_of_w
                expand(slopes, input_max, coefficients.scale, result)
                self.launch(
                    self._kernel("add_unexpanded"), (result.shape[0], 1, 1),
                    **slopes, x=self.x, w=self.w, result=result, **self.sizes, of_x=of_x, **coefficients.scale,
                )  # fmt: skip
        self._dense().repair(grad, y, coefficients.flags, coefficients.scale, results)
        if head:
            Half(self.launcher, self.x, self.w, self.p, use_dense).gradients(grad, y, head[0], residual, results)
            return
        self._dense(use_dense).backward(grad, y, residual, results, coefficients.scale["output_max"])

    def _gradient_of_x(self, slopes: dict[str, Tensor], input_max: Tensor, scale: dict[str, Any], into: Tensor) -> None:
        x, n, out, chunks = self.x, self.n, self.out, self._chunks(self.out)
        halves = x.new_empty(self._halves, n, out, dtype=torch.float16)
        sums = self._split("split_rows", (n, 1, 1), slopes, halves, n)
        scales, of_w = self._feature_powers(self.w, input_max, thrice=False)
        by_rows = halves[0].view(n, chunks, out // chunks).transpose(0, 1)
        main = _products(by_rows, of_w[0].view(chunks, out // chunks, -1))
        cross = None if self._single else x.new_empty(2, n, of_w.shape[2])
        if cross is not None:
            for first in range(2):
                _products(halves[1 - first][None], of_w[first][None], cross[first : first + 1])
        finish = self._kernel("finish_x")
        self.launch(
            finish, (-(-self.features // (4 * finish.threads)), n, 1),
            main=main, chunks=chunks, cross=cross, **sums, feature_exponents=scales, x=x, grad_x=into, n=n,
            features=self.features, **scale,
        )  # fmt: skip

    def _gradient_of_w(self, slopes: dict[str, Tensor], input_max: Tensor, scale: dict[str, Any], into: Tensor) -> None:
        rows = self.n if self._single else 3 * self.n
        halves = self.w.new_empty(rows, self.out, dtype=torch.float16)
        sums = self._split("split_columns", line(self.out, 32), slopes, halves, self.out)
        scales, of_x = self._feature_powers(self.x, input_max, thrice=True)
        main = _products(halves.mT[None], of_x.view(1, rows, -1))
        finish = self._kernel("finish_w")
        self.launch(
            finish, (-(-self.features // (4 * finish.threads)), self.out, 1),
            main=main, **sums, feature_exponents=scales, w=self.w, grad_w=into, features=self.features, **scale,
        )  # fmt: skip

    def _split(
        self, function: str, grid: Grid, slopes: dict[str, Tensor], halves: Tensor, count: int
    ) -> dict[str, Tensor]:
        """Write coefficients as pairs of float16 to `halves`; return the kernel arguments for their scales and sums."""
        exponents, coefficient_sum = self.x.new_empty(count, dtype=torch.int32), self.x.new_empty(count)
        sums = {"exponents": exponents, "coefficient_sum": coefficient_sum}
        self.launch(self._kernel(function), grid, **slopes, halves_out=halves, **sums, n=self.n, out=self.out)
        return sums

    def _feature_powers(self, a: Tensor, input_max: Tensor, *, thrice: bool) -> tuple[Tensor, Tensor]:
        """Return the exponent that scales each feature, and powers in float16 [1, 2 or 3, rows, (p - 1) * features]."""
        rows, exponents = a.shape[0], a.new_empty(self.features, dtype=torch.int32)
        common = {"a": a, "exponents": exponents, "rows": rows, "features": self.features}
        self.launch(self._kernel("feature_exponents"), line(self.features, 32), **common, input_max=input_max)
        halves = a.new_empty(
            1 if self._single else 3 if thrice else 2, rows, (self.power - 1) * self.features, dtype=torch.float16
        )
        self.launch(self._kernel("feature_powers"), (rows, 1, 1), **common, halves_out=halves, thrice=thrice)
        return exponents, halves
