"""p, the mixing coefficient lambda and the learning rate as functions of progress.

Training has three phases of e1, e2 and e3 epochs: p is constant; p rises exponentially while lambda falls; p is
infinite. The learning rate follows one cosine over all phases, or over all but the first.
"""

import math
from dataclasses import dataclass

from linfnet.errors import ArgumentError


@dataclass(frozen=True)
class StepState:
    """The schedule at one training step: computed once per step, then passed to the system and the objective."""

    epoch: float
    """The number of epochs so far, including the finished fraction of the current one."""
    started: float
    """Progress of the first phase, from 0 to 1."""
    relaxed: float
    """Progress of the rise of p, from 0 to 1."""
    p: float
    mixing: float
    """lambda, the weight of the cross-entropy; 0 for objectives that do not mix."""
    lr: float


@dataclass(frozen=True)
class Phases:
    """Numbers of epochs with constant, rising and infinite p.

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
        """Number of epochs of all phases."""
        return self.start + self.rise + self.infinite

    def start_progress(self, epoch: float) -> float:
        """Progress of the first phase at a (fractional) epoch, from 0 to 1."""
        return min(epoch / self.start, 1.0) if self.start else 1.0

    def relaxation_progress(self, epoch: float) -> float:
        """Progress of the rise of p at a (fractional) epoch: 0 before the second phase, 1 after it."""
        if self.rise == 0:
            return float(epoch >= self.start)
        return min(max((epoch - self.start) / self.rise, 0.0), 1.0)


def relaxation_p(progress: float, *, start: float = 8.0, end: float = 1000.0) -> float:
    """p at a progress of its rise: start * (end / start)^progress below 1, infinity at 1.

    >>> relaxation_p(0.0), relaxation_p(1.0)
    (8.0, inf)
    """
    return start * (end / start) ** progress if progress < 1 else math.inf


def mixing_coefficient(progress: float, *, start: float, end: float) -> float:
    """lambda at a progress of the rise of p: start * (end / start)^progress; if `end` is 0, constant until p = inf.

    >>> mixing_coefficient(0.5, start=0.25, end=0.0625)
    0.125
    """
    if end == 0:
        return start if progress < 1 else 0.0
    return start * (end / start) ** progress if start else 0.0


def cosine_learning_rate(progress: float, *, peak: float, constant: float = 0.0) -> float:
    """The learning rate at a progress through the whole run: from `peak` to 0 along half a cosine, without warm-up.

    Args:
        progress: from 0 to 1.
        peak: the learning rate at the start.
        constant: the share of the run during which the rate stays at the peak; the cosine spans the rest.

    >>> cosine_learning_rate(0.0, peak=0.03), round(cosine_learning_rate(0.5, peak=0.03), 12)
    (0.03, 0.015)
    """
    if progress <= constant:
        return peak
    return 0.5 * peak * (1 + math.cos(math.pi * (progress - constant) / (1 - constant)))
