"""Larger p: distances and gradients from the features that can count alone (see lists.py). No word to the host.

If they are too many, a flag on the device opens the dense kernels for the whole layer; else those return at once.
"""

import math
from functools import cache, lru_cache

import torch
from torch import Tensor

from linfnet.ops.addition_chain import LARGEST_CHAINED, power_source
from linfnet.ops.cuda.nvrtc import Kernel, Launcher
from linfnet.ops.cuda.pruned_lists import Lists, blocks, list_kernel, rows_for

# Below, too many features count in most layers: the attempt would cost time for nothing.
SMALLEST_P = 22.0
# Whole powers are products, with one power of two per output up to LARGEST_CHAINED, per pair up to here: 2^(+-64) then.
LARGEST_PAIRED = 128
PER_OUTPUT, PER_PAIR, SPECIAL, SPECIAL_LARGE = range(4)
# Rows at a time where nothing is kept for a backward: the ranges of few rows are narrower than those of many.
MOST_ROWS = 1024
# Quads of rows that a lane owns at most.
DISTANCE_QUADS, GRAD_W_QUADS, GRAD_X_QUADS = 2, 4, 2
# More pairs of output and feature at once would take gigabytes.
MOST_WEIGHTS = 1 << 28
# From this share of listed pairs on the dense kernels are faster: products, special functions, the maximum alone.
MOST_SHARE, MOST_SHARE_GENERAL, MOST_SHARE_INFINITE = 0.34, 0.5, 0.15


@lru_cache(64)  # of the last p: a schedule may bring another every step
def forward_kernel(p: float, quads: int) -> Kernel:
    """Distances from the lists; whole powers by multiplication up to `LARGEST_PAIRED`."""
    source = "" if is_special(p) else power_source("power", p, signed=False)
    return Kernel("pruned_forward.cu", "listed_distance", (("POWERS", powers(p)), ("QUADS", quads)), source)


@lru_cache(64)
def backward_kernel(p: float, quads: int, function: str) -> Kernel:
    """Gradients from the lists."""
    source = "" if is_special(p) else power_source("slope", p - 1, signed=True)
    return Kernel("pruned_backward.cu", function, (("POWERS", powers(p)), ("QUADS", quads)), source)


@cache
def maximum_kernel(index: bool, quads: int) -> Kernel:
    """The maximum over the lists, with or without the feature that attains it."""
    return Kernel("pruned_maximum.cu", "listed_maximum", (("INDEX", int(index)), ("QUADS", quads)))


def powers(p: float) -> int:
    """How the listed kernels take powers: products for whole p while these stay in the float range."""
    if p > LARGEST_PAIRED:
        return SPECIAL_LARGE
    if p != math.floor(p):
        return SPECIAL
    return PER_OUTPUT if p <= LARGEST_CHAINED else PER_PAIR


def is_special(p: float) -> bool:
    """Whether powers are taken by special functions, of what lies between 0 and 1."""
    return powers(p) in (SPECIAL, SPECIAL_LARGE)


def is_general(p: float) -> bool:
    """Whether each pair has its own scale, the maximum or a power of two: two numbers are kept for it."""
    return powers(p) != PER_OUTPUT


def serves(n: int, out: int, features: int, p: float) -> bool:
    """Whether the lists may pay: p large enough, and a layer large enough for their making not to show."""
    return p >= SMALLEST_P and n >= 32 and out >= 32 and 256 <= features <= MOST_WEIGHTS // out


def kernels(p: float, n: int) -> tuple[Kernel, ...]:
    """What a training step of n rows compiles for p."""
    quads = rows_for(n).quads
    if math.isinf(p):
        return (maximum_kernel(True, min(quads, DISTANCE_QUADS)),)
    grad_w = backward_kernel(p, min(quads, GRAD_W_QUADS), "listed_grad_w")
    grad_x = backward_kernel(p, min(quads, GRAD_X_QUADS), "listed_grad_x")
    return (forward_kernel(p, min(quads, DISTANCE_QUADS)), grad_w, grad_x)


def saved_size(n: int, out: int, features: int, p: float) -> int:
    """How many numbers a layer keeps: the flag, then one or two for each pair, then the lists."""
    return _lists_start(n, out, p) + Lists.size(n, out, features)


def _lists_start(n: int, out: int, p: float) -> int:
    return 64 + out * rows_for(n).padded * (1 + is_general(p))


def lists_of(saved: Tensor, n: int, out: int, features: int, p: float) -> Lists:
    """The lists that were kept."""
    return Lists.within(saved[_lists_start(n, out, p) :], n, out, features)


def flag_of(saved: Tensor) -> Tensor:
    """Where the device says that the dense kernels must serve."""
    return saved[:1]


def kept_of(saved: Tensor, size: int, place: int = 0) -> Tensor:
    """The numbers kept for each pair."""
    return saved[64 + place * size :][:size].view(torch.float32)


