"""`linfnet reproduce`: the paper's tables, with our results next to the published ones."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import tyro
from rich.table import Table
from tyro.conf import arg

from linfnet.cli.console import console, draw_figure, percent, print_table
from linfnet.cli.evaluate import evaluate_with_progress, store_evaluation
from linfnet.cli.inputs import Changes, Count, Device, Folder, Number, check_counts
from linfnet.cli.train import TrainDisplay
from linfnet.data import load
from linfnet.distributed.device import choose_device
from linfnet.distributed.group import launched
from linfnet.errors import ArgumentError
from linfnet.reproduce import SMALL, STUDIES, Figures, Options, Outcome, Study, run_study, spreads, table1_with
from linfnet.reproduce.outcome import SYSTEM_FIGURES, TEST_FIGURES, TRAINING_FIGURES
from linfnet.reproduce.plots import draw_study
from linfnet.systems import load_model
from linfnet.train import RunFolder

# Number of test images that `--small --systems` evaluates.
SMALL_LIMIT = 500


def outcome_table(outcome: Outcome) -> Table:
    """Return a table of our results next to the paper's, in percent: the median and the range over the seeds."""
    table = _titled(outcome)
    for name in ("clean", f"PGD-{outcome.options.steps}", "certified (margin)", "certified (interval)"):
        table.add_column(name, justify="right", overflow="fold")
    table.add_column("epochs, training seconds, hardware", overflow="fold")
    for cell in outcome.cells:
        runs = outcome.of(cell)
        if runs:
            found = spreads(runs)
            source = f"ours, {len(runs)} seeds" if len(runs) > 1 else f"ours, seed {runs[0].seed}"
            figures = [found[name] for name in TEST_FIGURES]
            shown = [percent(figure.median) for figure in figures]
            if len(runs) > 1:
                ranges = (f" ({percent(figure.lowest)} – {percent(figure.highest)})" for figure in figures)
                shown = [middle + ends for middle, ends in zip(shown, ranges, strict=True)]
            cost = f"{runs[0].epochs}, {found['seconds'].median:.0f}, {runs[0].hardware}"
            table.add_row(cell.label, source, *shown, cost)
        for source, figures in (("paper", cell.paper), ("authors' log", cell.log)):
            if figures != Figures():
                shown = map(_published, (figures.clean, figures.pgd, None, figures.certified))
                table.add_row("" if runs else cell.label, source, *shown, "")
    return table


def systems_table(outcome: Outcome) -> Table:
    """Return a table of the rows of all systems, with the seconds of training and of a certificate per image."""
    table = _titled(outcome)
    for name in ("clean", f"PGD-{outcome.options.steps}", "certified", "train s", "proof s"):
        table.add_column(name, justify="right", no_wrap=True)
    for cell in outcome.cells:
        runs, found = outcome.of(cell), spreads(outcome.of(cell))
        if runs:
            source = f"ours, {len(runs)}" if len(runs) > 1 else f"seed {runs[0].seed}"
            *shares, proof = (found.get(name) for name in SYSTEM_FIGURES)
            cost = f"{found['seconds'].median:.0f}", f"{proof.median:.1g}" if proof else ""
            table.add_row(cell.label, source, *(percent(share and share.median) for share in shares), *cost)
        for source, figures in (("paper", cell.paper), ("log", cell.log)):
            if figures != Figures():
                shown = map(_published, (figures.clean, figures.pgd, figures.certified))
                table.add_row("" if runs else cell.label, source, *shown, "", "")
    return table


def training_table(outcome: Outcome) -> Table:
    """Return a table for a study with results on the training images; it fits into 80 columns.

    It has certified accuracy and the share of margins above theta. Attacks and interval certificates are only in the
    files.
    """
    table = _titled(outcome)
    for name in ("clean", "certified", "on train", "train > θ"):
        table.add_column(name, justify="right", no_wrap=True)
    for cell in outcome.cells:
        runs, found = outcome.of(cell), spreads(outcome.of(cell))
        figures = [found.get(name) for name in TRAINING_FIGURES]
        if runs:
            source = f"ours, {len(runs)}" if len(runs) > 1 else f"seed {runs[0].seed}"
            table.add_row(cell.label, source, *(percent(f and f.median) for f in figures))
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
    table.add_column("source")
    return table


def _published(number: float | None) -> str:
    return "" if number is None else f"{number:.2f}"


def _overridden(change: str, later: Sequence[str]) -> bool:
    """Return whether a later KEY=VALUE has the same key; its section may be omitted."""
    key = change.partition("=")[0]
    return any(key == other or key.endswith(f".{other}") for other in (each.partition("=")[0] for each in later))


