"""Train one trial, in this process or, by `main`, in a separate one."""

import os
import shutil
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
from linfnet.train import StoppedError, TrainingRun, fit

# What a search deletes in the folder of a finished trial: the results stay. The checkpoints are the last: if their
# folder exists, the search was killed before all was deleted.
_MODEL, _CHECKPOINTS = ("model.safetensors", "config.json", "README.md"), "checkpoints"


def train_trial(
    recipe: Recipe,
    path: Path,
    device: Device,
    keep_model: bool,
    on_epoch: Callable[[TrainingRun], None] = lambda run: None,
) -> None:
    """Train or resume a trial in its run folder."""
    fit(recipe, out=path, resume=True, device=device, callbacks=[on_epoch])
    discard_weights(path, keep_model)


def discard_weights(path: Path, keep_model: bool) -> None:
    """Delete the checkpoints of a finished trial and, unless it is kept, its model; if this was done, do nothing."""
    if (path / _CHECKPOINTS).exists():
        for name in () if keep_model else _MODEL:
            (path / name).unlink(missing_ok=True)
        shutil.rmtree(path / _CHECKPOINTS)


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
