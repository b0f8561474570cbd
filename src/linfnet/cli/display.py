"""The training display: a bar with what one wants to see, and a line for each test."""

import contextlib
import signal
import time
from collections.abc import Generator
from types import TracebackType
from typing import Any, Self

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from linfnet.cli.console import console, percent
from linfnet.train import StepValues


@contextlib.contextmanager
def while_somebody_reads() -> Generator[None]:
    """Where nobody reads what is printed any more (a closed terminal, a broken pipe), ask the run to stop, quietly."""
    try:
        yield
    except (OSError, SystemExit):  # the latter is how rich tells of a broken pipe
        console.quiet = True
        signal.raise_signal(signal.SIGHUP)  # under nohup it is ignored, and the run goes on


class TrainDisplay:
    """Shows a run on the terminal; a `linfnet.train.Watcher`."""

    def __init__(self, steps: int, done: int, epochs: int, steps_per_epoch: int) -> None:
        self.epochs, self.steps_per_epoch = epochs, steps_per_epoch
        self.progress = Progress(
            TextColumn("{task.fields[epoch]}/{task.fields[epochs]}"),
            BarColumn(bar_width=10),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = self.progress.add_task("", total=steps, completed=done, epoch=1, epochs=epochs, numbers="")
        self.shown = 0.0

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with contextlib.suppress(OSError):  # the run has ended; there may be no terminal any more
            self.progress.stop()

    def step(self, step: int, values: StepValues, so_far: dict[str, float]) -> None:
        """Redraw at most ten times a second."""
        if time.monotonic() - self.shown < 0.1:
            return
        self.shown = time.monotonic()
        numbers = f"p {values.p:.3g} λ {values.mixing:.0e}"
        if so_far:
            shares = (100 * so_far["accuracy"], 100 * so_far["above"])
            numbers += f" loss {so_far['loss']:.3f} acc {shares[0]:.1f} >θ {shares[1]:.1f}"
        epoch = min(step // self.steps_per_epoch + 1, self.epochs)
        self.progress.update(self.task, completed=step, epoch=epoch, numbers=numbers)

    def event(self, event: dict[str, Any]) -> None:
        """A line for each test."""
        if event["event"] == "epoch":
            self.progress.update(self.task, completed=event["step"])
        if event["event"] != "test":
            return
        certified = "  ".join(f"certified@{eps} {percent(share)}" for eps, share in event["certified"].items())
        with while_somebody_reads():
            console.print(
                f"epoch {event['epoch']:>4}/{self.epochs}  test at p {percent(event['accuracy_at_p'])}  "
                f"at ∞: clean {percent(event['clean'])}  {certified}  ({event['seconds']:.0f} s)"
            )
