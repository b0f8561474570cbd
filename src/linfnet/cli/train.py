"""`linfnet train`, and the display of a run on the terminal and in TensorBoard."""

import contextlib
import shlex
import signal
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from linfnet.cli.console import console, only_first_prints, percent
from linfnet.cli.inputs import Changes, Device, choose_device
from linfnet.distributed.group import Group, joined, launched, restarted
from linfnet.epsilon import format_epsilon
from linfnet.errors import ArgumentError, LinfnetError, require
from linfnet.recipes import Recipe, load_recipe
from linfnet.results import read_results
from linfnet.schedules import StepState
from linfnet.systems import check_changes
from linfnet.train import RunFolder, StoppedError, Trainer, Watcher, new_run_path, resume_run, start_run


@dataclass(frozen=True)
class Train:
    """Train a net by a recipe and write a run folder, or resume a run."""

    recipe: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RECIPE")] = "digits"
    """The name of a recipe (`linfnet recipes` lists them) or a TOML file."""
    out: Path | None = None
    """The run folder, new or empty. Default: runs/RECIPE-TIME."""
    set: Changes = ()
    """Change keys of the recipe: key=value, as in --set model.width=256 'schedule.epochs=[5, 40, 5]'."""
    resume: Path | None = None
    """Resume the run in this folder from its last checkpoint. A recipe, --out and --set are not allowed."""
    device: Device = "auto"
    tensorboard: bool = False
    """Also write the curves for TensorBoard into RUN/tensorboard (needs the extra `tensorboard`)."""

    def run(self) -> int:
        """Train, then print the results and the run folder."""
        changes = tuple(change for changes in self.set for change in changes)
        if self.resume is not None and (changes or self.out is not None or self.recipe != "digits"):
            raise ArgumentError("--resume continues a run unchanged: a recipe, --out and --set are not allowed with it")
        if launched() and self.resume is None and self.out is None:
            raise ArgumentError("--out is required under torchrun: a restart resumes the run in that folder")
        if self.tensorboard:
            require("tensorboard", "tensorboard")
        device = choose_device(self.device, shared=True)
        with joined(device) as group, only_first_prints(group):
            try:
                path = self._train(changes, device, group)
            except StoppedError:
                if group.first:
                    raise
                return 130
            if group.first:
                self._report(path)
        return 0

    def _train(self, changes: tuple[str, ...], device: torch.device, group: Group) -> Path:
        """Start or resume a run, and return its folder. If torchrun restarts the processes, the run is resumed."""
        display = tensorboard_display if self.tensorboard else train_display
        if self.resume is not None:
            path, recipe = self.resume, None
        else:
            recipe = load_recipe(self.recipe, changes)
            if changes:
                check_changes(load_recipe(self.recipe), recipe)
            path = self.out or new_run_path(recipe.name)
            if not (launched() and group.from_first(lambda: _has_run(path, recipe))):
                return start_run(recipe, path, device, group, display=display).path
        stored = group.from_first(lambda: RunFolder.open(path).recipe)
        trained = resume_run(RunFolder(path, stored), device, group, display=display)
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
    """Return whether a folder has a run of that recipe."""
    return (path / "recipe.toml").is_file() and RunFolder.open(path).recipe == recipe


@contextlib.contextmanager
def stop_if_terminal_closed() -> Generator[None]:
    """Stop the run if output can no longer be written (a closed terminal, a broken pipe)."""
    try:
        yield
    except (OSError, SystemExit):  # rich raises SystemExit for a broken pipe
        console.quiet = True
        signal.raise_signal(signal.SIGHUP)  # under nohup the signal is ignored, and the run continues


