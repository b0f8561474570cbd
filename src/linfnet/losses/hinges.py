"""The hinge loss: (1) of the paper's ablation, and the objective of the 2021 training."""

from dataclasses import dataclass
from fractions import Fraction

from torch import Tensor

from linfnet.errors import ArgumentError
from linfnet.losses.objectives import Moment, Objective, objective
from linfnet.losses.terms import hinge


@objective("hinge")
@dataclass(frozen=True)
class Hinge(Objective):
    """hinge(g / theta, y), as it stands or with the class mixing and the warm-up of 2021; no s."""

    theta: Fraction = Fraction(80, 255)
    # 1: the worst class alone. 2021 took 0.75 of the worst class and 0.25 of the mean over classes.
    max_share: float = 1.0
    # Let the threshold grow from 0 to theta through the first phase. The 2021 code can; its commands for the net
    # without an MLP leave it off.
    warmup: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.max_share <= 1:
            raise ArgumentError(f"loss.max_share is {self.max_share}; wanted a number from 0 to 1")

    def __call__(self, logits: Tensor, labels: Tensor, moment: Moment) -> Tensor:
        warmth = moment.started if self.warmup else 1.0
        return hinge(logits, labels, self.threshold(moment), max_share=self.max_share, warmth=warmth)
