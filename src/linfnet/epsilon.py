"""Epsilon, the largest allowed change of a pixel: an exact rational in [0, 1]."""

import re
from fractions import Fraction

from linfnet.errors import ArgumentError

# The numbers of digits are limited because fractions with huge exponents would take too long to compute.
_RATIONAL = re.compile(r"[+-]?(\d{1,40}(\.\d{0,40})?|\.\d{1,40})([eE][+-]?\d{1,2})?(/\d{1,40})?", re.ASCII)


def parse_rational(text: str | float | Fraction, name: str) -> Fraction:
    """Convert `48/255`, `0.9`, `1e-3` or a number to an exact fraction.

    >>> parse_rational("48/255", "theta")
    Fraction(16, 85)
    """
    plain = str(text).replace(" ", "")
    try:
        if not _RATIONAL.fullmatch(plain):
            raise ValueError
        top, _, bottom = plain.partition("/")
        return Fraction(top) / Fraction(bottom or 1)
    except (ValueError, ZeroDivisionError):
        raise ArgumentError(f"{name} is {str(text)[:50]!r}; expected a number like 8/255 or 0.1") from None


def parse_epsilon(text: str | float | Fraction, name: str = "eps") -> Fraction:
    """Convert `8/255`, `0.1` or a number to an exact epsilon in [0, 1]; pixels are in [0, 1].

    >>> parse_epsilon("8/255"), parse_epsilon("0.1"), parse_epsilon(0.25)
    (Fraction(8, 255), Fraction(1, 10), Fraction(1, 4))
    """
    value = parse_rational(text, name)
    if not 0 <= value <= 1:
        raise ArgumentError(f"{name} is {text}; expected a number from 0 to 1 (pixel units)")
    return value


def format_epsilon(value: Fraction) -> str:
    """Format as a decimal if that is exact, otherwise `8/255` for multiples of 1/255, otherwise as a fraction.

    >>> format_epsilon(Fraction(8, 255)), format_epsilon(Fraction(1, 10)), format_epsilon(Fraction(1, 7))
    ('8/255', '0.1', '1/7')
    """
    decimal = f"{float(value):.10g}"
    if Fraction(decimal) == value:
        return decimal
    return f"{value * 255}/255" if 255 % value.denominator == 0 else str(value)
