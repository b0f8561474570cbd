"""A recipe: all settings of a training run, typed; the defaults are the values that the paper's runs share."""

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
    """A section of a recipe, with the name of its class in lower case; its numbers are checked when it is created."""

    def __post_init__(self) -> None:
        check_numbers(self, type(self).__name__.removesuffix("Settings").lower())


@dataclass(frozen=True)
class Data(Section):
    """The images and their augmentation."""

    name: str = "cifar10"
    pad: int = number(0, most=1000)  # random crop after edge padding by this many pixels
    flip: bool = False  # random horizontal flip
    limit: int = number(0)  # train on the first `limit` images only; 0: all


@dataclass(frozen=True)
class Model(Section):
    """The net: `depth` distance layers; hidden layers have `width` neurons."""

    depth: int = number(6, 1, most=1000)
    width: int = number(5120, 1, most=1_000_000)


@dataclass(frozen=True)
class Schedule:
    """Epochs of the three phases (constant, rising and infinite p) and the range of p."""

    epochs: tuple[int, int, int] = (100, 1150, 50)
    p_start: float = 8.0
    p_end: float = 1000.0
    snap_p: bool = False  # round p to even numbers: GPU kernels then compute powers by multiplications only
    hold_lr: bool = False  # constant learning rate in the first phase, as in 2021; otherwise one cosine for all phases

    def __post_init__(self) -> None:
        self.phases()
        check_p(self.p_start, "schedule.p_start")
        if math.isinf(self.p_start):
            raise ArgumentError("schedule.p_start is inf; expected a finite number: only the third phase has p = inf")
        if not self.p_start <= self.p_end < math.inf:
            raise ArgumentError(f"schedule.p_end is {self.p_end}; expected a finite number >= p_start = {self.p_start}")

    def phases(self) -> Phases:
        """The epochs as `linfnet.schedules.Phases`."""
        return Phases(*self.epochs)


@dataclass(frozen=True)
class Optimizer(Section):
    """Adam. The temperature s is trained at a fifth of the rate. The weight decay of 2021 depends on p."""

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
            raise ArgumentError(f"optimizer.beta1 is {self.beta1}, beta2 is {self.beta2}; expected numbers below 1")


@dataclass(frozen=True)
class Run(Section):
    """Seed, tests and checkpoints."""

    seed: int = number(0)
    test_every: int = number(10)  # epochs between tests at p = inf; 0: test only at the end
    checkpoint_minutes: float = number(5.0)  # write a checkpoint if the last is older than this; 0: every epoch
    checkpoint_every: int = number(0)  # also write a checkpoint every this many epochs; 0: never
    keep_checkpoints: int = number(2, 1)
    graphs: bool = True  # on a GPU, replay steps from CUDA graphs while p is constant; results are the same bits


@dataclass(frozen=True)
class EvaluationSettings(Section):
    """The perturbations to evaluate, and the number of steps of the attack."""

    eps: tuple[Fraction, ...] = (Fraction(8, 255),)
    pgd_steps: int = number(100, 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.eps or not all(0 <= eps <= 1 for eps in self.eps):
            epsilons = [str(eps) for eps in self.eps]
            raise ArgumentError(f"evaluation.eps is {epsilons}; expected one or more numbers in [0, 1]")


@dataclass(frozen=True)
class Reported:
    """Published or measured figures (percent) and cost, shown by `linfnet recipes`; without effect on the run."""

    source: str = ""
    clean: float = 0.0
    pgd: float = 0.0
    certified: float = 0.0
    cost: str = ""


@dataclass(frozen=True)
class Recipe:
    """One training run. Keys are `section.key` in files and in `--set`, or `key` where that is unambiguous."""

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
    # A system other than the l_inf-distance net: its name and its keys (see `linfnet.systems`).
    system: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def system_name(self) -> str:
        """The name of the system that the recipe trains."""
        return str(self.system.get("name", "linf"))
