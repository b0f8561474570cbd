"""The base class of layers, the division of their work into blocks, and the layout of saved memory.

The constants are defined only here and are passed to the CUDA sources as definitions.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache, partial

from torch import Tensor

from linfnet.ops.cuda.nvrtc import Grid, Launcher

# Rows of x and of w per block of the dense forward kernels, features per run (a run consists of consecutive features),
# and features that a block loads at once.
TILE, RUN, DEPTH = 64, 32, 16
TILE_DEFINITIONS = (("TILE", TILE), ("RUN", RUN), ("DEPTH", DEPTH))
# Largest number of runs (of 32 features) per block: kernels store a run's index in 16 bits.
MOST_RUNS = 1 << 16
# Warps, outputs and features per block of the dense backward kernel; rows are divided in multiples of ROW_UNIT.
WARPS, BLOCK_OUTS, BLOCK_FEATURES, ROW_UNIT = 8, 128, 64, 64
BLOCK_DEFINITIONS = (("WARPS", WARPS), ("BLOCK_OUTS", BLOCK_OUTS), ("BLOCK_FEATURES", BLOCK_FEATURES))
# Largest size of the partial results of one gradient, in bytes.
MOST_PARTIAL_BYTES = 1 << 30
# Rows that a warp of 32 lanes processes with one float4 per lane.
LANE_GROUP = 128
# Rows and columns of the square that one block transposes.
SQUARE = 32
# The parts of saved memory start at multiples of this number of elements.
ALIGNMENT = 64


def line(count: int, threads: int) -> Grid:
    """Return a grid of blocks with one thread for each of `count` items."""
    return (-(-count // threads), 1, 1)


def squares(rows: int, columns: int) -> Grid:
    """Return a grid with one block for each square of a matrix that is transposed."""
    return (-(-columns // SQUARE), -(-rows // SQUARE), 1)


def aligned(features: int, *tensors: Tensor) -> bool:
    """Whether all rows can be read as float4."""
    return features % 4 == 0 and all(tensor.data_ptr() % 16 == 0 for tensor in tensors)


def aligned_copy(matrix: Tensor) -> Tensor:
    """Return the matrix, or a copy if it does not start at a multiple of 16 bytes."""
    return matrix if matrix.data_ptr() % 16 == 0 else matrix.clone()


@cache
def forward_plan(n: int, out: int, features: int, multiprocessors: int) -> tuple[Grid, int]:
    """Return the grid of the dense forward kernels, and the number of features per block, a multiple of RUN.

    There is one block per tile; if there are few tiles (8 for a 10-class head), the features are divided as well.

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
    """Return the numbers of parts into which `total` units can be divided equally without an empty part."""
    return sorted({math.ceil(total / math.ceil(total / parts)) for parts in range(1, min(total, 64) + 1)})


@cache
def backward_plan(
    n: int,
    out: int,
    features: int,
    multiprocessors: int,
    block_outs: int = BLOCK_OUTS,
    block_features: int = BLOCK_FEATURES,
) -> tuple[Grid, int, int]:
    """Return the grid of a dense backward kernel, and the number of outputs and of rows per block.

    The division has the smallest estimated time: full waves of blocks and little traffic for partial results.

    >>> backward_plan(512, 5120, 5120, 132)
    ((80, 8, 2), 640, 256)
    """
    columns, tiles, stages = math.ceil(features / block_features), math.ceil(out / block_outs), math.ceil(n / ROW_UNIT)
    least, best = math.inf, ((columns, 1, 1), tiles * block_outs, stages * ROW_UNIT)
    for out_parts in _divisions(tiles):
        for row_parts in _divisions(stages):
            partial = 4 * features * max(out_parts * n, row_parts * out)
            if partial > MOST_PARTIAL_BYTES and out_parts * row_parts > 1:
                continue
            traffic = 8 * features * (out_parts * n * (out_parts > 1) + row_parts * out * (row_parts > 1))
            waves = math.ceil(columns * out_parts * row_parts / (2 * multiprocessors))
            tile_share, row_share = math.ceil(tiles / out_parts), math.ceil(stages / row_parts)
            # Time in cycles: 2000 instructions for 8 rows; 4 warps per scheduler; memory moves 1500 bytes per cycle.
            block = tile_share * (math.ceil(min(n, row_share * ROW_UNIT) / 8) * 2000 + 3000) * 4
            time = waves * block + traffic / 1500
            if time < least:
                least, best = time, ((columns, out_parts, row_parts), tile_share * block_outs, row_share * ROW_UNIT)
    return best


def row_groups(n: int) -> tuple[int, int]:
    """Return n rounded up to a multiple of the group size (128, 256 or 512 rows), and the float4 per lane and group.

    >>> [row_groups(n) for n in (100, 129, 512, 513)]
    [(128, 1), (256, 2), (512, 4), (1024, 4)]
    """
    vectors = 1 if n <= LANE_GROUP else 2 if n <= 2 * LANE_GROUP else 4
    group = LANE_GROUP * vectors
    return -(-n // group) * group, vectors


def filled(lengths: Sequence[int]) -> list[int]:
    """Return the lengths rounded up to multiples of ALIGNMENT."""
    return [-(-length // ALIGNMENT) * ALIGNMENT for length in lengths]


def aligned_parts(memory: Tensor, lengths: Sequence[int]) -> list[Tensor]:
    """Divide a tensor of length sum(filled(lengths)) into parts that start at multiples of ALIGNMENT."""
    parts = memory.split_with_sizes(filled(lengths))
    return [part[:length] for part, length in zip(parts, lengths, strict=True)]


class Layer(ABC):
    """The distances of x [n, features] to w [out, features] at one p; each subclass uses different kernels."""

    def __init__(self, launcher: Launcher, x: Tensor, w: Tensor, p: float, use_dense: Tensor | None = None) -> None:
        """`use_dense` is an int32 tensor [1] on the device; dense kernels return at once if its value is 0."""
        self.launcher, self.x, self.w, self.p, self.use_dense = launcher, x, w, p, use_dense
        (self.n, self.features), self.out = x.shape, w.shape[0]
        self.sizes = {"n": self.n, "out": self.out, "features": self.features}
        self.launch: Callable[..., None] = partial(launcher.launch, x.device)
        self.launch_flagged: Callable[..., None] = partial(launcher.launch, x.device, use_dense=use_dense)

    @abstractmethod
    def saved_like(self) -> Tensor:
        """Return an uninitialised tensor for the data that `forward` saves."""

    @abstractmethod
    def forward(self, saved: Tensor | None = None) -> Tensor:
        """Return the distances [n, out]; write the data that `backward` needs to `saved`, if given."""

    @abstractmethod
    def backward(self, grad: Tensor, y: Tensor, saved: Tensor, results: tuple[Tensor, Tensor]) -> None:
        """Write the gradients of x and w into `results`; a gradient with an empty tensor is not needed."""

    def multiprocessors(self) -> int:
        """Return the number of multiprocessors of the device."""
        return self.launcher.multiprocessors(self.x.device)

    def forward_plan(self) -> tuple[Grid, int]:
        """Return the grid and the features per block for the dense forward kernels."""
        return forward_plan(self.n, self.out, self.features, self.launcher.multiprocessors(self.x.device))
