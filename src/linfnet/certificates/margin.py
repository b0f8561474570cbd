"""The margin certificate of the floating-point program: one forward pass certifies every epsilon.

Let u be the unit roundoff, let s be the std that the program divides by, and let R be the sum, over all rounded steps
of the pass at x, of the largest magnitude in each step; where branches join, the branch with the largest sum counts.
For every x' within eps of x, the computed logits satisfy

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
from linfnet.data.arrays import Labels
from linfnet.epsilon import Epsilon, parse_epsilon
from linfnet.inputs import Images, check_net, prepare_images, prepare_labels
from linfnet.nn import Classifier
from linfnet.nn.label_margin import label_on_top, margin


@dataclass(frozen=True)
class MarginCertificate:
    """The certified radii of a batch of samples, computed by one forward pass."""

    logits: Tensor
    """[N, K], as the floating-point program computes them."""
    labels: Tensor
    """[N]: the certified classes."""
    radii: Tensor
    """float64 [N], rounded down: the class does not change for any eps <= radius. -inf if the logit of the label is not
    strictly the largest."""
    real_radii: Tensor
    """float64 [N]: `real_margin_radius`, which ignores rounding; negative if another class has a larger logit."""

    def at(self, epsilon: Epsilon) -> Tensor:
        """Return bool [N]: which samples are certified at epsilon."""
        return self.radii >= float_above(parse_epsilon(epsilon))


def certified_shares(radii: Tensor, epsilons: Iterable[Fraction]) -> list[float]:
    """Return the share of samples with a certified radius of at least epsilon, for each epsilon.

    >>> certified_shares(torch.tensor([0.1, 0.3]).double(), [Fraction(0), Fraction(1, 5)])
    [1.0, 0.5]
    """
    ends = radii.new_tensor([float_above(epsilon) for epsilon in epsilons])
    return (radii >= ends.unsqueeze(1)).double().mean(1).tolist()


@torch.no_grad()
def certify_by_margin(net: Classifier, images: Images, labels: Labels | None = None) -> MarginCertificate:
    """Compute the sound margin certificate of a `LinfNet` or a wrapped net, for given labels or the predicted classes.

    Args:
        net: evaluated at p = inf in eval mode, regardless of its current p and mode.
        images: [N, C, H, W] in [0, 1].
        labels: [N]; by default the predicted classes.
    """
    pixels = prepare_images(check_net(net), images)
    known = None if labels is None else prepare_labels(labels, pixels, net.classes)
    run = forward_with_magnitudes(check_program(net.frozen(), pixels), pixels)
    classes = run.logits.argmax(1) if known is None else known
    gap = margin(run.logits.double(), classes)
    real_radii = real_margin_radius(run.logits, classes, 1 / run.std)
    return MarginCertificate(run.logits, classes, _sound_radius(run, classes, gap), real_radii)


def _sound_radius(run: Pass, labels: Tensor, gap: Tensor) -> Tensor:
    """Return float64 [N], rounded down: radii such that for every eps <= radius, twice the bound at the top of this
    module is strictly below the margin `gap`."""
    growth, slope, rest = _constants(run.logits.dtype, run.steps)
    lost = up(up(slope * run.magnitude) + rest)
    radii = down(down(down(down(gap) * float_below(1 / (2 * growth))) - lost) * run.std)
    # The ball of radius 0 contains only the image itself, and the program is deterministic: a positive margin suffices.
    radii = radii.clamp(min=0)
    # At x' the magnitudes are larger by less than the margin: if x is far from overflow, x' does not overflow, nor does
    # the sum of any 1024 numbers (average pooling).
    limit = torch.finfo(run.logits.dtype).max / 2**13
    finite = (run.magnitude <= limit) & (gap <= 2 * limit)
    return torch.where(label_on_top(run.logits, labels) & finite, radii, -torch.inf)


@lru_cache
def _constants(dtype: torch.dtype, steps: int) -> tuple[Fraction, float, float]:
    """Return the constants of the bound: (1 + u)^K, which is exact, and u (2 + u) and 3 tiny, which are rounded up."""
    u, tiny = unit_and_tiny(dtype)
    return (1 + u) ** (steps + 2), float_above(u * (2 + u)), float_above(3 * tiny)
