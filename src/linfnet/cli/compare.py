"""`linfnet compare`: one table over runs of any system."""

import csv
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from linfnet.cli.certify import run_of
from linfnet.cli.console import console, percent
from linfnet.comparison import Compared, compare_runs
from linfnet.errors import ArgumentError

# Characters that the table may take, whatever the terminal: cut numbers are worse than long lines.
WIDTH = 250


@dataclass(frozen=True)
class Compare:
    """Put runs of any system side by side: clean, attacked and certified accuracy, and what they cost."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Finished runs, or model folders with results.json; `linfnet evaluate` fills in what is missing."""
    json: bool = False
    """Write JSON instead of a table; shares in [0, 1]."""
    csv: bool = False
    """Write CSV instead of a table; shares in [0, 1]."""

    def run(self) -> int:
        """Print what the runs hold; nothing is measured anew."""
        if not self.runs:
            raise ArgumentError("no run given")
        if self.json and self.csv:
            raise ArgumentError("--json and --csv exclude each other")
        for folder in self.runs:
            run_of(folder)
        rows = compare_runs(self.runs)
        if self.json:
            sys.stdout.write(json.dumps([row.as_dict() for row in rows], indent=2, ensure_ascii=False) + "\n")
        elif self.csv:
            writer = csv.DictWriter(sys.stdout, list(rows[0].as_dict()), lineterminator="\n")
            writer.writeheader()
            writer.writerows(row.as_dict() for row in rows)
        else:
            Console(width=max(console.width, WIDTH), highlight=False, markup=False).print(_table(rows))
        return 0


def _table(rows: list[Compared]) -> Table:
    images = list(dict.fromkeys(row.images for row in rows))
    title = "accuracy in %" + (f" on {images[0]}" if len(images) == 1 else "")
    table = Table(title=title, title_justify="left", box=SIMPLE)
    for name in ("run", "system", "images", "eps") if len(images) > 1 else ("run", "system", "eps"):
        table.add_column(name, no_wrap=True)
    for name in ("clean", "attacked", "certified"):
        table.add_column(name, justify="right")
    table.add_column("by", no_wrap=True)
    for name in ("training s", "proof s/image", "parameters"):
        table.add_column(name, justify="right")
    for row in rows:
        named = (row.run, row.system, row.images, row.eps) if len(images) > 1 else (row.run, row.system, row.eps)
        shares = ("" if share is None else percent(share) for share in (row.clean, row.attacked, row.certified))
        by = " ".join(part for part in (row.certificate, row.arithmetic) if part)
        by += f" p={row.confidence:g}" if row.confidence < 1 else ""
        training = "" if row.train_seconds is None else f"{row.train_seconds:.0f}"
        proof = "" if row.certify_seconds_per_image is None else f"{row.certify_seconds_per_image:.2g}"
        table.add_row(*named, *shares, by, training, proof, "" if row.parameters is None else f"{row.parameters:,}")
    table.caption = "by: float32 is proven of the program, real leaves its rounding out of account"
    return table
