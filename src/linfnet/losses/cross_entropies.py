"""Cross-entropy alone: (2) and (3) of the paper's ablation."""

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from torch import Tensor

from linfnet.errors import at_least
from linfnet.losses.objectives import Moment, Objective, objective
from linfnet.losses.terms import scaled_cross_entropy, thresholded


@objective("cross_entropy")
@dataclass(frozen=True)
class CrossEntropy(Objective):
    """CE(s * g, y) with s fixed; theta has no part in it."""

    fixed_scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("loss.fixed_scale", self.fixed_scale, 0, strictly=True)

    def __call__(self, logits: Tensor, labels: Tensor, moment: Moment) -> Tensor:
        return scaled_cross_entropy(logits, labels, self.fixed_scale)


@objective("thresholded_cross_entropy")
@dataclass(frozen=True)
class ThresholdedCrossEntropy(Objective):
    """CE(s * (g - theta 1_y), y) with s learned: a smooth hinge. (The paper prints g(x - theta 1_y).)"""

    theta: Fraction = Fraction(32, 255)

    learns_scale: ClassVar[bool] = True

    def __call__(self, logits: Tensor, labels: Tensor, moment: Moment) -> Tensor:
        return scaled_cross_entropy(thresholded(logits, labels, self.threshold(moment)), labels, moment.scale)
