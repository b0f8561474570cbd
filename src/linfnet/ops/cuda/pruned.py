"""Larger p: distances and gradients only from features that can contribute. No host synchronisation.

A term contributes if (|d| / max |d|)^p >= 2^-30 p: any other term changes the distance by less than 2^-30 of it, and a
gradient by less than p 2^-30 of its weight, while rounding |d| / y to float32 changes that by p 2^-25. Which features
contribute for some row follows from the range of each feature in the batch, in one pass over the weights; they are
listed on the device. If the lists are too long, a flag on the device (`use_dense`) makes the dense kernels compute the
whole layer; otherwise those return at once.
"""

import math
from dataclasses import dataclass
from functools import cache, lru_cache

import torch
from torch import Tensor

from linfnet.ops.cuda.layout import LANE_GROUP, SQUARE, Grid, Rows, Saved, line, rows_for, squares
from linfnet.ops.cuda.nvrtc import Kernel, Launcher
from linfnet.ops.powers import PowerMode, power_mode, power_source, uses_ratio

# Below, too many features contribute in most layers, and the lists would only cost time.
SMALLEST_P = 22.0
# Rows per call if nothing is saved for a backward pass: ranges over few rows are narrower than over many.
MOST_ROWS = 1024
# Most float4 of rows that a lane owns.
DISTANCE_VECTORS, GRAD_W_VECTORS, GRAD_X_VECTORS = 2, 4, 2
# Layers with more weights would need gigabytes for the lists.
MOST_WEIGHTS = 1 << 28
# Share of listed features from which the dense kernels are faster: with products, with special functions, at infinity.
MOST_SHARE, MOST_SHARE_GENERAL, MOST_SHARE_INFINITE = 0.34, 0.5, 0.15


def _definitions(p: float, vectors: int) -> tuple[tuple[str, int], ...]:
    modes = ((mode.name, mode.value) for mode in PowerMode)
    return (*modes, ("POWER_MODE", power_mode(p).value), ("GROUP_ROWS", LANE_GROUP * vectors))


@lru_cache(64)  # a schedule may use another p in every step
def forward_kernel(p: float, vectors: int) -> Kernel:
    """Distances from the lists."""
    source = power_source("power", None if uses_ratio(p) else p, signed=False)
    return Kernel("pruned_forward.cu", "listed_distance", _definitions(p, vectors), source)


@lru_cache(64)
def backward_kernel(p: float, vectors: int, function: str) -> Kernel:
    """Gradients from the lists."""
    source = power_source("slope", None if uses_ratio(p) else p - 1, signed=True)
    return Kernel("pruned_backward.cu", function, _definitions(p, vectors), source)


@cache
def maximum_kernel(find_index: bool, vectors: int) -> Kernel:
    """The maximum over the lists, optionally with the feature that attains it."""
    definitions = (("FIND_INDEX", int(find_index)), ("GROUP_ROWS", LANE_GROUP * vectors))
    return Kernel("pruned_maximum.cu", "listed_maximum", definitions)


@cache
def list_kernel(function: str) -> Kernel:
    """The kernels before and after those that read the lists, the same for all p."""
    return Kernel("pruned_lists.cu", function, (("SQUARE", SQUARE), ("GROUP_ROWS", LANE_GROUP)))


