"""A recipe: all settings of a training run. The defaults are the values that the paper's runs have in common."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

from linfnet.epsilon import format_epsilon, parse_epsilon
from linfnet.errors import ArgumentError, at_least, check_numbers, number
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
    """The data set: one of `linfnet data list`, unless `path` names other data."""
    path: str | None = None
    """Your own data instead of `name`: a folder with a sub-folder per class, an .npz file, a folder of .npy files, or a
    CSV file of file names and labels."""
    resize: tuple[int, int] | None = None
    """Height and width to which the image files in `path` are scaled; without it, all files must have one size."""
    mode: Literal["grey", "rgb"] | None = None
    """Converts the image files in `path` to grey or to RGB; without it, all files must be of one of these kinds."""
    split_seed: int | None = None
    """Seed of the split of `path` into training and test images, if it has no stored splits (default 0)."""
    digest: str | None = None
    """SHA-256 of your own training images and labels. A run writes it, and resumes only with the same images."""
    pad: int = number(0, most=1000)
    """Width of the edge padding before a random crop, in pixels; 0 for no crops."""
    flip: bool = False
    """Flip images horizontally at random."""
    rotate: float | None = number(None, most=180)
    """Rotate images at random by at most this many degrees, in either direction. Not in the paper: see
    docs/beyond.md."""
    zoom: float | None = number(None, most=10)
    """Scale images at random by a factor from 1 / (1 + zoom) to 1 + zoom. Not in the paper: see docs/beyond.md."""
    contrast: float | None = number(None, most=10)
    """Multiply the contrast of images at random by a factor from 1 / (1 + contrast) to 1 + contrast. Not in the paper:
    see docs/beyond.md."""
    brightness: Fraction | None = None
    """Add a random number from -brightness to brightness to all pixels of an image. Not in the paper: see
    docs/beyond.md."""
    limit: int = number(0)
    """Train only on the first `limit` images; 0 means all images."""
    hold_out: int | None = number(None, 1)
    """Number of training images that the run does not train on, but tests on instead of the test images: to choose
    between settings. They are the same in all runs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.brightness is not None:
            at_least("data.brightness", float(self.brightness), 0, most=1)
        if self.path is None and not self.in_memory:
            for key in ("resize", "mode", "split_seed"):
                if getattr(self, key) is not None:
                    raise ArgumentError(
                        f"data.{key} is {getattr(self, key)}, but data.path is not set; it has no effect"
                    )

    @property
    def in_memory(self) -> bool:
        """Whether the images were passed from Python, so that a run folder does not say where they are."""
        return self.path is None and self.digest is not None


@dataclass(frozen=True)
class Model(Section):
    """The size of the net."""

    depth: int = number(6, 1, most=1000)
    """Number of distance layers."""
    width: int = number(5120, 1, most=1_000_000)
    """Number of neurons in each hidden layer."""


@dataclass(frozen=True)
class Schedule:
    """The numbers of epochs with constant, rising and infinite p, and the range of p."""

    epochs: tuple[int, int, int] = (100, 1150, 50)
    """Numbers of epochs with constant p, with rising p and with p = inf."""
    p_start: float = 8.0
    """p in the first phase."""
    p_end: float = 1000.0
    """p at the end of the second phase."""
    snap_p: bool = False
    """Round p to even numbers, so that GPU kernels compute powers by multiplications only."""
    slopes_p: float | None = None
    """The largest p of the gradients: layers compute distances at p, but gradients at min(p, slopes_p), also at p =
    inf. Not in the paper: see docs/beyond.md. Default: gradients at p."""
    slopes_p_end: float | None = None
    """The largest p of the gradients at the end of the second phase: it changes from `slopes_p` as p does. Default:
    constant."""
    hold_lr: bool = False
    """Constant learning rate in the first phase, as in the 2021 paper; else one cosine over all phases."""
    lr_drops: tuple[float, ...] = ()
    """Fractions of the run after which the learning rate is multiplied by `lr_drop`; it is then constant in between
    instead of a cosine."""
    lr_drop: float = 0.2
    """The factor of the learning rate at each of `lr_drops`."""

    def __post_init__(self) -> None:
        self.phases()
        check_p(self.p_start, "schedule.p_start")
        if math.isinf(self.p_start):
            raise ArgumentError("schedule.p_start is inf; expected a finite number: only the third phase has p = inf")
        if not self.p_start <= self.p_end < math.inf:
            raise ArgumentError(f"schedule.p_end is {self.p_end}; expected a finite number >= p_start = {self.p_start}")
        if list(self.lr_drops) != sorted(self.lr_drops) or not all(0 < drop < 1 for drop in self.lr_drops):
            raise ArgumentError(f"schedule.lr_drops is {list(self.lr_drops)}; expected rising numbers between 0 and 1")
        if self.lr_drops and self.hold_lr:
            raise ArgumentError("schedule.hold_lr is true, but it has no effect with schedule.lr_drops")
        if not 0 < self.lr_drop <= 1:
            raise ArgumentError(f"schedule.lr_drop is {self.lr_drop}; expected a number above 0, at most 1")
        for name, value in (("slopes_p", self.slopes_p), ("slopes_p_end", self.slopes_p_end)):
            if value is not None and not 1 <= value < math.inf:
                raise ArgumentError(f"schedule.{name} is {value}; expected a finite number >= 1")
        if self.slopes_p is None and self.slopes_p_end is not None:
            raise ArgumentError(f"schedule.slopes_p_end is {self.slopes_p_end}, but schedule.slopes_p is not set")

    def phases(self) -> Phases:
        """Return the epochs as `linfnet.schedules.Phases`."""
        return Phases(*self.epochs)

    def largest_slopes_p(self, relaxed: float) -> float:
        """Return the largest p of the gradients when a fraction `relaxed` of the rise of p is complete."""
        if self.slopes_p is None:
            return math.inf
        end = self.slopes_p if self.slopes_p_end is None else self.slopes_p_end
        return self.slopes_p * (end / self.slopes_p) ** relaxed


