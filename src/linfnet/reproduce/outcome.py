"""The outcome of a study: every finished run, and the median and range over the seeds of each cell."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from linfnet.files import write_json
from linfnet.reproduce.studies import Cell, Study
from linfnet.results.storage import write_columns
from linfnet.systems import SYSTEMS


@dataclass(frozen=True)
class Options:
    """The options of a study: which rows to run, how, and in which folder."""

    out: Path = Path("runs/reproduce")
    rows: tuple[str, ...] = ()  # labels of the rows to run; empty for all
    scale: float = 1.0
    seeds: int = 1
    changes: tuple[str, ...] = ()
    limit: int | None = None  # number of test images to evaluate; None for all
    steps: int = 100  # number of PGD steps
    small: bool = False  # whether `--small` was given, which the titles of tables and plots mention
    systems: tuple[str, ...] = ()  # whether rows of other systems are included: their names, or all

    def for_system(self, name: str) -> "Options":
        """Return the options for the rows of a system: `--small` has other effects on other systems."""
        if not self.small or name == "linf":
            return self
        own = self.without_preset()
        return replace(own, changes=(*SYSTEMS[name].small, *own.changes))

    def without_preset(self) -> "Options":
        """Return the options without the changes that `--small` makes to nets of `linf`."""
        own = tuple(change for change in self.changes if change not in SMALL.changes)
        return replace(self, changes=own, scale=1.0 if self.scale == SMALL.scale else self.scale)

    @property
    def prefix(self) -> str:
        """The part of a run folder's name before the seed."""
        return f"scale-{self.scale:g}-seed-" if self.scale < 1 else "seed-"


# The options of `--small`, for minutes on a CPU: narrow nets, few images, short schedules.
SMALL = Options(
    scale=0.03,
    changes=(
        "model.depth=4",
        "model.width=128",
        "data.limit=5000",
        "optimizer.batch=128",
        "schedule.snap_p=true",
        "run.test_every=0",
    ),
    steps=10,
    small=True,
)
SMALL_NETS = "SMALL nets, not the paper's: accuracies and their order can differ from the paper's"


@dataclass(frozen=True)
class RunOutcome:
    """One finished run: accuracies in [0, 1] at the recipe's epsilon, and the cost of training."""

    label: str
    seed: int
    clean: float
    pgd: float
    certified_margin: float | None  # None for systems without this certificate
    certified_interval: float | None
    certified_train: float | None  # certified accuracy on training images, by margin; None for old runs
    above_theta: float | None  # share of training images with a margin above theta
    seconds: float  # duration of training, in seconds
    epochs: int
    hardware: str
    commit: str | None
    folder: str
    system: str = "linf"
    certified: float | None = None  # by the best certificate of the net
    certify_seconds: float | None = None  # per image, by that certificate
    arithmetic: str = "float32"


# The fields of `RunOutcome` that the tables of test results, of other systems and of training results show, in order.
TEST_FIGURES = ("clean", "pgd", "certified_margin", "certified_interval")
SYSTEM_FIGURES = ("clean", "pgd", "certified", "certify_seconds")
TRAINING_FIGURES = ("clean", "certified_margin", "certified_train", "above_theta")


class Spread(NamedTuple):
    """The median and the range of a metric over the seeds."""

    median: float
    lowest: float
    highest: float


def spreads(runs: Sequence[RunOutcome]) -> dict[str, Spread]:
    """Return the spread of each figure over runs that differ only in their seed; empty if there are no runs."""
    measured = dict.fromkeys((*TEST_FIGURES, *TRAINING_FIGURES, *SYSTEM_FIGURES, "seconds"))
    values = {name: [float(x) for run in runs if (x := getattr(run, name)) is not None] for name in measured}
    return {name: Spread(median(column), min(column), max(column)) for name, column in values.items() if column}


@dataclass(frozen=True)
class Outcome:
    """The finished runs of a study."""

    study: Study
    options: Options
    runs: tuple[RunOutcome, ...]

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cells that the options select, and all other cells that have finished runs."""
        shown = {cell.label for cell in self.study.rows(self.options.rows)} | {run.label for run in self.runs}
        return tuple(cell for cell in self.study.cells if cell.label in shown)

    def of(self, cell: Cell) -> list[RunOutcome]:
        """Return the finished runs of a cell."""
        return [run for run in self.runs if run.label == cell.label]

    @property
    def differs(self) -> str:
        """A description of how these runs differ from the published ones; empty if they do not."""
        options = self.options
        parts = [SMALL_NETS] if options.small else []
        if options.small and options.systems:
            options = options.without_preset()  # each system has its own; the recipes in the run folders show them
        parts += [f"SHORTENED: every phase × {options.scale:g}"] if options.scale < 1 else []
        parts += [f"changed: {' '.join(options.changes)}"] if options.changes else []
        parts += [f"first {options.limit} test images"] if options.limit else []
        parts += [f"PGD-{options.steps}"] if options.steps != 100 else []
        return "; ".join(parts)

    @property
    def title(self) -> str:
        """The title of the study and, on a second line, how these runs differ from the published ones."""
        return "\n".join(filter(None, (self.study.title, self.differs)))

    def write(self) -> None:
        """Write `outcome.json`, and `outcome.csv` with one row for each run."""
        options = self.options
        options.out.mkdir(parents=True, exist_ok=True)
        table = {
            "study": self.study.name,
            "differs": self.differs,
            "small": options.small,
            "scale": options.scale,
            "changes": options.changes,
            "test_images": options.limit,
            "pgd_steps": options.steps,
            "cells": [
                {
                    **asdict(cell),
                    "spread": {name: value._asdict() for name, value in spreads(self.of(cell)).items()},
                    "runs": [asdict(run) for run in self.of(cell)],
                }
                for cell in self.cells
            ],
        }
        write_json(options.out / "outcome.json", table)
        columns = {field.name: [getattr(run, field.name) for run in self.runs] for field in fields(RunOutcome)}
        write_columns(options.out / "outcome.csv", columns)


def hardware_of(environment: dict[str, Any], device: str, events: list[dict[str, Any]]) -> str:
    """Return the names of the processors or GPUs that trained a run, in order of use.

    `environment` is the content of env.json; `device` is the device that results.json reports, empty in old files.
    """
    sessions = [environment | changes for changes in ({}, *(event["environment"] for event in resumptions(events)))]
    kinds = ["cpu" if device == "cpu" or not session.get("gpu") else "gpu" for session in sessions]
    names = (str(session.get(kind, "unknown")) for session, kind in zip(sessions, kinds, strict=True))
    return ", then ".join(dict.fromkeys(names))


def resumptions(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the step and the changes of the environment for each time a run was resumed."""
    resumed = (event for event in events if event["event"] == "resume")
    return [{"step": event.get("step", 0), "environment": event.get("environment") or {}} for event in resumed]
