"""Training into a run folder, and resuming a run."""

import contextlib
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import torch

from linfnet.data import load
from linfnet.distributed.group import ALONE, Ranks
from linfnet.files import cut_short
from linfnet.recipes import Recipe
from linfnet.train.loop import Trainer, Watcher
from linfnet.train.run_folder import RunFolder

Display = Callable[[Trainer], AbstractContextManager[Watcher]]
"""Opens an observer for a run."""


def new_run_path(name: str) -> Path:
    """A path under `runs/` from a name and the time."""
    return Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"


def start_run(
    recipe: Recipe, out: Path, device: torch.device, ranks: Ranks = ALONE, *, display: Display | None = None
) -> RunFolder:
    """Train a recipe into a new folder. Nothing is written before the data are loaded and the net is built.

    Args:
        recipe: the settings.
        out: an empty or missing folder.
        device: where to train.
        ranks: the processes that train together.
        display: opens an observer of the run.
    """
    images, test = load(recipe.data.name, "train"), load(recipe.data.name, "test")
    folder = RunFolder.new(out, recipe) if ranks.first else RunFolder(out, recipe)
    trainer = Trainer(recipe, images, test, device, folder=folder, ranks=ranks)
    try:
        if ranks.first:
            folder.create()
        with display(trainer) if display else contextlib.nullcontext() as watcher:
            trainer.run(watcher)
    finally:
        folder.release()
    return folder


def resume_run(
    folder: RunFolder, device: torch.device, ranks: Ranks = ALONE, *, display: Display | None = None
) -> bool:
    """Continue a run from its newest valid checkpoint; False if it has finished and its model is valid.

    The observer first gets an event `resume` with the step and the errors of invalid checkpoints.
    """
    try:
        if ranks.first:
            folder.lock()  # before the check: no other process can finish the run in between
        if ranks.from_first(lambda: folder.finished and not cut_short(folder.path / "model.safetensors")):
            return False
        name = folder.recipe.data.name
        trainer = Trainer(folder.recipe, load(name, "train"), load(name, "test"), device, folder=folder, ranks=ranks)
        errors = trainer.resume()
        with display(trainer) if display else contextlib.nullcontext() as watcher:
            if watcher:
                watcher.event({"event": "resume", "step": trainer.progress.step, "errors": errors})
            trainer.run(watcher)
        return True
    finally:
        folder.release()
