"""Powers by multiplications, and the exponents that p is snapped to.

d^n by repeated multiplication costs as many products as an addition chain for n is long: 8 = 1 + 1, 2 + 2, 4 + 4 takes
three.
"""

import ctypes
import functools
import math

# Beyond this dense kernels take special functions; the lists go on with products.
LARGEST_CHAINED = 64


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


def snapped_p(p: float) -> float:
    """The nearest p that kernels evaluate cheaply; infinity stays.

    Whole numbers below 8, even ones up to 64, multiples of 4 up to 128: up to there each p has kernels of its own, by
    multiplication, compiled while those of the last p run. Above, 64 to an octave: while p stays the same, whole
    steps can be replayed. Of two equally near the larger is taken, so that the result never falls while p grows.

    >>> [snapped_p(p) for p in (8.0, 11.3, 20.9, 27.6, 62.9, 201.3, 999.0, math.inf)]
    [8.0, 12.0, 20.0, 28.0, 62.0, 202.0, 1000.0, inf]
    """
    if math.isinf(p):
        return p
    step = _step(p)
    return math.floor(p / step + 0.5) * step


def snapped_after(p: float) -> float:
    """The next larger of the numbers that p is snapped to, for one of them.

    >>> snapped_after(7.0), snapped_after(8.0), snapped_after(124.0), snapped_after(128.0)
    (8.0, 10.0, 128.0, 130.0)
    """
    return p + _step(p)


def _step(p: float) -> float:
    if p < LARGEST_CHAINED:
        return 1.0 if p < 8 else 2.0
    return 4.0 if p < 128 else 2.0 ** (math.frexp(p)[1] - 7)


def power_source(name: str, exponent: float, *, signed: bool) -> str:
    """CUDA source of a function d -> |d|^exponent, times the sign of d if `signed`.

    What is left of the exponent above its whole part is taken by special functions from the argument `fraction`: one
    source then serves all exponents with the same whole part.

    >>> print(power_source("slope", 3.0, signed=True))
    static __device__ __forceinline__ float slope(float d, float fraction) {
      float d2 = d * d;
      float d3 = d2 * d;
      return d3;
    }
    """
    exponent = ctypes.c_float(exponent).value  # as kernels get it: just below a whole number, it is that number
    n = math.floor(exponent)
    lines = [f"static __device__ __forceinline__ float {name}(float d, float fraction) {{"]
    base = "fabsf(d)" if n % 2 and not signed else "d"  # products take absolute values for nothing
    if n == 0:
        result = "(d > 0.0f ? 1.0f : d < 0.0f ? -1.0f : d)" if signed else "1.0f"
    else:
        chain = addition_chain(n)
        for place, value in enumerate(chain[1:], 1):
            before = chain[:place]
            first = max(a for a in before if value - a in before)
            terms = [base if a == 1 else f"d{a}" for a in (first, value - first)]
            lines.append(f"  float d{value} = {terms[0]} * {terms[1]};")
        result = base if n == 1 else f"d{n}"
        if signed and n % 2 == 0:
            result = f"copysignf({result}, d)"
    if exponent != n:
        result += " * exp2_fast(fraction * log2_fast(fabsf(d)))"
    return "\n".join([*lines, f"  return {result};", "}"])
