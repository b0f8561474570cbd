"""Fractions rounded to float64, the magnitudes that bound rounding errors, and checks of the proofs' assumptions.

docs/certificates.md contains the proofs.
"""

import math
import sys
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import cast

import torch
from torch import Tensor

from linfnet.errors import ArgumentError, LinfnetError
from linfnet.nn import Classifier, ProvenNet
from linfnet.nn.proven import CheckedNet, check_precision, check_std, check_unchanged

# Smallest number of elements that torch assigns to a thread in an elementwise operation.
_GRAIN = 32768


def float_below(value: Fraction) -> float:
    """Return the largest float64 number that is not above a fraction.

    >>> Fraction(float_below(Fraction(1, 10))) <= Fraction(1, 10) < Fraction(float_above(Fraction(1, 10)))
    True
    """
    return -float_above(-value)


def float_above(value: Fraction) -> float:
    """Return the smallest float64 number that is not below a fraction."""
    return _ratio_above(value.numerator, value.denominator)


@lru_cache(maxsize=1024)
def _ratio_above(top: int, bottom: int) -> float:
    nearest = top / bottom
    near_top, near_bottom = nearest.as_integer_ratio()
    # Products of integers are compared, which is several times as fast as a comparison of fractions.
    return math.nextafter(nearest, math.inf) if near_top * bottom < top * near_bottom else nearest


def unit_and_tiny(dtype: torch.dtype) -> tuple[Fraction, Fraction]:
    """Return (unit, tiny): the rounding error of a result r is at most unit * |r|, of a quotient unit * |r| + tiny."""
    info = torch.finfo(dtype)
    unit = Fraction(info.eps) / 2
    return unit, Fraction(info.tiny) * unit


def check_program(net: Classifier, images: Tensor) -> ProvenNet:
    """Return an l_inf-distance net, or raise an error if an assumption of the proofs does not hold."""
    if net.arithmetic != "float32" or not isinstance(net, ProvenNet):
        raise ArgumentError(
            f"the net of system {net.system!r} has no certificate for the float32 program; "
            f"it has: {', '.join(net.certificate_names)}"
        )
    check_assumptions(net, images)
    return net


def check_assumptions(net: CheckedNet, images: Tensor) -> None:
    """Raise an error if an assumption of the proofs does not hold.

    They assume one precision, pixels in [0, 1], a positive std, arithmetic with subnormal numbers, and that `forward`
    runs the operations that were analysed. `check_net` and `prepare_images` have already checked net and pixels.
    """
    check_unchanged(net)
    check_precision(net, images.dtype)
    check_std(net.normalize.std.item())
    check_subnormals(images.dtype, images.device)


def check_subnormals(dtype: torch.dtype, device: torch.device) -> None:
    """Raise an error if the device flushes subnormal numbers to zero, since the proofs assume exact differences there.

    On a CPU each thread has a separate setting, inherited from the thread that started it, so all threads are tested.
    The setting is the same for all precisions, so a single thread is tested with Python numbers.
    """
    if device.type == "cpu" and torch.get_num_threads() == 1:
        subnormal = bool(sys.float_info.min * 0.5)
    else:
        count = _GRAIN * torch.get_num_threads() if device.type == "cpu" else 1
        smallest = torch.full((count,), torch.finfo(dtype).tiny, dtype=dtype, device=device)
        subnormal = bool((smallest * 0.5).all())
    if not subnormal:
        raise LinfnetError("subnormal numbers are flushed to zero; call torch.set_flush_denormal(False) to certify")


@dataclass(frozen=True)
class Pass:
    """One forward pass and the quantities that bound its rounding errors."""

    logits: Tensor
    """[N, K], equal to `net(images)` bit for bit."""
    magnitudes: list[float]
    """For each image the sum of bounds on the magnitudes of the results of all rounded steps."""
    steps: int
    """The number of steps that round their results."""
    std: float
    """The standard deviation that the program divides by, exactly."""


@torch.no_grad()
def forward_with_magnitudes(net: ProvenNet, images: Tensor, pixels: tuple[float, float] = (0.0, 1.0)) -> Pass:
    """Run a net, which must be at p = inf in eval mode, on images with pixels in the given range."""
    if net.training or net.p != math.inf:
        raise ArgumentError(f"the net is at p = {net.p:g}, training is {net.training}; expected p = inf in eval mode")
    logits, rounding = net.measure(images)
    # Normalisation is monotone, so the largest magnitude occurs at an end of the range. It rounds twice (difference
    # and quotient), and the magnitude of the quotient bounds both errors.
    normalized = net.normalize.largest(pixels)
    steps, later = rounding.steps + 2, rounding.total()
    totals = [0.0] * len(logits) if later is None else cast("list[float]", later.tolist())
    # A size is a term of fewer than `steps` float64 sums of non-negative numbers: with the product, the relative error
    # is at most steps * 2^-53 (and a little), less than what the factor adds.
    magnitudes = [(total + 2 * normalized) * (1 + steps * 2.0**-52) for total in totals]
    return Pass(logits, magnitudes, steps, net.normalize.std.item())
