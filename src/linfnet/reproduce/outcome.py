"""The outcome of a study: every finished run, and the median and range over the seeds of each cell."""

import csv
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any

from linfnet.files import replacing, write_json
from linfnet.reproduce.studies import Cell
from linfnet.results import Result, TrainingResult


@dataclass(frozen=True)
class RunOutcome:
    """One finished run: accuracies in [0, 1] at the recipe's epsilon, and what training cost."""

    label: str
    seed: int
    clean: float
    pgd: float
    certified_margin: float
    certified_interval: float
    certified_train: float | None  # of the training images, by margin; None for old runs
    above_theta: float | None  # training images with a margin above theta
    seconds: float  # of training
    epochs: int
    hardware: str
    commit: str | None
    folder: str

    @classmethod
    def of(cls, cell: Cell, folder: Path, result: Result, training: TrainingResult, **known: Any) -> "RunOutcome":
        """The outcome of a run from its evaluation and its training; `known` are hardware and commit."""
        return cls(
            label=cell.label,
            seed=training.seed,
            clean=result.clean,
            pgd=result.attacked,
            certified_margin=result.certified["margin"],
            certified_interval=result.certified["interval"],
            certified_train=training.train.certified.get(result.eps) if training.train else None,
            above_theta=training.train.above if training.train else None,
            seconds=training.seconds,
            epochs=training.epochs,
            folder=str(folder),
            **known,
        )


@dataclass(frozen=True)
class Spread:
    """The median and the range of a figure over seeds."""

    median: float
    lowest: float
    highest: float


def spreads(runs: tuple[RunOutcome, ...]) -> dict[str, Spread]:
    """The spread of each measured figure over runs that differ by their seed; empty without runs."""
    measured = ("clean", "pgd", "certified_margin", "certified_interval", "certified_train", "above_theta", "seconds")
    values = {name: [float(x) for run in runs if (x := getattr(run, name)) is not None] for name in measured}
    return {name: Spread(median(column), min(column), max(column)) for name, column in values.items() if column}


@dataclass(frozen=True)
class Outcome:
    """The finished runs of a study."""

    study: str
    scale: float
    changes: tuple[str, ...]
    test_images: int | None  # None: all
    pgd_steps: int
    cells: tuple[Cell, ...]
    runs: tuple[RunOutcome, ...]
    small: bool = False

    def of(self, cell: Cell) -> tuple[RunOutcome, ...]:
        """The finished runs of a cell."""
        return tuple(run for run in self.runs if run.label == cell.label)

    def label(self) -> str:
        """How these runs differ from the published ones, for a heading; empty if they do not."""
        parts = ["SMALL nets, not the paper's: compare the order, not the numbers"] if self.small else []
        parts += [f"SHORTENED: every phase × {self.scale:g}"] if self.scale < 1 else []
        parts += [f"changed: {' '.join(self.changes)}"] if self.changes else []
        parts += [f"first {self.test_images} test images"] if self.test_images else []
        parts += [f"PGD-{self.pgd_steps}"] if self.pgd_steps != 100 else []
        return "; ".join(parts)

    def as_json(self) -> dict[str, Any]:
        """Settings, cells, runs, and the spreads of each cell."""
        return {
            "study": self.study,
            "differs": self.label(),
            "small": self.small,
            "scale": self.scale,
            "changes": list(self.changes),
            "test_images": self.test_images,
            "pgd_steps": self.pgd_steps,
            "cells": [
                {
                    **asdict(cell),
                    "spread": {name: asdict(value) for name, value in spreads(self.of(cell)).items()},
                    "runs": [asdict(run) for run in self.of(cell)],
                }
                for cell in self.cells
            ],
        }

    def write(self, folder: Path) -> None:
        """Write `outcome.json`, and `outcome.csv` with a row for each run."""
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "outcome.json", self.as_json())
        with replacing(folder / "outcome.csv") as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [field.name for field in fields(RunOutcome)])
            writer.writeheader()
            writer.writerows(asdict(run) for run in self.runs)


def hardware_of(environment: dict[str, Any], device: str, events: list[dict[str, Any]]) -> str:
    """The processors or GPUs that trained a run, in order, joined by "then".

    Args:
        environment: the contents of env.json.
        device: that training reported: cpu, cuda, or empty in old files.
        events: the event log, whose `resume` events say what changed.
    """
    names: list[str] = []
    for changes in ({}, *(resumed["environment"] for resumed in resumptions(events))):
        session = environment | changes
        on_cpu = device == "cpu" or not session.get("gpu")
        names.append(str(session.get("cpu" if on_cpu else "gpu", "unknown")))
    return ", then ".join(dict.fromkeys(names))


def resumptions(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each time a run was resumed, the step and the changes of the environment."""
    resumed = [(event.get("step", 0), event.get("environment")) for event in events if event["event"] == "resume"]
    return [{"step": step, "environment": table if isinstance(table, dict) else {}} for step, table in resumed]
