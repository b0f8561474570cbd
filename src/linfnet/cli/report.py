"""`linfnet report`, `watch` and `plot`: show runs as an HTML page, live in the terminal, and as a figure."""

import time
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Group
from rich.live import Live
from tyro.conf import arg

from linfnet.cli.console import console
from linfnet.cli.inputs import File, Runs
from linfnet.errors import ArgumentError, LinfnetError
from linfnet.files import read_json, write_text
from linfnet.nn.model_path import packaged_hint
from linfnet.recipes import Recipe, recipe_from_toml
from linfnet.report import read_run, read_training, render
from linfnet.report.terminal import frame
from linfnet.reproduce.plots import draw_run, read_events
from linfnet.train import RunFolder


def write_report(runs: tuple[Path, ...], out: Path | None = None) -> Path:
    """Write the report of one or several runs, without duplicates; return the path of the file."""
    once: dict[Path, Path] = {}
    for run in runs:
        once.setdefault(run.resolve(), run)
    runs = tuple(once.values())
    file = out or runs[0] / ("report.html" if len(runs) == 1 else "comparison.html")
    text = render([read_run(path) for path in runs])
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, text)
    return file


@dataclass(frozen=True)
class Report:
    """Write the results of a run as one self-contained HTML file; several runs are compared on shared axes.

    Examples:
        linfnet report runs/first --open
        linfnet report runs/first runs/second --out comparison.html
    """

    runs: Runs
    """Run folders, preferably after `linfnet evaluate`, or other model folders."""
    out: File = None
    """The file to write. Default: report.html in the run folder, or comparison.html in the first of several folders."""
    open: bool = False
    """Open the file in the browser."""

    def run(self) -> int:
        """Write the page and print its path."""
        if not self.runs:
            raise ArgumentError("no run is given; expected one or more run folders")
        if self.out is not None and self.out.is_dir():
            raise ArgumentError(f"--out is {self.out}, a folder; expected a file")
        file = write_report(self.runs, self.out)
        console.print(f"report: {file}")
        if self.open and not webbrowser.open(file.resolve().as_uri()):
            console.print("no browser could be started; open the file yourself")
        return 0


def watch_frame(run: Path, *, whole: bool = False) -> tuple[Group, str]:
    """Return the current frame, with all panels if `whole`, and the state of the run: training, finished or stopped."""
    folder = RunFolder.open(run)
    locked = (
        folder.locked
    )  # checked before the log is read, so that a run that finishes in between is not shown as stopped
    summary = read_training(run)
    finished = summary.finished or any(event["event"] == "finish" for event in summary.events)
    state = "finished" if finished else "training" if locked else "stopped"
    return frame(summary, *console.size, state, whole=whole), state


@dataclass(frozen=True)
class Watch:
    """Show the training curves of a run live in the terminal until the run ends.

    Examples:
        linfnet watch runs/first
    """

    run_folder: Annotated[tyro.conf.Positional[Path], arg(metavar="RUN")]
    """The folder of a run that is training or has ended."""
    once: bool = False
    """Print the current state and exit."""
    every: Annotated[float, arg(metavar="SECONDS")] = 1.0
    """Seconds between updates."""

    def run(self) -> int:
        """Draw frames until the run has finished or stopped."""
        if not self.every > 0:
            raise ArgumentError(f"--every is {self.every:g}; expected a number of seconds above 0")
        shown, state = watch_frame(self.run_folder, whole=True)
        if self.once or state != "training":
            console.print(shown)
        else:
            first, state = watch_frame(self.run_folder)
            with Live(first, console=console, auto_refresh=False, vertical_overflow="crop") as live:
                while state == "training":
                    time.sleep(self.every)
                    shown, state = watch_frame(self.run_folder)
                    live.update(shown, refresh=True)
            if not console.is_terminal:
                console.print()  # the last frame does not end with a newline
        if state == "stopped":
            console.print(RunFolder.open(self.run_folder).resume_hint)
        return 0


@dataclass(frozen=True)
class Plot:
    """Plot a run from its event log: margins above theta, between 0 and theta, and below 0; loss; accuracies; p.

    Examples:
        linfnet plot runs/first --out curves.pdf
    """

    source: Annotated[tyro.conf.Positional[Path], arg(metavar="RUN|FILE")]
    """A run folder (the run need not have finished), or a record NAME.json."""
    out: File = None
    """The figure to write: .png, .svg or .pdf. Default: curves.png in the run folder, or NAME.png next to a record."""

    def run(self) -> int:
        """Draw the figure and print its path."""
        recipe, log, default = self._find()
        out = self.out or default
        if out.suffix not in (".png", ".svg", ".pdf"):
            raise ArgumentError(f"--out is {str(out)!r}; expected a file name that ends in .png, .svg or .pdf")
        draw_run(out, recipe, read_events(log))
        console.print(f"figure: {out}")
        return 0

    def _find(self) -> tuple[Recipe, Path, Path]:
        """Return the recipe, the path of the event log and the default path of the figure."""
        if self.source.is_dir():
            recipe = RunFolder.open(self.source).recipe
            return recipe, self.source / "events.jsonl", self.source / "curves.png"
        if not self.source.is_file():
            raise LinfnetError(f"{self.source} is neither a run folder nor a record{packaged_hint(self.source)}")
        record = read_json(self.source)
        if not isinstance(record, dict) or not all(isinstance(record.get(key), str) for key in ("recipe", "events")):
            raise LinfnetError(f"{self.source} is not the record of a run: it has no recipe or no events")
        if not record["events"] or Path(record["events"]).name != record["events"]:
            raise LinfnetError(
                f"{self.source} is not the record of a run: 'events' is not the name of a file next to it"
            )
        recipe = recipe_from_toml(record["recipe"], str(self.source), self.source.stem)
        return recipe, self.source.with_name(record["events"]), self.source.with_suffix(".png")
