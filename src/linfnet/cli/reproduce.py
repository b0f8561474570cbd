"""`linfnet reproduce`: the paper's tables, with our figures next to the published ones."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import tyro
from rich.table import Table

from linfnet.cli.console import console, draw_figure, percent
from linfnet.cli.evaluate import evaluate_with_progress, store_evaluation
from linfnet.cli.inputs import Device, check_counts, choose_device
from linfnet.cli.train import train_display
from linfnet.data import load
from linfnet.distributed.group import launched
from linfnet.errors import ArgumentError
from linfnet.recipes import Recipe
from linfnet.reproduce import SMALL, STUDIES, Figures, Options, Outcome, Spread, Study, run_study, spreads
from linfnet.reproduce.study_plots import draw_study
from linfnet.systems import load_model
from linfnet.train import RunFolder, resume_run, start_run


class ShownWorkers:
    """Trains and evaluates runs of a study on one device, with the progress displays of `train` and `evaluate`."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def start(self, recipe: Recipe, path: Path) -> None:
        """Train in a new folder."""
        start_run(recipe, path, self.device, display=train_display)

    def resume(self, folder: RunFolder) -> None:
        """Resume training from the last checkpoint."""
        resume_run(folder, self.device, display=train_display)

    def evaluate(self, folder: RunFolder, limit: int | None, steps: int) -> None:
        """Evaluate on the test set and store the result in the folder."""
        name = folder.recipe.data.name
        images = load(name, "test", device=self.device).first(limit)
        net = load_model(folder.path, device=self.device)
        evaluation = evaluate_with_progress(net, images, folder.recipe.evaluation.eps, steps)
        store_evaluation(folder.path, evaluation, net)


def outcome_table(study: Study, outcome: Outcome) -> Table:
    """Our figures next to the paper's, in percent: the median over the seeds and, if there are several, the range."""
    table = _titled(study, outcome)
    for name in ("clean", f"PGD-{outcome.pgd_steps}", "certified (margin)", "certified (interval)"):
        table.add_column(name, justify="right", overflow="fold")
    table.add_column("epochs, training seconds, hardware", overflow="fold")
    for cell in outcome.cells:
        runs = outcome.of(cell)
        for run in runs[:1]:
            found = spreads(runs)
            whose = f"ours, {len(runs)} seeds" if len(runs) > 1 else f"ours, seed {run.seed}"
            figures = (found[name] for name in ("clean", "pgd", "certified_margin", "certified_interval"))
            cost = f"{run.epochs}, {found['seconds'].median:.0f}, {run.hardware}"
            table.add_row(cell.label, whose, *(_spread(figure, len(runs)) for figure in figures), cost)
        for whose, figures in (("paper", cell.paper), ("authors' log", cell.log)):
            if figures != Figures():
                numbers = (figures.clean, figures.pgd, None, figures.certified)
                shown = ["" if number is None else f"{number:.2f}" for number in numbers]
                table.add_row("" if runs else cell.label, whose, *shown, "")
    return table


def training_table(study: Study, outcome: Outcome) -> Table:
    """The table of a study with results on the training images, 80 columns wide.

    It has certified accuracy and the share of margins above theta; attacks and interval certificates are in the files.
    """
    table = _titled(study, outcome)
    for name in ("clean", "certified", "on train", "train > θ"):
        table.add_column(name, justify="right", no_wrap=True)
    for cell in outcome.cells:
        runs, found = outcome.of(cell), spreads(outcome.of(cell))
        figures = [found.get(name) for name in ("clean", "certified_margin", "certified_train", "above_theta")]
        for run in runs[:1]:
            whose = f"ours, {len(runs)}" if len(runs) > 1 else f"seed {run.seed}"
            table.add_row(cell.label, whose, *("" if f is None else percent(f.median) for f in figures))
        if len(runs) > 1:
            ranges = ["" if f is None else f"{100 * f.lowest:.1f}–{100 * f.highest:.1f}" for f in figures]
            table.add_row("", "range", *ranges)
        if cell.paper != Figures():
            paper = cell.paper
            clean, certified = paper.deviation or (None, None)
            pairs = ((paper.clean, clean), (paper.certified, certified))
            pairs += ((paper.certified_train, None), (paper.above_theta, None))
            shown = ["" if n is None else f"{n:.2f}" if d is None else f"{n:.2f}±{d:.2f}" for n, d in pairs]
            table.add_row("" if runs else cell.label, "paper", *shown)
    return table


