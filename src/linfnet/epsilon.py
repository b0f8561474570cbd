"""Epsilon, the largest allowed change of a pixel: an exact rational in [0, 1]."""

import math
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import TypeGuard, cast

from linfnet.errors import ArgumentError

Epsilon = str | float | int | Fraction | tuple[int, int]
"""What every public function accepts as epsilon: `"8/255"`, `"0.1"`, a number, a `Fraction`, or a ratio `(8, 255)`."""

# The numbers of digits are limited because fractions with huge exponents would take too long to compute.
_RATIONAL = re.compile(r"[+-]?(\d{1,40}(\.\d{0,40})?|\.\d{1,40})([eE][+-]?\d{1,2})?(/\d{1,40})?", re.ASCII)


def parse_rational(value: Epsilon, name: str) -> Fraction:
    """Convert `48/255`, `0.9`, `1e-3`, a number or a ratio of two integers to an exact fraction.

    A float is converted by its shortest decimal form: 0.1 is 1/10.

    >>> parse_rational("48/255", "theta")
    Fraction(16, 85)
    """
    if isinstance(value, Fraction):
        return value
    try:
        if _is_ratio(value):
            return Fraction(*value)
        if isinstance(value, float) and math.isfinite(value):
            return Fraction(str(value))
        plain = str(value).replace(" ", "")
        if not _RATIONAL.fullmatch(plain):
            raise ValueError
        top, _, bottom = plain.partition("/")
        return Fraction(top) / Fraction(bottom or 1)
    except (ValueError, ZeroDivisionError):
        shown = " ".join(str(value).split())[:50]
        raise ArgumentError(f"{name} is {shown!r}; expected a number like 8/255 or 0.1") from None


def parse_epsilon(value: Epsilon, name: str = "eps") -> Fraction:
    """Convert `8/255`, `0.1`, a number or a ratio of two integers to an exact epsilon in [0, 1]; pixels are in [0, 1].

    A float means its shortest decimal form: 0.1 is exactly 1/10. For its binary value, pass `Fraction(value)`.

    >>> parse_epsilon("8/255"), parse_epsilon("0.1"), parse_epsilon(0.25), parse_epsilon((8, 255))
    (Fraction(8, 255), Fraction(1, 10), Fraction(1, 4), Fraction(8, 255))
    """
    exact = value if isinstance(value, Fraction) else parse_rational(value, name)
    if not 0 <= exact.numerator <= exact.denominator:
        shown = "/".join(map(str, value)) if isinstance(value, tuple) else value
        raise ArgumentError(f"{name} is {shown}; expected a number from 0 to 1 (pixel units){in_255ths(exact)}")
    return exact


def in_255ths(value: Fraction) -> str:
    """Return a hint for a number that was probably meant in steps of 1/255, or an empty text.

    >>> in_255ths(Fraction(8)), in_255ths(Fraction(1, 2))
    ('; did you mean 8/255?', '')
    """
    return f"; did you mean {value}/255?" if value.denominator == 1 and 1 < value <= 255 else ""


def parse_epsilons(values: Epsilon | Sequence[Epsilon], name: str = "eps") -> tuple[Fraction, ...]:
    """Convert one epsilon or several; a tuple of two integers is one ratio, any other sequence contains several.

    >>> parse_epsilons("8/255"), parse_epsilons((8, 255)), parse_epsilons([0, 1])
    ((Fraction(8, 255),), (Fraction(8, 255),), (Fraction(0, 1), Fraction(1, 1)))
    """
    if isinstance(values, list | tuple) and not _is_ratio(values):
        return tuple(parse_epsilon(value, name) for value in cast(Sequence[Epsilon], values))
    return (parse_epsilon(cast(Epsilon, values), name),)


def _is_ratio(value: object) -> TypeGuard[tuple[int, int]]:
    parts = cast(tuple[object, ...], value) if isinstance(value, tuple) else ()
    return len(parts) == 2 and all(isinstance(part, int) and not isinstance(part, bool) for part in parts)


def format_epsilon(value: Fraction) -> str:
    """Format as a decimal if a float prints it exactly, else `8/255` for multiples of 1/255, else as a fraction.

    >>> format_epsilon(Fraction(8, 255)), format_epsilon(Fraction(1, 10)), format_epsilon(Fraction(1, 7))
    ('8/255', '0.1', '1/7')
    """
    for decimal in (f"{float(value):.10g}", repr(float(value))):
        if Fraction(decimal) == value:
            return decimal
    return f"{value * 255}/255" if 255 % value.denominator == 0 else str(value)
