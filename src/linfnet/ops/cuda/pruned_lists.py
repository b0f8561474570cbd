"""Larger p: which features of a neuron can count for some row of the batch, listed on the device.

A term counts if (|d| / max |d|)^p >= 2^-30 p: each other one changes the distance by less than 2^-30 of it, and a
gradient by less than p 2^-30 of what it weighs; rounding |d| / y to float32 changes that by p 2^-25. Which features
these can be follows from the range of each feature in the batch, in one pass over the weights.
"""

import itertools
import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from linfnet.ops.cuda.nvrtc import Kernel, Launcher


@cache
def list_kernel(function: str) -> Kernel:
    """What is made around the listed kernels, whatever p is."""
    return Kernel("pruned_lists.cu", function, (("QUADS", 1),))


def cut(p: float) -> float:
    """The part of the largest |d| below which a term does not count; at infinity only the largest does.

    >>> [round(cut(p), 3) for p in (24.0, 64.0, 512.0, math.inf)]
    [0.48, 0.771, 0.972, 1.0]
    """
    if math.isinf(p):
        return 1.0
    return 2.0 ** ((math.log2(p) - 30) / p)


@dataclass(frozen=True)
class Rows:
    """Rows of a turned matrix, filled up to whole groups, and how many quads a lane owns at most."""

    padded: int
    quads: int


def rows_for(n: int) -> Rows:
    """Groups of 128, 256 or 512 rows.

    >>> [rows_for(n).padded for n in (100, 129, 512, 513)]
    [128, 256, 512, 1024]
    """
    quads = 1 if n <= 128 else 2 if n <= 256 else 4
    return Rows(-(-n // (128 * quads)) * 128 * quads, quads)


def blocks(rows: int, columns: int) -> tuple[int, int, int]:
    """Tiles of 32 x 32."""
    return (-(-columns // 32), -(-rows // 32), 1)


def _filled(size: int) -> int:
    return -(-size // 64) * 64


@dataclass(frozen=True)
class Lists:
    """x turned, the range of each feature, and of each output the bar, the scale and the features that can count.

    All are flat; their shapes are written beside them.
    """

    rows: Rows
    turned: Tensor  # [features, padded]
    ranges: Tensor  # [features, 2]
    bars: Tensor  # [out]
    scales: Tensor  # [out]
    entries: Tensor  # [out, features, 2]: feature and weight
    counts: Tensor  # [out]

    @staticmethod
    def sizes(n: int, out: int, features: int) -> tuple[int, ...]:
        """How many numbers each of them has."""
        return (features * rows_for(n).padded, 2 * features, out, out, 2 * out * features, out)

    @staticmethod
    def size(n: int, out: int, features: int) -> int:
        """How many they have together, each filled up so that the next one is aligned."""
        return sum(_filled(size) for size in Lists.sizes(n, out, features))

    @staticmethod
    def within(memory: Tensor, n: int, out: int, features: int) -> "Lists":
        """As parts of `memory`, int32 [size]."""
        sizes = Lists.sizes(n, out, features)
        starts = itertools.accumulate((_filled(size) for size in sizes[:-1]), initial=0)
        *floats, entries, counts = (memory[start : start + size] for start, size in zip(starts, sizes, strict=True))
        turned, ranges, bars, scales = (part.view(torch.float32) for part in floats)
        return Lists(rows_for(n), turned, ranges, bars, scales, entries, counts)

    @staticmethod
    def new(x: Tensor, w: Tensor) -> "Lists":
        """In memory of their own."""
        (n, features), out = x.shape, w.shape[0]
        memory = x.new_empty(Lists.size(n, out, features), dtype=torch.int32)
        return Lists.within(memory, n, out, features)

    def make(self, launcher: Launcher, x: Tensor, w: Tensor, p: float, most_share: float, flag: Tensor) -> None:
        """The flag is set if more than `most_share` of all pairs of output and feature are listed."""
        (n, features), out, padded = x.shape, w.shape[0], self.rows.padded
        total = torch.zeros(1, dtype=torch.int32, device=x.device)
        launcher.launch(
            list_kernel("turn"), x.device, blocks(padded, features), 256, x, self.turned, n, features, padded
        )
        launcher.launch(
            list_kernel("ranges"), x.device, (-(-features // 8), 1, 1), 256, self.turned, self.ranges, features, padded
        )
        # Powers of the largest reach stay below 2^100.
        lift = min(30, math.floor(100 / p))
        made = (self.bars, self.scales, self.entries, self.counts, total, features, cut(p), lift)
        launcher.launch(list_kernel("output_lists"), x.device, (out, 1, 1), 256, w, self.ranges, *made)
        most = int(out * features * most_share)
        launcher.launch(list_kernel("decide"), x.device, (1, 1, 1), 32, total, most, flag)
