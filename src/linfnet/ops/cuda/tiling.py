"""How the work of a layer is cut into blocks: pure arithmetic, the same for the same shapes and device."""

import math
from dataclasses import dataclass
from functools import cache

from torch import Tensor

TILE = 64
RUN = 32
# Runs that a block may take: the kernels count them with 16 bits.
MOST_RUNS = 1 << 16
BLOCK_OUTS = 128
BLOCK_FEATURES = 64
ROW_UNIT = 64
# Bytes that partial results of one gradient may take.
MOST_PARTIAL_BYTES = 1 << 30


def line(count: int, threads: int = 256) -> tuple[int, int, int]:
    """A grid of blocks with a thread for each of so many things."""
    return (-(-count // threads), 1, 1)


def vector(features: int, *tensors: Tensor) -> int:
    """Whether four numbers can be read at once: 1 or 0."""
    return int(features % 4 == 0 and all(tensor.data_ptr() % 16 == 0 for tensor in tensors))


@dataclass(frozen=True)
class Forward:
    """`parts` blocks share the features of one tile, `span` features each (a multiple of 32)."""

    grid: tuple[int, int, int]
    parts: int
    span: int


@cache
def forward_plan(n: int, out: int, features: int, multiprocessors: int) -> Forward:
    """Few tiles (a 10-class head has 8): the features are split as well, until every multiprocessor has work.

    >>> forward_plan(512, 5120, 5120, 132), forward_plan(512, 10, 5120, 132).parts
    (Forward(grid=(8, 80, 1), parts=1, span=5120), 40)
    """
    rows, columns = math.ceil(n / TILE), math.ceil(out / TILE)
    wanted = max(1, 3 * multiprocessors // (rows * columns)) if rows * columns < multiprocessors else 1
    runs = math.ceil(features / RUN)
    wanted = max(wanted, math.ceil(runs / MOST_RUNS))
    span = math.ceil(runs / min(wanted, runs)) * RUN
    parts = math.ceil(features / span)
    return Forward((rows, columns, parts), parts, span)


@dataclass(frozen=True)
class Backward:
    """A block takes 64 features, `out_span` outputs and `row_span` rows."""

    grid: tuple[int, int, int]
    out_span: int
    row_span: int


def _shares(total: int) -> list[int]:
    """The sensible numbers of equal shares: those in which no share stays empty."""
    return sorted({math.ceil(total / math.ceil(total / parts)) for parts in range(1, min(total, 64) + 1)})


@cache
def backward_plan(n: int, out: int, features: int, multiprocessors: int) -> Backward:
    """The cut with the least estimated time: whole waves of blocks, little traffic for partial results.

    >>> backward_plan(512, 5120, 5120, 132)
    Backward(grid=(80, 8, 2), out_span=640, row_span=256)
    """
    columns, tiles, stages = math.ceil(features / BLOCK_FEATURES), math.ceil(out / BLOCK_OUTS), math.ceil(n / ROW_UNIT)
    best: tuple[float, Backward] | None = None
    for out_parts in _shares(tiles):
        for row_parts in _shares(stages):
            partial = 4 * features * max(out_parts * n, row_parts * out)
            if partial > MOST_PARTIAL_BYTES and out_parts * row_parts > 1:
                continue
            traffic = 8 * features * (out_parts * n * (out_parts > 1) + row_parts * out * (row_parts > 1))
            waves = math.ceil(columns * out_parts * row_parts / (2 * multiprocessors))
            tile_share, row_share = math.ceil(tiles / out_parts), math.ceil(stages / row_parts)
            # Cycles: 2000 instructions for 8 rows, 4 warps of a scheduler take turns; 1500 bytes move per cycle.
            block = tile_share * (math.ceil(min(n, row_share * ROW_UNIT) / 8) * 2000 + 3000) * 4
            time = waves * block + traffic / 1500
            if best is None or time < best[0]:
                plan = Backward((columns, out_parts, row_parts), tile_share * BLOCK_OUTS, row_share * ROW_UNIT)
                best = time, plan
    assert best is not None
    return best[1]
