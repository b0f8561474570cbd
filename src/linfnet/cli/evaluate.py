"""`linfnet evaluate`, `compare` and `demo`: the accuracies of runs and model folders."""

import csv
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path

import tyro
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from linfnet.cli import inputs
from linfnet.cli.console import console, only_first_prints, percent, progress_bar, results_table, titled_table
from linfnet.cli.report import write_report
from linfnet.cli.train import TrainDisplay
from linfnet.comparison import Compared, compare_runs
from linfnet.data import ImageSet, load
from linfnet.distributed.group import ALONE, Group, joined
from linfnet.errors import ArgumentError, LinfnetError
from linfnet.evaluation import Evaluation, evaluate, own_images, save_evaluation
from linfnet.export import write_card
from linfnet.nn import Classifier
from linfnet.recipes import load_recipe
from linfnet.results import add_evaluations, read_results
from linfnet.results.storage import RESULTS_FILE
from linfnet.systems import load_model
from linfnet.theory import nearest_neighbour_net
from linfnet.train import fit, new_run_path

# Minimum width of the table of `compare`, in characters, so that numbers are never truncated.
WIDTH = 250
# The epsilon of the recipe and three more, so that the report has a curve of accuracies under attack.
DEMO_EPSILONS = tuple(Fraction(k, 20) for k in range(1, 5))


def evaluate_with_progress(
    net: Classifier, images: ImageSet, epsilons: Sequence[Fraction], steps: int, group: Group = ALONE
) -> Evaluation:
    """Evaluate a net at all epsilons, with a progress bar for the samples of this process."""
    part = own_images(images, group)
    with progress_bar("evaluating", (part.stop - part.start) * len(epsilons)) as advance:
        return evaluate(net, images, epsilons, steps=steps, advance=advance, group=group)


def store_evaluation(folder: Path, found: Evaluation, net: Classifier) -> None:
    """Save the evaluation in the folder. In a run folder, also write the model card: users do not edit it there."""
    save_evaluation(found, folder)
    if (folder / "recipe.toml").is_file():
        write_card(folder, net)


@dataclass(frozen=True)
class Evaluate(inputs.OnImages):
    """Compute clean, attacked and certified accuracy at p = infinity, and add the results to the folder."""

    model: inputs.ModelFolder
    data: str | None = None
    """A data set. Default: the data set of the run."""
    eps: inputs.Epsilons = ()
    steps: int | None = None
    """Number of steps of the PGD attack. Default: the number in the run's recipe, or 100."""

    def run(self) -> None:
        inputs.check_counts(steps=self.steps)
        found, device = self.find(self.eps, by_name=False, shared=True)
        read_results(self.model)  # report an unreadable file before the evaluation, not after it
        if not os.access(self.model, os.W_OK):
            raise LinfnetError(f"{self.model} is not writable, so the results cannot be saved")
        net = load_model(self.model, device=device)
        images = inputs.load_split(net, found.data, self.split, self.limit, device)
        steps = self.steps or (found.run.recipe.evaluation.pgd_steps if found.run else 100)
        with joined(device) as group, only_first_prints(group):
            evaluated = evaluate_with_progress(net, images, found.epsilons, steps, group)
            if group.first:
                store_evaluation(self.model, evaluated, net)
            title = f"{len(images)} {self.split} images of {found.data}, accuracy in %"
            console.print(results_table(title, [(self.model.name, result) for result in evaluated.results]))
            console.print(f"results: {self.model / RESULTS_FILE}")


@dataclass(frozen=True)
class Compare:
    """Compare runs of any system in one table: clean, attacked and certified accuracy, and cost."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Finished runs, or model folders with results.json; `linfnet evaluate` adds missing results."""
    json: bool = False
    """Write JSON instead of a table, with accuracies in [0, 1]."""
    csv: bool = False
    """Write CSV instead of a table, with accuracies in [0, 1]."""

    def run(self) -> None:
        """Print the results that are stored in the folders."""
        if not self.runs:
            raise ArgumentError("no run is given")
        if self.json and self.csv:
            raise ArgumentError("--json and --csv cannot be combined")
        for folder in self.runs:
            inputs.finished_run(folder)
        compared = compare_runs(self.runs)
        rows = [asdict(row) for row in compared]
        if self.json:
            sys.stdout.write(json.dumps(rows, indent=2, ensure_ascii=False) + "\n")
        elif self.csv:
            writer = csv.DictWriter(sys.stdout, rows[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        else:
            Console(width=max(console.width, WIDTH), highlight=False, markup=False).print(_comparison(compared))


def _comparison(rows: list[Compared]) -> Table:
    images = list(dict.fromkeys(row.images for row in rows))
    several = len(images) > 1
    title = "accuracy in %" + ("" if several else f" on {images[0]}")
    words = ("run", "system", *(["images"] if several else []), "eps")
    table = titled_table(title, words, ("clean", "attacked", "certified"), box=SIMPLE)
    table.add_column("certificate")
    for name in ("training s", "certificate s/image", "parameters"):
        table.add_column(name, justify="right")
    for column in table.columns:
        column.no_wrap = True
    for row in rows:
        named = (row.run, row.system, *([row.images] if several else []), row.eps)
        shares = map(percent, (row.clean, row.attacked, row.certified))
        certificate = f"{row.certificate} {row.arithmetic}".strip()
        certificate += f" p={row.confidence:g}" if row.confidence < 1 else ""
        costs = ((row.train_seconds, ".0f"), (row.certify_seconds_per_image, ".2g"), (row.parameters, ","))
        shown = ("" if cost is None else format(cost, style) for cost, style in costs)
        table.add_row(*named, *shares, certificate, *shown)
    table.caption = "float32: certificates hold for the floating-point program; real: they ignore rounding"
    return table


@dataclass(frozen=True)
class Demo:
    """Train a net on hand-written digits, attack it, certify it, and compare it with the net of Theorem 1."""

    out: Path | None = None
    """The run folder, new or empty. Default: runs/demo-TIME."""

    def run(self) -> None:
        device = inputs.choose_device("auto")
        recipe = load_recipe("digits")
        console.print("training a net on 1,437 hand-written digits …")
        folder = self.out or new_run_path("demo")
        fit(recipe, out=folder, callbacks=[TrainDisplay()], device=device)
        images, test = (load(recipe.data.name, split, device=device) for split in ("train", "test"))
        net = load_model(folder, device=device)
        trained = evaluate_with_progress(net, test, DEMO_EPSILONS, 100)
        store_evaluation(folder, trained, net)
        neighbour_net = nearest_neighbour_net(images.pixels(), images.labels, len(images.info.classes))
        neighbour = evaluate_with_progress(neighbour_net, test, recipe.evaluation.eps, 100).results
        add_evaluations(folder, tuple(replace(result, net="nearest-neighbour") for result in neighbour))
        write_card(folder, net)
        rows = [("trained net", result) for result in trained.results]
        rows += [("Theorem 1", result) for result in neighbour]
        console.print(results_table(f"{len(test)} test images, accuracy in %", rows))
        console.print(f"run folder: {folder}")
        console.print(f"report, to open in a browser: {write_report((folder,))}")
