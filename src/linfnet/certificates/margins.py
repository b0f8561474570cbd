"""The margin certificate of the floating-point program: one forward pass, every epsilon at once.

With u the unit roundoff, s the std the program divides by, and R the sum of the largest magnitudes of all rounded steps
of the pass at x, every x' within eps of x has

    |net(x') - net(x)| <= (1 + u)^K * (eps / s + u * (2 + u) * R + 3 * tiny)        for each logit,

as computed, K being the number of rounded steps plus two. The proof is in docs/certificates.md.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import torch
from torch import Tensor

from linfnet.certificates.arithmetic import Rounding, down, float_above, float_below, up
from linfnet.certificates.magnitudes import Pass, forward_with_magnitudes
from linfnet.certificates.program import check_program
from linfnet.nn import LinfNet


@dataclass(frozen=True)
class MarginCertificate:
    """What one forward pass proves about each sample of a batch."""

    logits: Tensor
    """[N, K], as the program computes them."""
    labels: Tensor
    """[N]: the classes the certificate speaks of."""
    radii: Tensor
    """float64 [N], rounded down: the class stays on top for every eps <= radius; -inf where it is not on top at all."""
    real_radii: Tensor
    """float64 [N]: margin / (2 lipschitz), which forgets the rounding of the program; negative where wrong."""

    def at(self, epsilon: Fraction) -> Tensor:
        """Which samples [N] are certified at epsilon."""
        return self.radii >= float_above(epsilon)

    def accuracy(self, epsilons: Iterable[Fraction]) -> list[float]:
        """The share of certified samples at each epsilon."""
        return certified_shares(self.radii, epsilons)


def certified_shares(radii: Tensor, epsilons: Iterable[Fraction]) -> list[float]:
    """The share of samples whose certified radius reaches each epsilon.

    >>> certified_shares(torch.tensor([0.1, 0.3]).double(), [Fraction(0), Fraction(1, 5)])
    [1.0, 0.5]
    """
    ends = radii.new_tensor([float_above(epsilon) for epsilon in epsilons])
    return (radii >= ends.unsqueeze(1)).double().mean(1).tolist()


@torch.no_grad()
def certify_by_margin(net: LinfNet, images: Tensor, labels: Tensor | None = None) -> MarginCertificate:
    """The sound margin certificate, for the given labels or for the classes the net predicts.

    Args:
        net: evaluated at p = inf, whatever its present p.
        images: [N, C, H, W] in [0, 1].
        labels: [N]; by default the predicted classes.
    """
    check_program(net, images)
    with net.at_infinity():
        run = forward_with_magnitudes(net, images)
    classes = run.logits.argmax(1) if labels is None else labels
    own, best_other = _top(run, classes)
    radii = _sound_radius(run, own, best_other)
    return MarginCertificate(run.logits, classes, radii, (own - best_other) * run.std / 2)


def error_bound(run: Pass) -> Tensor:
    """float64 [N]: no logit of the program at x is further from the exact net's than this."""
    rounding = Rounding.of(run.logits.dtype)
    slope = float_above(rounding.unit * (1 + rounding.unit) ** 2)
    return up(up(slope * run.magnitude) + float_above(2 * rounding.tiny))


def change_bound(run: Pass, epsilon: Fraction) -> Tensor:
    """float64 [N]: no logit of the program changes by more between x and any floating-point x' within epsilon of x."""
    growth, slope, rest = _constants(run.logits.dtype, run.steps)
    start = float_above(epsilon / Fraction(run.std))
    return up(float_above(growth) * up(up(slope * run.magnitude) + float_above(Fraction(start) + Fraction(rest))))


def _top(run: Pass, labels: Tensor) -> tuple[Tensor, Tensor]:
    """float64 [N]: the logit of the label and the largest other one, as the program computes them."""
    column = labels.unsqueeze(1)
    logits = run.logits.double()
    return logits.gather(1, column).squeeze(1), logits.scatter(1, column, -torch.inf).amax(1)


def _sound_radius(run: Pass, own: Tensor, best_other: Tensor) -> Tensor:
    """float64 [N], rounded down: for every eps <= radius, twice `change_bound` is strictly below the margin."""
    growth, slope, rest = _constants(run.logits.dtype, run.steps)
    lost = up(up(slope * run.magnitude) + rest)
    radii = down(down(down(down(own - best_other) * float_below(1 / (2 * growth))) - lost) * run.std)
    # The image itself is the only one within 0, and the program is a function: a strict margin is a proof.
    radii = radii.clamp(min=0)
    # At x' the magnitudes grow by less than the margin: far from overflow at x means no overflow at x'.
    finite = run.magnitude <= Rounding.of(run.logits.dtype).largest / 8
    return torch.where((own > best_other) & finite, radii, -torch.inf)


@lru_cache
def _constants(dtype: torch.dtype, steps: int) -> tuple[Fraction, float, float]:
    """(1 + u)^K, and u (2 + u) and 3 tiny rounded up."""
    rounding = Rounding.of(dtype)
    u = rounding.unit
    return (1 + u) ** (steps + 2), float_above(u * (2 + u)), float_above(3 * rounding.tiny)
