"""`linfnet train` and `linfnet recipes`."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import tyro
from rich.table import Table

from linfnet.cli.console import console, only_first_prints
from linfnet.cli.display import figures, tensorboard_display, train_display
from linfnet.cli.inputs import choose_device
from linfnet.distributed.group import Group, joined, launched, own_device, restarted
from linfnet.epsilon import format_epsilon
from linfnet.errors import ArgumentError, LinfnetError, require
from linfnet.recipes import Recipe, load_recipe, recipe_names
from linfnet.results import read_results
from linfnet.systems import check_changes
from linfnet.train import Display, RunFolder, StoppedError, new_run_path, resume_run, start_run


@dataclass(frozen=True)
class Train:
    """Train a net by a recipe into a run folder, or resume a run."""

    recipe: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RECIPE")] = "digits"
    """A recipe by name (`linfnet recipes` lists them) or a TOML file."""
    out: Path | None = None
    """The run folder, new or empty; by default runs/RECIPE-TIME."""
    set: Annotated[tyro.conf.UseAppendAction[tuple[tuple[str, ...], ...]], tyro.conf.arg(metavar="KEY=VALUE")] = ()
    """Change keys of the recipe: key=value, as in --set model.width=256 'schedule.epochs=[5, 40, 5]'."""
    resume: Path | None = None
    """Resume the run in this folder from its last checkpoint; without a recipe, --out and --set."""
    device: str = "auto"
    """cpu, cuda, cuda:1, …; auto is a GPU if there is one."""
    tensorboard: bool = False
    """Also write the curves for TensorBoard into RUN/tensorboard (needs the extra `tensorboard`)."""

    def run(self) -> int:
        """Train, then print the results and the run folder."""
        changes = tuple(change for group in self.set for change in group)
        if self.resume is not None and (changes or self.out is not None or self.recipe != "digits"):
            raise ArgumentError("--resume continues a run unchanged: it takes no recipe, no --out and no --set")
        if launched() and self.resume is None and self.out is None:
            raise ArgumentError("--out is required under torchrun: a restart resumes the run in that folder")
        if self.tensorboard:
            require("tensorboard", "tensorboard")
        device = choose_device(own_device(self.device) if launched() else self.device)
        with joined(device) as ranks, only_first_prints(ranks):
            try:
                path = self._train(changes, device, ranks)
            except StoppedError:
                if ranks.first:
                    raise
                return 130
            if ranks.first:
                self._report(path)
        return 0

    def _train(self, changes: tuple[str, ...], device: torch.device, ranks: Group) -> Path:
        """Start or resume a run; under torchrun, a restart resumes it. Returns the run folder."""
        display: Display = tensorboard_display if self.tensorboard else train_display
        if self.resume is not None:
            path, recipe = self.resume, None
        else:
            recipe = load_recipe(self.recipe, changes)
            check_changes(load_recipe(self.recipe), recipe)
            path = self.out or new_run_path(recipe.name)
            if not (launched() and ranks.from_first(lambda: _has_run(path, recipe))):
                return start_run(recipe, path, device, ranks, display=display).path
        stored = ranks.from_first(lambda: RunFolder.open(path).recipe)
        trained = resume_run(RunFolder(path, stored), device, ranks, display=display)
        if not trained and (recipe is None or not restarted()):
            raise LinfnetError(f"{path} has finished; evaluate it with: linfnet evaluate {shlex.quote(str(path))}")
        return path

    @staticmethod
    def _report(path: Path) -> None:
        result = read_results(path).training
        if result is not None:
            certified = {format_epsilon(eps): share for eps, share in result.test.certified.items()}
            console.print(f"done in {result.seconds:.0f} s: {figures(result.test.clean, certified)}")
        console.print(f"run folder: {path}")
        console.print(f"next: linfnet evaluate {shlex.quote(str(path))}")


def _has_run(path: Path, recipe: Recipe) -> bool:
    """Whether a folder has a run of that recipe."""
    return (path / "recipe.toml").is_file() and RunFolder.open(path).recipe == recipe


@dataclass(frozen=True)
class Recipes:
    """List the recipes with their published accuracy and training budget."""

    def run(self) -> int:
        """Print the table."""
        table = Table(title="recipes; accuracy in %, as published or measured", title_justify="left")
        table.add_column("name", no_wrap=True)
        table.add_column("purpose")
        for name in ("clean", "PGD", "certified"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("source, training budget")
        for name in recipe_names():
            recipe = load_recipe(name)
            reported = recipe.reported
            numbers = [f"{value:.2f}" if value else "" for value in (reported.clean, reported.pgd, reported.certified)]
            source = ", ".join(part for part in (reported.source, reported.cost) if part)
            table.add_row(name, recipe.title, *numbers, source)
        console.print(table)
        return 0
