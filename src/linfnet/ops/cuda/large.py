"""Large p: only the few terms that can change a float32 sum are evaluated. Lists of fixed size, no word to the host.

A term counts if (|d| / max |d|)^p >= 2^-30 p: each other one changes the distance by less than 2^-30 of it, and a
gradient by less than p 2^-30 of what it weighs; rounding |d| / y to float32 changes that by p 2^-25. Lists belong to
patches of 32 rows x 32 outputs and take their pages from a pool of the layer. If that does not suffice, a flag on the
device opens the dense kernels for the whole layer; else those return at once.
"""

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from linfnet.ops.cuda.loader import Kernel, Launcher, Long

SMALLEST_P = 48.0
PATCH, RANGE, WIDTH = 32, 64, 128
PAIRS = PATCH * PATCH
PAGE, TABLE = 1024, 512
# More pairs at once would take gigabytes.
MOST_PAIRS = 1 << 22
# Of every SAMPLE chunks of 16 features, one gives the first thresholds.
SAMPLE = 16
_WIDEST = Kernel("terms_find.cu", "widest", (("VECTOR", 1),))
_EVALUATE = Kernel("terms_sum.cu", "evaluate")
_WEIGH = Kernel("terms_slopes.cu", "weigh", (("OF_X", 1),))
# Shared memory of `gather`: two halves of every sum, one bit each, the coefficients of eight patches.
_GATHER_SHARED = 4 * (2 * PATCH * WIDTH + PATCH * WIDTH // 32 + 8 * PAIRS)


@cache
def find_kernel(vector: bool) -> Kernel:
    """The search for terms, four features to a load or one."""
    return Kernel("terms_find.cu", "find", (("VECTOR", int(vector)),))


@cache
def gather_kernel(of_x: bool) -> Kernel:
    """The gradient of x or of w from the terms kept."""
    return Kernel("terms_slopes.cu", "gather", (("OF_X", int(of_x)),))


def serves(n: int, out: int, features: int, p: float) -> bool:
    """Whether the search for terms pays: enough pairs for whole patches, enough features for few of them to count."""
    many = n >= PATCH and out >= PATCH and n * out <= MOST_PAIRS
    return math.isfinite(p) and p >= SMALLEST_P and many and features >= 256


@dataclass(frozen=True)
class Lists:
    """Sizes of the lists of one layer, and where each array lies in `saved` (in units of four bytes).

    `found`, `kept`: pages in the pools before and after the maxima are known.
    """

    rows: int
    columns: int
    ranges: int
    found: int
    kept: int
    pairs: int

    @property
    def patches(self) -> int:
        return self.rows * self.columns

    @property
    def starts(self) -> tuple[int, ...]:
        """Starts of control, rest of y, factors, offsets, tables, values, codes; then the size of all."""
        lines = (4, self.pairs, self.patches * PAIRS, self.patches * (self.ranges + 1), self.patches * TABLE)
        starts = [0]
        for size in (*lines, self.kept * PAGE, self.kept * PAGE // 2):
            starts.append(starts[-1] + -(-size // 64) * 64)
        return tuple(starts)


@cache
def lists(n: int, out: int, features: int, p: float) -> Lists:
    """Room for the terms: measured means per pair in trained nets are up to 120 at p = 72, 47 at 173, 8 at 416.

    >>> lists(512, 5120, 5120, 512.0).patches, [lists(512, 5120, 5120, p).kept // 2560 for p in (64.0, 224.0, 512.0)]
    (2560, [129, 54, 24])
    """
    rows, columns = (2 * math.ceil(size / (2 * PATCH)) for size in (n, out))
    kept = min(features, 128, max(16, int(12000 / p)))
    found = min(features, kept + kept // 2)
    # One page more for each patch: its last is not full.
    found, kept = (rows * columns * (share + 1) for share in (found, kept))
    return Lists(rows, columns, math.ceil(features / RANGE), found, kept, n * out)


def cut(p: float) -> float:
    """The part of the largest |d| below which a term does not count.

    >>> [round(cut(p), 3) for p in (64.0, 224.0, 512.0)]
    [0.771, 0.934, 0.972]
    """
    return 2.0 ** ((math.log2(p) - 30) / p)


def flag_of(saved: Tensor) -> Tensor:
    """Where the device says that the dense kernels must serve."""
    return saved[:1]


def rest_of(saved: Tensor, sizes: Lists) -> Tensor:
    """The room in `saved` for what the dense forward keeps: [pairs]."""
    return saved[sizes.starts[1] :][: sizes.pairs].view(torch.float32)


def forward(launcher: Launcher, x: Tensor, w: Tensor, p: float, saved: Tensor | None) -> tuple[Tensor, Tensor]:
    """(y, flag): distances, valid unless the flag is set; the terms are kept in `saved`, if given."""
    n, out, features = x.shape[0], *w.shape
    sizes = lists(n, out, features, p)
    control = torch.zeros(4, dtype=torch.int32, device=x.device) if saved is None else saved[:4].zero_()
    peaks, values = x.new_empty(sizes.patches * PAIRS), x.new_empty(sizes.found * PAGE)
    lengths = (sizes.found * PAGE // 2, sizes.patches * (sizes.ranges + 1), sizes.patches * TABLE, n, out)
    codes, offsets, table, *wide = (x.new_empty(length, dtype=torch.int32) for length in lengths)
    for matrix, index in zip((x, w), wide, strict=True):
        grid = (-(-matrix.shape[0] // 8), 1, 1)
        launcher.launch(_WIDEST, x.device, grid, 256, matrix, index, matrix.shape[0], features)
    vector = features % 4 == 0 and x.data_ptr() % 16 == 0 and w.data_ptr() % 16 == 0
    found = (peaks, codes, values, offsets, table)
    launcher.launch(
        find_kernel(vector), x.device, (sizes.rows // 2, sizes.columns // 2, 1), 128,
        x, w, *wide, *found, control, n, out, features, SAMPLE, sizes.found, cut(p),
    )  # fmt: skip
    y = x.new_empty(n, out)
    kept = _kept(saved, sizes) if saved is not None else (None,) * 5
    launcher.launch(
        _EVALUATE, x.device, (sizes.columns, sizes.rows, 1), 128,
        *found, y, *kept, control, n, out, sizes.ranges, sizes.columns, sizes.kept, p, cut(p),
    )  # fmt: skip
    return y, control[:1]


def _kept(saved: Tensor, sizes: Lists) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Views of `saved`: factors, codes, values, offsets, tables."""
    _, _, factors, offsets, tables, values, codes, end = sizes.starts
    return (
        saved[factors:offsets].view(torch.float32),
        saved[codes:end],
        saved[values:codes].view(torch.float32),
        saved[offsets:tables],
        saved[tables:values],
    )


def backward(
    launcher: Launcher, grad: Tensor, x: Tensor, w: Tensor, saved: Tensor, p: float, of: tuple[bool, bool]
) -> tuple[Tensor, Tensor]:
    """Gradients of x and w (`of` says which), valid unless the flag is set."""
    n, out, features = x.shape[0], *w.shape
    sizes = lists(n, out, features, p)
    factors, *terms = _kept(saved, sizes)
    flag = flag_of(saved)
    coefficients = torch.empty_like(factors)
    top_and_spoiled = torch.zeros(1 + n + out, dtype=torch.int32, device=x.device)
    top, spoiled = top_and_spoiled[:1], top_and_spoiled[1:]
    launcher.launch(
        _WEIGH, x.device, (sizes.columns, sizes.rows, 1), 256,
        grad, factors, coefficients, top, spoiled, flag, n, out, sizes.columns,
    )  # fmt: skip
    results = [x.new_empty(0), w.new_empty(0)]
    for place, (like, start, count) in enumerate(((x, 0, sizes.columns), (w, n, sizes.rows))):
        if not of[place]:
            continue
        result = results[place] = torch.empty_like(like)
        steps = (Long(sizes.columns), Long(1)) if place == 0 else (Long(1), Long(sizes.columns))
        launcher.launch(
            gather_kernel(place == 0), x.device, (-(-features // WIDTH), -(-like.shape[0] // PATCH), 1), 256,
            *terms, coefficients, top, spoiled[start:], result, flag,
            like.shape[0], features, sizes.ranges, count, *steps, shared=_GATHER_SHARED,
        )  # fmt: skip
    return results[0], results[1]
