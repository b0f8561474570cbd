"""The tables of the paper as data: a cell has a recipe, changes to the recipe, and published accuracies."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Literal

from linfnet.errors import ArgumentError, nearest
from linfnet.recipes import Recipe, load_recipe, recipe_names
from linfnet.systems import SYSTEMS

# What `reported.source` of a recipe says for figures of the paper.
PAPER = "the paper"


@dataclass(frozen=True)
class Figures:
    """Published accuracies in percent; None if a number was not published."""

    clean: float | None = None
    pgd: float | None = None
    certified: float | None = None
    certified_train: float | None = None  # certified accuracy on the training images
    above_theta: float | None = None  # share of training images with a margin above theta
    deviation: tuple[float, float] | None = None  # standard deviations of clean and certified accuracy over the runs


@dataclass(frozen=True)
class Cell:
    """One setting of a study; its label is also the name of its folder."""

    label: str
    recipe: str
    changes: tuple[str, ...] = ()  # key=value, as after --set
    paper: Figures = Figures()
    log: Figures = Figures()  # accuracies from the log that the authors released
    # The position in the study's plot: the name of the line, and the coordinate along the axis.
    line: str = ""
    at: float = 0.0

    def build(self, changes: tuple[str, ...] = (), scale: float = 1.0) -> Recipe:
        """Build the recipe of the cell with further changes and a scaled schedule."""
        return scaled(load_recipe(self.recipe, [*self.changes, *changes]), scale)


@dataclass(frozen=True)
class Study:
    """A table of cells to compare."""

    name: str
    title: str
    cells: tuple[Cell, ...]
    drawing: Literal["bars", "lines", "map"] = "bars"
    axis: str = ""  # label of the x axis
    on_train: bool = True  # whether the table shows results on the training images

    def rows(self, labels: tuple[str, ...] = ()) -> tuple[Cell, ...]:
        """Return the cells with these labels, or all cells if no label is given."""
        known = [cell.label for cell in self.cells]
        for label in labels:
            if label not in known:
                raise ArgumentError(f"--row is {label!r}; {self.name} has {', '.join(known)}")
        return tuple(cell for cell in self.cells if not labels or cell.label in labels)


def scaled(recipe: Recipe, scale: float) -> Recipe:
    """Shorten each of the three phases of a recipe by the same factor, to at least one epoch.

    >>> scaled(load_recipe("cifar10-8"), 0.1).schedule.epochs
    (10, 115, 5)
    """
    if not 0 < scale <= 1:
        raise ArgumentError(f"--scale is {scale:g}; expected a number above 0, at most 1")
    start, rise, infinite = (max(1, round(scale * epochs)) if epochs else 0 for epochs in recipe.schedule.epochs)
    return replace(recipe, schedule=replace(recipe.schedule, epochs=(start, rise, infinite)))


def differing_sections(first: Recipe, second: Recipe) -> list[str]:
    """Return the sections in which two recipes differ, apart from their names and reported figures.

    >>> differing_sections(load_recipe("cifar10-8"), load_recipe("cifar10-8", ["lr=0.01"]))
    ['optimizer']
    """
    names = (field.name for field in fields(Recipe) if field.name not in ("name", "title", "reported"))
    return [name for name in names if getattr(first, name) != getattr(second, name)]


# Most studies vary the training on CIFAR-10 at 8/255.
RECIPE, RECIPE_2021 = "cifar10-8", "cifar10-8-2021"


def _cell(label: str, clean: float | None, certified: float | None, *changes: str) -> Cell:
    return Cell(label, RECIPE, changes, Figures(clean, None, certified))


def _mixing(start: float, end: float) -> tuple[str, str]:
    return f"loss.mixing_start={start}", f"loss.mixing_end={end}"


TABLE1 = Study(
    "table1",
    "the paper's main table: clean, PGD-100 and certified accuracy",
    tuple(
        Cell(recipe, recipe, (), Figures(*paper), Figures(*log))
        for recipe, paper, log in (
            ("mnist-0.1", (98.93, 98.03, 97.95), (98.85, 98.10, 97.96)),
            ("mnist-0.3", (98.56, 94.73, 93.20), (98.49, 94.78, 93.31)),
            ("cifar10-2", (60.61, 54.28, 54.12), (60.81, 54.67, 54.31)),
            ("cifar10-8", (54.30, 41.84, 40.06), (54.21, 42.28, 40.13)),
            ("cifar10-16", (48.50, 32.73, 29.04), (48.58, 32.91, 29.17)),
        )
    ),
    on_train=False,
)


def table1_with(systems: Sequence[str]) -> Study:
    """Return the paper's main table with the rows of other systems: the recipes that report figures of the paper.

    Args:
        systems: names of systems, or `all`.

    >>> [cell.label for cell in table1_with(["hybrid"]).cells]
    ['mnist-0.1', 'mnist-0.3-hybrid', 'mnist-0.3', 'cifar10-2', 'cifar10-8-hybrid', 'cifar10-8', 'cifar10-16']
    """
    subjects = {_subject(load_recipe(own.recipe)) for own in TABLE1.cells}
    reported = [recipe for recipe in map(load_recipe, recipe_names()) if recipe.reported.source == PAPER]
    others = [recipe for recipe in reported if _subject(recipe) in subjects]
    known = ["all", *sorted({recipe.system_name for recipe in others})]
    for name in systems:
        if name not in known:
            why = " without a row in the paper's table" if name in SYSTEMS else ""
            raise ArgumentError(
                f"--systems is {name!r}{why}; expected some of {', '.join(known)}{nearest(name, known)}"
            )
    chosen = [recipe for recipe in others if "all" in systems or recipe.system_name in systems]
    cells: list[Cell] = []
    for own in TABLE1.cells:
        of_row = load_recipe(own.recipe)
        for recipe in chosen:
            found = recipe.reported
            if _subject(recipe) == _subject(of_row) and recipe.name != own.recipe:
                paper = Figures(found.clean or None, found.pgd or None, found.certified or None)
                cells.append(Cell(recipe.name, recipe.name, (), paper))
        cells.append(own)
    return replace(TABLE1, cells=tuple(cells))


def _subject(recipe: Recipe) -> tuple[str, Fraction]:
    return recipe.data.name, recipe.evaluation.eps[0]


ABLATION = Study(
    "ablation",
    "five objectives, CIFAR-10 at 8/255 (the paper gives one result for (1) and for the training of 2021)",
    (
        _cell("1-hinge", 56.80, 33.30, "loss.name=hinge", "loss.theta=80/255"),
        Cell("1-trained-as-2021", RECIPE_2021, (), Figures(56.80, None, 33.30)),
        _cell("2-cross-entropy", 55.58, 33.23, "loss.name=cross_entropy"),
        _cell("3-with-threshold", 53.37, 34.91, "loss.name=thresholded_cross_entropy", "loss.theta=32/255"),
        _cell("4-mixture-fixed", 53.51, 39.24, *_mixing(0.02, 0.02)),
        _cell("5-mixture-decaying", 54.30, 40.06),
        _cell("clipped-hinge-alone", 10.0, 10.0, *_mixing(0, 0)),
    ),
)

# Clean and certified accuracy, and their standard deviations over five runs.
_LAMBDA = {
    0.1: (58.99, 37.67, (0.35, 0.25)),
    0.05: (56.50, 38.82, (0.25, 0.14)),
    0.02: (53.51, 39.24, (0.40, 0.37)),
    0.01: (50.48, 38.05, (1.83, 1.31)),
    0.005: (47.51, 37.03, (5.03, 2.64)),
    0.0: (10.0, 10.0, None),
}
LAMBDA = Study(
    "lambda",
    "a fixed mixing coefficient λ, CIFAR-10 at 8/255",
    tuple(
        Cell(f"lambda-{m:g}", RECIPE, _mixing(m, m), Figures(clean, None, certified, deviation=deviation), at=m)
        for m, (clean, certified, deviation) in _LAMBDA.items()
    ),
    drawing="lines",
    axis="λ",
)

# Certified accuracy on test images and, where published, on training images, for theta from 3 to 10 times epsilon.
_TEST = (35.23, 38.47, 39.55, 40.06, 39.46, 39.05, 38.68, 38.31)
_TRAIN = (None, None, 48.03, 46.66, 45.42, 43.69, None, None)
_MIXTURE = [Figures(certified=test, certified_train=train) for test, train in zip(_TEST, _TRAIN, strict=True)]
# For hinge alone, the paper plots curves, and gives numbers only for the threshold of 2021.
_HINGE = [*[Figures()] * 7, Figures(56.80, None, 33.30, above_theta=1.62)]
THETA = Study(
    "theta",
    "the hinge threshold θ, CIFAR-10 at 8/255: the mixture, and hinge alone as trained in 2021",
    tuple(
        Cell(f"{line.split()[0]}-{times}eps", recipe, (f"loss.theta={8 * times}/255",), paper, line=line, at=times)
        for line, recipe, row in (("mixture", RECIPE, _MIXTURE), ("hinge alone", RECIPE_2021, _HINGE))
        for times, paper in enumerate(row, 3)
    ),
    drawing="lines",
    axis="θ / ε",
)

_ENDS = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3)
_GRID = {
    0.02: (39.47, 39.92, 39.80, 39.43, 39.79),
    0.05: (39.29, 39.50, 39.57, 39.97, 39.76),
    0.1: (39.96, 39.96, 40.06, 39.80, 39.49),
    0.2: (39.80, 39.42, 39.12, 39.22, 39.12),
}
GRID = Study(
    "grid",
    "the ends of the decaying mixing coefficient, λ0 and λend, CIFAR-10 at 8/255",
    tuple(
        replace(_cell(f"{start:g}-to-{end:g}", None, certified, *_mixing(start, end)), line=f"λ0 = {start:g}", at=end)
        for start, row in _GRID.items()
        for end, certified in zip(_ENDS, row, strict=True)
    ),
    drawing="map",
    axis="λend",
)

BUDGET = Study(
    "budget",
    "the number of epochs, CIFAR-10 at 8/255",
    (
        _cell("1300-epochs", 54.30, 40.06),
        _cell("800-epochs", 54.52, 39.61, "schedule.epochs=[100, 650, 50]"),
    ),
)

# The paper's text gives only rounded figures: 39.5 % for both neighbours of beta2 = 0.99, and "almost identical"
# results for smaller eps.
ADAM = Study(
    "adam",
    "Adam's β2 and ε, CIFAR-10 at 8/255",
    (
        _cell("beta2-0.98", None, 39.5, "optimizer.beta2=0.98"),
        _cell("beta2-0.99-eps-1e-10", 54.30, 40.06),
        _cell("beta2-0.995", None, 39.5, "optimizer.beta2=0.995"),
        _cell("beta2-0.999", None, None, "optimizer.beta2=0.999"),
        *(_cell(f"eps-{eps}", None, None, f"optimizer.eps={eps}") for eps in ("1e-8", "1e-11", "1e-12")),
    ),
)

STUDIES: dict[str, Study] = {study.name: study for study in (TABLE1, ABLATION, LAMBDA, THETA, GRID, BUDGET, ADAM)}
