"""Train one trial, in this process or, by `main`, in a separate one."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from linfnet.distributed.device import Device
from linfnet.errors import LinfnetError
from linfnet.plugins import import_modules
from linfnet.recipes import Recipe
from linfnet.recipes.io import recipe_from_toml
from linfnet.train import RunFolder, StoppedError, TrainingRun, fit


def train_trial(
    recipe: Recipe,
    path: Path,
    device: Device,
    keep_model: bool,
    on_epoch: Callable[[TrainingRun], None] = lambda run: None,
) -> None:
    """Train or resume a trial in its run folder."""
    fit(recipe, out=path, resume=True, device=device, callbacks=[on_epoch])
    RunFolder(path, recipe).discard_weights(keep_model)


def _end_with_parent(parent: int) -> None:
    """End this process if the search that has started it has ended; a training run writes a checkpoint first."""
    while os.getppid() == parent:
        time.sleep(1)
    while True:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)


def main() -> int:
    """Train the trial whose recipe is on the standard input; an error is the last line of the standard error."""
    path, device, models, name, *imports = sys.argv[1:]
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    try:
        import_modules(imports)
        recipe = recipe_from_toml(sys.stdin.read(), "the recipe of the trial", name)
        train_trial(recipe, Path(path), device, models == "keep")
    except StoppedError:
        return 130
    except LinfnetError as error:
        sys.stderr.write(f"\n{error}\n")
        return 2
    return 0
