"""Runs a study: each cell and seed in a folder of its own; what is finished stays, what was interrupted goes on."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from linfnet.data import load
from linfnet.epsilon import format_epsilon
from linfnet.errors import ArgumentError, LinfnetError, at_least
from linfnet.evaluation import result_key
from linfnet.files import read_table
from linfnet.recipes import Recipe
from linfnet.reproduce.hardware import hardware_of
from linfnet.reproduce.outcome import Outcome, RunOutcome
from linfnet.reproduce.study import Cell, Study
from linfnet.systems import system_of
from linfnet.train import RunFolder, StoppedError, UnwritableError, read_results


@dataclass(frozen=True)
class Options:
    """How much of a study is run, and where."""

    out: Path
    rows: tuple[str, ...] = ()  # labels; none: all
    scale: float = 1.0
    seeds: int = 1
    changes: tuple[str, ...] = ()
    limit: int | None = None  # test images for the evaluation
    steps: int = 100  # of PGD
    small: bool = False  # whether the changes are those of `--small`: the outcome says so


class Workers(Protocol):
    """Who trains and evaluates one run; the command line shows progress while it does."""

    def start(self, recipe: Recipe, path: Path) -> None:
        """Train into a new folder."""
        ...

    def resume(self, folder: RunFolder) -> None:
        """Train on from the last checkpoint."""
        ...

    def evaluate(self, folder: RunFolder, limit: int | None, steps: int) -> None:
        """Put the test figures of a trained net into its results.json."""
        ...


@dataclass(frozen=True)
class PlannedRun:
    """One cell with one seed."""

    cell: Cell
    recipe: Recipe
    path: Path


def plan(study: Study, options: Options) -> list[PlannedRun]:
    """All runs that the options ask for: seed by seed, so that the first row of every cell comes early."""
    at_least("--seeds", options.seeds, 1)
    runs: list[PlannedRun] = []
    recipes = [(cell, cell.build(options.changes, options.scale)) for cell in study.rows(options.rows)]
    for cell, recipe in recipes:
        _check_changes(study, cell, recipe, options)
    for more in range(options.seeds):
        runs += (_planned(cell, recipe, recipe.run.seed + more, options) for cell, recipe in recipes)
    return runs


def _planned(cell: Cell, recipe: Recipe, seed: int, options: Options) -> PlannedRun:
    seeded = replace(recipe, run=replace(recipe.run, seed=seed))
    return PlannedRun(cell, seeded, options.out / cell.label / f"{_prefix(options)}{seed}")


def _prefix(options: Options) -> str:
    """How the name of a run's folder begins, before its seed."""
    return f"scale-{options.scale:g}-seed-" if options.scale < 1 else "seed-"


def _check_changes(study: Study, cell: Cell, recipe: Recipe, options: Options) -> None:
    """What is changed in all rows must leave them what their labels say, or a figure would stand beside another's."""
    kept = replace(cell, changes=(*options.changes, *cell.changes)).build(scale=options.scale)
    for section in ("data", "model", "loss", "schedule", "optimizer", "evaluation"):
        if getattr(recipe, section) != getattr(kept, section):
            raise ArgumentError(
                f"--set changes in [{section}] what row {cell.label} of {study.name} stands for; wanted other keys"
            )
    if recipe.system_name != "linf":
        raise ArgumentError(f"--set system.name is {recipe.system_name!r}; wanted 'linf': studies are of no other")
    system_of(recipe)  # it has no keys of its own


def run_study(study: Study, options: Options, workers: Workers, note: Callable[[str], None]) -> Outcome:
    """Run what is not yet finished, and gather all of it; `note` is told what happens to each run.

    Finished runs of rows that were not asked for stay in the outcome. A run that fails is noted and the others go on;
    if none succeeds, the first failure is raised. The outcome is written after each run.
    """
    planned = plan(study, options)
    _check_study(study, options)
    for name in sorted({run.recipe.data.name for run in planned}):
        load(name, "test")  # missing data are told before the first hour of work
    for run in planned:
        _check_recipe(run)
    runs: list[RunOutcome] = []
    outcome: Outcome | None = None
    failures: list[LinfnetError] = []
    for number, run in enumerate(planned, 1):
        place = f"{number}/{len(planned)} {run.cell.label}, seed {run.recipe.run.seed}"
        if not (run.path / "results.json").is_file():
            note(f"{place}: training in {run.path}")
        try:
            done = _finish(run, options, workers)
            gathered = gather(run, options)
        except StoppedError as stopped:
            step = str(stopped).split(";")[0]
            raise StoppedError(f"{place}: {step}; the same command goes on from there") from None
        except UnwritableError:
            raise  # the next run would not fare better
        except LinfnetError as error:
            note(f"{place}: failed: {error}")
            failures.append(error)
            continue
        note(f"{place}: {done}")
        runs.append(gathered)
        outcome = _outcome(study, options, runs)
        outcome.write(options.out)
    if outcome is None:
        raise failures[0]
    return outcome


