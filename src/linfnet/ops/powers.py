"""Whole powers by multiplication, and the values to which p is rounded (snapped).

The power d^n costs one multiplication for each step of an addition chain for n: three for n = 8 (chain 1, 2, 4, 8).
"""

import ctypes
import functools
import math
from enum import IntEnum

# Largest p whose powers are computed by multiplication with one scale per layer or output, and with one scale per pair
# (values stay within 2^±64). Above, kernels use log2 and exp2.
LARGEST_CHAINED, LARGEST_PAIRED = 64, 128


class PowerMode(IntEnum):
    """How the pruned kernels compute powers."""

    SCALE_PER_OUTPUT = 0  # multiply differences, scaled by one power of two per output
    SCALE_PER_PAIR = 1  # the same, with one power of two per pair
    LOG_RATIO = 2  # special functions (log2, exp2) of the ratio of |d| to its maximum
    LOG_RATIO_LARGE = 3  # the same, with a shorter series for large p


def power_mode(p: float) -> PowerMode:
    """Return how to compute powers: by multiplication for whole p up to LARGEST_PAIRED, otherwise by log2 and exp2."""
    if p > LARGEST_PAIRED:
        return PowerMode.LOG_RATIO_LARGE
    if p != math.floor(p):
        return PowerMode.LOG_RATIO
    return PowerMode.SCALE_PER_OUTPUT if p <= LARGEST_CHAINED else PowerMode.SCALE_PER_PAIR


def uses_ratio(p: float) -> bool:
    """Whether powers are computed by special functions, from ratios between 0 and 1."""
    return power_mode(p) in (PowerMode.LOG_RATIO, PowerMode.LOG_RATIO_LARGE)


@functools.cache
def addition_chain(n: int) -> tuple[int, ...]:
    """Return a short addition chain for n >= 1: from 1 to n, where each number is the sum of two earlier numbers.

    The chain is a path in Knuth's power tree; for every n < 77 it is a shortest chain.

    >>> addition_chain(8), addition_chain(15)
    ((1, 2, 4, 8), (1, 2, 3, 5, 10, 15))
    """
    chains: dict[int, tuple[int, ...]] = {1: (1,)}
    level = [1]
    while n not in chains:
        following: list[int] = []
        for last in level:
            for step in chains[last]:
                if last + step not in chains:
                    chains[last + step] = (*chains[last], last + step)
                    following.append(last + step)
        level = following
    return chains[n]


def snapped_p(p: float) -> float:
    """Return the nearest p that kernels evaluate quickly; infinity is unchanged.

    Up to 128, these are whole numbers below 8, even numbers up to 64 and multiples of 4. Each has separate kernels,
    which multiply and are compiled while the kernels of the previous p run. Above 128, there are 64 numbers from each
    power of two to the next: while p is constant, training steps can be replayed from a CUDA graph. Ties are rounded
    up, so the result is monotone in p.

    >>> [snapped_p(p) for p in (8.0, 11.3, 20.9, 27.6, 62.9, 201.3, 999.0, math.inf)]
    [8.0, 12.0, 20.0, 28.0, 62.0, 202.0, 1000.0, inf]
    """
    if math.isinf(p):
        return p
    step = _step(p)
    return math.floor(p / step + 0.5) * step


def snapped_after(p: float) -> float:
    """Return the next larger snapped p after a snapped p.

    >>> snapped_after(7.0), snapped_after(8.0), snapped_after(124.0), snapped_after(128.0)
    (8.0, 10.0, 128.0, 130.0)
    """
    return p + _step(p)


def _step(p: float) -> float:
    if p < LARGEST_CHAINED:
        return 1.0 if p < 8 else 2.0
    return 4.0 if p < 128 else 2.0 ** (math.frexp(p)[1] - 7)


def power_source(name: str, exponent: float | None, *, signed: bool) -> str:
    """Return the CUDA source of a function d -> |d|^exponent, times the sign of d if `signed`.

    The whole part of the exponent is computed by multiplication, the rest by special functions from the argument
    `special`, so that one source is valid for all exponents with the same whole part. If `exponent` is None, the
    function is d -> |d|^special 2^offset.

    >>> print(power_source("slope", 3.0, signed=True))
    static __device__ __forceinline__ float slope(float d, float special, float offset) {
      float d2 = d * d;
      float d3 = d2 * d;
      return d3;
    }
    """
    lines = [f"static __device__ __forceinline__ float {name}(float d, float special, float offset) {{"]
    if exponent is None:
        result = "exp2_fast(fmaf(special, log2_fast(fabsf(d)), offset))"
        result = f"copysignf({result}, d)" if signed else result
    else:
        # Round as for the kernel's argument: a float64 slightly below a whole number becomes whole.
        exponent = ctypes.c_float(exponent).value
        n = math.floor(exponent)
        result = _whole_power(n, lines, signed=signed)
        if exponent != n:
            result += " * exp2_fast(special * log2_fast(fabsf(d)))"
    return "\n".join([*lines, f"  return {result};", "}"])


def half_source(name: str, exponent: int, *, add: bool) -> str:
    """Return the CUDA source of a function that raises two float16 numbers to a whole power >= 2; `add`: to sums.

    >>> print(half_source("slope", 3, add=False))
    static __device__ __forceinline__ u32 slope(u32 d) {
      u32 d2 = half2_mul(d, d);
      u32 d3 = half2_mul(d2, d);
      return d3;
    }
    >>> print(half_source("add_power", 4, add=True).splitlines()[-2])
      return half2_fma(d2, d2, sum);
    """
    lines = [f"static __device__ __forceinline__ u32 {name}(u32 d{', u32 sum' if add else ''}) {{"]
    chain = addition_chain(exponent)
    result = f"d{exponent}"
    for position, value in enumerate(chain[1:], 1):
        earlier = chain[:position]
        first = max(a for a in earlier if value - a in earlier)
        one, other = ("d" if a == 1 else f"d{a}" for a in (first, value - first))
        if add and value == exponent:
            result = f"half2_fma({one}, {other}, sum)"
        else:
            lines.append(f"  u32 d{value} = half2_mul({one}, {other});")
    return "\n".join([*lines, f"  return {result};", "}"])


def _whole_power(n: int, lines: list[str], *, signed: bool) -> str:
    """Append the products of a chain to `lines`; return an expression for the n-th power."""
    if n == 0:
        return "(d > 0.0f ? 1.0f : d < 0.0f ? -1.0f : d)" if signed else "1.0f"
    base = "fabsf(d)" if n % 2 and not signed else "d"  # absolute values of factors cost nothing
    chain = addition_chain(n)
    for position, value in enumerate(chain[1:], 1):
        earlier = chain[:position]
        first = max(a for a in earlier if value - a in earlier)
        terms = [base if a == 1 else f"d{a}" for a in (first, value - first)]
        lines.append(f"  float d{value} = {terms[0]} * {terms[1]};")
    result = base if n == 1 else f"d{n}"
    return f"copysignf({result}, d)" if signed and n % 2 == 0 else result
