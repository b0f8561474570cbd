"""Directed rounding: float64 numbers that lie for certain below or above the exact ones."""

import math
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from linfnet.errors import LinfnetError

# torch gives each thread at least so many numbers of an elementwise operation.
_GRAIN = 32768


def down(value: Tensor) -> Tensor:
    """Strictly below the exact result of the one float64 operation that gave `value`."""
    return torch.nextafter(value, value.new_tensor(-math.inf))


def up(value: Tensor) -> Tensor:
    """Strictly above the exact result of the one float64 operation that gave `value`."""
    return torch.nextafter(value, value.new_tensor(math.inf))


def float_below(value: Fraction) -> float:
    """The largest float64 that is not above a rational.

    >>> Fraction(float_below(Fraction(1, 10))) <= Fraction(1, 10) < Fraction(float_above(Fraction(1, 10)))
    True
    """
    nearest = float(value)
    return math.nextafter(nearest, -math.inf) if Fraction(nearest) > value else nearest


def float_above(value: Fraction) -> float:
    """The smallest float64 that is not below a rational."""
    return -float_below(-value)


@dataclass(frozen=True)
class Rounding:
    """How a dtype rounds: a result r of one operation is off by at most unit * |r| (+ `tiny`, for a division)."""

    unit: Fraction
    tiny: Fraction
    largest: float

    @classmethod
    def of(cls, dtype: torch.dtype) -> "Rounding":
        """The constants of float32 or float64."""
        info = torch.finfo(dtype)
        unit = Fraction(info.eps) / 2
        return cls(unit, Fraction(info.tiny) * unit, info.max)


def check_subnormals(dtype: torch.dtype, device: torch.device) -> None:
    """Refuse a device that flushes subnormal numbers to zero: its subtraction is not the one the proofs speak of.

    On a CPU each thread has a switch of its own, which it takes from the thread that started it: all of them are asked.
    """
    count = _GRAIN * torch.get_num_threads() if device.type == "cpu" else 1
    smallest = torch.full((count,), torch.finfo(dtype).tiny, dtype=dtype, device=device)
    if not bool((smallest * 1.5 - smallest).all()):
        raise LinfnetError("subnormal numbers are flushed to zero; call torch.set_flush_denormal(False) to certify")
