"""Schedules of p, of the mixing coefficient lambda and of the learning rate.

Training has three phases of e1, e2 and e3 epochs. In the first phase p is constant, in the second p rises exponentially
while lambda falls, and in the third p is infinite. The learning rate follows one cosine over all phases, or over the
last two.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from linfnet.errors import ArgumentError


@dataclass(frozen=True)
class StepState:
    """The values of the schedule at one training step, computed once and passed to the system and the objective."""

    epoch: float
    """The number of completed epochs, including the completed fraction of the current epoch."""
    started: float
    """The completed fraction of the first phase, from 0 to 1."""
    relaxed: float
    """The completed fraction of the rise of p, from 0 to 1."""
    p: float
    """The exponent of the distance layers."""
    mixing: float
    """lambda, the weight of the cross-entropy; 0 for objectives that do not mix."""
    lr: float
    """The learning rate of the weights."""
    slopes_p: float = math.inf
    """The exponent at which the distance layers compute their gradients, if it is smaller than p."""


@dataclass(frozen=True)
class Phases:
    """Numbers of epochs with constant, rising and infinite p.

    Args:
        start: number of epochs with constant p.
        rise: number of epochs in which p rises.
        infinite: number of epochs with p = inf.

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
            raise ArgumentError(f"schedule.epochs is {phases}; expected three numbers >= 0, not all 0")

    @property
    def total(self) -> int:
        """The total number of epochs."""
        return self.start + self.rise + self.infinite

    def start_progress(self, epoch: float) -> float:
        """Return the completed fraction of the first phase, from 0 to 1, at an epoch, which may be fractional."""
        return min(epoch / self.start, 1.0) if self.start else 1.0

    def relaxation_progress(self, epoch: float) -> float:
        """Return how much of the rise of p is complete at an epoch, from 0 to 1."""
        if self.rise == 0:
            return float(epoch >= self.start)
        return min(max((epoch - self.start) / self.rise, 0.0), 1.0)


def relaxation_p(progress: float, *, start: float = 8.0, end: float = 1000.0) -> float:
    """Return p when a fraction `progress` of its rise is complete: start * (end / start)^progress, or infinity at 1.

    Args:
        progress: from 0 to 1, for example `Phases.relaxation_progress(epoch)`.
        start: p at progress 0.
        end: p just before progress 1.

    >>> relaxation_p(0.0), relaxation_p(1.0)
    (8.0, inf)
    """
    return start * (end / start) ** progress if progress < 1 else math.inf


def mixing_coefficient(progress: float, *, start: float, end: float) -> float:
    """Return lambda when a fraction `progress` of the rise of p is complete: start * (end / start)^progress.

    If `end` is 0, lambda is constant until p = inf.

    Args:
        progress: from 0 to 1, for example `Phases.relaxation_progress(epoch)`.
        start: lambda at progress 0.
        end: lambda at progress 1.

    >>> mixing_coefficient(0.5, start=0.25, end=0.0625)
    0.125
    """
    if end == 0:
        return start if progress < 1 else 0.0
    return start * (end / start) ** progress if start else 0.0


def cosine_learning_rate(progress: float, *, peak: float, constant: float = 0.0) -> float:
    """Return the learning rate, which falls from `peak` to 0 along half a cosine, without warm-up.

    Args:
        progress: the completed fraction of training, from 0 to 1.
        peak: the learning rate at the start.
        constant: the fraction of training during which the rate is `peak`, before the cosine starts.

    >>> cosine_learning_rate(0.0, peak=0.03), round(cosine_learning_rate(0.5, peak=0.03), 12)
    (0.03, 0.015)
    """
    if progress <= constant:
        return peak
    return 0.5 * peak * (1 + math.cos(math.pi * (progress - constant) / (1 - constant)))


def stepped_learning_rate(progress: float, *, peak: float, drops: Sequence[float], factor: float) -> float:
    """Return the learning rate, which is constant except that it is multiplied by a factor at some points.

    Args:
        progress: the completed fraction of training, from 0 to 1.
        peak: the learning rate at the start.
        drops: the fractions of training at which the rate drops.
        factor: what the rate is multiplied by.

    >>> stepped_learning_rate(0.8, peak=1.0, drops=(0.75, 0.875), factor=0.5)
    0.5
    """
    return peak * factor ** sum(progress >= drop for drop in drops)
