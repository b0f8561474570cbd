"""Small even p by matrix products on the tensor cores: (x - w)^p expanded into products of powers of x and of w.

    sum_i (x_i - w_i)^p = sum_i x_i^p + sum_i w_i^p + sum_(0 < j < p) C(p, j) sum_i (-x_i)^(p - j) w_i^j

The powers are stored as pairs of float16, which hold 22 bits together; sums are float32. If x and w have opposite
signs, all terms are positive. Pairs that lose digits to cancellation are recognised by the sum of their even terms and
summed again without expansion; if there are many, a flag on the device (`use_dense`) makes the dense kernels compute
the layer. Gradients are expanded in the same way. Their error is relative to sum |c| (|x| + |w|)^(p - 1), which is
much larger than the gradient if x and w are close to each other: the forward pass marks such pairs, and their slopes
are computed without expansion.
"""

from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from linfnet.ops.cuda.layout import Saved, line
from linfnet.ops.cuda.nvrtc import Kernel, Launcher
from linfnet.ops.cuda.pruned import decide_dense

# For larger p a chain of multiplications is faster: the products grow with p, and so does the cancellation.
POWERS = (8.0, 10.0)
# Smallest number of (row, output, feature) triples for which powers and products are worth their launches.
SMALLEST = 1 << 28
# Most terms per sum: sums on the tensor cores truncate instead of rounding, about two units of the last bit for every
# 16 terms.
MOST_TERMS = 1536
# Share of pairs that may be summed again before the dense kernels compute the layer. An unexpanded pair counts as one
# such pair and UNEXPANDED_COST more.
MOST_REPEATED, UNEXPANDED_COST = 0.25, 7
# Largest ratio of the even terms of a pair to its sum for which slopes are expanded: the error of a slope is then at
# most (2 * 128)^((p - 1) / p) < 2^8 times that of 22 bits.
MOST_SLOPE_LOSS = 128.0
# Smallest sum that is expanded, relative to the p-th power of the layer's largest |x| or |w|: too many terms of smaller
# sums are below the range of float16, where the terms of each feature lose up to 2^-36 of that power.
LEAST_SUM = 2.0**-16
# Most bytes for powers and products of a layer; the dense kernels, which need none, compute larger layers.
MOST_BYTES = 4 << 30


@cache
def kernel(function: str, p: int) -> Kernel:
    """One of the kernels before and after the products."""
    file = "tensor_core_forward.cu" if function in ("powers", "combine") else "tensor_core_backward.cu"
    return Kernel(file, function, (("P", p), ("UNEXPANDED_COST", UNEXPANDED_COST)))


def most_loss(p: float) -> float:
    """Largest ratio of the even terms of a pair to its sum; the distance takes the p-th root of the error."""
    return 2 * p


