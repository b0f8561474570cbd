"""Run a study: each cell and seed in its own folder; finished runs stay, interrupted ones are resumed."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from linfnet.data import load
from linfnet.errors import ArgumentError, LinfnetError, at_least
from linfnet.files import read_table
from linfnet.recipes import Recipe
from linfnet.reproduce.outcome import Outcome, RunOutcome, hardware_of
from linfnet.reproduce.studies import Cell, Study, differing_sections
from linfnet.results import AttackSettings, Result, Results, read_results
from linfnet.systems import system_of
from linfnet.train import RunFolder, StoppedError, UnwritableError


@dataclass(frozen=True)
class Options:
    """Which part of a study is run, how, and in which folder."""

    out: Path
    rows: tuple[str, ...] = ()  # labels; empty for all
    scale: float = 1.0
    seeds: int = 1
    changes: tuple[str, ...] = ()
    limit: int | None = None  # test images for the evaluation
    steps: int = 100  # of PGD
    small: bool = False  # whether `--small` was given; the outcome says so

    @property
    def prefix(self) -> str:
        """The name of a run's folder up to its seed."""
        return f"scale-{self.scale:g}-seed-" if self.scale < 1 else "seed-"


class Workers(Protocol):
    """Trains and evaluates one run; the command line shows progress meanwhile."""

    def start(self, recipe: Recipe, path: Path) -> None:
        """Train in a new folder."""
        ...

    def resume(self, folder: RunFolder) -> None:
        """Resume training from the last checkpoint."""
        ...

    def evaluate(self, folder: RunFolder, limit: int | None, steps: int) -> None:
        """Add the test results of a trained net to its results.json."""
        ...


@dataclass(frozen=True)
class PlannedRun:
    """One cell with one seed."""

    cell: Cell
    recipe: Recipe
    path: Path

    @classmethod
    def of(cls, cell: Cell, recipe: Recipe, seed: int, options: Options) -> "PlannedRun":
        """The run of a cell's recipe with a seed."""
        seeded = replace(recipe, run=replace(recipe.run, seed=seed))
        return cls(cell, seeded, options.out / cell.label / f"{options.prefix}{seed}")

    def evaluation(self, results: Results, options: Options) -> Result | None:
        """The result of the evaluation that the options ask for, or None."""
        data, eps = self.recipe.data.name, self.recipe.evaluation.eps[0]
        return results.find(data, eps, limit=options.limit, attack=AttackSettings("pgd", options.steps))


def plan(study: Study, options: Options) -> list[PlannedRun]:
    """All runs that the options ask for, ordered by seed, so that each cell has its first result early."""
    at_least("--seeds", options.seeds, 1)
    recipes = [(cell, cell.build(options.changes, options.scale)) for cell in study.rows(options.rows)]
    for cell, recipe in recipes:
        _check_changes(study, cell, recipe, options)
    return [
        PlannedRun.of(cell, recipe, recipe.run.seed + more, options)
        for more in range(options.seeds)
        for cell, recipe in recipes
    ]


def _check_changes(study: Study, cell: Cell, recipe: Recipe, options: Options) -> None:
    """Changes of all rows must not override those of a cell: its figures would not match its label."""
    expected = replace(cell, changes=(*options.changes, *cell.changes)).build(scale=options.scale)
    for section in differing_sections(recipe, expected):
        if section != "run":
            raise ArgumentError(
                f"--set overrides keys of [{section}] that define row {cell.label} of {study.name}; wanted other keys"
            )
    if recipe.system_name != "linf":
        raise ArgumentError(f"--set system.name is {recipe.system_name!r}; wanted 'linf', the system of all studies")
    system_of(recipe)  # raises an error for unknown keys of [system]


