"""Run a study: each run has its own folder; finished runs are not repeated, and interrupted runs are resumed."""

import contextlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from linfnet.data import load
from linfnet.errors import ArgumentError, LinfnetError, at_least
from linfnet.files import read_table
from linfnet.recipes import Recipe, load_recipe
from linfnet.reproduce.outcome import Options, Outcome, RunOutcome, hardware_of
from linfnet.reproduce.studies import Cell, Study, differing_sections
from linfnet.results import AttackSettings, Result, Results, read_results
from linfnet.results.storage import RESULTS_FILE
from linfnet.systems import system_of
from linfnet.train import Callback, RunFolder, StoppedError, UnwritableError, fit


@dataclass(frozen=True)
class PlannedRun:
    """A run of one cell with one seed."""

    cell: Cell
    recipe: Recipe
    path: Path

    def evaluation(self, results: Results, options: Options) -> Result | None:
        """Return the result of the evaluation that the options specify, or None if it has not been run."""
        data, eps = self.recipe.data.name, self.recipe.evaluation.eps[0]
        return results.find(data, eps, limit=options.limit, attack=AttackSettings("pgd", options.steps))


def plan(study: Study, options: Options) -> list[PlannedRun]:
    """Return all runs that the options select, ordered by seed, so that each cell has its first result early."""
    at_least("--seeds", options.seeds, 1)
    recipes = [(cell, _build(study, cell, options)) for cell in study.rows(options.rows)]
    runs: list[PlannedRun] = []
    for more, (cell, recipe) in itertools.product(range(options.seeds), recipes):
        settings = replace(recipe.run, seed=recipe.run.seed + more)
        prefix = options.for_system(recipe.system_name).prefix
        path = options.out / cell.label / f"{prefix}{settings.seed}"
        runs.append(PlannedRun(cell, replace(recipe, run=settings), path))
    return runs


def _build(study: Study, cell: Cell, options: Options) -> Recipe:
    """Return the recipe of a cell; raise an error if `--set` overrides changes that define the cell."""
    system = load_recipe(cell.recipe).system_name
    options = options.for_system(system)
    recipe = cell.build(options.changes, options.scale)
    expected = replace(cell, changes=(*options.changes, *cell.changes)).build(scale=options.scale)
    for section in differing_sections(recipe, expected):
        if section != "run":
            raise ArgumentError(
                f"--set overrides keys of [{section}] that define row {cell.label} of {study.name}; expected other keys"
            )
    if recipe.system_name != system:
        raise ArgumentError(
            f"--set system.name is {recipe.system_name!r}; expected {system!r}, the system of row {cell.label}"
        )
    system_of(recipe)  # raises an error for unknown keys of [system]
    return recipe


def run_study(
    study: Study,
    options: Options,
    device: torch.device,
    *,
    evaluate: Callable[[RunFolder], None],
    note: Callable[[str], None],
    display: Callable[[], Callback] | None = None,
) -> Outcome:
    """Complete the unfinished runs of a study and return the outcome of all runs; it is written after each run.

    Finished runs of other rows stay in the outcome. If a run fails, the study continues with the next run; if no run
    succeeds, the first error is raised. `evaluate` adds the test results of a trained net to its results.json, `note`
    is called with a line about each run, and `display` creates a callback for each training run.
    """
    planned = plan(study, options)
    _check_study(study, options)
    for name in sorted({run.recipe.data.name for run in planned}):
        load(name, "test")  # to report missing data before hours of training
    for run in planned:
        _check_recipe(run)
    runs: list[RunOutcome] = []
    outcome: Outcome | None = None
    failures: list[LinfnetError] = []
    for number, run in enumerate(planned, 1):
        name = f"{number}/{len(planned)} {run.cell.label}, seed {run.recipe.run.seed}"
        if not (run.path / RESULTS_FILE).is_file():
            note(f"{name}: training in {run.path}")
        try:
            done = _train(run, device, display)
            if run.evaluation(read_results(run.path), options) is None:
                evaluate(RunFolder.open(run.path))
                done += ", evaluated"
            runs.append(gather(run, options))
        except (StoppedError, KeyboardInterrupt) as stopped:
            step = str(stopped).split(";")[0] or "interrupted"
            raise StoppedError(f"{name}: {step}; run the same command again to resume it") from None
        except UnwritableError:
            raise  # the next run would fail for the same reason
        except LinfnetError as error:
            note(f"{name}: failed: {error}")
            failures.append(error)
        else:
            note(f"{name}: {done}")
            outcome = _outcome(study, options, runs)
            outcome.write()
    if outcome is None:
        raise failures[0]
    return outcome


