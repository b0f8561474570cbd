"""A layer, how its work is divided into blocks, and the parts of what a forward pass saves.

The constants are passed to the CUDA sources as definitions; the kernels do not repeat them.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache, partial

from torch import Tensor

from linfnet.ops.cuda.nvrtc import Grid, Launcher

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
# Multiple of elements at which the parts of saved memory start.
ALIGNMENT = 64


def line(count: int, threads: int) -> Grid:
    """A grid of blocks with one thread for each of `count` items."""
    return (-(-count // threads), 1, 1)


def squares(rows: int, columns: int) -> Grid:
    """A grid with one block for each square of a matrix that is transposed."""
    return (-(-columns // SQUARE), -(-rows // SQUARE), 1)


def aligned(features: int, *tensors: Tensor) -> bool:
    """Whether all rows can be read as float4."""
    return features % 4 == 0 and all(tensor.data_ptr() % 16 == 0 for tensor in tensors)


@cache
def forward_plan(n: int, out: int, features: int, multiprocessors: int) -> tuple[Grid, int]:
    """The grid of the dense forward kernels, and the number of features per block, a multiple of RUN.

    One block per tile; if there are few tiles (a 10-class head has 8), the features are divided as well.

    >>> forward_plan(512, 5120, 5120, 132), forward_plan(512, 10, 5120, 132)
    (((8, 80, 1), 5120), ((8, 1, 40), 128))
    """
    rows, columns = math.ceil(n / TILE), math.ceil(out / TILE)
    parts = max(1, 3 * multiprocessors // (rows * columns)) if rows * columns < multiprocessors else 1
    runs = math.ceil(features / RUN)
    parts = max(parts, math.ceil(runs / MOST_RUNS))
    span = math.ceil(runs / min(parts, runs)) * RUN
    return (rows, columns, math.ceil(features / span)), span


def _divisions(total: int) -> list[int]:
    """Numbers of equal shares of `total` units in which no share is empty."""
    return sorted({math.ceil(total / math.ceil(total / parts)) for parts in range(1, min(total, 64) + 1)})


@cache
def backward_plan(n: int, out: int, features: int, multiprocessors: int) -> tuple[Grid, int, int]:
    """The grid of the dense backward kernel, and the number of outputs and of rows per block.

    This division has the least estimated time: full waves of blocks, little traffic for partial results.

    >>> backward_plan(512, 5120, 5120, 132)
    ((80, 8, 2), 640, 256)
    """
    columns, tiles, stages = math.ceil(features / BLOCK_FEATURES), math.ceil(out / BLOCK_OUTS), math.ceil(n / ROW_UNIT)
    least, best = math.inf, ((columns, 1, 1), tiles * BLOCK_OUTS, stages * ROW_UNIT)
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
            if time < least:
                least, best = time, ((columns, out_parts, row_parts), tile_share * BLOCK_OUTS, row_share * ROW_UNIT)
    return best


def row_groups(n: int) -> tuple[int, int]:
    """n rows filled up to whole groups of 128, 256 or 512, and the number of float4 that a lane owns in a group.

    >>> [row_groups(n) for n in (100, 129, 512, 513)]
    [(128, 1), (256, 2), (512, 4), (1024, 4)]
    """
    vectors = 1 if n <= LANE_GROUP else 2 if n <= 2 * LANE_GROUP else 4
    group = LANE_GROUP * vectors
    return -(-n // group) * group, vectors


def filled(lengths: Sequence[int]) -> list[int]:
    """The lengths rounded up to multiples of ALIGNMENT."""
    return [-(-length // ALIGNMENT) * ALIGNMENT for length in lengths]


def aligned_parts(memory: Tensor, lengths: Sequence[int]) -> list[Tensor]:
    """Parts of a tensor of length sum(filled(lengths)); each starts at a multiple of ALIGNMENT."""
    parts = memory.split_with_sizes(filled(lengths))
    return [part[:length] for part, length in zip(parts, lengths, strict=True)]


class Layer(ABC):
    """The distances of x [n, features] to w [out, features] at one p; each subclass computes them by other kernels."""

    def __init__(self, launcher: Launcher, x: Tensor, w: Tensor, p: float, use_dense: Tensor | None = None) -> None:
        """`use_dense`: int32 [1] on the device; if it is 0 when the dense kernels run, they return at once."""
        self.launcher, self.x, self.w, self.p, self.use_dense = launcher, x, w, p, use_dense
        (self.n, self.features), self.out = x.shape, w.shape[0]
        self.sizes = {"n": self.n, "out": self.out, "features": self.features}
        self.launch: Callable[..., None] = partial(launcher.launch, x.device)
        self.launch_flagged: Callable[..., None] = partial(launcher.launch, x.device, use_dense=use_dense)

    @abstractmethod
    def saved_like(self) -> Tensor:
        """An uninitialised tensor for what `forward` saves."""

    @abstractmethod
    def forward(self, saved: Tensor | None = None) -> Tensor:
        """The distances [n, out]; `saved`, if given, receives what `backward` needs."""

    @abstractmethod
    def backward(self, grad: Tensor, y: Tensor, saved: Tensor, results: tuple[Tensor, Tensor]) -> None:
        """Write the gradients of x and w into `results`; one that is empty is not needed."""

    def multiprocessors(self) -> int:
        """Number of multiprocessors of the device."""
        return self.launcher.multiprocessors(self.x.device)

    def forward_plan(self) -> tuple[Grid, int]:
        """The division for the dense forward kernels."""
        return forward_plan(self.n, self.out, self.features, self.launcher.multiprocessors(self.x.device))
