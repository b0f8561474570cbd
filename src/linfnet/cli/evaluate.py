"""`linfnet evaluate` and `linfnet compare`: the accuracies of runs and model folders."""

import csv
import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

from rich.box import SIMPLE
from rich.table import Table
from tyro.conf import arg

from linfnet.certificates.exact.decide import BRANCHES
from linfnet.cli import inputs
from linfnet.cli.console import (
    console,
    is_narrow,
    only_first_prints,
    percent,
    print_table,
    progress_bar,
    results_table,
    titled_table,
)
from linfnet.comparison import Compared, compare_runs
from linfnet.data import ImageSet, data_name
from linfnet.distributed.group import ALONE, Group, joined
from linfnet.errors import ArgumentError, LinfnetError
from linfnet.evaluation import Evaluation, evaluate, own_images, save_evaluation
from linfnet.export import write_card
from linfnet.nn import Classifier
from linfnet.nn.model_path import check_copy, copy_model
from linfnet.results import read_results
from linfnet.results.storage import RESULTS_FILE
from linfnet.systems import load_model
from linfnet.train import new_run_path

# The folder, in that of the results, for the verdicts of an exact evaluation that is not finished.
PARTIAL = ".exact"


def evaluate_with_progress(
    net: Classifier,
    images: ImageSet,
    epsilons: Sequence[Fraction],
    steps: int,
    group: Group = ALONE,
    *,
    what: str = "evaluating",
    **options: Any,
) -> Evaluation:
    """Evaluate a net at all epsilons, with a progress bar called `what` for the samples of this process.

    `options` are passed to `evaluate`.
    """
    part = own_images(images, group)
    with progress_bar(what, (part.stop - part.start) * len(epsilons)) as advance:
        return evaluate(net, images, epsilons, steps=steps, advance=advance, group=group, **options)


def store_evaluation(folder: Path, found: Evaluation, net: Classifier) -> None:
    """Save the evaluation in the folder. In a run folder, also write the model card: users do not edit it there."""
    save_evaluation(found, folder)
    if (folder / "recipe.toml").is_file():
        write_card(folder, net)


@dataclass(frozen=True)
class Evaluate(inputs.OnImages):
    """Compute clean, attacked and certified accuracy at p = infinity, and add the results to the folder.

    Examples:
        linfnet evaluate runs/first --eps 0.05 0.1
        linfnet evaluate runs/first --data photos/ --grey --resize 28x28
        linfnet evaluate mnist-small --limit 500 --out results
        linfnet evaluate runs/first --exact
    """

    eps: inputs.Epsilons = ()
    steps: inputs.Count = None
    """Number of steps of the PGD attack. Default: the number in the run's recipe, or 100."""
    exact: bool = False
    """Also decide for every image whether it is robust or broken (l_inf-distance nets). If this is interrupted, the
    same command continues after the last 500 images."""
    branches: inputs.Number = BRANCHES
    """The largest number of branches of the exact search for an image, which is undecided beyond it."""
    out: inputs.Folder = None
    """The folder for the results, and for a copy of the net. Default: the model's folder, or runs/evaluate-MODEL-TIME
    for a packaged or downloaded model."""

    def run(self) -> None:
        inputs.check_counts(steps=self.steps, branches=self.branches)
        found, device = self.find(self.eps, shared=True)
        packaged = found.folder != self.model
        out = self.out or (new_run_path(f"evaluate-{found.folder.name}") if packaged else found.folder)
        read_results(out)  # report an unreadable file before the evaluation, not after it
        if out.is_dir() and not os.access(out, os.W_OK):
            raise LinfnetError(f"{out} is not writable, so the results cannot be saved; choose another folder: --out")
        net = load_model(found.folder, device=device)
        images = self.load_set(net, found, device)
        steps = self.steps or (found.run.recipe.evaluation.pgd_steps if found.run else 100)
        if out != found.folder:
            check_copy(found.folder, out, PARTIAL)
        with joined(device) as group, only_first_prints(group):
            partial = out / PARTIAL
            options: dict[str, Any] = {"exact": self.exact, "branches": self.branches, "partial": partial}
            evaluated = evaluate_with_progress(net, images, found.epsilons, steps, group, **options)
            if group.first:
                if out != found.folder:
                    copy_model(found.folder, out)
                store_evaluation(out, evaluated, net)
                shutil.rmtree(partial, ignore_errors=True)
            title = f"{len(images)} {images.split} images of {images.info.name}, accuracy in %"
            name = self.model.resolve().name
            print_table(results_table(title, [(name, result) for result in evaluated.results]))
            if missing := evaluated.never_predicted:
                names = ", ".join(images.class_names[k] for k in missing)
                console.print(f"never predicted: {names} ({len(missing)} of {len(images.class_names)} classes)")
            console.print(f"results: {out / RESULTS_FILE}")


