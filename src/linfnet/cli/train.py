"""`linfnet train` and `linfnet recipes`."""

import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import tyro
from rich.table import Table

from linfnet.cli.console import console, only_first_prints, percent
from linfnet.cli.display import TrainDisplay
from linfnet.cli.inputs import choose_device as pick_device
from linfnet.cli.tensorboard import TensorBoard, check_tensorboard
from linfnet.data import load
from linfnet.distributed.group import ALONE, Ranks, joined, launched, own_device, restarted
from linfnet.errors import ArgumentError, LinfnetError
from linfnet.files import cut_short
from linfnet.recipes import Recipe, load_recipe, recipe_names
from linfnet.systems import check_changes
from linfnet.train import RunFolder, StoppedError, Trainer, read_results


def new_run_path(name: str) -> Path:
    """A fresh folder under `runs/`, named after the recipe and the time."""
    return Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"


def start_run(
    recipe: Recipe, out: Path, device: torch.device, ranks: Ranks = ALONE, *, tensorboard: bool = False
) -> RunFolder:
    """Train a recipe into a new folder. Data and net come first: if they cannot be had, nothing is left behind."""
    images, test = load(recipe.data.name, "train"), load(recipe.data.name, "test")
    folder = RunFolder.new(out, recipe) if ranks.first else RunFolder(out, recipe)
    trainer = Trainer(folder, images, test, device, ranks)
    try:
        if ranks.first:
            folder.create()
        train_with_display(trainer, tensorboard)
    finally:
        folder.release()
    return folder


def resume_run(folder: RunFolder, device: torch.device, ranks: Ranks = ALONE, *, tensorboard: bool = False) -> bool:
    """Train on from the newest whole checkpoint of a run; False if it had finished before and its model is whole.

    The folder is held before it is looked at: nobody else can finish the run in between.
    """
    try:
        if ranks.first:
            folder.lock()
        if ranks.from_first(lambda: folder.finished and not cut_short(folder.path / "model.safetensors")):
            return False
        name = folder.recipe.data.name
        trainer = Trainer(folder, load(name, "train"), load(name, "test"), device, ranks)
        for complaint in trainer.resume():
            console.print(f"passed over: {complaint}")
        console.print(f"resuming at step {trainer.progress.step} of {trainer.total_steps}")
        train_with_display(trainer, tensorboard)
        return True
    finally:
        folder.release()


def train_with_display(trainer: Trainer, tensorboard: bool = False) -> None:
    """Run a trainer to its end, showing its progress, and TensorBoard too if it is asked for."""
    epochs = trainer.recipe.schedule.phases().total
    done = trainer.progress.step
    with TrainDisplay(trainer.total_steps, done, epochs, trainer.steps_per_epoch) as display:
        if not (tensorboard and trainer.ranks.first):
            trainer.run(display)
            return
        with TensorBoard(trainer.folder.path / "tensorboard", display, done) as both:
            trainer.run(both)


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
    """Go on with the run in this folder, from its last checkpoint; takes no recipe, no --out and no --set."""
    device: str = "auto"
    """cpu, cuda, cuda:1, …; auto takes a GPU if there is one."""
    tensorboard: bool = False
    """Write the curves for TensorBoard, too, into RUN/tensorboard (with the extra `tensorboard`)."""

    def run(self) -> int:
        """Train, then say where the run is."""
        changes = tuple(change for group in self.set for change in group)
        if self.resume is not None and (changes or self.out is not None or self.recipe != "digits"):
            raise ArgumentError("--resume goes on with a run as it was: it takes no recipe, no --out and no --set")
        if launched() and self.resume is None and self.out is None:
            raise ArgumentError("under torchrun give --out: a restart goes on with the run in that folder")
        if self.tensorboard:
            check_tensorboard()
        device = pick_device(own_device(self.device) if launched() else self.device)
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

    def _train(self, changes: tuple[str, ...], device: torch.device, ranks: Ranks) -> Path:
        """Start, resume, or go on with what a restarted process finds; the run folder."""
        if self.resume is not None:
            path, recipe = self.resume, None
        else:
            recipe = load_recipe(self.recipe, changes)
            check_changes(load_recipe(self.recipe), recipe)
            path = self.out or new_run_path(recipe.name)
            if not (launched() and ranks.from_first(lambda: _begun(path, recipe))):
                return start_run(recipe, path, device, ranks, tensorboard=self.tensorboard).path
        stored = ranks.from_first(lambda: RunFolder.open(path).recipe)
        trained = resume_run(RunFolder(path, stored), device, ranks, tensorboard=self.tensorboard)
        if not trained and (recipe is None or not restarted()):
            raise LinfnetError(f"{path} has finished; evaluate it with: linfnet evaluate {shlex.quote(str(path))}")
        return path

    @staticmethod
    def _report(path: Path) -> None:
        results = read_results(path)["train"]
        certified = "  ".join(f"certified@{eps} {percent(share)}" for eps, share in results["certified"].items())
        console.print(f"done in {results['seconds']:.0f} s: clean {percent(results['clean'])}  {certified}")
        console.print(f"run folder: {path}")
        console.print(f"next: linfnet evaluate {shlex.quote(str(path))}")


def _begun(path: Path, recipe: Recipe) -> bool:
    """Whether a folder holds a run of that recipe: processes that are started again go on with it."""
    return (path / "recipe.toml").is_file() and RunFolder.open(path).recipe == recipe


@dataclass(frozen=True)
class Recipes:
    """List the recipes: what each is for, what it reaches and what it costs."""

    def run(self) -> int:
        """Print the table."""
        table = Table(title="recipes, and what they are known to reach in %", title_justify="left")
        table.add_column("name", no_wrap=True)
        table.add_column("what for")
        for name in ("clean", "PGD", "certified"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("says, after")
        for name in recipe_names():
            recipe = load_recipe(name)
            reached = recipe.reported
            numbers = [f"{value:.2f}" if value else "" for value in (reached.clean, reached.pgd, reached.certified)]
            says = ", ".join(part for part in (reached.source, reached.cost) if part)
            table.add_row(name, recipe.title, *numbers, says)
        console.print(table)
        return 0
