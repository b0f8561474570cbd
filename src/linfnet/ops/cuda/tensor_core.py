"""Small even p by matrix products on the tensor cores: (x - w)^p expanded into products of powers of x and of w.

    sum_i (x_i - w_i)^p = sum_i x_i^p + sum_i w_i^p + sum_(0 < j < p) C(p, j) sum_i (-x_i)^(p - j) w_i^j

The powers go into the products as pairs of float16, which hold 22 bits together; sums are float32. Where x and w lie on
opposite sides of 0 all terms are positive; the pairs that lose digits to cancellation are seen from the even terms and
summed again without expansion. If they are many, a flag on the device opens the dense kernels for the whole layer.
Gradients are expanded in the same way: their error is relative to sum |c| (|x| + |w|)^(p - 1), far more than the
gradient itself for an x and a w close to each other. The forward pass marks such pairs; they are left out of the
expansion and added one by one.
"""

from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from linfnet.ops.cuda.nvrtc import Kernel, Launcher, Long
from linfnet.ops.cuda.pruned_lists import list_kernel

# Beyond these a chain of multiplications costs less: the products grow with p, and so does what cancels.
POWERS = (8.0, 10.0)
# Triples from which on the powers and the products are worth their launches.
SMALLEST = 1 << 28
# Sums on the tensor cores drop bits instead of rounding, about two units of the last for every 16 terms: at most so
# many terms at a time.
MOST_TERMS = 1536
# The share of pairs that may be summed again before the dense kernels serve the layer; close ones count eight times.
MOST_REPEATED = 0.25
# How often a pair's sum may go into its even terms before its slopes are no longer expanded: each of them is then wrong
# by at most (2 * 128)^((p - 1) / p) < 2^8 of what 22 bits drop.
MOST_SLOPE_LOSS = 128.0
# The least sum that is expanded, as a part of the p-th power of the layer's largest |x| or |w|: of smaller ones too
# much lies below the range of float16, where each feature's terms lose up to 2^-36 of that power.
LEAST_SUM = 2.0**-16
# Bytes that powers and products of a layer may take: beyond, the dense kernels serve, which need none.
MOST_BYTES = 4 << 30


@cache
def kernel(function: str, p: int) -> Kernel:
    """One of the kernels around the products."""
    file = "expanded_forward.cu" if function in ("powers", "combine") else "expanded_backward.cu"
    return Kernel(file, function, (("P", p),))


def most_loss(p: float) -> float:
    """What may cancel: how often a pair's sum may go into its even terms. The distance takes the p-th root of it."""
    return 2 * p


