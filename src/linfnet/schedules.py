"""p, the mixing coefficient and the learning rate as functions of progress, step by step.

Training has three phases of e1, e2 and e3 epochs: p stays at its start; p rises exponentially while the mixing
coefficient falls; p is infinite. The learning rate follows one cosine over all of them, or over all but the first.
"""

import math
from dataclasses import dataclass

from linfnet.errors import ArgumentError


@dataclass(frozen=True)
class Phases:
    """Epochs with p at its start, rising, and infinite.

    >>> phases = Phases(100, 1150, 50)
    >>> phases.total, phases.relaxation_progress(675.0)
    (1300, 0.5)
    """

    start: int
    rise: int
    infinite: int

    def __post_init__(self) -> None:
        if min(self.start, self.rise, self.infinite) < 0 or self.total == 0:
            phases = (self.start, self.rise, self.infinite)
            raise ArgumentError(f"schedule.epochs is {phases}; wanted three numbers >= 0, not all 0")

    @property
    def total(self) -> int:
        """Epochs of all phases."""
        return self.start + self.rise + self.infinite

    def start_progress(self, epoch: float) -> float:
        """How far the first phase has come at a (fractional) epoch: 1 from its end on."""
        return min(epoch / self.start, 1.0) if self.start else 1.0

    def relaxation_progress(self, epoch: float) -> float:
        """How far the rise of p has come at a (fractional) epoch: 0 before it, 1 from its end on."""
        if self.rise == 0:
            return float(epoch >= self.start)
        return min(max((epoch - self.start) / self.rise, 0.0), 1.0)


def relaxation_p(progress: float, *, start: float = 8.0, end: float = 1000.0) -> float:
    """p at a progress of the relaxation: start * (end / start)^progress, and infinity once it is complete.

    >>> relaxation_p(0.0), relaxation_p(1.0)
    (8.0, inf)
    """
    return start * (end / start) ** progress if progress < 1 else math.inf


def mixing_coefficient(progress: float, *, start: float, end: float) -> float:
    """The weight of the cross-entropy at a progress of the relaxation: start * (end / start)^progress.

    An end of 0 keeps the start until the relaxation is complete.

    >>> mixing_coefficient(0.5, start=0.25, end=0.0625)
    0.125
    """
    if end == 0:
        return start if progress < 1 else 0.0
    return start * (end / start) ** progress if start else 0.0


def cosine_learning_rate(progress: float, *, peak: float, held: float = 0.0) -> float:
    """The learning rate at a progress through the whole run: from `peak` to 0 along half a cosine, no warm-up.

    For a `held` part of the run it stays at the peak, and the cosine spans the rest.

    >>> cosine_learning_rate(0.0, peak=0.03), round(cosine_learning_rate(0.5, peak=0.03), 12)
    (0.03, 0.015)
    """
    if progress <= held:
        return peak
    return 0.5 * peak * (1 + math.cos(math.pi * (progress - held) / (1 - held)))