def _check_study(study: Study, options: Options) -> None:
    """One folder, one study: its outcome must not write over another's. One that cannot be read is made anew."""
    found: Any = study.name
    with contextlib.suppress(LinfnetError):
        found = read_table(options.out / "outcome.json").get("study")
    if found != study.name:
        raise LinfnetError(f"{options.out} holds the outcome of {found}, not of {study.name}; choose another --out")


def _outcome(study: Study, options: Options, runs: list[RunOutcome]) -> Outcome:
    """The runs so far and, read anew, those of other rows: other processes may have finished some meanwhile."""
    asked = study.rows(options.rows)
    kept = [run for cell in study.cells if cell not in asked for run in _kept(study, cell, options)]
    labels = {run.label for run in kept}
    cells = tuple(cell for cell in study.cells if cell in asked or cell.label in labels)
    settings = (options.scale, options.changes, options.limit, options.steps)
    return Outcome(study.name, *settings, cells, (*kept, *runs), options.small)


def _kept(study: Study, cell: Cell, options: Options) -> list[RunOutcome]:
    """The finished runs of a row that was not asked for, whatever their seeds; any other folder counts as not there."""
    kept: list[RunOutcome] = []
    prefix = _prefix(options)
    names = (path.name.removeprefix(prefix) for path in (options.out / cell.label).glob(f"{prefix}*"))
    with contextlib.suppress(LinfnetError):  # the changes do not suit this row
        recipe = cell.build(options.changes, options.scale)
        _check_changes(study, cell, recipe, options)
        for seed in sorted({int(name) for name in names if name.isdecimal()}):
            with contextlib.suppress(LinfnetError):
                run = _planned(cell, recipe, seed, options)
                # How often it was tested or saved on its way leaves the figures of a finished run alone.
                way = replace(RunFolder.open(run.path).recipe.run, seed=seed)
                run = replace(run, recipe=replace(run.recipe, run=way))
                _check_recipe(run)
                kept.append(gather(run, options))
    return kept


def _finish(run: PlannedRun, options: Options, workers: Workers) -> str:
    """Train and evaluate as far as that is still to be done; the words say what was."""
    done = "resumed" if (run.path / "recipe.toml").is_file() else "trained"
    if done == "trained":
        workers.start(run.recipe, run.path)
    folder = RunFolder.open(run.path)
    if not folder.finished:
        workers.resume(folder)
    elif done == "resumed":
        done = "kept"
    if _key(run, options) not in read_results(run.path):
        workers.evaluate(folder, options.limit, options.steps)
        done += ", evaluated"
    return done


def _check_recipe(run: PlannedRun) -> None:
    """A folder serves one recipe: its figures must not be taken for those of another."""
    if not (run.path / "recipe.toml").is_file():
        return
    found = RunFolder.open(run.path).recipe
    for section in ("data", "model", "loss", "schedule", "optimizer", "run", "evaluation", "system"):
        if getattr(found, section) != getattr(run.recipe, section):
            raise LinfnetError(f"{run.path} holds a run with other settings in [{section}]; choose another --out")


def _key(run: PlannedRun, options: Options) -> str:
    what = f"{run.recipe.data.name}-test"
    return result_key(what, run.recipe.evaluation.eps[0], limit=options.limit, steps=options.steps)


def gather(run: PlannedRun, options: Options) -> RunOutcome:
    """The figures of a finished run, from its folder."""
    results, environment = read_results(run.path), read_table(run.path / "env.json")
    try:
        measured, trained = results[_key(run, options)], results["train"]
        seen = trained.get("training_images")
        return RunOutcome(
            label=run.cell.label,
            seed=run.recipe.run.seed,
            **{name: measured[name] for name in ("clean", "pgd", "certified_margin", "certified_interval")},
            certified_train=seen["certified"][format_epsilon(run.recipe.evaluation.eps[0])] if seen else None,
            above_theta=seen["above"] if seen else None,
            seconds=trained["seconds"],
            epochs=trained["epochs"],
            hardware=hardware_of(environment, trained, RunFolder.open(run.path).events()),
            commit=environment.get("commit"),
            folder=str(run.path),
        )
    except KeyError as error:
        raise LinfnetError(f"{run.path / 'results.json'} lacks {error}") from None
