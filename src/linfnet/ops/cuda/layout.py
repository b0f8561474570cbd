"""How the work of a layer is divided into blocks, and what a forward pass saves: pure arithmetic on shapes.

The constants are passed to the CUDA sources as definitions; the kernels do not repeat them.
"""

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

# Rows of x and of w per block of the dense forward kernels, and features per run.
TILE, RUN = 64, 32
TILE_DEFINITIONS = (("TILE", TILE), ("RUN", RUN))
# Runs per block: the kernels count them with 16 bits.
MOST_RUNS = 1 << 16
# Warps, outputs and features per block of the dense backward kernel; rows are divided in multiples of ROW_UNIT.
WARPS, BLOCK_OUTS, BLOCK_FEATURES, ROW_UNIT = 8, 128, 64, 64
BLOCK_DEFINITIONS = (("WARPS", WARPS), ("BLOCK_OUTS", BLOCK_OUTS), ("BLOCK_FEATURES", BLOCK_FEATURES))
# Limit for the partial results of one gradient, in bytes.
MOST_PARTIAL_BYTES = 1 << 30
# Rows that the 32 lanes of a warp own with one float4 each.
LANE_GROUP = 128
# Rows and columns of the squares that are transposed.
SQUARE = 32

Grid = tuple[int, int, int]


def line(count: int, threads: int) -> Grid:
    """A grid of blocks with one thread for each of `count` items."""
    return (-(-count // threads), 1, 1)


def squares(rows: int, columns: int) -> Grid:
    """A grid with one block for each square of a matrix that is transposed."""
    return (-(-columns // SQUARE), -(-rows // SQUARE), 1)


def aligned(features: int, *tensors: Tensor) -> bool:
    """Whether all rows can be read as float4."""
    return features % 4 == 0 and all(tensor.data_ptr() % 16 == 0 for tensor in tensors)


@dataclass(frozen=True)
class ForwardPlan:
    """`parts` blocks share the features of one tile, `span` features each (a multiple of RUN)."""

    grid: Grid
    parts: int
    span: int


@cache
def forward_plan(n: int, out: int, features: int, multiprocessors: int) -> ForwardPlan:
    """One block per tile; if there are few tiles (a 10-class head has 8), the features are divided as well.

    >>> forward_plan(512, 5120, 5120, 132), forward_plan(512, 10, 5120, 132).parts
    (ForwardPlan(grid=(8, 80, 1), parts=1, span=5120), 40)
    """
    rows, columns = math.ceil(n / TILE), math.ceil(out / TILE)
    parts = max(1, 3 * multiprocessors // (rows * columns)) if rows * columns < multiprocessors else 1
    runs = math.ceil(features / RUN)
    parts = max(parts, math.ceil(runs / MOST_RUNS))
    span = math.ceil(runs / min(parts, runs)) * RUN
    parts = math.ceil(features / span)
    return ForwardPlan((rows, columns, parts), parts, span)


@dataclass(frozen=True)
class BackwardPlan:
    """A block processes BLOCK_FEATURES features, `out_span` outputs and `row_span` rows."""

    grid: Grid
    out_span: int
    row_span: int


def _divisions(total: int) -> list[int]:
    """Numbers of equal shares of `total` units in which no share is empty."""
    return sorted({math.ceil(total / math.ceil(total / parts)) for parts in range(1, min(total, 64) + 1)})


@cache
def backward_plan(n: int, out: int, features: int, multiprocessors: int) -> BackwardPlan:
    """The division with the least estimated time: full waves of blocks, little traffic for partial results.

    >>> backward_plan(512, 5120, 5120, 132)
    BackwardPlan(grid=(80, 8, 2), out_span=640, row_span=256)
    """
    columns, tiles, stages = math.ceil(features / BLOCK_FEATURES), math.ceil(out / BLOCK_OUTS), math.ceil(n / ROW_UNIT)
    best: tuple[float, BackwardPlan] | None = None
    for out_parts in _divisions(tiles):
        for row_parts in _divisions(stages):
            partial = 4 * features * max(out_parts * n, row_parts * out)
            if partial > MOST_PARTIAL_BYTES and out_parts * row_parts > 1:
                continue
            traffic = 8 * features * (out_parts * n * (out_parts > 1) + row_parts * out * (row_parts > 1))
            waves = math.ceil(columns * out_parts * row_parts / (2 * multiprocessors))
            tile_share, row_share = math.ceil(tiles / out_parts), math.ceil(stages / row_parts)
            # Cycles: 2000 instructions for 8 rows, 4 warps share a scheduler; 1500 bytes are moved per cycle.
            block = tile_share * (math.ceil(min(n, row_share * ROW_UNIT) / 8) * 2000 + 3000) * 4
            time = waves * block + traffic / 1500
            if best is None or time < best[0]:
                plan = BackwardPlan((columns, out_parts, row_parts), tile_share * BLOCK_OUTS, row_share * ROW_UNIT)
                best = time, plan
    assert best is not None
    return best[1]


@dataclass(frozen=True)
class Rows:
    """Rows of a transposed matrix: `padded` is a multiple of a group, in which a lane owns `vectors` float4."""

    padded: int
    vectors: int


def rows_for(n: int) -> Rows:
    """Groups of 128, 256 or 512 rows.

    >>> [rows_for(n).padded for n in (100, 129, 512, 513)]
    [128, 256, 512, 1024]
    """
    vectors = 1 if n <= LANE_GROUP else 2 if n <= 2 * LANE_GROUP else 4
    group = LANE_GROUP * vectors
    return Rows(-(-n // group) * group, vectors)


@dataclass(frozen=True)
class Saved:
    """What a forward pass at finite p saves if the dense kernels are only a fallback: one int32 tensor.

    A header of 64 numbers, the first of which is the use_dense flag; then `planes` planes of `pairs` floats; then
    `extra_size` numbers, the lists of the pruned kernels or the bits of the tensor-core kernels.
    """

    pairs: int
    planes: int
    extra_size: int
    HEADER = 64

    @property
    def size(self) -> int:
        """Length of the tensor."""
        return self.HEADER + self.pairs * self.planes + self.extra_size

    def use_dense(self, memory: Tensor) -> Tensor:
        """The flag, int32 [1]: 1 if the dense kernels compute the layer."""
        return memory[:1]

    def plane(self, memory: Tensor, index: int) -> Tensor:
        """Numbers saved for each pair, float32 [pairs]."""
        start = self.HEADER + index * self.pairs
        return memory[start : start + self.pairs].view(torch.float32)

    def residual(self, memory: Tensor, n: int, out: int) -> Tensor:
        """The residuals of y, float32 [n * out], where the dense kernels store them."""
        return memory[self.HEADER : self.HEADER + n * out].view(torch.float32)

    def extra(self, memory: Tensor) -> Tensor:
        """The extra numbers."""
        return memory[self.HEADER + self.pairs * self.planes :]