def _titled(study: Study, outcome: Outcome) -> Table:
    differs = outcome.label()
    table = Table(title=study.title + (f"\n{differs}" if differs else ""), title_justify="left")
    table.add_column("row", no_wrap=True)
    table.add_column("whose")
    return table


def _spread(figure: Spread, runs: int) -> str:
    middle = percent(figure.median)
    return middle if runs == 1 else f"{middle} ({percent(figure.lowest)} – {percent(figure.highest)})"


def _overridden(change: str, later: tuple[str, ...]) -> bool:
    """Whether a later KEY=VALUE has the same key; a key may be given without its section."""
    key = change.partition("=")[0]
    return any(key == other or key.endswith(f".{other}") for other in (each.partition("=")[0] for each in later))


@dataclass(frozen=True)
class Reproduce:
    """Run a table of the paper, with our figures next to the published ones. Interrupted runs are resumed."""

    study: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="STUDY")] = None
    """Which table; without it, all tables are listed."""
    row: tyro.conf.UseAppendAction[tuple[tuple[str, ...], ...]] = ()
    """Run only these rows; finished runs of other rows are also shown."""
    small: bool = False
    """Show the trend on a CPU in minutes, with narrow nets, few images and short schedules, not the paper's nets."""
    scale: float | None = None
    """Shorten every phase of the schedules by this factor."""
    seeds: int = 1
    """Number of runs for each row; the table shows the median and the range."""
    set: Annotated[tyro.conf.UseAppendAction[tuple[tuple[str, ...], ...]], tyro.conf.arg(metavar="KEY=VALUE")] = ()
    """Change keys of all recipes, as in `linfnet train`."""
    limit: int | None = None
    """Evaluate on this many test images only, the first of the set."""
    steps: int | None = None
    """Steps of the PGD attack. Default: 100, or 10 with `--small`."""
    out: Path | None = None
    """Folder of the runs. Default: runs/reproduce/STUDY, or STUDY-small."""
    device: Device = "auto"

    def run(self) -> int:
        """Run the missing runs and print the table."""
        if self.study is None:
            return self._list()
        if self.study not in STUDIES:
            raise ArgumentError(f"there is no study {self.study!r}; wanted one of {', '.join(STUDIES)}")
        if launched():
            raise ArgumentError(
                "a study runs in one process: start it without torchrun, or run its rows by `linfnet train`"
            )
        check_counts(limit=self.limit, steps=self.steps)
        study = STUDIES[self.study]
        options = self._options(study)
        outcome = run_study(study, options, ShownWorkers(choose_device(self.device)), console.print)
        console.print((training_table if study.on_train else outcome_table)(study, outcome))
        console.print(f"outcome: {options.out / 'outcome.json'}, {options.out / 'outcome.csv'}")
        draw_figure(options.out / f"{study.name}.png", lambda path: draw_study(path, study, outcome))
        rows = study.rows(options.rows)
        return 0 if sum(len(outcome.of(cell)) for cell in rows) == self.seeds * len(rows) else 2

    def _options(self, study: Study) -> Options:
        """The options of the command line, added to those of `--small`."""
        changes = tuple(change for group in self.set for change in group)
        small = (change for change in SMALL.changes if self.small and not _overridden(change, changes))
        rows = tuple(label for group in self.row for label in group)
        if self.row and not rows:
            raise ArgumentError(f"--row is empty; {study.name} has {', '.join(cell.label for cell in study.cells)}")
        out = self.out or Path("runs") / "reproduce" / (study.name + ("-small" if self.small else ""))
        scale, steps = (SMALL.scale, SMALL.steps) if self.small else (1.0, 100)
        return Options(
            out,
            rows,
            scale if self.scale is None else self.scale,
            self.seeds,
            (*small, *changes),
            self.limit,
            self.steps or steps,
            self.small,
        )

    @staticmethod
    def _list() -> int:
        for study in STUDIES.values():
            console.print(f"{study.name}: {study.title} ({', '.join(cell.label for cell in study.cells)})")
        return 0
