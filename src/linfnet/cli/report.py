"""`linfnet report`: one or several runs as one HTML page."""

import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from linfnet.cli.console import console
from linfnet.errors import ArgumentError
from linfnet.files import write_text
from linfnet.report import read_run, render


def write_report(runs: tuple[Path, ...], out: Path | None = None) -> Path:
    """Write the report of one or several runs, each once; return the path of the file."""
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
    """Write the results of a run as one HTML file without external parts; several runs are compared on shared axes."""

    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN")]
    """Run folders, preferably after `linfnet evaluate`, or other model folders."""
    out: Path | None = None
    """The file. Default: report.html in the run folder, or comparison.html in the first of several."""
    open: bool = False
    """Open the file in the browser."""

    def run(self) -> int:
        """Write the page and print its path."""
        if not self.runs:
            raise ArgumentError("report needs one or more run folders")
        if self.out is not None and self.out.is_dir():
            raise ArgumentError(f"--out is {self.out}, a folder; wanted a file")
        file = write_report(self.runs, self.out)
        console.print(f"report: {file}")
        if self.open and not webbrowser.open(file.resolve().as_uri()):
            console.print("no browser could be started: open the file by hand")
        return 0
