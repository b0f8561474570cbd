"""`linfnet plot`: the training curves of a run as a picture."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from linfnet.cli.console import console
from linfnet.errors import ArgumentError, LinfnetError
from linfnet.files import read_json
from linfnet.nn.model_path import packaged_hint
from linfnet.recipes import Recipe, recipe_from_toml
from linfnet.reproduce.run_plots import draw_run, read_events
from linfnet.train import RunFolder


@dataclass(frozen=True)
class Plot:
    """Plot a run from its event log: margins above theta, between 0 and theta, and below 0; loss; accuracies; p."""

    source: tyro.conf.Positional[Path]
    """A run folder, finished or not, or a record NAME.json."""
    out: Path | None = None
    """The picture, .png, .svg or .pdf. Default: curves.png in the run folder, or NAME.png next to a record."""

    def run(self) -> int:
        """Draw the picture and print its path."""
        recipe, log, default = self._find()
        out = self.out or default
        if out.suffix not in (".png", ".svg", ".pdf"):
            raise ArgumentError(f"--out is {str(out)!r}; expected a file name that ends in .png, .svg or .pdf")
        draw_run(out, recipe, read_events(log), recipe.title)
        console.print(f"figure: {out}")
        return 0

    def _find(self) -> tuple[Recipe, Path, Path]:
        """Return the recipe, the path of the event log and the default path of the picture."""
        if self.source.is_dir():
            recipe = RunFolder.open(self.source).recipe
            return recipe, self.source / "events.jsonl", self.source / "curves.png"
        if not self.source.is_file():
            raise LinfnetError(f"{self.source} is neither a run folder nor a record{packaged_hint(self.source)}")
        record = read_json(self.source)
        if not isinstance(record, dict) or not all(isinstance(record.get(key), str) for key in ("recipe", "events")):
            raise LinfnetError(f"{self.source} is not the record of a run: it has no recipe or no events")
        if not record["events"] or Path(record["events"]).name != record["events"]:
            raise LinfnetError(f"{self.source} is not the record of a run: 'events' names no file next to it")
        recipe = recipe_from_toml(record["recipe"], str(self.source), self.source.stem)
        return recipe, self.source.with_name(record["events"]), self.source.with_suffix(".png")
