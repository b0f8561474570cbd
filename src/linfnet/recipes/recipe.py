"""A recipe: all settings of a training run, typed; the defaults are the values that the paper's runs share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from linfnet.errors import ArgumentError, at_least
from linfnet.losses import Mixture, Objective
from linfnet.ops import check_p
from linfnet.schedules import Phases


@dataclass(frozen=True)
class Data:
    """The images and their augmentation."""

    name: str = "cifar10"
    pad: int = 0  # random crop after edge padding by this many pixels
    flip: bool = False  # random horizontal flip
    limit: int = 0  # train on the first `limit` images only; 0: all

    def __post_init__(self) -> None:
        at_least("data.pad", self.pad, 0, most=1000)
        at_least("data.limit", self.limit, 0)


@dataclass(frozen=True)
class Model:
    """The net: `depth` distance layers; hidden layers have `width` neurons."""

    depth: int = 6
    width: int = 5120

    def __post_init__(self) -> None:
        at_least("model.depth", self.depth, 1, most=1000)
        at_least("model.width", self.width, 1, most=1_000_000)


@dataclass(frozen=True)
class Schedule:
    """Epochs of the three phases (constant, rising and infinite p) and the range of p."""

    epochs: tuple[int, int, int] = (100, 1150, 50)
    p_start: float = 8.0
    p_end: float = 1000.0
    # Round p to even numbers: GPU kernels then compute powers by multiplications only.
    snap_p: bool = False
    # Keep the learning rate constant during the first phase, as in 2021; otherwise one cosine spans all phases.
    hold_lr: bool = False

    def __post_init__(self) -> None:
        self.phases()
        check_p(self.p_start, "schedule.p_start")
        check_p(self.p_end, "schedule.p_end")
        if self.p_start == float("inf"):
            raise ArgumentError(
                "schedule.p_start is inf; wanted a finite number: p is infinite only in the third phase"
            )
        if not self.p_start <= self.p_end < float("inf"):
            raise ArgumentError(f"schedule.p_end is {self.p_end}; wanted a finite number >= p_start = {self.p_start}")

    def phases(self) -> Phases:
        """The epochs as `linfnet.schedules.Phases`."""
        return Phases(*self.epochs)


@dataclass(frozen=True)
class Optimizer:
    """Adam. The temperature s is trained at a fifth of the rate. The weight decay of 2021 depends on p."""

    lr: float = 0.03
    scale_lr_factor: float = 0.2
    beta1: float = 0.9
    beta2: float = 0.99
    eps: float = 1e-10
    batch: int = 512
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        at_least("optimizer.lr", self.lr, 0, strictly=True)
        at_least("optimizer.scale_lr_factor", self.scale_lr_factor, 0)
        at_least("optimizer.eps", self.eps, 0)
        at_least("optimizer.batch", self.batch, 1)
        at_least("optimizer.weight_decay", self.weight_decay, 0)
        for key, value in (("beta1", self.beta1), ("beta2", self.beta2)):
            if not 0 <= value < 1:
                raise ArgumentError(f"optimizer.{key} is {value}; wanted a number from 0 to below 1")


@dataclass(frozen=True)
class Run:
    """Seed, tests and checkpoints."""

    seed: int = 0
    test_every: int = 10  # epochs between tests at p = inf; 0: test only at the end
    checkpoint_minutes: float = 5.0  # age of the last checkpoint at which another is written; 0: after every epoch
    checkpoint_every: int = 0  # also write a checkpoint after this many epochs; 0: do not
    keep_checkpoints: int = 2
    graphs: bool = True  # on a GPU, replay steps from CUDA graphs while p is constant; results are the same bits

    def __post_init__(self) -> None:
        for key, least in (("seed", 0), ("test_every", 0), ("checkpoint_every", 0), ("keep_checkpoints", 1)):
            at_least(f"run.{key}", getattr(self, key), least)
        at_least("run.checkpoint_minutes", self.checkpoint_minutes, 0)


@dataclass(frozen=True)
class Evaluation:
    """The perturbations to evaluate, and the number of steps of the attack."""

    eps: tuple[Fraction, ...] = (Fraction(8, 255),)
    pgd_steps: int = 100

    def __post_init__(self) -> None:
        at_least("evaluation.pgd_steps", self.pgd_steps, 1)
        if not self.eps or not all(0 <= eps <= 1 for eps in self.eps):
            raise ArgumentError(f"evaluation.eps is {[str(e) for e in self.eps]}; wanted one or more numbers in [0, 1]")


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
    evaluation: Evaluation = field(default_factory=Evaluation)
    reported: Reported = field(default_factory=Reported)
    # Another system than an l_inf-distance net: its name and its keys (see `linfnet.systems`).
    system: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def system_name(self) -> str:
        """The name of the system that the recipe trains."""
        return str(self.system.get("name", "linf"))
