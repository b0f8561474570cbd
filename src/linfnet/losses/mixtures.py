"""The paper's objective, (4) and (5) of its ablation: scaled cross-entropy and clipped hinge."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from linfnet.errors import at_least
from linfnet.losses.objectives import Moment, Objective, objective
from linfnet.losses.terms import mixture
from linfnet.schedules import mixing_coefficient


@objective("mixture")
@dataclass(frozen=True)
class Mixture(Objective):
    """lambda * CE(s * g, y) + min(hinge(g / theta, y), 1).

    lambda falls from mixing_start to mixing_end while p rises: equal ends fix it, zeros leave the clipped hinge alone.
    """

    mixing_start: float = 0.1
    mixing_end: float = 5e-4
    # The paper's text drops the cross-entropy in the last phase; its published numbers kept it at mixing_end.
    mixing_zero_at_infinity: bool = False

    learns_scale: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("loss.mixing_start", self.mixing_start, 0)
        at_least("loss.mixing_end", self.mixing_end, 0)

    def mixing(self, relaxed: float) -> float:
        """lambda at a progress of the relaxation.

        >>> Mixture(mixing_start=0.25, mixing_end=0.0625).mixing(0.5)
        0.125
        """
        if relaxed >= 1 and self.mixing_zero_at_infinity:
            return 0.0
        return mixing_coefficient(relaxed, start=self.mixing_start, end=self.mixing_end)

    def __call__(self, logits: Tensor, labels: Tensor, moment: Moment) -> Tensor:
        mixing = self.mixing(moment.relaxed)
        return mixture(logits, labels, threshold=self.threshold(moment), mixing=mixing, scale=moment.scale)
