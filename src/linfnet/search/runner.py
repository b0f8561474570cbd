"""Run the trials of a search, several at once in separate processes; finished trials are not repeated."""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import torch

from linfnet.distributed.device import Device, choose_device
from linfnet.errors import LinfnetError, at_least
from linfnet.files import make_folder
from linfnet.plugins import origin
from linfnet.recipes import Recipe, recipe_to_toml
from linfnet.search.outcome import SearchOutcome, count_epochs, gather, is_finished, read_trial
from linfnet.search.plan import Trial, base_recipe, make_plan
from linfnet.search.variants import Variant
from linfnet.search.worker import train_trial
from linfnet.systems import SYSTEMS
from linfnet.train import RunFolder, StoppedError, UnwritableError
from linfnet.train.checkpoint import stop_on_signals

_POLL_SECONDS = 0.5
_WORKER = "import sys; from linfnet.search.worker import main; sys.exit(main())"


def search(
    recipe: Recipe | str | Path,
    variants: Sequence[Variant],
    *,
    out: Path | str,
    seeds: Sequence[int] = (0, 1),
    settings: Sequence[str] = (),
    hold_out: int | None = None,
    jobs: int = 1,
    device: Device = None,
    keep_models: bool = False,
    note: Callable[[str], None] = lambda line: None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> SearchOutcome:
    """Train variants of a recipe with several seeds, and rank them by certified accuracy on held-out training images.

    Test images are not read. If the search is interrupted, the same call resumes it: finished trials are not repeated.
    A call with other variants or seeds and the same settings adds them to the folder.

    Args:
        recipe: the name of a recipe, a TOML file, or a `Recipe`.
        variants: the variants to compare; `Variant("published")` is the recipe itself.
        out: the folder for the trials and for `outcome.json`, `outcome.csv` and `outcome.md`.
        seeds: the seeds with which each variant is trained.
        settings: changes `key=value` of all trials, such as `model.width=512`.
        hold_out: the number of training images that are held out; by default a tenth of them.
        jobs: the number of trials that run at the same time, each in a separate process if there are several.
        device: as in `linfnet.fit`.
        keep_models: whether to keep the weights of finished trials; otherwise only results, recipes and logs remain.
        note: is called with a line about each trial.
        progress: is called with the number of trained epochs and the number of all epochs.
    """
    at_least("jobs", jobs, 1)
    place, out = choose_device(device), Path(out)
    plan = make_plan(base_recipe(recipe, settings, hold_out), variants, seeds, out)
    make_folder(out)
    plan.write()
    trials = plan.trials()
    waiting = [trial for trial in trials if not is_finished(trial)]
    for trial in trials:
        if trial not in waiting:  # the search may have been killed before it deleted the weights
            RunFolder(trial.path, trial.recipe).discard_weights(keep_models)
    failed: dict[str, str] = {}
    total = sum(trial.recipe.schedule.phases().total for trial in trials)

    def finished(trial: Trial, error: str | None) -> None:
        if error is None:
            found = read_trial(trial)
            note(f"{trial.name}: certified {100 * found.certified:.2f}, clean {100 * found.clean:.2f}")
        else:
            note(f"{trial.name}: failed: {error}")
            failed[trial.name] = error
        gather(plan, failed).write()

    note(f"{len(trials)} trials, {len(trials) - len(waiting)} of them finished before")
    progress(count_epochs(trials), total)
    run = _one_by_one if jobs == 1 else _in_processes
    run(waiting, place, jobs, keep_models, finished, lambda: progress(count_epochs(trials), total))
    outcome = gather(plan, failed)
    outcome.write()
    if not outcome.trials:
        raise LinfnetError(f"all trials failed; the first error: {next(iter(failed.values()), 'none')}")
    return outcome


Finished = Callable[[Trial, str | None], None]


def _one_by_one(
    trials: list[Trial],
    device: torch.device,
    jobs: int,
    keep_models: bool,
    finished: Finished,
    advanced: Callable[[], None],
) -> None:
    """Train the trials in this process."""
    for trial in trials:
        error: str | None = None
        try:
            train_trial(trial.recipe, trial.path, device, keep_models, lambda _: advanced())
        except StoppedError:
            raise _stopped() from None
        except UnwritableError:
            raise  # the next trial would fail for the same reason
        except LinfnetError as caught:
            error = str(caught)
        finished(trial, error)


def _in_processes(
    trials: list[Trial],
    device: torch.device,
    jobs: int,
    keep_models: bool,
    finished: Finished,
    advanced: Callable[[], None],
) -> None:
    """Train the trials in separate processes; if a signal stops this one, the others write checkpoints and end."""
    running: dict[subprocess.Popen[bytes], tuple[Trial, IO[bytes]]] = {}
    waiting = trials[::-1]
    with contextlib.ExitStack() as files, stop_on_signals() as stop:
        try:
            while (waiting or running) and not stop.is_set():
                while waiting and len(running) < jobs:
                    trial = waiting.pop()
                    messages = files.enter_context(tempfile.TemporaryFile())
                    running[_start(trial, device, jobs, keep_models, messages)] = trial, messages
                for process in [process for process in running if process.poll() is not None]:
                    trial, messages = running.pop(process)
                    finished(trial, None if process.returncode == 0 else _last_line(messages, process.returncode))
                advanced()
                stop.wait(_POLL_SECONDS)
        finally:
            for process in running:
                process.terminate()
            for process in running:
                process.wait()
    if stop.is_set():
        raise _stopped()


def _start(
    trial: Trial, device: torch.device, jobs: int, keep_models: bool, messages: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start a process that trains a trial; it reads the recipe from its standard input."""
    recipe = trial.recipe
    origins = (origin(type(recipe.loss)), origin(SYSTEMS[recipe.system_name]))
    imports = sorted({name for name in origins if name})
    environment = dict(os.environ)
    if device.type == "cpu":  # the processes share the cores
        environment["OMP_NUM_THREADS"] = str(max(1, torch.get_num_threads() // jobs))
    arguments = [str(trial.path), str(device), "keep" if keep_models else "discard", recipe.name, *imports]
    process = subprocess.Popen(
        [sys.executable, "-c", _WORKER, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=messages,
        env=environment,
        start_new_session=True,  # Ctrl-C reaches only this process, which then ends the others
    )
    assert process.stdin is not None
    process.stdin.write(recipe_to_toml(recipe).encode())
    process.stdin.close()
    return process


def _last_line(messages: IO[bytes], status: int) -> str:
    messages.seek(0)
    lines = messages.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"the process ended with status {status}"


def _stopped() -> StoppedError:
    return StoppedError("the search has stopped; run the same command again to resume it")