@dataclass(frozen=True)
class Optimizer(Section):
    """Settings of Adam."""

    lr: float = number(0.03, strictly=True)
    """Learning rate of the weights at the start."""
    scale_lr_factor: float = number(0.2)
    """The learning rate of the temperature s is this factor times `lr`."""
    beta1: float = number(0.9)
    """Decay of Adam's mean of the gradients."""
    beta2: float = number(0.99)
    """Decay of Adam's mean of the squared gradients."""
    eps: float = number(1e-10)
    """Adam's constant against division by zero."""
    batch: int = number(512, 1)
    """Number of images in a batch."""
    weight_decay: float = number(0.0)
    """Strength of the weight decay of the 2021 paper, which depends on p."""
    scale_decay: float = number(0.0)
    """Decay of the temperature s, and of layers that are not distance layers, in each step, times the learning rate;
    SortNet uses 0.02."""
    clip: float = number(0.0)
    """Largest norm of the gradient of a step: longer gradients are scaled down to it; 0 means no limit."""

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
    """Seed of the initial weights, of the order of the images and of the augmentation."""
    test_every: int = number(10)
    """Number of epochs between tests at p = inf; 0 means only at the end."""
    checkpoint_minutes: float = number(5.0)
    """Maximum age of the last checkpoint in minutes; 0 means a checkpoint after every epoch."""
    checkpoint_every: int = number(0)
    """Also write a checkpoint after this many epochs; 0 means never."""
    keep_checkpoints: int = number(2, 1)
    """Number of checkpoints that are not deleted."""
    graphs: bool = True
    """On a GPU, replay CUDA graphs while p is constant; results are bitwise the same."""
    float16: bool | None = None
    """On a GPU, compute training steps at finite p in float16, which is faster. Tests and certificates are always in
    float32. Default: false."""


@dataclass(frozen=True)
class EvaluationSettings(Section):
    """The perturbations at which the net is evaluated, and the number of steps of the PGD attack."""

    eps: tuple[Fraction, ...] = (Fraction(8, 255),)
    """Largest changes of a pixel at which the net is tested, in pixel units, such as 8/255 or 0.1."""
    pgd_steps: int = number(100, 1)
    """Number of steps of the PGD attack."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.eps:
            raise ArgumentError("evaluation.eps is []; expected one or more numbers from 0 to 1")
        for eps in self.eps:
            parse_epsilon(format_epsilon(eps), "evaluation.eps")


@dataclass(frozen=True)
class Reported:
    """Published or measured accuracies in percent, and the cost. `linfnet recipes` shows them; runs do not use them."""

    source: str = ""
    """Where the accuracies come from: the paper or a file in records/."""
    clean: float = 0.0
    """Clean accuracy."""
    pgd: float = 0.0
    """Accuracy under PGD."""
    certified: float = 0.0
    """Certified accuracy."""
    cost: str = ""
    """The training budget."""


@dataclass(frozen=True)
class Recipe:
    """All settings of one training run. In `--set`, keys are `section.key`, or `key` alone if it is unambiguous."""

    name: str = "custom"
    """The name of the recipe, which is the name of its file."""
    title: str = ""
    """One line about the recipe."""
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
