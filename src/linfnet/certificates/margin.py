"""The margin certificate of the floating-point program: one forward pass certifies every epsilon.

Let u be the unit roundoff, s the std that the program divides by, and R the sum of the largest magnitudes of all
rounded steps of the pass at x. For every x' within eps of x, the computed logits satisfy

    |net(x') - net(x)| <= (1 + u)^K * (eps / s + u * (2 + u) * R + 3 * tiny)        for each logit,

where K is the number of rounded steps plus two. docs/certificates.md contains the proof.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import torch
from torch import Tensor

from linfnet.certificates.real import real_margin_radius
from linfnet.certificates.rounding import (
    Pass,
    check_program,
    down,
    float_above,
    float_below,
    forward_with_magnitudes,
    unit_and_tiny,
    up,
)
from linfnet.nn import Classifier
from linfnet.nn.label_margin import label_on_top, margin


@dataclass(frozen=True)
class MarginCertificate:
    """What one forward pass proves about each sample of a batch."""

    logits: Tensor
    """[N, K], as the program computes them."""
    labels: Tensor
    """[N]: the certified classes."""
    radii: Tensor
    """float64 [N], rounded down: the class stays on top for every eps <= radius; -inf where it is not on top."""
    real_radii: Tensor
    """float64 [N]: margin / (2 lipschitz), which ignores rounding; negative where another class is on top."""

    def at(self, epsilon: Fraction) -> Tensor:
        """Which samples [N] are certified at epsilon."""
        return self.radii >= float_above(epsilon)


def certified_shares(radii: Tensor, epsilons: Iterable[Fraction]) -> list[float]:
    """The share of samples with a certified radius of at least epsilon, for each epsilon.

    >>> certified_shares(torch.tensor([0.1, 0.3]).double(), [Fraction(0), Fraction(1, 5)])
    [1.0, 0.5]
    """
    ends = radii.new_tensor([float_above(epsilon) for epsilon in epsilons])
    return (radii >= ends.unsqueeze(1)).double().mean(1).tolist()


@torch.no_grad()
def certify_by_margin(net: Classifier, images: Tensor, labels: Tensor | None = None) -> MarginCertificate:
    """The sound margin certificate of an l_inf-distance net, for the given labels or for the predicted classes.

    Args:
        net: evaluated at p = inf, independent of its present p.
        images: [N, C, H, W] in [0, 1].
        labels: [N]; by default the predicted classes.
    """
    checked = check_program(net, images)
    with checked.at_infinity():
        run = forward_with_magnitudes(checked, images)
    classes = run.logits.argmax(1) if labels is None else labels
    gap = margin(run.logits.double(), classes)
    real_radii = real_margin_radius(run.logits, classes, 1 / run.std)
    return MarginCertificate(run.logits, classes, _sound_radius(run, classes, gap), real_radii)


def _sound_radius(run: Pass, labels: Tensor, gap: Tensor) -> Tensor:
    """float64 [N], rounded down: for every eps <= radius, twice the bound above is strictly below the margin `gap`."""
    growth, slope, rest = _constants(run.logits.dtype, run.steps)
    lost = up(up(slope * run.magnitude) + rest)
    radii = down(down(down(down(gap) * float_below(1 / (2 * growth))) - lost) * run.std)
    # The ball of radius 0 contains only the image itself, and the program is deterministic: a strict margin is a proof.
    radii = radii.clamp(min=0)
    # At x' the magnitudes grow by less than the margin: far from overflow at x means no overflow at x'.
    finite = run.magnitude <= torch.finfo(run.logits.dtype).max / 8
    return torch.where(label_on_top(run.logits, labels) & finite, radii, -torch.inf)


@lru_cache
def _constants(dtype: torch.dtype, steps: int) -> tuple[Fraction, float, float]:
    """The constants of the bound: (1 + u)^K exactly, u (2 + u) and 3 tiny rounded up."""
    u, tiny = unit_and_tiny(dtype)
    return (1 + u) ** (steps + 2), float_above(u * (2 + u)), float_above(3 * tiny)
