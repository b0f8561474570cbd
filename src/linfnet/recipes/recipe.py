"""A recipe: all settings of a training run. The defaults are the values that the paper's runs have in common."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from linfnet.errors import ArgumentError, check_numbers, number
from linfnet.losses import Mixture, Objective
from linfnet.ops import check_p
from linfnet.schedules import Phases


class Section:
    """A section of a recipe, named like its class; the ranges of its numbers are checked when it is created."""

    def __post_init__(self) -> None:
        check_numbers(self, type(self).__name__.removesuffix("Settings").lower())


@dataclass(frozen=True)
class Data(Section):
    """The data set and the augmentation of its images."""

    name: str = "cifar10"
    pad: int = number(0, most=1000)  # width of the edge padding before a random crop, in pixels
    flip: bool = False  # random horizontal flip
    limit: int = number(0)  # train only on the first `limit` images; 0 means all images


@dataclass(frozen=True)
class Model(Section):
    """The size of the net: `depth` distance layers, with `width` neurons in each hidden layer."""

    depth: int = number(6, 1, most=1000)
    width: int = number(5120, 1, most=1_000_000)


@dataclass(frozen=True)
class Schedule:
    """The numbers of epochs with constant, rising and infinite p, and the range of p."""

    epochs: tuple[int, int, int] = (100, 1150, 50)
    p_start: float = 8.0
    p_end: float = 1000.0
    snap_p: bool = False  # round p to even numbers, so that GPU kernels compute powers by multiplications only
    hold_lr: bool = False  # constant learning rate in the first phase, as in the 2021 paper; else a cosine

    def __post_init__(self) -> None:
        self.phases()
        check_p(self.p_start, "schedule.p_start")
        if math.isinf(self.p_start):
            raise ArgumentError("schedule.p_start is inf; expected a finite number: only the third phase has p = inf")
        if not self.p_start <= self.p_end < math.inf:
            raise ArgumentError(f"schedule.p_end is {self.p_end}; expected a finite number >= p_start = {self.p_start}")

    def phases(self) -> Phases:
        """Return the epochs as `linfnet.schedules.Phases`."""
        return Phases(*self.epochs)


@dataclass(frozen=True)
class Optimizer(Section):
    """Settings of Adam. The learning rate of the temperature s is `scale_lr_factor * lr`.

    `weight_decay` is the weight decay of 2021, which depends on p.
    """

    lr: float = number(0.03, strictly=True)
    scale_lr_factor: float = number(0.2)
    beta1: float = number(0.9)
    beta2: float = number(0.99)
    eps: float = number(1e-10)
    batch: int = number(512, 1)
    weight_decay: float = number(0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if max(self.beta1, self.beta2) >= 1:
            raise ArgumentError(
                f"optimizer.beta1 is {self.beta1}, optimizer.beta2 is {self.beta2}; expected both below 1"
            )


@dataclass(frozen=True)
class Run(Section):
    """The seed, and when to test and to write checkpoints."""

    seed: int = number(0)
    test_every: int = number(10)  # number of epochs between tests at p = inf; 0 means only at the end
    checkpoint_minutes: float = number(5.0)  # maximum age of the last checkpoint; 0 means every epoch
    checkpoint_every: int = number(0)  # also write a checkpoint after this many epochs; 0 means never
    keep_checkpoints: int = number(2, 1)
    graphs: bool = True  # on a GPU, replay CUDA graphs while p is constant; results are bitwise the same


@dataclass(frozen=True)
class EvaluationSettings(Section):
    """The perturbations at which the net is evaluated, and the number of steps of the PGD attack."""

    eps: tuple[Fraction, ...] = (Fraction(8, 255),)
    pgd_steps: int = number(100, 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.eps or not all(0 <= eps <= 1 for eps in self.eps):
            epsilons = [str(eps) for eps in self.eps]
            raise ArgumentError(f"evaluation.eps is {epsilons}; expected one or more numbers in [0, 1]")


@dataclass(frozen=True)
class Reported:
    """Published or measured accuracies in percent, and the cost. `linfnet recipes` shows them; runs do not use them."""

    source: str = ""
    clean: float = 0.0
    pgd: float = 0.0
    certified: float = 0.0
    cost: str = ""


@dataclass(frozen=True)
class Recipe:
    """All settings of one training run. In `--set`, keys are `section.key`, or `key` alone if it is unambiguous."""

    name: str = "custom"
    title: str = ""
    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    loss: Objective = field(default_factory=Mixture)
    schedule: Schedule = field(default_factory=Schedule)
    optimizer: Optimizer = field(default_factory=Optimizer)
    run: Run = field(default_factory=Run)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    reported: Reported = field(default_factory=Reported)
    # The name and the keys of a system other than the l_inf-distance net (see `linfnet.systems`).
    system: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def system_name(self) -> str:
        """Return the name of the system that the recipe trains."""
        return str(self.system.get("name", "linf"))