@dataclass(frozen=True)
class Compare:
    """Compare runs of any system: clean, attacked and certified accuracy, and cost.

    Examples:
        linfnet compare runs/*
        linfnet compare runs/first runs/second --data mnist --csv > table.csv
    """

    runs: inputs.Runs
    """Finished runs, or model folders with results.json; `linfnet evaluate` adds missing results."""
    data: Annotated[str | None, arg(metavar="SET|PATH")] = None
    """Show only results on this data set, or on the data at this path."""
    json: bool = False
    """Write JSON instead of a table, with accuracies in [0, 1]."""
    csv: bool = False
    """Write CSV instead of a table, with accuracies in [0, 1]."""

    def run(self) -> None:
        """Print the results that are stored in the folders."""
        if not self.runs:
            raise ArgumentError("no run is given; expected one or more run folders")
        if self.json and self.csv:
            raise ArgumentError("--json and --csv cannot be combined")
        for folder in self.runs:
            inputs.finished_run(folder)
        compared = compare_runs(self.runs, data=data_name(self.data) if self.data else None)
        rows = [asdict(row) for row in compared]
        if self.json:
            sys.stdout.write(json.dumps(rows, indent=2, ensure_ascii=False) + "\n")
        elif self.csv:
            writer = csv.DictWriter(sys.stdout, rows[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        else:
            for images in dict.fromkeys(row.images for row in compared):
                print_table(accuracy_table([row for row in compared if row.images == images]))
            for kind, promise in dict.fromkeys((_kind(row), row.guarantee) for row in compared):
                console.print(f"{kind}: {promise}", soft_wrap=False)
            print_table(cost_table(compared))


def accuracy_table(rows: list[Compared]) -> Table:
    """Return a table of the accuracies on the same images; it fits into 80 columns, without two columns into 60."""
    narrow = is_narrow()
    words = ("run", "eps") if narrow else ("run", "system", "eps")
    exact = ("exact",) if any(row.exact is not None for row in rows) else ()
    numbers = ("clean", "attacked", *exact, "certified")
    table = titled_table(f"accuracy in % on {rows[0].images}", words, numbers, box=SIMPLE)
    if narrow:
        table.caption = "system and certificate are shown in 80 columns"
    else:
        table.add_column("certificate", overflow="fold")
    for row in rows:
        shares = map(percent, (row.clean, row.attacked, *([row.exact] if exact else []), row.certified))
        kind = f"{row.certificate} {_kind(row)}".strip()
        table.add_row(*((row.run, row.eps, *shares) if narrow else (row.run, row.system, row.eps, *shares, kind)))
    return table


def _kind(row: Compared) -> str:
    """Return the kind of a certificate in few characters."""
    return row.arithmetic + (f" p={row.confidence:.15g}" if row.confidence < 1 else "")


def cost_table(rows: list[Compared]) -> Table:
    """Return a table of the costs of the nets that the runs trained."""
    table = titled_table("cost", ("run",), ("training s", "certificate s/image", "parameters"), box=SIMPLE)
    for run in dict.fromkeys(row.run for row in rows if row.system):
        own = [row for row in rows if row.run == run and row.system]
        seconds = [row.certify_seconds_per_image for row in own if row.certify_seconds_per_image is not None]
        costs = ((own[0].train_seconds, ".0f"), (max(seconds, default=None), ".2g"), (own[0].parameters, ","))
        table.add_row(run, *("" if cost is None else format(cost, style) for cost, style in costs))
    return table
