"""A recipe: everything that decides a training run, as typed data with the paper's shared values as defaults."""

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
    """Which images, and how they are augmented."""

    name: str = "cifar10"
    pad: int = 0  # random crop after edge padding by this many pixels
    flip: bool = False  # random horizontal flip
    limit: int = 0  # train on the first so many images only; 0: all

    def __post_init__(self) -> None:
        at_least("data.pad", self.pad, 0, most=1000)
        at_least("data.limit", self.limit, 0)


@dataclass(frozen=True)
class Model:
    """The net: `depth` distance layers, the hidden ones `width` wide."""

    depth: int = 6
    width: int = 5120

    def __post_init__(self) -> None:
        at_least("model.depth", self.depth, 1, most=1000)
        at_least("model.width", self.width, 1, most=1_000_000)


@dataclass(frozen=True)
class Schedule:
    """Epochs of the three phases (p at its start, rising, infinite) and the range of p."""

    epochs: tuple[int, int, int] = (100, 1150, 50)
    p_start: float = 8.0
    p_end: float = 1000.0
    # Round p to even numbers, which GPU kernels raise to by multiplications alone.
    snap_p: bool = False
    # Keep the learning rate at its peak through the first phase, as in 2021; else one cosine spans all phases.
    hold_lr: bool = False

    def __post_init__(self) -> None:
        self.phases()
        check_p(self.p_start, "schedule.p_start")
        check_p(self.p_end, "schedule.p_end")
        if self.p_start == float("inf"):
            raise ArgumentError(
                "schedule.p_start is inf; wanted a finite number: p is infinite in the third phase alone"
            )
        if not self.p_start <= self.p_end < float("inf"):
            raise ArgumentError(f"schedule.p_end is {self.p_end}; wanted a finite number >= p_start = {self.p_start}")

    def phases(self) -> Phases:
        """The phases as the schedules take them."""
        return Phases(*self.epochs)


@dataclass(frozen=True)
class Optimizer:
    """Adam; the temperature s learns at a fifth of the rate. The weight decay is that of 2021, aware of p."""

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
    """Seed and housekeeping."""

    seed: int = 0
    test_every: int = 10  # epochs between tests at p = inf; 0: only at the end
    checkpoint_minutes: float = 5.0  # write a checkpoint if the last one is this old; 0: at the end of every epoch
    checkpoint_every: int = 0  # and after every so many epochs; 0: never for that reason
    keep_checkpoints: int = 2
    graphs: bool = True  # on a GPU, replay steps from a CUDA graph while p stays the same; the bits are the same

    def __post_init__(self) -> None:
        for key, least in (("seed", 0), ("test_every", 0), ("checkpoint_every", 0), ("keep_checkpoints", 1)):
            at_least(f"run.{key}", getattr(self, key), least)
        at_least("run.checkpoint_minutes", self.checkpoint_minutes, 0)


@dataclass(frozen=True)
class Evaluation:
    """The perturbations the recipe is made for, and the steps of the attack."""

    eps: tuple[Fraction, ...] = (Fraction(8, 255),)
    pgd_steps: int = 100

    def __post_init__(self) -> None:
        at_least("evaluation.pgd_steps", self.pgd_steps, 1)
        if not self.eps or not all(0 <= eps <= 1 for eps in self.eps):
            raise ArgumentError(f"evaluation.eps is {[str(e) for e in self.eps]}; wanted one or more numbers in [0, 1]")


@dataclass(frozen=True)
class Reported:
    """What the recipe is known to reach (percent) and to cost, for `linfnet recipes`; it decides nothing."""

    source: str = ""
    clean: float = 0.0
    pgd: float = 0.0
    certified: float = 0.0
    cost: str = ""


@dataclass(frozen=True)
class Recipe:
    """One training run. Files and `--set` name keys as `section.key`, or as `key` where that is clear."""

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
    # What is trained, where it is no l_inf-distance net: its name and the keys of its own (see `linfnet.systems`).
    system: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def system_name(self) -> str:
        """The system that the recipe trains."""
        return str(self.system.get("name", "linf"))