def chunks_of(terms: int) -> int | None:
    """Into how many equal parts, each a multiple of 8, a sum is cut; None if there is no such cut.

    >>> [chunks_of(terms) for terms in (784, 3072, 5120, 5000, 5121)]
    [1, 2, 4, 5, None]
    """
    fits = (parts for parts in range(1, 65) if terms % (8 * parts) == 0 and terms // parts <= MOST_TERMS)
    return next(fits, None)


def most_bytes(n: int, out: int, features: int, p: float) -> int:
    """What powers (float16) and products (float32) of one pass take: distances, the gradient of x, that of w.

    >>> [most_bytes(n, 5120, 5120, 8.0) >> 20 for n in (512, 1000, 10000)]
    [1190, 1657, 10270]
    """
    parts, out_parts = chunks_of(features) or 1, chunks_of(out) or 1
    distances = 4 * features * (n + out) + 4 * n * out * (parts + 2)
    grad_x = 4 * features * out + 4 * n * features * (out_parts + 2)
    grad_w = 6 * features * n + 4 * features * out
    return (int(p) - 1) * max(distances, grad_x, grad_w)


def serves(x: Tensor, w: Tensor, p: float) -> bool:
    """Whether the products pay: a whole even p, a large layer but not a huge one, sizes that can be cut."""
    (n, features), out = x.shape, w.shape[0]
    if p not in POWERS or n < 64 or n > 65535 or out > 65535 or n * out * features < SMALLEST:
        return False
    if chunks_of(features) is None or chunks_of(out) is None or most_bytes(n, out, features, p) > MOST_BYTES:
        return False
    return _has_products(x.device)


@cache
def _has_products(device: torch.device) -> bool:
    """Whether torch multiplies float16 matrices into float32, and the device does so fast."""
    if device.type != "cuda":
        return device.type == "cpu"  # launches are checked there
    return hasattr(torch.ops.aten.bmm, "dtype") and torch.cuda.get_device_capability(device) >= (8, 0)


def _products(a: Tensor, b: Tensor, into: Tensor | None = None) -> Tensor:
    """[B, m, k] by [B, k, n] in float16, summed in float32."""
    into = a.new_empty(a.shape[0], a.shape[1], b.shape[2], dtype=torch.float32) if into is None else into
    if a.device.type == "cpu":
        return torch.bmm(a.float(), b.float(), out=into)
    return torch.ops.aten.bmm.dtype_out(a, b, torch.float32, out=into)


def _aligned(matrix: Tensor) -> Tensor:
    """The matrix, or a copy at an address from which four numbers can be read at once."""
    return matrix if matrix.data_ptr() % 16 == 0 else matrix.clone()


def _layer_powers(launcher: Launcher, a: Tensor, tops: Tensor, p: int, *, of_x: bool) -> tuple[Tensor, Tensor]:
    """Powers in float16 [2, rows, p - 1, features], scaled by one power of two for the layer; sums of a^p [rows]."""
    rows, features = a.shape
    halves = a.new_empty(2, rows, p - 1, features, dtype=torch.float16)
    alone = a.new_empty(rows)
    made = (halves, Long(halves[0].numel()), alone, features, int(of_x))
    launcher.launch(kernel("powers", p), a.device, (rows, 1, 1), 256, a, tops, *made)
    return halves, alone


def _feature_powers(launcher: Launcher, a: Tensor, tops: Tensor, p: int, *, thrice: bool) -> tuple[Tensor, Tensor]:
    """The power of two of each feature, and its powers in float16: [2 or 3, rows, (p - 1) * features]."""
    rows, features = a.shape
    scales = a.new_empty(features, dtype=torch.int32)
    blocks = (-(-features // 32), 1, 1)
    launcher.launch(kernel("feature_exponents", p), a.device, blocks, 256, a, tops, scales, rows, features)
    halves = a.new_empty(3 if thrice else 2, rows, (p - 1) * features, dtype=torch.float16)
    made = (halves, rows, features, int(thrice))
    launcher.launch(kernel("feature_powers", p), a.device, (rows, 1, 1), 256, a, scales, *made)
    return scales, halves


def _by_sums(halves: Tensor, chunks: int) -> Tensor:
    """[rows, p - 1, features] as [(p - 1) * chunks, rows, features / chunks], without a copy."""
    rows, terms, features = halves.shape
    return halves.view(rows, terms * chunks, features // chunks).transpose(0, 1)


def saved_size(n: int, out: int) -> int:
    """How many numbers a layer keeps: the flag, then one for each pair, then a bit for each."""
    return 64 + n * out + -(-n * out // 32)


def close_of(saved: Tensor, pairs: int) -> Tensor:
    """The bits that mark pairs whose slopes are not expanded."""
    return saved[64 + pairs :]


def forward(
    launcher: Launcher, x: Tensor, w: Tensor, tops: Tensor, p: float, lift: int, flag: Tensor, close: Tensor | None
) -> Tensor:
    """Sums of scaled powers [n, out], as `finish_sum` takes them; the flag says if the dense kernels must serve."""
    x, w = _aligned(x), _aligned(w)
    (n, features), out, power = x.shape, w.shape[0], int(p)
    chunks = chunks_of(features) or 1
    of_x, alone_x = _layer_powers(launcher, x, tops, power, of_x=True)
    of_w, alone_w = _layer_powers(launcher, w, tops, power, of_x=False)
    main = _products(_by_sums(of_x[0], chunks), _by_sums(of_w[0], chunks).mT)
    cross = x.new_empty(2, power - 1, n, out)
    for place in range(2):
        _products(_by_sums(of_x[1 - place], 1), _by_sums(of_w[place], 1).mT, cross[place])
    sums, count = x.new_empty(n, out), torch.zeros(1, dtype=torch.int32, device=x.device)
    launcher.launch(
        kernel("combine", power), x.device, (-(-n * out // 256), 1, 1), 256,
        main, chunks, cross, alone_x, alone_w, x, w, tops, sums, count, close,
        n, out, features, most_loss(p), MOST_SLOPE_LOSS, LEAST_SUM, lift,
    )  # fmt: skip
    launcher.launch(list_kernel("decide"), x.device, (1, 1, 1), 32, count, int(n * out * MOST_REPEATED), flag)
    return sums


@dataclass(frozen=True)
class Slopes:
    """What both gradients are made from.

    coefficient: c[b, o] = g (s y)^(1 - p); close: bits of the pairs that are not expanded; tops: bits of the largest
    |x| and |w|; largest: of the largest y and |g|; lift: what s lifts the largest y to.
    """

    coefficient: Tensor
    close: Tensor
    x: Tensor
    w: Tensor
    tops: Tensor
    largest: Tensor
    lift: int


def backward(launcher: Launcher, slopes: Slopes, p: float, into: tuple[Tensor | None, Tensor | None]) -> None:
    """Write the gradients of x and w, those that are wanted."""
    slopes = replace(slopes, x=_aligned(slopes.x), w=_aligned(slopes.w))
    for place, (expand, result) in enumerate(zip((_gradient_of_x, _gradient_of_w), into, strict=True)):
        if result is not None:
            expand(launcher, slopes, int(p), result)
            sizes = (*slopes.coefficient.shape, slopes.x.shape[1], slopes.lift, int(place == 0))
            made = (slopes.coefficient, slopes.close, slopes.x, slopes.w, slopes.largest, result, *sizes)
            launcher.launch(kernel("add_close", int(p)), result.device, (result.shape[0], 1, 1), 256, *made)


def _gradient_of_x(launcher: Launcher, slopes: Slopes, power: int, into: Tensor) -> None:
    x, (n, out), features = slopes.x, slopes.coefficient.shape, slopes.x.shape[1]
    chunks = chunks_of(out) or 1
    halves = x.new_empty(2, n, out, dtype=torch.float16)
    exponents, alone = x.new_empty(n, dtype=torch.int32), x.new_empty(n)
    made = (slopes.coefficient, slopes.close, halves, exponents, alone, n, out)
    launcher.launch(kernel("split_rows", power), x.device, (n, 1, 1), 256, *made)
    scales, of_w = _feature_powers(launcher, slopes.w, slopes.tops, power, thrice=False)
    by_rows = halves[0].view(n, chunks, out // chunks).transpose(0, 1)
    main = _products(by_rows, of_w[0].view(chunks, out // chunks, -1))
    cross = x.new_empty(2, n, of_w.shape[2])
    for place in range(2):
        _products(halves[1 - place][None], of_w[place][None], cross[place : place + 1])
    launcher.launch(
        kernel("finish_x", power), x.device, (-(-features // 1024), n, 1), 256,
        main, chunks, cross, alone, exponents, scales, x, slopes.largest, into, n, features, slopes.lift,
    )  # fmt: skip


def _gradient_of_w(launcher: Launcher, slopes: Slopes, power: int, into: Tensor) -> None:
    w, (n, out), features = slopes.w, slopes.coefficient.shape, slopes.w.shape[1]
    halves = w.new_empty(3 * n, out, dtype=torch.float16)
    exponents, alone = w.new_empty(out, dtype=torch.int32), w.new_empty(out)
    made = (slopes.coefficient, slopes.close, halves, exponents, alone, n, out)
    launcher.launch(kernel("split_columns", power), w.device, (-(-out // 32), 1, 1), 256, *made)
    scales, of_x = _feature_powers(launcher, slopes.x, slopes.tops, power, thrice=True)
    main = _products(halves.mT[None], of_x.view(1, 3 * n, -1))
    launcher.launch(
        kernel("finish_w", power), w.device, (-(-features // 1024), out, 1), 256,
        main, alone, exponents, scales, w, slopes.largest, into, features, slopes.lift,
    )  # fmt: skip
