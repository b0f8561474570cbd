"""`linfnet reproduce`: the paper's tables, with our figures next to the published ones."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro
from rich.table import Table

from linfnet.cli.console import console, draw_figure, percent
from linfnet.cli.evaluate import evaluate_with_progress, store_evaluation
from linfnet.cli.inputs import Changes, Device, check_counts, choose_device
from linfnet.cli.train import train_display
from linfnet.data import load
from linfnet.distributed.group import launched
from linfnet.errors import ArgumentError
from linfnet.reproduce import SMALL, STUDIES, Figures, Options, Outcome, Study, run_study, spreads
from linfnet.reproduce.plots import draw_study
from linfnet.systems import load_model
from linfnet.train import RunFolder


def outcome_table(outcome: Outcome) -> Table:
    """Our figures next to the paper's, in percent: the median over the seeds and, if there are several, the range."""
    table = _titled(outcome)
    for name in ("clean", f"PGD-{outcome.options.steps}", "certified (margin)", "certified (interval)"):
        table.add_column(name, justify="right", overflow="fold")
    table.add_column("epochs, training seconds, hardware", overflow="fold")
    for cell in outcome.cells:
        runs = outcome.of(cell)
        if runs:
            found = spreads(runs)
            whose = f"ours, {len(runs)} seeds" if len(runs) > 1 else f"ours, seed {runs[0].seed}"
            figures = [found[name] for name in ("clean", "pgd", "certified_margin", "certified_interval")]
            shown = [percent(figure.median) for figure in figures]
            if len(runs) > 1:
                ranges = (f" ({percent(figure.lowest)} – {percent(figure.highest)})" for figure in figures)
                shown = [middle + ends for middle, ends in zip(shown, ranges, strict=True)]
            cost = f"{runs[0].epochs}, {found['seconds'].median:.0f}, {runs[0].hardware}"
            table.add_row(cell.label, whose, *shown, cost)
        for whose, figures in (("paper", cell.paper), ("authors' log", cell.log)):
            if figures != Figures():
                shown = map(_published, (figures.clean, figures.pgd, None, figures.certified))
                table.add_row("" if runs else cell.label, whose, *shown, "")
    return table


def training_table(outcome: Outcome) -> Table:
    """The table of a study with results on the training images, 80 columns wide.

    It has certified accuracy and the share of margins above theta; attacks and interval certificates are in the files.
    """
    table = _titled(outcome)
    for name in ("clean", "certified", "on train", "train > θ"):
        table.add_column(name, justify="right", no_wrap=True)
    for cell in outcome.cells:
        runs, found = outcome.of(cell), spreads(outcome.of(cell))
        figures = [found.get(name) for name in ("clean", "certified_margin", "certified_train", "above_theta")]
        if runs:
            whose = f"ours, {len(runs)}" if len(runs) > 1 else f"seed {runs[0].seed}"
            table.add_row(cell.label, whose, *(percent(f and f.median) for f in figures))
        if len(runs) > 1:
            ranges = ["" if f is None else f"{100 * f.lowest:.1f}–{100 * f.highest:.1f}" for f in figures]
            table.add_row("", "range", *ranges)
        if cell.paper != Figures():
            paper = cell.paper
            shown = map(_published, (paper.clean, paper.certified, paper.certified_train, paper.above_theta))
            ends = [f"±{deviation:.2f}" for deviation in paper.deviation or ()]
            shown = (text + end for text, end in itertools.zip_longest(shown, ends, fillvalue=""))
            table.add_row("" if runs else cell.label, "paper", *shown)
    return table


def _titled(outcome: Outcome) -> Table:
    table = Table(title=outcome.title, title_justify="left")
    table.add_column("row", no_wrap=True)
    table.add_column("whose")
    return table


def _published(number: float | None) -> str:
    return "" if number is None else f"{number:.2f}"


def _overridden(change: str, later: Sequence[str]) -> bool:
    """Whether a later KEY=VALUE has the same key; a key may be given without its section."""
    key = change.partition("=")[0]
    return any(key == other or key.endswith(f".{other}") for other in (each.partition("=")[0] for each in later))


@dataclass(frozen=True)
class Reproduce:
    """Train and evaluate the nets of a table in the paper, and show our figures next to the published ones.

    Interrupted runs are resumed.
    """

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
    set: Changes = ()
    """Change keys of all recipes, as in `linfnet train`."""
    limit: int | None = None
    """Evaluate on this many test images only, the first of the set."""
    steps: int | None = None
    """Steps of the PGD attack. Default: 100, or 10 with `--small`."""
    out: Path | None = None
    """Folder of the runs. Default: runs/reproduce/STUDY, or STUDY-small."""
    device: Device = "auto"

    def run(self) -> int:
        """Train and evaluate what is missing, and print the table."""
        if self.study is None:
            return self._list()
        if self.study not in STUDIES:
            raise ArgumentError(f"there is no study {self.study!r}; expected one of {', '.join(STUDIES)}")
        if launched():
            raise ArgumentError(
                "a study runs in one process: start it without torchrun, or run its rows by `linfnet train`"
            )
        check_counts(limit=self.limit, steps=self.steps)
        study, device = STUDIES[self.study], choose_device(self.device)
        options = self._options(study)

        def evaluate(folder: RunFolder) -> None:
            images = load(folder.recipe.data.name, "test", device=device).first(options.limit)
            net = load_model(folder.path, device=device)
            evaluation = evaluate_with_progress(net, images, folder.recipe.evaluation.eps, options.steps)
            store_evaluation(folder.path, evaluation, net)

        outcome = run_study(study, options, device, evaluate=evaluate, note=console.print, display=train_display)
        console.print(training_table(outcome) if study.on_train else outcome_table(outcome))
        console.print(f"outcome: {options.out / 'outcome.json'}, {options.out / 'outcome.csv'}")
        draw_figure(options.out / f"{study.name}.png", lambda path: draw_study(path, outcome))
        rows = study.rows(options.rows)
        return 0 if sum(len(outcome.of(cell)) for cell in rows) == self.seeds * len(rows) else 2

    def _options(self, study: Study) -> Options:
        """The options of the command line, added to those of `--small`."""
        rows, changes = (list(itertools.chain(*groups)) for groups in (self.row, self.set))
        if self.row and not rows:
            raise ArgumentError(f"--row is empty; {study.name} has {', '.join(cell.label for cell in study.cells)}")
        preset = SMALL if self.small else Options()
        return replace(
            preset,
            out=self.out or preset.out / (study.name + ("-small" if self.small else "")),
            rows=tuple(rows),
            scale=preset.scale if self.scale is None else self.scale,
            seeds=self.seeds,
            changes=(*(change for change in preset.changes if not _overridden(change, changes)), *changes),
            limit=self.limit,
            steps=self.steps or preset.steps,
        )

    @staticmethod
    def _list() -> int:
        for study in STUDIES.values():
            console.print(f"{study.name}: {study.title} ({', '.join(cell.label for cell in study.cells)})")
        return 0