def _check_study(study: Study, options: Options) -> None:
    """Raise an error if the folder contains the outcome of another study; an unreadable outcome is overwritten."""
    name: Any = study.name
    with contextlib.suppress(LinfnetError):
        name = read_table(options.out / "outcome.json").get("study")
    if name != study.name:
        raise LinfnetError(f"{options.out} contains the outcome of {name}, not of {study.name}; choose another --out")


def _check_recipe(run: PlannedRun) -> None:
    """Raise an error if the folder contains a run of another recipe, which is not the planned run."""
    if (run.path / "recipe.toml").is_file():
        for section in differing_sections(RunFolder.open(run.path).recipe, run.recipe):
            raise LinfnetError(f"{run.path} contains a run with other settings in [{section}]; choose another --out")


def _train(run: PlannedRun, device: torch.device, display: Callable[[], Callback] | None) -> str:
    """Train or resume the run unless it has finished; return a text that says what was done."""
    started = (run.path / "recipe.toml").is_file()
    if started and RunFolder.open(run.path).finished:
        return "already finished"
    recipe = RunFolder.open(run.path).recipe if started else run.recipe
    callbacks = [display()] if display else []
    fit(recipe, out=run.path, resume=started, callbacks=callbacks, device=device)
    return "resumed" if started else "trained"


def _outcome(study: Study, options: Options, runs: list[RunOutcome]) -> Outcome:
    """Return the outcome, including runs of other rows, which other processes may have finished in the meantime."""
    chosen = study.rows(options.rows)
    others = [run for cell in study.cells if cell not in chosen for run in _finished(study, cell, options)]
    return Outcome(study, options, (*others, *runs))


def _finished(study: Study, cell: Cell, options: Options) -> list[RunOutcome]:
    """Return the finished runs, with any seed, of a row that was not selected; other folders are ignored."""
    runs: list[RunOutcome] = []
    prefix = options.for_system(load_recipe(cell.recipe).system_name).prefix
    for path in (options.out / cell.label).glob(f"{prefix}*"):
        with contextlib.suppress(LinfnetError):
            # Take [run] from the folder: how often a run was tested or saved does not change its results.
            settings = RunFolder.open(path).recipe.run
            run = PlannedRun(cell, replace(_build(study, cell, options), run=settings), path)
            _check_recipe(run)
            if path.name == f"{prefix}{settings.seed}":
                runs.append(gather(run, options))
    return sorted(runs, key=lambda run: run.seed)


def gather(run: PlannedRun, options: Options) -> RunOutcome:
    """Read the outcome of a finished run from its folder."""
    results, environment = read_results(run.path), read_table(run.path / "env.json")
    result, training = run.evaluation(results, options), results.training
    if result is None or training is None:
        missing = "training" if training is None else "the evaluation"
        raise LinfnetError(f"{run.path / RESULTS_FILE} lacks the results of {missing}")
    return RunOutcome(
        label=run.cell.label,
        seed=training.seed,
        clean=result.clean,
        pgd=result.attacked,
        certified_margin=result.certified.get("margin"),
        certified_interval=result.certified.get("interval"),
        certified_train=training.train.certified.get(result.eps) if training.train else None,
        above_theta=training.train.above if training.train else None,
        seconds=training.seconds,
        epochs=training.epochs,
        hardware=hardware_of(environment, training.device, RunFolder.open(run.path).events()),
        commit=environment.get("commit"),
        folder=str(run.path),
        system=run.recipe.system_name,
        certified=result.best_certified,
        certify_seconds=result.certify_seconds.get(result.best),
        arithmetic=result.arithmetic,
    )