def run_study(study: Study, options: Options, workers: Workers, note: Callable[[str], None]) -> Outcome:
    """Run the unfinished runs of a study and collect the results of all.

    Finished runs of other rows stay in the outcome. If a run fails, the others are still run; if none succeeds, the
    first error is raised. The outcome is written after each run.

    Args:
        study: the table to run.
        options: which rows, how, and where.
        workers: train and evaluate.
        note: is called with a line about each run.
    """
    planned = plan(study, options)
    _check_study(study, options)
    for name in sorted({run.recipe.data.name for run in planned}):
        load(name, "test")  # missing data are reported before hours of training
    for run in planned:
        _check_recipe(run)
    runs: list[RunOutcome] = []
    outcome: Outcome | None = None
    failures: list[LinfnetError] = []
    for number, run in enumerate(planned, 1):
        name = f"{number}/{len(planned)} {run.cell.label}, seed {run.recipe.run.seed}"
        if not (run.path / "results.json").is_file():
            note(f"{name}: training in {run.path}")
        try:
            done = _finish(run, options, workers)
            runs.append(gather(run, options))
        except StoppedError as stopped:
            step = str(stopped).split(";")[0]
            raise StoppedError(f"{name}: {step}; the same command resumes it") from None
        except UnwritableError:
            raise  # the next run would fail for the same reason
        except LinfnetError as error:
            note(f"{name}: failed: {error}")
            failures.append(error)
            continue
        note(f"{name}: {done}")
        outcome = _outcome(study, options, runs)
        outcome.write(options.out)
    if outcome is None:
        raise failures[0]
    return outcome


def _check_study(study: Study, options: Options) -> None:
    """A folder holds one study: the outcome of another is not overwritten, an unreadable one is."""
    name: Any = study.name
    with contextlib.suppress(LinfnetError):
        name = read_table(options.out / "outcome.json").get("study")
    if name != study.name:
        raise LinfnetError(f"{options.out} holds the outcome of {name}, not of {study.name}; choose another --out")


def _outcome(study: Study, options: Options, runs: list[RunOutcome]) -> Outcome:
    """The runs so far and those of other rows, read again: other processes may have finished some meanwhile."""
    chosen = study.rows(options.rows)
    others = [run for cell in study.cells if cell not in chosen for run in _finished(study, cell, options)]
    labels = {run.label for run in others}
    cells = tuple(cell for cell in study.cells if cell in chosen or cell.label in labels)
    settings = (options.scale, options.changes, options.limit, options.steps)
    return Outcome(study.name, *settings, cells, (*others, *runs), options.small)


def _finished(study: Study, cell: Cell, options: Options) -> list[RunOutcome]:
    """The finished runs of a row that was not chosen, with any seed; other folders are ignored."""
    runs: list[RunOutcome] = []
    folders = (options.out / cell.label).glob(f"{options.prefix}*")
    seeds = {int(name) for path in folders if (name := path.name.removeprefix(options.prefix)).isdecimal()}
    with contextlib.suppress(LinfnetError):  # the changes do not apply to this row
        recipe = cell.build(options.changes, options.scale)
        _check_changes(study, cell, recipe, options)
        for seed in sorted(seeds):
            with contextlib.suppress(LinfnetError):
                run = PlannedRun.of(cell, recipe, seed, options)
                # How often a run was tested or saved does not change its results.
                settings = replace(RunFolder.open(run.path).recipe.run, seed=seed)
                run = replace(run, recipe=replace(run.recipe, run=settings))
                _check_recipe(run)
                runs.append(gather(run, options))
    return runs


def _finish(run: PlannedRun, options: Options, workers: Workers) -> str:
    """Train and evaluate as far as that is missing; return words for what was done."""
    done = "resumed" if (run.path / "recipe.toml").is_file() else "trained"
    if done == "trained":
        workers.start(run.recipe, run.path)
    folder = RunFolder.open(run.path)
    if not folder.finished:
        workers.resume(folder)
    elif done == "resumed":
        done = "already finished"
    if run.evaluation(read_results(run.path), options) is None:
        workers.evaluate(folder, options.limit, options.steps)
        done += ", evaluated"
    return done


def _check_recipe(run: PlannedRun) -> None:
    """A folder holds one recipe: its results must not be taken for those of another."""
    if (run.path / "recipe.toml").is_file():
        for section in differing_sections(RunFolder.open(run.path).recipe, run.recipe):
            raise LinfnetError(f"{run.path} holds a run with other settings in [{section}]; choose another --out")


def gather(run: PlannedRun, options: Options) -> RunOutcome:
    """The outcome of a finished run, from its folder."""
    results, environment = read_results(run.path), read_table(run.path / "env.json")
    result, training = run.evaluation(results, options), results.training
    if result is None or training is None:
        missing = "training" if training is None else "the evaluation"
        raise LinfnetError(f"{run.path / 'results.json'} lacks the results of {missing}")
    hardware = hardware_of(environment, training.device, RunFolder.open(run.path).events())
    return RunOutcome.of(run.cell, run.path, result, training, hardware=hardware, commit=environment.get("commit"))
