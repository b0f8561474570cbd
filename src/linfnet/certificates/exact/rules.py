"""Inverses of the rounded operations: which inputs lead to results in an interval, exactly, for float32 numbers.

For an increasing function f of float32 numbers, `largest_input` returns the largest z with f(z) <= u and
`smallest_input` the smallest z with f(z) >= l.
"""

from collections.abc import Callable

import numpy as np

from linfnet.certificates.exact.circuit import Kind
from linfnet.certificates.exact.reduced import Floats

_INF = np.float32(np.inf)


def _subtract(z: Floats, w: Floats) -> Floats:
    return z - w


def _divide(z: Floats, w: Floats) -> Floats:
    return z / w


def _multiply(z: Floats, w: Floats) -> Floats:
    return z * w


def _at_least(z: Floats, w: Floats) -> Floats:
    return np.maximum(z, w)


def _at_most(z: Floats, w: Floats) -> Floats:
    return np.minimum(z, w)


FUNCTIONS: dict[Kind, Callable[[Floats, Floats], Floats]] = {
    Kind.SUBTRACT: _subtract,
    Kind.DIVIDE: _divide,
    Kind.MULTIPLY: _multiply,
    Kind.AT_LEAST: _at_least,
    Kind.AT_MOST: _at_most,
}


def largest_minuend(w: Floats, u: Floats) -> Floats:
    """Return the largest z with fl(z - w) <= u.

    The exact z is near w + (u + next(u)) / 2. Its float64 sum is exact or off by far less than the distance of two
    float32 numbers near it, so the first guess is wrong by one or two numbers; the loops correct it.
    """
    middle = (u.astype(np.float64) + np.nextafter(u, _INF)) / 2
    z = (w + middle).astype(np.float32)
    while (over := z - w > u).any():
        z = np.where(over, np.nextafter(z, -_INF), z)
    while (more := (further := np.nextafter(z, _INF)) - w <= u).any():
        z = np.where(more, further, z)
    return z


def smallest_minuend(w: Floats, low: Floats) -> Floats:
    """Return the smallest z with fl(z - w) >= low: rounding is symmetric in the sign."""
    return -largest_minuend(-w, -low)


def largest_input(kind: Kind, w: Floats, u: Floats, low: Floats, high: Floats) -> Floats:
    """Return the largest z in [low, high] with f(z, w) <= u, by bisection of float32 numbers; f(low, w) <= u."""
    function = FUNCTIONS[kind]
    good, bad = _order(low), _order(high) + 1
    while (wide := bad - good > 1).any():
        middle = np.where(wide, good + (bad - good) // 2, good)
        fits = function(_number(middle), w) <= u
        good, bad = np.where(fits, middle, good), np.where(fits, bad, middle)
    return _number(good)


def smallest_input(kind: Kind, w: Floats, least: Floats, low: Floats, high: Floats) -> Floats:
    """Return the smallest z in [low, high] with f(z, w) >= least; f(high, w) >= least."""
    function = FUNCTIONS[kind]
    bad, good = _order(low) - 1, _order(high)
    while (wide := good - bad > 1).any():
        middle = np.where(wide, bad + (good - bad) // 2, good)
        fits = function(_number(middle), w) >= least
        good, bad = np.where(fits, middle, good), np.where(fits, bad, middle)
    return _number(good)


def _order(z: Floats) -> np.ndarray:
    """Return whole numbers in the order of the float32 numbers; both zeros are 0."""
    bits = z.view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


def _number(order: np.ndarray) -> Floats:
    return np.where(order < 0, -order | 0x80000000, order).astype(np.uint32).view(np.float32)


def middle(low: np.float32, high: np.float32) -> np.float32:
    """Return the number in the middle between two float32 numbers, in the order of float32 numbers, below `high`."""
    first, last = _order(np.array([low, high]))
    return np.float32(_number(np.array([first + (last - first) // 2]))[0])
