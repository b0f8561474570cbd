"""What a study gave: every run, and the median and range over the seeds of each cell."""

import csv
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from linfnet.files import replacing, write_json
from linfnet.reproduce.study import Cell

MEASURED = ("clean", "pgd", "certified_margin", "certified_interval", "certified_train", "above_theta", "seconds")


@dataclass(frozen=True)
class RunOutcome:
    """One finished run: accuracies in [0, 1] at the recipe's epsilon, and what it took."""

    label: str
    seed: int
    clean: float
    pgd: float
    certified_margin: float
    certified_interval: float
    certified_train: float | None  # of the training images, by margin; None for runs that did not look
    above_theta: float | None  # training images with a margin above theta
    seconds: float  # of training
    epochs: int
    hardware: str
    commit: str | None
    folder: str


@dataclass(frozen=True)
class Spread:
    """The median and the range of a figure over seeds."""

    median: float
    lowest: float
    highest: float


@dataclass(frozen=True)
class Outcome:
    """A study as far as it has come."""

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
        parts = ["SMALL nets, not the paper's: look at the order, not at the numbers"] if self.small else []
        parts += [f"SHORTENED: every phase × {self.scale:g}"] if self.scale < 1 else []
        parts += [f"changed: {' '.join(self.changes)}"] if self.changes else []
        parts += [f"first {self.test_images} test images"] if self.test_images else []
        parts += [f"PGD-{self.pgd_steps}"] if self.pgd_steps != 100 else []
        return "; ".join(parts)

    def as_json(self) -> dict[str, Any]:
        """Everything, with the spreads of each cell."""
        cells = [
            {
                **asdict(cell),
                "spread": {name: asdict(value) for name, value in spreads(self.of(cell)).items()},
                "runs": [asdict(run) for run in self.of(cell)],
            }
            for cell in self.cells
        ]
        settings = {"scale": self.scale, "changes": list(self.changes), "test_images": self.test_images}
        return {
            "study": self.study,
            "differs": self.label(),
            "small": self.small,
            **settings,
            "pgd_steps": self.pgd_steps,
            "cells": cells,
        }

    def write(self, folder: Path) -> None:
        """Write `outcome.json`, and `outcome.csv` with a row for each run."""
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "outcome.json", self.as_json())
        names = list(RunOutcome.__dataclass_fields__)
        with replacing(folder / "outcome.csv") as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(asdict(run) for run in self.runs)


def spreads(runs: tuple[RunOutcome, ...]) -> dict[str, Spread]:
    """The spread of each measured figure over runs that differ by their seed; nothing for no run."""
    values = {name: [float(x) for run in runs if (x := getattr(run, name)) is not None] for name in MEASURED}
    return {name: Spread(median(column), min(column), max(column)) for name, column in values.items() if column}
