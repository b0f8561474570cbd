"""Short chains of multiplications for integer powers, and the exponents that have them.

d^p by repeated multiplication costs as many products as an addition chain for p is long: 8 = 1 + 1, 2 + 2, 4 + 4 takes
three. Distances need d^p, their gradients d^(p - 1): p is cheap where both chains are short.
"""

import functools
import math

# Beyond this dense kernels take special functions; the lists go on with products.
LARGEST_CHAINED = 64
# From here on kernels take the features that can count alone: a product more or less no longer shows.
SMALLEST_LISTED = 22


@functools.cache
def _power_tree(limit: int) -> dict[int, tuple[int, ...]]:
    """Knuth's power tree: for each n up to `limit` a chain (1, 2, ..., n); the shortest there is for every n < 77."""
    chains: dict[int, tuple[int, ...]] = {1: (1,)}
    level = [1]
    while any(n not in chains for n in range(1, limit + 1)):
        following: list[int] = []
        for n in level:
            for step in chains[n]:
                if n + step not in chains:
                    chains[n + step] = (*chains[n], n + step)
                    following.append(n + step)
        level = following
    return chains


def addition_chain(n: int) -> tuple[int, ...]:
    """A short addition chain for n >= 1: it starts with 1, ends with n, and each number is the sum of two before it.

    >>> addition_chain(8), addition_chain(15)
    ((1, 2, 4, 8), (1, 2, 3, 5, 10, 15))
    """
    return _power_tree(max(128, n))[n]


def multiplications(n: int) -> int:
    """Products needed for d^n by its chain.

    >>> [multiplications(n) for n in (0, 1, 7, 8, 12, 27)]
    [0, 0, 4, 3, 4, 6]
    """
    return len(addition_chain(n)) - 1 if n > 1 else 0


def is_short(p: int) -> bool:
    """Whether p and p - 1 both have short chains: together at most 2 floor(log2 p) + 4 products.

    An odd p costs two more: |d|^p needs the absolute value, and the even power d^(p - 1) the sign of d. From 8 on only
    an even p counts as short: it is a polynomial, which matrix products can evaluate.
    """
    if p >= 8 and p % 2:
        return False
    return multiplications(p) + multiplications(p - 1) + 2 * (p % 2) <= 2 * (p.bit_length() - 1) + 4


def snapped_p(p: float) -> float:
    """The nearest p that kernels evaluate cheaply: up to 22 one with short chains (see `is_short`); infinity stays.

    Each p up to 128 has kernels of its own, which are compiled while those of the last one run: from 22 on the even
    numbers, from 64 on the multiples of 4 leave time for it. Above 128 come integers of seven binary digits, 64 to an
    octave: while p stays the same, whole steps can be replayed. Of two equally near the larger is taken, so that the
    result never falls while p grows.

    >>> [snapped_p(p) for p in (8.0, 11.3, 20.9, 27.6, 62.9, 201.3, 999.0, math.inf)]
    [8.0, 12.0, 20.0, 28.0, 62.0, 202.0, 1000.0, inf]
    """
    if math.isinf(p):
        return p
    if p >= SMALLEST_LISTED:
        step = 2.0 if p < 64 else 4.0 if p < 128 else 2.0 ** (math.frexp(p)[1] - 7)
        return math.floor(p / step + 0.5) * step
    short = (n for n in range(1, SMALLEST_LISTED + 1) if is_short(n))
    return float(min(short, key=lambda n: (abs(n - p), -n)))


def power_source(name: str, n: int, *, signed: bool, fraction: bool = False) -> str:
    """CUDA source of a function d -> |d|^n, times the sign of d if `signed`, times |d|^fraction if asked for.

    >>> print(power_source("slope", 3, signed=True))
    static __device__ __forceinline__ float slope(float d, float fraction) {
      float d2 = d * d;
      float d3 = d2 * d;
      return d3;
    }
    """
    lines = [f"static __device__ __forceinline__ float {name}(float d, float fraction) {{"]
    if n == 0:
        result = "(d > 0.0f ? 1.0f : d < 0.0f ? -1.0f : d)" if signed else "1.0f"
    else:
        chain = addition_chain(n)
        for place, value in enumerate(chain[1:], 1):
            before = chain[:place]
            first = max(a for a in before if value - a in before)
            terms = ["d" if a == 1 else f"d{a}" for a in (first, value - first)]
            lines.append(f"  float d{value} = {terms[0]} * {terms[1]};")
        result = "d" if n == 1 else f"d{n}"
        if signed and n % 2 == 0:
            result = f"copysignf({result}, d)"
        elif not signed and n % 2:
            result = f"fabsf({result})"
    if fraction:
        result += " * exp2_fast(fraction * log2_fast(fabsf(d)))"
    return "\n".join([*lines, f"  return {result};", "}"])
