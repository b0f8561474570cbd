"""`linfnet watch`: the training curves of a run in the terminal, live."""

import time
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Group
from rich.live import Live

from linfnet.cli.console import console
from linfnet.errors import ArgumentError
from linfnet.report import read_training
from linfnet.report.terminal import frame
from linfnet.train import RunFolder, resume_hint


def watch_frame(run: Path) -> tuple[Group, str]:
    """The current frame, and the state of the run: training, finished or stopped."""
    folder = RunFolder.open(run)
    locked = folder.locked  # before reading: a run that ends meanwhile has logged its end
    summary = read_training(run)
    finished = summary.finished or any(event["event"] == "finish" for event in summary.events)
    state = "finished" if finished else "training" if locked else "stopped"
    return frame(summary, *console.size, state), state


@dataclass(frozen=True)
class Watch:
    """Show the training curves of a run in the terminal, live until it ends."""

    run_folder: tyro.conf.Positional[Path]
    """The folder of a run, in training or ended."""
    once: bool = False
    """Print the current state and exit."""
    every: float = 1.0
    """Seconds between updates."""

    def run(self) -> int:
        """Draw until the run has finished or no process trains it."""
        if not self.every > 0:
            raise ArgumentError(f"--every is {self.every:g}; wanted a number of seconds above 0")
        shown, state = watch_frame(self.run_folder)
        if self.once or state != "training":
            console.print(shown)
        else:
            with Live(shown, console=console, auto_refresh=False, vertical_overflow="crop") as live:
                while state == "training":
                    time.sleep(self.every)
                    shown, state = watch_frame(self.run_folder)
                    live.update(shown, refresh=True)
            if not console.is_terminal:
                console.print()  # the last frame has no end of line
        if state == "stopped":
            console.print(resume_hint(self.run_folder))
        return 0
