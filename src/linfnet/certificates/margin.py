"""The margin certificate of the floating-point program: one forward pass certifies every epsilon.

Let u be the unit roundoff, let s be the std that the program divides by, and let R be the sum, over all rounded steps
of the pass at x, of the largest magnitude in each step; where branches join, the branch with the largest sum counts.
For every x' within eps of x, the computed logits satisfy

    |net(x') - net(x)| <= (1 + u)^K * (eps / s + u * (2 + u) * R + 3 * tiny)        for each logit,

where K is the number of rounded steps. docs/certificates.md contains the proof.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import torch
from torch import Tensor

from linfnet.certificates.real import radius_of_margin
from linfnet.certificates.rounding import (
    Pass,
    check_program,
    float_above,
    forward_with_magnitudes,
    unit_and_tiny,
)
from linfnet.data.arrays import Labels
from linfnet.epsilon import Epsilon, parse_epsilon
from linfnet.inputs import Images, check_net, prepare_images, prepare_labels
from linfnet.nn import Classifier
from linfnet.nn.label_margin import margin


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
    margins: Tensor
    """float64 [N]: the logit of the label minus the largest other logit."""
    lipschitz: float
    """The Lipschitz constant from pixels to logits."""

    @property
    def real_radii(self) -> Tensor:
        """float64 [N]: `real_margin_radius`, which ignores rounding; negative if another class has a larger logit."""
        return radius_of_margin(self.margins, self.lipschitz)

    def at(self, epsilon: Epsilon) -> Tensor:
        """Return bool [N]: which samples are certified at epsilon."""
        return self.radii >= float_above(parse_epsilon(epsilon))


def certified_shares(radii: Tensor, epsilons: Iterable[Fraction]) -> list[float]:
    """Return the share of samples with a certified radius of at least epsilon, for each epsilon.

    >>> certified_shares(torch.tensor([0.1, 0.3]).double(), [Fraction(0), Fraction(1, 5)])
    [1.0, 0.5]
    """
    return certified_at(radii, epsilons).double().mean(1).tolist()


def certified_at(radii: Tensor, epsilons: Iterable[Epsilon]) -> Tensor:
    """Return bool [E, N]: which samples have a certified radius of at least each epsilon.

    >>> certified_at(torch.tensor([0.1, 0.3]).double(), ["0.1", 0.2])
    tensor([[ True,  True],
            [False,  True]])
    """
    ends = [float_above(parse_epsilon(epsilon)) for epsilon in epsilons]
    return radii >= radii.new_tensor(ends).unsqueeze(1)


@torch.no_grad()
def certify_by_margin(net: Classifier, images: Images, labels: Labels | None = None) -> MarginCertificate:
    """Compute the sound margin certificate of a `LinfNet` or a wrapped net, for given labels or the predicted classes.

    Args:
        net: evaluated at p = inf in eval mode, regardless of its current p and mode.
        images: [N, C, H, W] in [0, 1].
        labels: [N]; by default the predicted classes.
    """
    pixels = prepare_images(check_net(net), images)
    return certify_pixels(net, pixels, None if labels is None else prepare_labels(labels, pixels, net.classes))


def certify_pixels(net: Classifier, pixels: Tensor, known: Tensor | None) -> MarginCertificate:
    """Compute `certify_by_margin` for images and labels that `prepare_images` and `prepare_labels` returned."""
    run = forward_with_magnitudes(check_program(net.frozen(), pixels), pixels)
    classes = run.logits.argmax(1) if known is None else known
    gap = margin(run.logits.double(), classes)
    # Python numbers take a fraction of the time of tensors for one image, and little time for many.
    radii = [_sound_radius(run, *pair) for pair in zip(gap.tolist(), run.magnitudes, strict=True)]
    sound = torch.tensor(radii, dtype=torch.float64, device=gap.device)
    return MarginCertificate(run.logits, classes, sound, gap, 1 / run.std)


def _sound_radius(run: Pass, gap: float, magnitude: float) -> float:
    """Return a radius such that for every eps <= radius, twice the bound at the top of this module is strictly below
    the margin `gap`."""
    # A float64 difference has the sign of the exact one: the logit of the label is strictly the largest if gap > 0.
    # At x' the magnitudes are larger by less than the margin: if x is far from overflow, x' does not overflow, nor does
    # the sum of any 1024 numbers (average pooling).
    shrink, slope, rest, limit = _constants(run.logits.dtype, run.steps)
    if not (gap > 0 and magnitude <= limit and gap <= 2 * limit):  # also if a number is NaN
        return -math.inf
    radius = (gap * shrink - (slope * magnitude + rest)) * run.std
    # The ball of radius 0 contains only the image itself, and the program is deterministic: a positive margin suffices.
    return max(radius, 0.0)


@lru_cache
def _constants(dtype: torch.dtype, steps: int) -> tuple[float, float, float, float]:
    """Return 1 / (2 (1 + u)^K), decreased by 2^-49 of it, u (2 + u), 3 tiny, and the largest magnitude.

    In float64 the gap, these three constants and the five operations of `_sound_radius` round, each by at most 2^-53 of
    its result. If the radius is positive, no result but the last exceeds half the gap: the decrease outweighs all nine.
    """
    u, tiny = unit_and_tiny(dtype)
    shrink = (1 - Fraction(1, 2**49)) / (2 * (1 + u) ** steps)
    return float(shrink), float(u * (2 + u)), float(3 * tiny), torch.finfo(dtype).max / 2**13
