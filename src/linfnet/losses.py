"""Training losses: pure functions of logits [B, K] and labels [B], and the objectives that recipes name as `loss.name`.

Thresholds are in the units of the logits: theta pixels are `theta * net.lipschitz` logits.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from linfnet.errors import ArgumentError, at_least, nearest
from linfnet.nn.margin import margin
from linfnet.schedules import mixing_coefficient


def scaled_cross_entropy(logits: Tensor, labels: Tensor, scale: Tensor | float = 1.0) -> Tensor:
    """Cross-entropy of `scale * logits`, averaged over the batch; the scale s is learnable, as the net has none."""
    return F.cross_entropy(scale * logits, labels)


def thresholded(logits: Tensor, labels: Tensor, threshold: float) -> Tensor:
    """The logits with that of the true class lowered by the threshold.

    >>> thresholded(torch.tensor([[3.0, 1.0]]), torch.tensor([0]), 2.0)
    tensor([[1., 1.]])
    """
    lowered = torch.full_like(labels, -threshold, dtype=logits.dtype).unsqueeze(1)
    return logits.scatter_add(1, labels.unsqueeze(1), lowered)


def hinge(logits: Tensor, labels: Tensor, threshold: float, *, max_share: float = 1.0, warmth: float = 1.0) -> Tensor:
    """mean of max(1 - margin / threshold, 0), or with a share of it on the mean over all classes instead of the worst.

    The mean counts the true class as 0. A warmth below 1 asks for that part of the threshold only.

    >>> logits, labels = torch.tensor([[1.0, 0.0, -1.0, 2.0]]), torch.tensor([0])
    >>> hinge(logits, labels, 2.0), hinge(logits, labels, 2.0, max_share=0.75, warmth=0.0)
    (tensor(1.5000), tensor(0.4062))
    """
    column = labels.unsqueeze(1)
    gaps = logits.gather(1, column) - logits
    terms = (warmth - gaps / threshold).clamp(min=0).scatter(1, column, 0.0)
    return max_share * terms.max(1).values.mean() + (1 - max_share) * terms.mean()


def clipped_hinge(logits: Tensor, labels: Tensor, threshold: float) -> Tensor:
    """mean of min(max(1 - margin / threshold, 0), 1): flat for misclassified samples.

    >>> clipped_hinge(torch.tensor([[1.0, 0.0]]), torch.tensor([1]), 2.0)
    tensor(1.)
    """
    return (1 - margin(logits, labels) / threshold).clamp(min=0, max=1).mean()


def mixture(
    logits: Tensor, labels: Tensor, *, threshold: float, mixing: Tensor | float, scale: Tensor | float
) -> Tensor:
    """The paper's objective: mixing * scaled cross-entropy + clipped hinge.

    >>> logits, labels = torch.tensor([[2.0, 0.0]]), torch.tensor([0])
    >>> mixture(logits, labels, threshold=4.0, mixing=0.0, scale=1.0)
    tensor(0.5000)
    """
    return mixing * scaled_cross_entropy(logits, labels, scale) + clipped_hinge(logits, labels, threshold)


def margin_shares(logits: Tensor, labels: Tensor, threshold: float) -> Tensor:
    """How many samples have a margin above the threshold, in [0, threshold], and below 0: a count tensor [3].

    >>> margin_shares(torch.tensor([[9.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0, 0]), 2.0)
    tensor([1, 1, 1])
    """
    gap = margin(logits, labels)
    return torch.stack([(gap > threshold).sum(), ((gap >= 0) & (gap <= threshold)).sum(), (gap < 0).sum()])


@dataclass(frozen=True)
class Moment:
    """Where training stands: all that an objective may look at besides logits and labels."""

    started: float  # progress through the first phase, 0 to 1
    relaxed: float  # progress of the rise of p, 0 to 1
    scale: Tensor  # the temperature s of the net
    lipschitz: float  # logits per pixel unit at p = inf


@dataclass(frozen=True)
class Objective(ABC):
    """A training objective. Its fields are the keys of a recipe's [loss], checked when it is made."""

    # In pixel units. Training also counts the margins above it, whatever the objective makes of it.
    theta: Fraction = Fraction(48, 255)

    name: ClassVar[str]
    learns_scale: ClassVar[bool] = False

    def __post_init__(self) -> None:
        at_least("loss.theta", float(self.theta), 0, strictly=True)

    @abstractmethod
    def __call__(self, logits: Tensor, labels: Tensor, moment: Moment) -> Tensor:
        """The loss of a batch, averaged over its samples: logits [B, K], labels [B]."""

    def mixing(self, relaxed: float) -> float:
        """The weight of the cross-entropy at a progress of the relaxation, for objectives that mix."""
        return 0.0

    def threshold(self, moment: Moment) -> float:
        """theta in the units of the logits."""
        return float(self.theta) * moment.lipschitz


_KNOWN: dict[str, type[Objective]] = {}
Kind = TypeVar("Kind", bound=type[Objective])


def objective(name: str) -> Callable[[Kind], Kind]:
    """Class decorator: recipes may ask for the class as `loss.name`."""

    def note(kind: Kind) -> Kind:
        known = _KNOWN.setdefault(name, kind)
        if known is not kind:
            raise ArgumentError(f"objective is {name!r}, which is already {known.__module__}.{known.__qualname__}")
        kind.name = name
        return kind

    return note


def objective_names() -> tuple[str, ...]:
    """All objectives by name."""
    return tuple(sorted(_KNOWN))


def find_objective(name: object) -> type[Objective]:
    """The class of a name; an error lists the names there are."""
    if isinstance(name, str) and name in _KNOWN:
        return _KNOWN[name]
    hint = nearest(str(name), _KNOWN)
    raise ArgumentError(f"loss.name is {name!r}; wanted one of {', '.join(objective_names())}{hint}")


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