class TrainDisplay:
    """Shows a run on the terminal; a `linfnet.train.Watcher`."""

    def __init__(self, trainer: Trainer) -> None:
        self.total_steps, self.steps_per_epoch = trainer.total_steps, trainer.steps_per_epoch
        self.epochs = trainer.recipe.schedule.phases().total
        self.progress = Progress(
            TextColumn("{task.fields[epoch]}/{task.fields[epochs]}"),
            BarColumn(bar_width=10),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
            console=console,
            disable=not console.is_terminal,
        )
        done = trainer.progress.step
        self.task = self.progress.add_task(
            "", total=self.total_steps, completed=done, epoch=1, epochs=self.epochs, numbers=""
        )
        self.shown = 0.0

    def step(self, step: int, state: StepState, so_far: dict[str, float]) -> None:
        """Redraw the progress bar at most ten times per second."""
        if time.monotonic() - self.shown < 0.1:
            return
        self.shown = time.monotonic()
        numbers = f"p {state.p:.3g} λ {state.mixing:.0e}"
        if so_far:
            accuracy, above = 100 * so_far["accuracy"], 100 * so_far["above"]
            numbers += f" loss {so_far['loss']:.3f} acc {accuracy:.1f} >θ {above:.1f}"
        epoch = min(step // self.steps_per_epoch + 1, self.epochs)
        self.progress.update(self.task, completed=step, epoch=epoch, numbers=numbers)

    def event(self, event: dict[str, Any]) -> None:
        """Print a line for each test, and the step at which a run resumes."""
        with stop_if_terminal_closed():
            match event["event"]:
                case "epoch":
                    self.progress.update(self.task, completed=event["step"])
                case "resume":
                    for error in event["errors"]:
                        console.print(f"skipped: {error}")
                    console.print(f"resuming at step {event['step']} of {self.total_steps}")
                case "test":
                    console.print(
                        f"epoch {event['epoch']:>4}/{self.epochs}  test at p {percent(event['accuracy_at_p'])}  "
                        f"at ∞: {figures(event['clean'], event['certified'])}  ({event['seconds']:.0f} s)"
                    )
                case _:
                    pass


def figures(clean: float, certified: dict[str, float]) -> str:
    """Format clean and certified accuracy in percent, in one line."""
    shares = {"clean": clean, **{f"certified@{eps}": share for eps, share in certified.items()}}
    return "  ".join(f"{name} {percent(share)}" for name, share in shares.items())


@contextlib.contextmanager
def train_display(trainer: Trainer) -> Generator[TrainDisplay]:
    """Show a run on the terminal during the `with` block; a `linfnet.train.Display`."""
    display = TrainDisplay(trainer)
    display.progress.start()
    try:
        yield display
    finally:
        with contextlib.suppress(OSError):  # the terminal may be closed
            display.progress.stop()


class TensorBoard:
    """Writes the numbers of each event with a `SummaryWriter`, and forwards all calls to another watcher."""

    def __init__(self, writer: Any, inner: Watcher) -> None:
        self.writer, self.inner = writer, inner

    def step(self, step: int, state: StepState, so_far: dict[str, float]) -> None:
        """Forward the call; steps are not written."""
        self.inner.step(step, state, so_far)

    def event(self, event: dict[str, Any]) -> None:
        """Write each number as KIND/NAME at its step, for example epoch/loss or test/certified 8/255."""
        self.inner.event(event)
        for key, value in event.items():
            named = {f"{key} {inner}": v for inner, v in value.items()} if isinstance(value, dict) else {key: value}
            for name, number in named.items():
                if name not in ("event", "step") and isinstance(number, int | float):
                    self.writer.add_scalar(f"{event['event']}/{name}", number, event["step"])
        self.writer.flush()


@contextlib.contextmanager
def tensorboard_display(trainer: Trainer) -> Generator[Watcher]:
    """Like `train_display`, but also write to the folder `tensorboard` of the run; a `linfnet.train.Display`."""
    from torch.utils.tensorboard.writer import SummaryWriter

    with train_display(trainer) as display:
        if trainer.folder is None or not trainer.group.first:
            yield display
            return
        done = trainer.progress.step
        # A resumed run repeats the steps after its checkpoint, so the old values of these steps are removed.
        writer = SummaryWriter(str(trainer.folder.path / "tensorboard"), purge_step=done + 1 if done else None)
        try:
            yield TensorBoard(writer, display)
        finally:
            writer.close()
