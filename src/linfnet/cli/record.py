"""`linfnet record` and `linfnet plot`: what remains of a run."""

import shlex
from dataclasses import dataclass
from pathlib import Path

import tyro

from linfnet.cli.console import console
from linfnet.errors import ArgumentError, LinfnetError
from linfnet.files import read_json
from linfnet.nn.model_path import packaged_hint
from linfnet.recipes import Recipe, recipe_from_toml
from linfnet.reproduce.record import readme_row, write_record
from linfnet.reproduce.run_plots import draw_run, read_events
from linfnet.train import RunFolder


@dataclass(frozen=True)
class Record:
    """Keep a finished run as a record: figures and circumstances as JSON, the event log compressed beside it."""

    run_folder: tyro.conf.Positional[Path]
    """A finished run, evaluated if its figures are to be in the record."""
    out: Path
    """The file to write, NAME.json; the log becomes NAME.events.jsonl.gz."""
    what: str = ""
    """A sentence about the run; by default its recipe's title."""
    commit: str | None = None
    """The commit of the source, for runs that were not started from a git checkout."""
    replace: bool = False
    """Write over an older record."""

    def run(self) -> int:
        """Write both files and say where they are."""
        log = write_record(self.run_folder, self.out, what=self.what, commit=self.commit, replace=self.replace)
        console.print(f"record: {self.out}, {log}")
        try:
            console.print(readme_row(read_json(self.out), self.out.name))
        except LookupError:
            command = ["linfnet", "evaluate", str(self.run_folder), "--steps", "100"]
            console.print(f"it lacks the attack on all test images: {shlex.join(command)}")
        return 0


@dataclass(frozen=True)
class Plot:
    """Draw a run from its event log: training margins above theta, in between and below 0; loss; accuracies; p."""

    source: tyro.conf.Positional[Path]
    """A run folder, finished or not, or a record NAME.json."""
    out: Path | None = None
    """The picture, .png, .svg or .pdf; by default curves.png in the run folder, NAME.png beside a record."""

    def run(self) -> int:
        """Draw and say where the picture is."""
        recipe, log, default = self._find()
        out = self.out or default
        if out.suffix not in (".png", ".svg", ".pdf"):
            raise ArgumentError(f"--out is {str(out)!r}; wanted a file that ends in .png, .svg or .pdf")
        draw_run(out, recipe, read_events(log), recipe.title)
        console.print(f"figure: {out}")
        return 0

    def _find(self) -> tuple[Recipe, Path, Path]:
        """The recipe, the event log and the place of the picture."""
        if self.source.is_dir():
            recipe = RunFolder.open(self.source).recipe
            return recipe, self.source / "events.jsonl", self.source / "curves.png"
        if not self.source.is_file():
            raise LinfnetError(f"{self.source} is neither a run folder nor a record{packaged_hint(self.source)}")
        record = read_json(self.source)
        if not isinstance(record, dict) or not all(isinstance(record.get(key), str) for key in ("recipe", "events")):
            raise LinfnetError(f"{self.source} is not the record of a run: it has no recipe or no events")
        if not record["events"] or Path(record["events"]).name != record["events"]:
            raise LinfnetError(f"{self.source} is not the record of a run: its events are in no file beside it")
        recipe = recipe_from_toml(record["recipe"], str(self.source), self.source.stem)
        return recipe, self.source.with_name(record["events"]), self.source.with_suffix(".png")
