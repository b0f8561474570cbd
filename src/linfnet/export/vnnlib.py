"""VNN-LIB properties "some image within eps is misclassified", for verifiers that read ONNX and VNN-LIB."""

from collections.abc import Iterator
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from pathlib import Path

from torch import Tensor

from linfnet.boxes import check_images
from linfnet.epsilon import format_epsilon
from linfnet.errors import ArgumentError
from linfnet.files import write_text

# Digits of the bounds: more than a float64 has, so that parsing them loses less than a verifier's rounding.
DIGITS = 20


def decimal_bound(value: Fraction, up: bool) -> str:
    """A decimal not above, or not below, a rational.

    >>> decimal_bound(Fraction(1, 3), up=False), decimal_bound(Fraction(1, 3), up=True)
    ('0.33333333333333333333', '0.33333333333333333334')
    """
    context = Context(prec=DIGITS, rounding=ROUND_CEILING if up else ROUND_FLOOR)
    return format(context.divide(Decimal(value.numerator), Decimal(value.denominator)), "f")


def vnnlib_lines(image: Tensor, label: int, classes: int, epsilon: Fraction) -> Iterator[str]:
    """The lines of a property that exactly the counterexamples satisfy: images in the box (rounded outwards, in [0, 1])
    for which another logit is at least the label's. A tie is a counterexample, as it is not certified.

    Args:
        image: [C, H, W] in [0, 1].
        label: the correct class.
        classes: number of logits.
        epsilon: exact, in pixel units.
    """
    if not 0 <= label < classes:
        raise ArgumentError(f"label is {label}; wanted one of {classes} classes")
    pixels = check_images(image).double().flatten().tolist()
    yield f"; class {label} within eps = {format_epsilon(epsilon)} of an image of shape {tuple(image.shape)}"
    yield from (f"(declare-const X_{i} Real)" for i in range(len(pixels)))
    yield from (f"(declare-const Y_{j} Real)" for j in range(classes))
    for i, pixel in enumerate(map(Fraction, pixels)):
        low, high = max(pixel - epsilon, Fraction(0)), min(pixel + epsilon, Fraction(1))
        yield f"(assert (>= X_{i} {decimal_bound(low, up=False)}))"
        yield f"(assert (<= X_{i} {decimal_bound(high, up=True)}))"
    others = (f"(and (>= Y_{j} Y_{label}))" for j in range(classes) if j != label)
    yield f"(assert (or {' '.join(others)}))"


def write_vnnlib(path: Path, image: Tensor, label: int, classes: int, epsilon: Fraction) -> None:
    """Write one property in one step."""
    write_text(path, "\n".join(vnnlib_lines(image, label, classes, epsilon)) + "\n")