def forward(launcher: Launcher, x: Tensor, w: Tensor, p: float, saved: Tensor | None) -> tuple[Tensor, Tensor]:
    """(y, flag): distances, valid unless the flag is set; what the backward needs is kept in `saved`, if given."""
    n, (out, features) = x.shape[0], w.shape
    flag = torch.empty(1, dtype=torch.int32, device=x.device) if saved is None else flag_of(saved)
    lists = Lists.new(x, w) if saved is None else lists_of(saved, n, out, features, p)
    lists.make(launcher, x, w, p, MOST_SHARE_GENERAL if is_general(p) else MOST_SHARE, flag)
    padded, quads = lists.rows.padded, min(lists.rows.quads, DISTANCE_QUADS)
    size = out * padded
    first = None if saved is None else kept_of(saved, size)
    second = kept_of(saved, size, 1) if saved is not None and is_general(p) else None
    turned_y, y = x.new_empty(out, padded), x.new_empty(n, out)
    launcher.launch(
        forward_kernel(p, quads), x.device, (out, padded // (128 * quads), 1), 128,
        lists.turned, lists.entries, lists.counts, lists.scales, turned_y, first, second, features, padded, p, flag,
    )  # fmt: skip
    launcher.launch(
        list_kernel("turn_back"), x.device, blocks(padded, out), 256, turned_y, y, None, n, out, padded, flag
    )
    return y, flag


def maximum(launcher: Launcher, x: Tensor, w: Tensor, *, index: bool) -> tuple[Tensor, Tensor | None, Tensor]:
    """(y, which feature attains it, flag) at infinity; valid unless the flag is set."""
    n, (out, features) = x.shape[0], w.shape
    flag = torch.empty(1, dtype=torch.int32, device=x.device)
    lists = Lists.new(x, w)
    lists.make(launcher, x, w, math.inf, MOST_SHARE_INFINITE, flag)
    padded, quads = lists.rows.padded, min(lists.rows.quads, DISTANCE_QUADS)
    turned = [x.new_empty(out, padded) for _ in range(1 + index)]
    results = [x.new_empty(n, out) for _ in range(1 + index)]
    where = turned[1].view(torch.int32) if index else None
    launcher.launch(
        maximum_kernel(index, quads), x.device, (out, padded // (128 * quads), 1), 128,
        lists.turned, lists.entries, lists.counts, turned[0], where, features, padded, flag,
    )  # fmt: skip
    for source, result in zip(turned, results, strict=True):
        launcher.launch(
            list_kernel("turn_back"), x.device, blocks(padded, out), 256, source, result, None, n, out, padded, flag
        )
    return results[0], results[1].view(torch.int32) if index else None, flag


def backward(
    launcher: Launcher,
    grad: Tensor,
    x: Tensor,
    w: Tensor,
    y: Tensor,
    saved: Tensor,
    largest: Tensor,
    p: float,
    of: tuple[bool, bool],
) -> tuple[Tensor, Tensor]:
    """Gradients of x and w (`of` says which), valid unless the flag is set; `largest`: bits of max y and max |grad|."""
    n, (out, features) = x.shape[0], w.shape
    flag = flag_of(saved)
    lists = lists_of(saved, n, out, features, p)
    padded, size = lists.rows.padded, out * lists.rows.padded
    first = kept_of(saved, size)
    second = kept_of(saved, size, 1) if is_general(p) else None
    coefficients = x.new_empty(size)
    spoiled = torch.zeros(n + out, dtype=torch.int32, device=x.device)
    launcher.launch(
        list_kernel("turned_coefficients"), x.device, blocks(padded, out), 256,
        grad, y, lists.scales, first, second, largest, coefficients, spoiled, n, out, padded, p - 1, flag,
    )  # fmt: skip
    results = [x.new_empty(0), w.new_empty(0)]
    if of[1]:
        results[1] = torch.zeros_like(w)
        launcher.launch(
            backward_kernel(p, min(lists.rows.quads, GRAD_W_QUADS), "listed_grad_w"), x.device, (out, 1, 1), 128,
            lists.turned, lists.entries, lists.counts, lists.scales, coefficients, first, largest, spoiled[n:],
            results[1], features, padded, p - 1, flag,
        )  # fmt: skip
    if of[0]:
        results[0] = torch.empty_like(x)
        bits = x.new_empty(-(-out // 32) * features, dtype=torch.int32)
        entries = x.new_empty(out * features * 2, dtype=torch.int32)
        counts = x.new_empty(features, dtype=torch.int32)
        grid = (-(-features // 256), -(-out // 32), 1)
        launcher.launch(
            list_kernel("mark"), x.device, grid, 256, w, lists.ranges, lists.bars, bits, out, features, flag
        )
        launcher.launch(
            list_kernel("feature_lists"), x.device, (-(-features // 8), 1, 1), 256,
            w, bits, entries, counts, out, features, flag,
        )  # fmt: skip
        turned, quads = x.new_empty(features, padded), min(lists.rows.quads, GRAD_X_QUADS)
        launcher.launch(
            backward_kernel(p, quads, "listed_grad_x"), x.device, (features, padded // (128 * quads), 1), 128,
            lists.turned, entries, counts, lists.scales, coefficients, first, largest, turned, out, padded, p - 1, flag,
        )  # fmt: skip
        launcher.launch(
            list_kernel("turn_back"), x.device, blocks(padded, features), 256,
            turned, results[0], spoiled, n, features, padded, flag,
        )  # fmt: skip
    return results[0], results[1]
