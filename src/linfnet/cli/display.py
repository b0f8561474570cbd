"""Displays of a training run: a progress bar and a line for each test in the terminal, and TensorBoard."""

import contextlib
import signal
import time
from collections.abc import Generator
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from linfnet.cli.console import console, percent
from linfnet.schedules import StepState
from linfnet.train import Trainer, Watcher


@contextlib.contextmanager
def stop_if_terminal_closed() -> Generator[None]:
    """Ask the run to stop if output cannot be written any more (a closed terminal, a broken pipe)."""
    try:
        yield
    except (OSError, SystemExit):  # rich raises SystemExit for a broken pipe
        console.quiet = True
        signal.raise_signal(signal.SIGHUP)  # ignored under nohup: the run continues


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
        """Redraw at most ten times a second."""
        if time.monotonic() - self.shown < 0.1:
            return
        self.shown = time.monotonic()
        numbers = f"p {state.p:.3g} λ {state.mixing:.0e}"
        if so_far:
            shares = (100 * so_far["accuracy"], 100 * so_far["above"])
            numbers += f" loss {so_far['loss']:.3f} acc {shares[0]:.1f} >θ {shares[1]:.1f}"
        epoch = min(step // self.steps_per_epoch + 1, self.epochs)
        self.progress.update(self.task, completed=step, epoch=epoch, numbers=numbers)

    def event(self, event: dict[str, Any]) -> None:
        """Print a line for each test, and where a run resumes."""
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
    """Clean and certified accuracy in percent, in one line."""
    return "  ".join(
        [f"clean {percent(clean)}", *(f"certified@{eps} {percent(share)}" for eps, share in certified.items())]
    )


@contextlib.contextmanager
def train_display(trainer: Trainer) -> Generator[TrainDisplay]:
    """Show a run on the terminal during the block; a `linfnet.train.Display`."""
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
        """Only forwarded: steps are not written."""
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
    """As `train_display`, and write into the folder `tensorboard` of the run; a `linfnet.train.Display`."""
    from torch.utils.tensorboard.writer import SummaryWriter

    with train_display(trainer) as display:
        if trainer.folder is None or not trainer.ranks.first:
            yield display
            return
        done = trainer.progress.step
        # A resumed run repeats the steps after its checkpoint.
        writer = SummaryWriter(str(trainer.folder.path / "tensorboard"), purge_step=done + 1 if done else None)
        try:
            yield TensorBoard(writer, display)
        finally:
            writer.close()
