"""The layer of SortNet: weighted sums of the largest |x - w|, and their rounding errors."""

import math
import operator
from fractions import Fraction
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from linfnet.errors import at_least
from linfnet.nn.distance import DistanceModule, copy_inputs
from linfnet.ops import linf_distance_bounds, lp_distance, sorted_linf_bounds, sorted_linf_distance
from linfnet.ops.sorted import MOST_TERMS

# The smallest keep rate. The first factor is above half of it, so distances do not overflow where certificates hold.
LEAST_KEEP = 0.01


def check_sums(keep: float, terms: int) -> None:
    """Raise an error unless there are neurons with this keep rate and number of terms."""
    at_least("keep", keep, LEAST_KEEP, most=1)
    at_least("terms", operator.index(terms), 1, most=MOST_TERMS)


@lru_cache
def sorted_factors(keep: float, terms: int) -> tuple[float, ...]:
    """Return the factors of the largest |x - w|: keep * (1 - keep)^t for t < terms, divided by their sum.

    This is the distribution of the largest input that dropout keeps, given that it keeps one of the `terms` largest.
    The factors are rounded down to float32, so that their exact sum is at most 1. Factors that are 0 are left out.

    >>> sorted_factors(1.0, 10), sorted_factors(0.5, 2)
    ((1.0,), (0.6666666269302368, 0.3333333134651184))
    """
    check_sums(keep, terms)
    rate = Fraction(keep)
    exact = [rate * (1 - rate) ** t / (1 - (1 - rate) ** terms) for t in range(terms)]
    return tuple(factor for factor in map(_float32_below, exact) if factor > 0)


def _float32_below(value: Fraction) -> float:
    near = np.float32(float(value))
    return float(near if Fraction(float(near)) <= value else np.nextafter(near, np.float32(0)))


@lru_cache
def rounded_steps(factors: tuple[float, ...]) -> int:
    """Return how many rounded steps bound the rounding error of a weighted sum (docs/certificates.md).

    >>> rounded_steps(sorted_factors(0.85, 10))
    5
    """
    if len(factors) == 1:  # the maximum
        return 1
    unit, exact = Fraction(1, 2**24), [Fraction(factor) for factor in factors]
    growth = sum(factor * ((1 + unit) ** (k + 2) - 1) for k, factor in enumerate(exact, 1)) / sum(exact)
    return math.ceil(growth / unit) + 1


class SortDistance(DistanceModule):
    """Compute u_o(x) = sum_t factors[t] * (the t-th largest |x_i - w_oi|) at p = inf; 1-Lipschitz in l_inf.

    With the factors of `sorted_factors`, this is the expectation of ||x - w_o||_inf if every input is kept with
    probability `keep`, except that only the `terms` largest are counted. At a finite p the layer computes
    keep^(1/p) * ||x - w_o||_p. `SortNet` trains such layers by dropout. With keep = 1 it is an `LpDistance`.

    Args:
        in_features: size of the last dimension of the input.
        out_features: number of neurons.
        keep: the probability, from 0.01 to 1, with which an input is kept.
        terms: how many of the largest |x - w| are counted, from 1 to 16.
        p, bias, mean_shift, identity_init: as in `LpDistance`.

    >>> SortDistance(64, 128, keep=0.85, mean_shift=True)(torch.rand(5, 64)).shape
    torch.Size([5, 128])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        keep: float,
        terms: int = 10,
        p: float = math.inf,
        bias: bool = False,
        mean_shift: bool = False,
        identity_init: bool = False,
    ) -> None:
        check_sums(keep, terms)
        super().__init__(torch.randn(out_features, in_features), out_features, -1, p, bias, mean_shift)
        self.in_features, self.out_features, self.keep, self.terms = in_features, out_features, keep, terms
        if identity_init:
            copy_inputs(self.weight)

    @property
    def factors(self) -> tuple[float, ...]:
        """The factors of the largest |x - w|, the largest first."""
        return sorted_factors(self.keep, min(self.terms, self.in_features))

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs [..., out_features] for x [..., in_features]."""
        return self._finish(self._distance(x))

    def measure(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the output and a bound [B] on the magnitude of each rounded step, at p = inf and in eval mode.

        A weighted sum counts as `rounded_steps` steps of its own magnitude, or of 64 times the smallest normal number
        where it is smaller, since products may underflow.
        """
        self._check_certifiable("magnitudes", x)
        distance = self._distance(x)
        size = distance.flatten(1).amax(1)
        sizes = [size.clamp(min=64 * torch.finfo(size.dtype).tiny)] * rounded_steps(self.factors)
        for term in (None if self.shift is None else self.shift.running_mean, self.bias):
            if term is not None:
                size = size + term.abs().amax()
                sizes.append(size)
        return self._finish(distance), sizes

    def _distance_at(self, x: Tensor, p: float) -> Tensor:
        if len(self.factors) == 1:
            return lp_distance(x, self.weight, p)
        if math.isinf(p):
            return sorted_linf_distance(x, self.weight, self.factors)
        return self.keep ** (1 / p) * lp_distance(x, self.weight, p)

    def _distance_bounds(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        if len(self.factors) == 1:
            return linf_distance_bounds(lower, upper, self.weight)
        return sorted_linf_bounds(lower, upper, self.weight, self.factors)

    def extra_repr(self) -> str:
        return (
            f"{self.in_features}, {self.out_features}, keep={self.keep:g}, terms={self.terms}, p={self.p:g}, "
            f"bias={self.bias is not None}"
        )