def warps(function: str, count: int) -> Grid:
    """A grid with one warp for each of `count` items."""
    return line(count, list_kernel(function).threads // 32)


def supports(n: int, out: int, features: int, p: float) -> bool:
    """Whether lists can save time: p is large enough, and so is the layer."""
    return p >= SMALLEST_P and n >= 32 and out >= 32 and 256 <= features <= MOST_WEIGHTS // out


def kernels(p: float, n: int) -> tuple[Kernel, ...]:
    """What a training step of n rows compiles for p."""
    vectors = rows_for(n).vectors
    if math.isinf(p):
        return (maximum_kernel(True, min(vectors, DISTANCE_VECTORS)),)
    grad_w = backward_kernel(p, min(vectors, GRAD_W_VECTORS), "listed_grad_w")
    grad_x = backward_kernel(p, min(vectors, GRAD_X_VECTORS), "listed_grad_x")
    return (forward_kernel(p, min(vectors, DISTANCE_VECTORS)), grad_w, grad_x)


def cut(p: float) -> float:
    """The part of the largest |d| below which a term does not contribute; at infinity only the largest does.

    >>> [round(cut(p), 3) for p in (24.0, 64.0, 512.0, math.inf)]
    [0.48, 0.771, 0.972, 1.0]
    """
    return 1.0 if math.isinf(p) else 2.0 ** ((math.log2(p) - 30) / p)


def _filled(length: int) -> int:
    return -(-length // 64) * 64


@dataclass(frozen=True)
class Lists:
    """x transposed, the range of each feature, and the threshold, scale and listed features of each output."""

    rows: Rows
    x_transposed: Tensor  # [features, padded]
    ranges: Tensor  # [features, 2]
    thresholds: Tensor  # [out]
    scales: Tensor  # [out]
    entries: Tensor  # [out, features, 2]: feature and weight
    counts: Tensor  # [out]

    @staticmethod
    def lengths(n: int, out: int, features: int) -> tuple[int, ...]:
        """The length of each tensor."""
        return (features * rows_for(n).padded, 2 * features, out, out, 2 * out * features, out)

    @staticmethod
    def size(n: int, out: int, features: int) -> int:
        """Their total length, each filled up so that the next one is aligned."""
        return sum(_filled(length) for length in Lists.lengths(n, out, features))

    @staticmethod
    def within(memory: Tensor, n: int, out: int, features: int) -> "Lists":
        """As parts of `memory`, int32 [size]."""
        lengths = Lists.lengths(n, out, features)
        parts = memory.split([_filled(length) for length in lengths])
        *floats, entries, counts = (part[:length] for part, length in zip(parts, lengths, strict=True))
        x_transposed, ranges, thresholds, scales = (part.view(torch.float32) for part in floats)
        return Lists(rows_for(n), x_transposed, ranges, thresholds, scales, entries, counts)

    @staticmethod
    def new(x: Tensor, w: Tensor) -> "Lists":
        """In newly allocated memory."""
        (n, features), out = x.shape, w.shape[0]
        memory = x.new_empty(Lists.size(n, out, features), dtype=torch.int32)
        return Lists.within(memory, n, out, features)

    def grid(self, first: int, vectors: int) -> Grid:
        """One block per output (or feature) and group of rows."""
        return (first, self.rows.padded // (LANE_GROUP * vectors), 1)

    def build(self, launcher: Launcher, x: Tensor, w: Tensor, p: float, most_share: float, use_dense: Tensor) -> None:
        """Fill the lists; set `use_dense` if more than `most_share` of all features of all outputs are listed."""
        (n, features), out, padded = x.shape, w.shape[0], self.rows.padded
        total = torch.zeros(1, dtype=torch.int32, device=x.device)
        launcher.launch(
            list_kernel("transpose"), x.device, squares(padded, features),
            source=x, target=self.x_transposed, rows=n, columns=features, padded=padded,
        )  # fmt: skip
        launcher.launch(
            list_kernel("ranges"), x.device, warps("ranges", features),
            x_transposed=self.x_transposed, range=self.ranges, features=features, padded=padded,
        )  # fmt: skip
        launcher.launch(
            list_kernel("output_lists"), x.device, (out, 1, 1),
            w=w, range=self.ranges, thresholds=self.thresholds, scales=self.scales, entries=self.entries,
            counts=self.counts, total=total, features=features, cut=cut(p),
            target_exponent=min(30, math.floor(100 / p)),  # powers of the largest |d| stay below 2^100
        )  # fmt: skip
        decide_dense(launcher, total, int(out * features * most_share), use_dense)


def decide_dense(launcher: Launcher, total: Tensor, most: int, use_dense: Tensor) -> None:
    """Set `use_dense` to whether `total` exceeds `most`."""
    kernel = list_kernel("decide_dense")
    launcher.launch(kernel, total.device, (1, 1, 1), total=total, most=most, use_dense=use_dense)


def _transpose_back(
    launcher: Launcher, source: Tensor, target: Tensor, padded: int, use_dense: Tensor, nonfinite: Tensor | None = None
) -> None:
    rows, columns = target.shape
    launcher.launch(
        list_kernel("transpose_back"), target.device, squares(padded, columns),
        source=source, target=target, nonfinite=nonfinite, rows=rows, columns=columns, padded=padded,
        use_dense=use_dense,
    )  # fmt: skip


def saved_layout(x: Tensor, w: Tensor, p: float) -> Saved:
    """Per pair one number, or two if each pair has its own scale; then the lists."""
    n, (out, features) = x.shape[0], w.shape
    planes = 1 if power_mode(p) == PowerMode.SCALE_PER_OUTPUT else 2
    return Saved(out * rows_for(n).padded, planes, Lists.size(n, out, features))


def forward(launcher: Launcher, x: Tensor, w: Tensor, p: float, saved: Tensor | None) -> tuple[Tensor, Tensor]:
    """(y, use_dense): distances, valid if use_dense is 0; `saved`, if given, receives what the backward pass needs."""
    n, (out, features) = x.shape[0], w.shape
    layout, first, second = saved_layout(x, w, p), None, None
    if saved is None:
        use_dense, lists = torch.empty(1, dtype=torch.int32, device=x.device), Lists.new(x, w)
    else:
        use_dense, lists = layout.use_dense(saved), Lists.within(layout.extra(saved), n, out, features)
        first, second = layout.plane(saved, 0), layout.plane(saved, 1) if layout.planes == 2 else None
    lists.build(launcher, x, w, p, MOST_SHARE if layout.planes == 1 else MOST_SHARE_GENERAL, use_dense)
    padded, vectors = lists.rows.padded, min(lists.rows.vectors, DISTANCE_VECTORS)
    transposed, y = x.new_empty(out, padded), x.new_empty(n, out)
    launcher.launch(
        forward_kernel(p, vectors), x.device, lists.grid(out, vectors),
        x_transposed=lists.x_transposed, entries=lists.entries, counts=lists.counts, scales=lists.scales, y=transposed,
        saved_first=first, saved_second=second, features=features, padded=padded, p=p, use_dense=use_dense,
    )  # fmt: skip
    _transpose_back(launcher, transposed, y, padded, use_dense)
    return y, use_dense


def maximum(launcher: Launcher, x: Tensor, w: Tensor, *, index: bool) -> tuple[Tensor, Tensor | None, Tensor]:
    """(y, index of the feature that attains it, use_dense) at infinity; valid if use_dense is 0."""
    n, (out, features) = x.shape[0], w.shape
    use_dense, lists = torch.empty(1, dtype=torch.int32, device=x.device), Lists.new(x, w)
    lists.build(launcher, x, w, math.inf, MOST_SHARE_INFINITE, use_dense)
    padded, vectors = lists.rows.padded, min(lists.rows.vectors, DISTANCE_VECTORS)
    transposed = [x.new_empty(out, padded) for _ in range(1 + index)]
    results = [x.new_empty(n, out) for _ in range(1 + index)]
    launcher.launch(
        maximum_kernel(index, vectors), x.device, lists.grid(out, vectors),
        x_transposed=lists.x_transposed, entries=lists.entries, counts=lists.counts, y=transposed[0],
        index=transposed[1].view(torch.int32) if index else None, features=features, padded=padded,
        use_dense=use_dense,
    )  # fmt: skip
    for source, result in zip(transposed, results, strict=True):
        _transpose_back(launcher, source, result, padded, use_dense)
    return results[0], results[1].view(torch.int32) if index else None, use_dense


def backward(
    launcher: Launcher,
    grad: Tensor,
    x: Tensor,
    w: Tensor,
    y: Tensor,
    saved: Tensor,
    output_max: Tensor,
    p: float,
    need_x: bool,
    need_w: bool,
) -> tuple[Tensor, Tensor]:
    """Gradients of x and w, valid if use_dense is 0; `output_max`: bits of the largest y and |grad|."""
    n, (out, features) = x.shape[0], w.shape
    layout = saved_layout(x, w, p)
    use_dense, lists = layout.use_dense(saved), Lists.within(layout.extra(saved), n, out, features)
    padded, first = lists.rows.padded, layout.plane(saved, 0)
    coefficients = x.new_empty(layout.pairs)
    nonfinite = torch.zeros(n + out, dtype=torch.int32, device=x.device)
    launcher.launch(
        list_kernel("transposed_coefficients"), x.device, squares(padded, out),
        grad=grad, y=y, scales=lists.scales, saved_first=first,
        saved_second=layout.plane(saved, 1) if layout.planes == 2 else None, output_max=output_max,
        coefficients=coefficients, nonfinite=nonfinite, n=n, out=out, padded=padded, exponent=p - 1,
        use_dense=use_dense,
    )  # fmt: skip
    grad_x, grad_w = x.new_empty(0), w.new_empty(0)
    if need_w:
        grad_w = torch.zeros_like(w)
        launcher.launch(
            backward_kernel(p, min(lists.rows.vectors, GRAD_W_VECTORS), "listed_grad_w"), x.device, (out, 1, 1),
            x_transposed=lists.x_transposed, entries=lists.entries, counts=lists.counts, scales=lists.scales,
            coefficients=coefficients, saved_first=first, output_max=output_max, nonfinite=nonfinite[n:],
            grad_w=grad_w, features=features, padded=padded, exponent=p - 1, use_dense=use_dense,
        )  # fmt: skip
    if need_x:
        grad_x = torch.empty_like(x)
        entries, counts = _feature_lists(launcher, w, lists, use_dense)
        vectors, transposed = min(lists.rows.vectors, GRAD_X_VECTORS), x.new_empty(features, padded)
        launcher.launch(
            backward_kernel(p, vectors, "listed_grad_x"), x.device, lists.grid(features, vectors),
            x_transposed=lists.x_transposed, entries=entries, counts=counts, scales=lists.scales,
            coefficients=coefficients, saved_first=first, output_max=output_max, grad_x_transposed=transposed,
            out=out, padded=padded, exponent=p - 1, use_dense=use_dense,
        )  # fmt: skip
        _transpose_back(launcher, transposed, grad_x, padded, use_dense, nonfinite)
    return grad_x, grad_w


def _feature_lists(launcher: Launcher, w: Tensor, lists: Lists, use_dense: Tensor) -> tuple[Tensor, Tensor]:
    """The same lists by feature: entries [features, out, 2] (output and weight) and counts [features]."""
    out, features = w.shape
    bits = w.new_empty(-(-out // 32) * features, dtype=torch.int32)
    entries = w.new_empty(out * features * 2, dtype=torch.int32)
    counts = w.new_empty(features, dtype=torch.int32)
    kernel = list_kernel("mark_listed")
    launcher.launch(
        kernel, w.device, (-(-features // kernel.threads), -(-out // 32), 1),
        w=w, range=lists.ranges, thresholds=lists.thresholds, bits=bits, out=out, features=features,
        use_dense=use_dense,
    )  # fmt: skip
    launcher.launch(
        list_kernel("feature_lists"), w.device, warps("feature_lists", features),
        w=w, bits=bits, entries=entries, counts=counts, out=out, features=features, use_dense=use_dense,
    )  # fmt: skip
    return entries, counts
