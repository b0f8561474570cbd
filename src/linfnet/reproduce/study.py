"""A study: a table of the paper as data, each cell a recipe, what is changed in it, and what was published for it."""

from dataclasses import dataclass, replace
from typing import Literal

from linfnet.errors import ArgumentError
from linfnet.recipes import Recipe, load_recipe


@dataclass(frozen=True)
class Figures:
    """Published accuracies in percent; None where none was given."""

    clean: float | None = None
    pgd: float | None = None
    certified: float | None = None
    certified_train: float | None = None  # on the training images
    above_theta: float | None = None  # training images with a margin above theta
    deviation: tuple[float, float] | None = None  # of clean and certified over the runs


@dataclass(frozen=True)
class Cell:
    """One setting of a study; its label is the name of its folder, too."""

    label: str
    recipe: str
    changes: tuple[str, ...] = ()  # key=value, as after --set
    paper: Figures = Figures()
    log: Figures = Figures()  # the log that the authors released
    # Where the cell stands in the study's drawing: on which line, and where along the axis.
    line: str = ""
    at: float | None = None

    def build(self, changes: tuple[str, ...] = (), scale: float = 1.0) -> Recipe:
        """The recipe of the cell, with further changes, its schedule scaled."""
        return scaled(load_recipe(self.recipe, [*self.changes, *changes]), scale)


@dataclass(frozen=True)
class Study:
    """Several cells that are read side by side."""

    name: str
    title: str
    cells: tuple[Cell, ...]
    drawing: Literal["bars", "lines", "map"] = "bars"
    axis: str = ""  # what lies along it
    on_train: bool = False  # whether the training images are looked at, too

    def __post_init__(self) -> None:
        labels = [cell.label for cell in self.cells]
        if len(set(labels)) < len(labels) or any("/" in label for label in labels):
            raise ArgumentError(f"the labels of {self.name} are {labels}; wanted names of folders, all different")

    def rows(self, labels: tuple[str, ...] = ()) -> tuple[Cell, ...]:
        """The cells of those labels, all if none is given."""
        known = {cell.label: cell for cell in self.cells}
        for label in labels:
            if label not in known:
                raise ArgumentError(f"--row is {label!r}; {self.name} has {', '.join(known)}")
        return tuple(cell for cell in self.cells if not labels or cell.label in labels)


@dataclass(frozen=True)
class Small:
    """The trend on a CPU in minutes: narrow nets, few images, short schedules. Not the paper's nets."""

    changes: tuple[str, ...] = (
        "model.depth=4",
        "model.width=128",
        "data.limit=5000",
        "optimizer.batch=128",
        "schedule.snap_p=true",
        "run.test_every=0",
    )
    scale: float = 0.03
    steps: int = 10  # of PGD, on all test images


SMALL = Small()


def scaled(recipe: Recipe, scale: float) -> Recipe:
    """The recipe with each of its three phases shortened by the same factor, to one epoch at least.

    >>> scaled(load_recipe("cifar10-8"), 0.1).schedule.epochs
    (10, 115, 5)
    """
    if not 0 < scale <= 1:
        raise ArgumentError(f"--scale is {scale:g}; wanted a number above 0, at most 1")
    start, rise, infinite = (max(1, round(scale * epochs)) if epochs else 0 for epochs in recipe.schedule.epochs)
    return replace(recipe, schedule=replace(recipe.schedule, epochs=(start, rise, infinite)))