@dataclass(frozen=True)
class Reproduce:
    """Train and evaluate the nets of a table in the paper, and show our results next to the published ones.

    After an interrupt, the same command resumes the study: finished runs are not repeated.

    The studies: {studies}.

    Examples:
        linfnet reproduce
        linfnet reproduce ablation --small
        linfnet reproduce table1 --row mnist-0.1 --seeds 3
        linfnet reproduce table1 --systems all --small
    """

    __doc__ = (__doc__ or "").format(studies=", ".join(STUDIES))

    study: Annotated[tyro.conf.Positional[str | None], arg(metavar="STUDY")] = None
    """The name of the table. Without it, all tables are listed."""
    row: Annotated[tyro.conf.UseAppendAction[tuple[tuple[str, ...], ...]], arg(metavar="ROW [ROW ...]")] = ()
    """Train only these rows; finished runs of other rows are also shown."""
    small: bool = False
    """Train small nets on a CPU, in minutes for each row: narrow nets, few images and short schedules. Accuracies and
    their order can differ from the paper's."""
    scale: Annotated[float | None, arg(metavar="FACTOR")] = None
    """Multiply the length of every phase of the schedules by this factor, at most 1."""
    systems: Annotated[tyro.conf.UseAppendAction[tuple[tuple[str, ...], ...]], arg(metavar="NAME [NAME ...]")] = ()
    """Of table1: also train the rows of these other systems, or of `all`, with which the paper compares its net. The
    labels of their rows are the names of recipes; `linfnet recipes` lists them."""
    seeds: Number = 1
    """Number of runs for each row; the table shows the median and the range."""
    set: Changes = ()
    """Change keys of all recipes, as in `linfnet train`."""
    limit: Count = None
    """Evaluate only on the first N test images. Default: all, or 500 with `--small --systems`."""
    steps: Count = None
    """Number of steps of the PGD attack. Default: 100, or 10 with `--small`."""
    out: Folder = None
    """The folder for the runs. Default: runs/reproduce/STUDY, or runs/reproduce/STUDY-small with `--small`."""
    device: Device = "auto"

    def run(self) -> int:
        """Train and evaluate what is missing, and print the table."""
        if self.study is None:
            return self._list()
        if self.study not in STUDIES:
            raise ArgumentError(f"the study is {self.study!r}; expected one of {', '.join(STUDIES)}")
        if launched():
            raise ArgumentError(
                "a study runs in one process: start it without torchrun, or train its rows with `linfnet train`"
            )
        check_counts(limit=self.limit, steps=self.steps)
        study, device = self._study(), choose_device(self.device)
        options = self._options(study)

        def evaluate(folder: RunFolder) -> None:
            images = load(folder.recipe.data.name, "test", device=device).first(options.limit)
            net = load_model(folder.path, device=device)
            evaluation = evaluate_with_progress(net, images, folder.recipe.evaluation.eps, options.steps)
            store_evaluation(folder.path, evaluation, net)

        try:
            outcome = run_study(study, options, device, evaluate=evaluate, note=console.print, display=TrainDisplay)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("interrupted; run the same command again to resume the study") from None
        shown = systems_table if options.systems else training_table if study.on_train else outcome_table
        print_table(shown(outcome))
        console.print(f"outcome: {options.out / 'outcome.json'}, {options.out / 'outcome.csv'}")
        draw_figure(options.out / f"{study.name}.png", lambda path: draw_study(path, outcome))
        rows = study.rows(options.rows)
        return 0 if sum(len(outcome.of(cell)) for cell in rows) == self.seeds * len(rows) else 2

    def _study(self) -> Study:
        """Return the study, with the rows of other systems if they are asked for."""
        assert self.study is not None
        systems = list(itertools.chain(*self.systems))
        if self.systems and self.study != "table1":
            raise ArgumentError(f"--systems has no effect on {self.study}; expected table1")
        return table1_with(systems or ["all"]) if self.systems else STUDIES[self.study]

    def _options(self, study: Study) -> Options:
        """Combine the options of the command line with those of `--small`."""
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
            # Certificates of some other systems take up to a second per image.
            limit=SMALL_LIMIT if self.limit is None and self.small and self.systems else self.limit,
            steps=self.steps or preset.steps,
            systems=tuple(itertools.chain(*self.systems)) or (("all",) if self.systems else ()),
        )

    @staticmethod
    def _list() -> int:
        for study in STUDIES.values():
            console.print(f"{study.name}: {study.title} ({', '.join(cell.label for cell in study.cells)})")
        return 0
