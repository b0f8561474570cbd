"""`linfnet models`: the models of the package and their measured figures."""

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from rich.table import Table

from linfnet.cli.console import console, percent, print_table
from linfnet.epsilon import format_epsilon
from linfnet.nn import ModelInfo, list_models


@dataclass(frozen=True)
class Models:
    """List the trained nets of the package: accuracies, size, and time for one image.

    The accuracies are those of all test images: unchanged, under two attacks, and certified at eps.

    Examples:
        linfnet models
        linfnet models --json
    """

    json: bool = False
    """Write JSON instead of a table, with accuracies in [0, 1], sizes in bytes and the SHA-256 of the weights."""

    def run(self) -> None:
        """Print the table, or JSON."""
        models = list_models().values()
        if self.json:
            document = [info.to_json() for info in models]
            sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
            return
        print_table(models_table(models))
        console.print("load one: linfnet.load_model(NAME); try one: linfnet serve NAME")


def models_table(models: Iterable[ModelInfo]) -> Table:
    """Return a table with one line for each model; it fits into 80 columns."""
    title = "models of the package; accuracy in % of the test images at eps"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 1))
    for name in ("name", "data", "eps"):
        table.add_column(name, no_wrap=True)
    for name in ("clean", "PGD-100", "smoothed", "certified", "MB", "ms"):
        table.add_column(name, justify="right", no_wrap=True)
    for info in models:
        shares = map(percent, (info.clean, info.pgd, info.smoothed, info.certified))
        costs = (f"{info.size / 1e6:.2f}", f"{info.milliseconds:.2f}")
        table.add_row(info.name, info.data, format_epsilon(info.eps[0]), *shares, *costs)
    processors = ", ".join(dict.fromkeys(info.processor for info in models))
    table.caption = f"PGD-100, smoothed: under these attacks; ms: one image on one core ({processors})"
    table.caption_justify = "left"
    return table