def chunks_of(terms: int) -> int | None:
    """Number of equal parts, each a multiple of 8, into which a sum is divided; None if that is impossible.

    >>> [chunks_of(terms) for terms in (784, 3072, 5120, 5000, 5121)]
    [1, 2, 4, 5, None]
    """
    fits = (parts for parts in range(1, 65) if terms % (8 * parts) == 0 and terms // parts <= MOST_TERMS)
    return next(fits, None)


def most_bytes(n: int, out: int, features: int, p: float) -> int:
    """Bytes of powers (float16) and products (float32) of the largest pass: distances, gradient of x, gradient of w.

    >>> [most_bytes(n, 5120, 5120, 8.0) >> 20 for n in (512, 1000, 10000)]
    [1190, 1657, 10270]
    """
    parts, out_parts = chunks_of(features) or 1, chunks_of(out) or 1
    distances = 4 * features * (n + out) + 4 * n * out * (parts + 2)
    grad_x = 4 * features * out + 4 * n * features * (out_parts + 2)
    grad_w = 6 * features * n + 4 * features * out
    return (int(p) - 1) * max(distances, grad_x, grad_w)


def supports(x: Tensor, w: Tensor, p: float) -> bool:
    """Whether matrix products save time: p in POWERS, a large but not huge layer, sizes that can be divided."""
    (n, features), out = x.shape, w.shape[0]
    if p not in POWERS or n < 64 or n > 65535 or out > 65535 or n * out * features < SMALLEST:
        return False
    if chunks_of(features) is None or chunks_of(out) is None or most_bytes(n, out, features, p) > MOST_BYTES:
        return False
    return _has_products(x.device)


@cache
def _has_products(device: torch.device) -> bool:
    """Whether torch multiplies float16 matrices into float32, and the device has tensor cores for it."""
    if device.type != "cuda":
        return device.type == "cpu"  # in tests
    return hasattr(torch.ops.aten.bmm, "dtype") and torch.cuda.get_device_capability(device) >= (8, 0)


def _products(a: Tensor, b: Tensor, into: Tensor | None = None) -> Tensor:
    """[B, m, k] by [B, k, n] in float16, summed in float32."""
    into = a.new_empty(a.shape[0], a.shape[1], b.shape[2], dtype=torch.float32) if into is None else into
    if a.device.type == "cpu":
        return torch.bmm(a.float(), b.float(), out=into)
    return torch.ops.aten.bmm.dtype_out(a, b, torch.float32, out=into)


def _aligned(matrix: Tensor) -> Tensor:
    """The matrix, or a copy of it whose rows can be read as float4."""
    return matrix if matrix.data_ptr() % 16 == 0 else matrix.clone()


def _layer_powers(launcher: Launcher, a: Tensor, input_max: Tensor, p: int, *, of_x: bool) -> tuple[Tensor, Tensor]:
    """Powers in float16 [2, rows, p - 1, features], with one scale for the layer; sums of a^p [rows]."""
    rows, features = a.shape
    halves = a.new_empty(2, rows, p - 1, features, dtype=torch.float16)
    power_sum = a.new_empty(rows)
    launcher.launch(
        kernel("powers", p), a.device, (rows, 1, 1),
        a=a, input_max=input_max, halves_out=halves, stride=halves[0].numel(), power_sum=power_sum, features=features,
        of_x=of_x,
    )  # fmt: skip
    return halves, power_sum


def _feature_powers(launcher: Launcher, a: Tensor, input_max: Tensor, p: int, *, thrice: bool) -> tuple[Tensor, Tensor]:
    """The exponent that scales each feature, and its powers in float16: [2 or 3, rows, (p - 1) * features]."""
    rows, features = a.shape
    exponents = a.new_empty(features, dtype=torch.int32)
    launcher.launch(
        kernel("feature_exponents", p), a.device, line(features, 32),
        a=a, input_max=input_max, exponents=exponents, rows=rows, features=features,
    )  # fmt: skip
    halves = a.new_empty(3 if thrice else 2, rows, (p - 1) * features, dtype=torch.float16)
    launcher.launch(
        kernel("feature_powers", p), a.device, (rows, 1, 1),
        a=a, exponents=exponents, halves_out=halves, rows=rows, features=features, thrice=thrice,
    )  # fmt: skip
    return exponents, halves


def _by_sums(halves: Tensor, chunks: int) -> Tensor:
    """[rows, p - 1, features] as [(p - 1) * chunks, rows, features / chunks], without a copy."""
    rows, terms, features = halves.shape
    return halves.view(rows, terms * chunks, features // chunks).transpose(0, 1)


def saved_layout(n: int, out: int) -> Saved:
    """The residual of each pair, then a bit for each pair whose slopes are not expanded."""
    return Saved(n * out, 1, -(-n * out // 32))


def forward(
    launcher: Launcher,
    x: Tensor,
    w: Tensor,
    input_max: Tensor,
    p: float,
    target_exponent: int,
    use_dense: Tensor,
    unexpanded: Tensor | None,
) -> Tensor:
    """Sums of scaled powers [n, out] for `finish_sum`; sets use_dense, and in `unexpanded` the bits of such pairs."""
    x, w = _aligned(x), _aligned(w)
    (n, features), out, power = x.shape, w.shape[0], int(p)
    chunks = chunks_of(features) or 1
    of_x, power_sum_x = _layer_powers(launcher, x, input_max, power, of_x=True)
    of_w, power_sum_w = _layer_powers(launcher, w, input_max, power, of_x=False)
    main = _products(_by_sums(of_x[0], chunks), _by_sums(of_w[0], chunks).mT)
    cross = x.new_empty(2, power - 1, n, out)
    for half in range(2):
        _products(_by_sums(of_x[1 - half], 1), _by_sums(of_w[half], 1).mT, cross[half])
    sums, count = x.new_empty(n, out), torch.zeros(1, dtype=torch.int32, device=x.device)
    combine = kernel("combine", power)
    launcher.launch(
        combine, x.device, line(n * out, combine.threads),
        main=main, chunks=chunks, cross=cross, power_sum_x=power_sum_x, power_sum_w=power_sum_w, x=x, w=w,
        input_max=input_max, sums=sums, count=count, unexpanded=unexpanded, n=n, out=out, features=features,
        most_loss=most_loss(p), most_slope_loss=MOST_SLOPE_LOSS, least_sum=LEAST_SUM, target_exponent=target_exponent,
    )  # fmt: skip
    decide_dense(launcher, count, int(n * out * MOST_REPEATED), use_dense)
    return sums


@dataclass(frozen=True)
class Slopes:
    """The inputs of both gradients.

    coefficient: c[b, o] = g (s y)^(1 - p); unexpanded: bits of such pairs; input_max: bits of the largest |x| and |w|;
    output_max: of the largest y and |g|; target_exponent: the exponent to which s scales the largest y.
    """

    coefficient: Tensor
    unexpanded: Tensor
    x: Tensor
    w: Tensor
    input_max: Tensor
    output_max: Tensor
    target_exponent: int


def backward(launcher: Launcher, slopes: Slopes, p: float, into: tuple[Tensor | None, Tensor | None]) -> None:
    """Write the gradients of x and w unless they are None."""
    slopes = replace(slopes, x=_aligned(slopes.x), w=_aligned(slopes.w))
    n, out = slopes.coefficient.shape
    for result, expand, of_x in zip(into, (_gradient_of_x, _gradient_of_w), (True, False), strict=True):
        if result is not None:
            expand(launcher, slopes, int(p), result)
            launcher.launch(
                kernel("add_unexpanded", int(p)), result.device, (result.shape[0], 1, 1),
                c=slopes.coefficient, unexpanded=slopes.unexpanded, x=slopes.x, w=slopes.w,
                output_max=slopes.output_max, result=result, n=n, out=out, features=slopes.x.shape[1],
                target_exponent=slopes.target_exponent, of_x=of_x,
            )  # fmt: skip


def _gradient_of_x(launcher: Launcher, slopes: Slopes, power: int, into: Tensor) -> None:
    x, (n, out), features = slopes.x, slopes.coefficient.shape, slopes.x.shape[1]
    chunks = chunks_of(out) or 1
    halves = x.new_empty(2, n, out, dtype=torch.float16)
    exponents, coefficient_sum = x.new_empty(n, dtype=torch.int32), x.new_empty(n)
    launcher.launch(
        kernel("split_rows", power), x.device, (n, 1, 1),
        c=slopes.coefficient, unexpanded=slopes.unexpanded, halves_out=halves, exponents=exponents,
        coefficient_sum=coefficient_sum, n=n, out=out,
    )  # fmt: skip
    scales, of_w = _feature_powers(launcher, slopes.w, slopes.input_max, power, thrice=False)
    by_rows = halves[0].view(n, chunks, out // chunks).transpose(0, 1)
    main = _products(by_rows, of_w[0].view(chunks, out // chunks, -1))
    cross = x.new_empty(2, n, of_w.shape[2])
    for half in range(2):
        _products(halves[1 - half][None], of_w[half][None], cross[half : half + 1])
    finish = kernel("finish_x", power)
    launcher.launch(
        finish, x.device, (-(-features // (4 * finish.threads)), n, 1),
        main=main, chunks=chunks, cross=cross, coefficient_sum=coefficient_sum, exponents=exponents,
        feature_exponents=scales, x=x, output_max=slopes.output_max, grad_x=into, n=n, features=features,
        target_exponent=slopes.target_exponent,
    )  # fmt: skip


def _gradient_of_w(launcher: Launcher, slopes: Slopes, power: int, into: Tensor) -> None:
    w, (n, out), features = slopes.w, slopes.coefficient.shape, slopes.w.shape[1]
    halves = w.new_empty(3 * n, out, dtype=torch.float16)
    exponents, coefficient_sum = w.new_empty(out, dtype=torch.int32), w.new_empty(out)
    launcher.launch(
        kernel("split_columns", power), w.device, line(out, 32),
        c=slopes.coefficient, unexpanded=slopes.unexpanded, halves_out=halves, exponents=exponents,
        coefficient_sum=coefficient_sum, n=n, out=out,
    )  # fmt: skip
    scales, of_x = _feature_powers(launcher, slopes.x, slopes.input_max, power, thrice=True)
    main = _products(halves.mT[None], of_x.view(1, 3 * n, -1))
    finish = kernel("finish_w", power)
    launcher.launch(
        finish, w.device, (-(-features // (4 * finish.threads)), out, 1),
        main=main, coefficient_sum=coefficient_sum, exponents=exponents, feature_exponents=scales, w=w,
        output_max=slopes.output_max, grad_w=into, features=features, target_exponent=slopes.target_exponent,
    )  # fmt: skip
