"""`linfnet watch`: the curves of a run in the terminal, while it trains."""

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
    """What is to be seen now, and whether the run is training, finished or stopped."""
    folder = RunFolder.open(run)
    held = folder.locked  # asked first: a run that ends in between has logged its end
    record = read_training(run)
    finished = record.finished or any(event["event"] == "finish" for event in record.events)
    state = "finished" if finished else "training" if held else "stopped"
    return frame(record, *console.size, state), state


@dataclass(frozen=True)
class Watch:
    """Show the curves of a run in the terminal, live until it ends."""

    run_folder: tyro.conf.Positional[Path]
    """A run folder, of a run that is training or has ended."""
    once: bool = False
    """Print how things stand, and leave."""
    every: float = 1.0
    """Seconds between two looks."""

    def run(self) -> int:
        """Draw until the run has finished or nobody trains it any more."""
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
                console.print()  # the last frame was left without an end of line
        if state == "stopped":
            console.print(resume_hint(self.run_folder))
        return 0
