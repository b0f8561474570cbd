"""Training losses: functions of logits [B, K] and labels [B], and the objectives that recipes select by `loss.name`.

Thresholds are in the units of the logits: theta in pixel units corresponds to a threshold of `theta * net.lipschitz`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from linfnet.epsilon import in_255ths
from linfnet.errors import ArgumentError, at_least, check_numbers, number
from linfnet.nn.label_margin import margin
from linfnet.registry import Registry
from linfnet.schedules import StepState, mixing_coefficient


def scaled_cross_entropy(logits: Tensor, labels: Tensor, scale: Tensor | float = 1.0) -> Tensor:
    """Return the cross-entropy of `scale * logits`, averaged over the batch.

    Args:
        logits: [B, K].
        labels: int64 [B].
        scale: the temperature s. The logits of distance nets are distances, whose differences are small: s is trained.

    >>> scaled_cross_entropy(torch.zeros(1, 2), torch.tensor([0]))
    tensor(0.6931)
    """
    return F.cross_entropy(scale * logits, labels)


def thresholded(logits: Tensor, labels: Tensor, threshold: float) -> Tensor:
    """Return the logits [B, K], with the threshold subtracted from the logit of the true class.

    Args:
        logits: [B, K].
        labels: int64 [B].
        threshold: theta in the units of the logits.

    >>> thresholded(torch.tensor([[3.0, 1.0]]), torch.tensor([0]), 2.0)
    tensor([[1., 1.]])
    """
    lowered = torch.full_like(labels, -threshold, dtype=logits.dtype).unsqueeze(1)
    return logits.scatter_add(1, labels.unsqueeze(1), lowered)


def hinge(logits: Tensor, labels: Tensor, threshold: float, *, max_share: float = 1.0, required: float = 1.0) -> Tensor:
    """Return the mean of max(1 - margin / threshold, 0) over the batch.

    Args:
        logits: [B, K].
        labels: [B].
        threshold: samples with at least this margin have loss 0.
        max_share: weight of the worst class; the mean over all classes (with 0 for the true class) has the rest.
        required: the fraction of the threshold that is required, below 1 during a warm-up.

    >>> hinge(torch.tensor([[1.0, 0.0, -1.0, 2.0]]), torch.tensor([0]), 2.0)
    tensor(1.5000)
    """
    column = labels.unsqueeze(1)
    gaps = logits.gather(1, column) - logits
    terms = (required - gaps / threshold).clamp(min=0).scatter(1, column, 0.0)
    return max_share * terms.max(1).values.mean() + (1 - max_share) * terms.mean()


def clipped_hinge(logits: Tensor, labels: Tensor, threshold: float, *, leak: float = 0.0) -> Tensor:
    """Return the mean of min(max(1 - margin / threshold, 0), 1), which is constant for misclassified samples.

    Args:
        logits: [B, K].
        labels: int64 [B].
        threshold: theta in the units of the logits; samples with at least this margin have loss 0.
        leak: the slope of the loss where the hinge is above 1, so that misclassified samples have gradients. This is
            not in the paper.

    >>> clipped_hinge(torch.tensor([[1.0, 0.0]]), torch.tensor([1]), 2.0)
    tensor(1.)
    >>> clipped_hinge(torch.tensor([[1.0, 0.0]]), torch.tensor([1]), 2.0, leak=0.5)
    tensor(1.2500)
    """
    terms = 1 - margin(logits, labels) / threshold
    clipped = terms.clamp(min=0, max=1)
    if leak:
        clipped = torch.where(terms > 1, 1 + leak * (terms - 1), clipped)
    return clipped.mean()


def mixture(
    logits: Tensor,
    labels: Tensor,
    *,
    threshold: float,
    mixing: Tensor | float,
    scale: Tensor | float,
    leak: float = 0.0,
) -> Tensor:
    """Return the paper's objective: mixing * scaled cross-entropy + clipped hinge.

    Args:
        logits: [B, K].
        labels: int64 [B].
        threshold: theta in the units of the logits, `theta * net.lipschitz`.
        mixing: lambda, the weight of the cross-entropy.
        scale: the temperature s of the cross-entropy.
        leak: as in `clipped_hinge`.

    >>> mixture(torch.tensor([[1.0, 0.0]]), torch.tensor([0]), threshold=2.0, mixing=0.0, scale=1.0)
    tensor(0.5000)
    """
    clipped = clipped_hinge(logits, labels, threshold, leak=leak)
    return mixing * scaled_cross_entropy(logits, labels, scale) + clipped


def margin_shares(logits: Tensor, labels: Tensor, threshold: float) -> Tensor:
    """Return the numbers [3] of samples with a margin above the threshold, in [0, threshold], and below 0.

    >>> margin_shares(torch.tensor([[9.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0, 0]), 2.0)
    tensor([1, 1, 1])
    """
    gap = margin(logits, labels)
    return torch.stack([(gap > threshold).sum(), ((gap >= 0) & (gap <= threshold)).sum(), (gap < 0).sum()])


def check_theta(key: str, theta: Fraction) -> None:
    """Raise an error that names the key unless theta is above 0 and at most 2."""
    at_least(key, float(theta), 0, strictly=True)
    # Two images differ by at most 1, and margins change at most twice as fast as pixels.
    if theta > 2:
        raise ArgumentError(f"{key} is {float(theta):g}; expected at most 2 (pixel units){in_255ths(theta)}")


@dataclass(frozen=True)
class Objective(ABC):
    """A training objective. Its fields are the keys of [loss] in a recipe; the constructor checks their ranges."""

    theta: Fraction = Fraction(48, 255)
    """The margin that training aims at, in pixel units. Training reports how many margins are above it."""

    learns_scale: ClassVar[bool] = False
    """Whether the temperature s of the net is trained."""

    def __post_init__(self) -> None:
        check_theta("loss.theta", self.theta)
        check_numbers(self, "loss")

    @property
    def name(self) -> str:
        """The name under which the class is registered."""
        return LOSSES.name_of(type(self))

    @abstractmethod
    def __call__(self, logits: Tensor, labels: Tensor, state: StepState, *, scale: Tensor, lipschitz: float) -> Tensor:
        """Return the loss of a batch, averaged over its samples.

        Args:
            logits: [B, K].
            labels: [B].
            state: the values of the schedule at this step.
            scale: the temperature s of the net.
            lipschitz: Lipschitz constant of the net at p = inf, from pixels to logits.
        """

    def mixing(self, relaxed: float) -> float:
        """Return lambda (`StepState.mixing`) when a fraction `relaxed` of the rise of p is complete; 0 by default."""
        return 0.0

    def threshold(self, lipschitz: float) -> float:
        """Return theta in the units of the logits."""
        return float(self.theta) * lipschitz


LOSSES: Registry[type[Objective]] = Registry("loss.name")


@LOSSES.register("mixture")
@dataclass(frozen=True)
class Mixture(Objective):
    """lambda * CE(s * g, y) + min(hinge(g / theta, y), 1).

    lambda falls from mixing_start to mixing_end while p rises. If both are equal, lambda is constant; if both are 0,
    the objective is the clipped hinge alone.
    """

    mixing_start: float = number(0.1)
    """lambda, the weight of the cross-entropy, in the first phase."""
    mixing_end: float = number(5e-4)
    """lambda at the end of the second phase."""
    # In the paper's text the last phase has no cross-entropy, but its published results were trained with mixing_end.
    mixing_zero_at_infinity: bool = False
    """Whether lambda is 0 in the last phase; otherwise it is `mixing_end`."""
    clip_leak: float | None = number(None, most=1)
    """The slope of the clipped hinge for misclassified samples, where the paper's is 0. Not in the paper: see
    docs/beyond.md."""
    clip_leak_end: float | None = number(None, most=1)
    """The slope at the end of the second phase: it changes linearly from `clip_leak` while p rises. Default: constant.
    """
    theta_end: Fraction | None = None
    """theta at the end of the second phase: it changes exponentially from `theta` while p rises. Not in the paper: see
    docs/beyond.md. Default: constant."""

    learns_scale: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.theta_end is not None:
            check_theta("loss.theta_end", self.theta_end)

    def mixing(self, relaxed: float) -> float:
        """Return lambda when a fraction `relaxed` of the rise of p is complete."""
        if relaxed >= 1 and self.mixing_zero_at_infinity:
            return 0.0
        return mixing_coefficient(relaxed, start=self.mixing_start, end=self.mixing_end)

    def leak(self, relaxed: float) -> float:
        """Return the slope of the hinge above its clip when a fraction `relaxed` of the rise of p is complete."""
        start = self.clip_leak or 0.0
        end = start if self.clip_leak_end is None else self.clip_leak_end
        return start + (end - start) * relaxed

    def theta_at(self, relaxed: float) -> float:
        """Return theta when a fraction `relaxed` of the rise of p is complete."""
        # Exponentially, because the loss depends on margin / theta: all terms change by the same factor in each step.
        theta = float(self.theta)
        return theta if self.theta_end is None else theta * float(self.theta_end / self.theta) ** relaxed

    def __call__(self, logits: Tensor, labels: Tensor, state: StepState, *, scale: Tensor, lipschitz: float) -> Tensor:
        threshold, leak = self.theta_at(state.relaxed) * lipschitz, self.leak(state.relaxed)
        return mixture(logits, labels, threshold=threshold, mixing=state.mixing, scale=scale, leak=leak)


@LOSSES.register("hinge")
@dataclass(frozen=True)
class Hinge(Objective):
    """hinge(g / theta, y) without s, optionally with the mean over classes and the warm-up of the 2021 paper."""

    theta: Fraction = Fraction(80, 255)
    max_share: float = number(1.0, most=1)
    """Weight of the worst class. The 2021 paper uses 0.75, and 0.25 for the mean over classes."""
    # The published runs of 2021 without an MLP do not do this.
    warmup: bool = False
    """Raise the threshold from 0 to theta in the first phase."""

    def __call__(self, logits: Tensor, labels: Tensor, state: StepState, *, scale: Tensor, lipschitz: float) -> Tensor:
        required = state.started if self.warmup else 1.0
        return hinge(logits, labels, self.threshold(lipschitz), max_share=self.max_share, required=required)


@LOSSES.register("cross_entropy")
@dataclass(frozen=True)
class CrossEntropy(Objective):
    """CE(s * g, y) with a fixed s; theta has no effect."""

    fixed_scale: float = number(1.0, strictly=True)
    """The factor s of the logits."""

    def __call__(self, logits: Tensor, labels: Tensor, state: StepState, *, scale: Tensor, lipschitz: float) -> Tensor:
        return scaled_cross_entropy(logits, labels, self.fixed_scale)


@LOSSES.register("thresholded_cross_entropy")
@dataclass(frozen=True)
class ThresholdedCrossEntropy(Objective):
    """CE(s * (g - theta 1_y), y) with a trained s, a smooth hinge. (The formula in the paper is g(x - theta 1_y).)"""

    theta: Fraction = Fraction(32, 255)

    learns_scale: ClassVar[bool] = True

    def __call__(self, logits: Tensor, labels: Tensor, state: StepState, *, scale: Tensor, lipschitz: float) -> Tensor:
        return scaled_cross_entropy(thresholded(logits, labels, self.threshold(lipschitz)), labels, scale)
