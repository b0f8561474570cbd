"""Plots of a run's event log, as in the paper's Figure 2(a), and of a study, with our results and the paper's."""

import gzip
import itertools
import math
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from linfnet.data import known_sets, set_info
from linfnet.epsilon import format_epsilon
from linfnet.errors import LinfnetError
from linfnet.figures import GREEN, INK, OCHRE, RUST, SOFT, TEAL, VIOLET, new_figure, save_figure, style_axes
from linfnet.recipes import Recipe, load_recipe
from linfnet.reproduce.outcome import SYSTEM_FIGURES, TRAINING_FIGURES, Outcome, Spread, spreads
from linfnet.reproduce.studies import Cell, differing_sections
from linfnet.systems import has_effect
from linfnet.train import parse_events

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHARES = {"above": ("above θ", TEAL), "between": ("0 to θ", OCHRE), "below": ("below 0", RUST)}
# Some systems have no theta: their margins are counted above and below 0.
SHARES_WITHOUT_THETA = {"above": ("above 0", TEAL), "below": ("below 0", RUST)}


class CurvePoint(NamedTuple):
    """The state of the authors' run on CIFAR-10 at 8/255 after an epoch, counted from 1; shares are in [0, 1]."""

    epoch: int
    p: float
    scale: float
    loss: float
    accuracy: float
    above: float  # share of training margins above theta


AUTHORS_CURVE = (
    CurvePoint(1, 8.0, 1.0, 1.076, 0.184, 0.099),
    CurvePoint(5, 8.0, 0.76, 0.827, 0.397, 0.288),
    CurvePoint(10, 8.0, 0.66, 0.750, 0.450, 0.359),
    CurvePoint(50, 8.0, 0.66, 0.594, 0.584, 0.477),
    CurvePoint(100, 8.0, 0.77, 0.536, 0.634, 0.518),
    CurvePoint(300, 18.5, 2.37, 0.584, 0.617, 0.302),
    CurvePoint(500, 42.7, 2.94, 0.629, 0.579, 0.200),
    CurvePoint(800, 151.0, 3.39, 0.638, 0.571, 0.155),
    CurvePoint(1000, 349.0, 3.53, 0.629, 0.579, 0.153),
    CurvePoint(1300, float("inf"), 3.60, 0.617, 0.589, 0.156),
)


def comparable_epochs(recipe: Recipe) -> int:
    """Return the last epoch at which a run is comparable with the authors' run; 0 if it is not comparable.

    With the full recipe, this is the last epoch. With shortened phases, it is the end of the first phase, provided that
    the phase has at least ten epochs. (The learning rate of a shortened run decays earlier: in a run of 100 epochs, it
    decays by 2.4 % within the first ten.)
    """
    full = load_recipe("cifar10-8")
    if set(differing_sections(recipe, full)) - {"schedule", "run", "evaluation"}:
        return 0
    if recipe.schedule.p_start != full.schedule.p_start:
        return 0
    whole = replace(recipe.schedule, snap_p=full.schedule.snap_p) == full.schedule
    start = recipe.schedule.epochs[0]
    return full.schedule.phases().total if whole else start if start >= 10 else 0


def read_events(path: Path) -> list[dict[str, Any]]:
    """Read the events of a log, which may be compressed with gzip."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise LinfnetError(f"{path} is not a readable event log: {str(error).splitlines()[0]}") from None
    return parse_events(content.decode(errors="replace"))


def run_title(recipe: Recipe) -> str:
    """Return the data set and the first epsilon of a run, which may differ from those in the title of its recipe.

    >>> run_title(load_recipe("mnist-0.1", ["data.name=fashion-mnist"]))
    'Fashion-MNIST at ε = 0.1'
    """
    name = recipe.data.name
    title = set_info(name).title if name in known_sets() else name
    return f"{title} at ε = {format_epsilon(recipe.evaluation.eps[0])}"


def draw_run(path: Path, recipe: Recipe, events: list[dict[str, Any]]) -> None:
    """Plot margins, loss and accuracies by epoch, with p on the upper axis; the suffix selects PNG, SVG or PDF."""
    epochs = [event for event in events if event["event"] == "epoch"]
    tests = [event for event in events if event["event"] == "test"]
    if not epochs:
        raise LinfnetError("the event log has no epoch yet: there is nothing to draw")
    figure = new_figure(7, 9)
    figure.suptitle(run_title(recipe), x=0.02, ha="left", color=INK, fontsize=14, fontweight="bold")
    shares, losses, accuracies = figure.subplots(3, 1, sharex=True)
    numbers, tested = ([event["epoch"] for event in kind] for kind in (epochs, tests))
    bands = SHARES if has_effect(recipe, "loss") else SHARES_WITHOUT_THETA
    names, colours = zip(*bands.values(), strict=True)
    shares.stackplot(numbers, *(_percentages(epochs, key) for key in bands), labels=names, colors=colours, alpha=0.8)
    shares.set(ylabel="training margins in %", ylim=(0, 100))
    _plot(losses, numbers, [event["loss"] for event in epochs], "training loss", TEAL)
    losses.set(ylabel="loss", ylim=(0, None))
    _plot(accuracies, numbers, _percentages(epochs, "accuracy"), "training", SOFT)
    # The accuracies at p and at infinity are often equal: a ring and a dot are visible at the same point.
    _plot(accuracies, tested, _percentages(tests, "accuracy_at_p"), "test at p", GREEN, marker="o", mfc="none", ms=7)
    _plot(accuracies, tested, _percentages(tests, "clean"), "test at p = ∞", VIOLET, marker=".")
    certified = [test["certified"] for test in tests]
    for epsilon, colour in zip(certified[0] if tests else (), itertools.cycle((TEAL, OCHRE, RUST)), strict=False):
        shown = _percentages(certified, epsilon)
        _plot(accuracies, tested, shown, f"certified at ε = {epsilon}", colour, marker=".")
    accuracies.set(ylabel="accuracy in %", xlabel="epoch", xlim=(min(numbers), max(max(numbers), min(numbers) + 1)))
    if points := [point for point in AUTHORS_CURVE if point.epoch <= comparable_epochs(recipe)]:
        at = [point.epoch for point in points]
        losses.plot(at, [point.loss for point in points], "x", color=INK, label="the authors' run")
        accuracies.plot(at, [100 * point.accuracy for point in points], "x", color=INK, label="the authors' training")
    accuracies.xaxis.get_major_locator().set_params(integer=True)
    for axes in (shares, losses, accuracies):
        style_axes(axes)
    for axes in (losses, accuracies):
        axes.legend(ncols=4, **LEGEND)
    marked = [epochs[k] for k in sorted({round(k * (len(epochs) - 1) / 6) for k in range(7)})]
    labels = ["∞" if epoch["p"] == "inf" else f"{epoch['p']:.3g}" for epoch in marked]
    upper = shares.secondary_xaxis("top")
    upper.set_xticks([epoch["epoch"] for epoch in marked], [f"p = {labels[0]}", *labels[1:]])
    upper.get_xticklabels()[0].set_horizontalalignment("left")
    upper.spines["top"].set_visible(False)
    upper.tick_params(colors=SOFT, labelsize=9, length=0)
    shares.legend(ncols=3, **{**LEGEND, "bbox_to_anchor": (0, 1.07)})
    save_figure(figure, path)


# A legend in one row above the axes, aligned with their left side.
LEGEND: dict[str, Any] = {
    "loc": "lower left",
    "bbox_to_anchor": (0, 1),
    "frameon": False,
    "fontsize": 9,
    "labelcolor": "linecolor",
    "borderaxespad": 0,
    "columnspacing": 1.2,
    "handlelength": 1.2,
    "handletextpad": 0.5,
}


def _plot(axes: "Axes", x: list[int], y: list[float], label: str, colour: str, **options: Any) -> None:
    """Plot a line, unless it has no point to show: then the legend must not name it either."""
    if any(map(math.isfinite, y)):
        axes.plot(x, y, label=label, color=colour, linewidth=1.6, clip_on=False, **options)


def _percentages(tables: list[dict[str, Any]], key: str) -> list[float]:
    return [100 * table.get(key, math.nan) for table in tables]


class Series(NamedTuple):
    """A quantity to plot: its field in `RunOutcome`, its label, its colour and its field in `Figures`."""

    name: str
    label: str
    colour: str
    published: str

    def ours(self, outcome: Outcome) -> dict[Cell, Spread]:
        """Return the spread of our runs in percent, for each cell with finished runs."""
        found = {cell: spreads(outcome.of(cell)).get(self.name) for cell in outcome.cells}
        return {cell: Spread(*(100 * share for share in spread)) for cell, spread in found.items() if spread}

    def paper(self, outcome: Outcome) -> dict[Cell, float]:
        """Return the published values in percent, for each cell that has one."""
        found = {cell: getattr(cell.paper, self.published) for cell in outcome.cells}
        return {cell: share for cell, share in found.items() if share is not None}


_, _TEST, _TRAIN, _ABOVE = TRAINING_FIGURES
_BEST = SYSTEM_FIGURES[2]
CERTIFIED = (
    Series(_TEST, "test", TEAL, "certified"),
    Series(_TRAIN, "train", OCHRE, "certified_train"),
)
# Of other systems: by the best certificate of each net. Not all of them certify training images.
BEST = Series(_BEST, "test", TEAL, "certified")
MARGINS = Series(_ABOVE, "margins above θ", GREEN, "above_theta")


def draw_study(path: Path, outcome: Outcome) -> None:
    """Plot certified accuracy on test and training images as bars, lines or a map, as the study specifies."""
    draw: dict[str, Callable[[Outcome, Figure], None]] = {"bars": _bars, "lines": _lines, "map": _map}
    figure = new_figure(7, 8)
    draw[outcome.study.drawing](outcome, figure)
    figure.suptitle(outcome.title, fontsize=8, wrap=True)
    save_figure(figure, path)


def _bars(outcome: Outcome, figure: "Figure") -> None:
    shown = {0.0: BEST} if outcome.options.systems else dict(zip((-0.2, 0.2), CERTIFIED, strict=True))
    figure.set_size_inches(7, 1.5 + 0.3 * len(shown) * len(outcome.cells))
    axes = figure.subplots()
    for offset, series in shown.items():
        rows = {cell: row + offset for row, cell in enumerate(outcome.cells)}
        ours, paper = series.ours(outcome), series.paper(outcome)
        medians = [spread.median for spread in ours.values()]
        axes.barh([rows[cell] for cell in ours], medians, 0.36, color=series.colour, label=f"ours, {series.label}")
        for cell, spread in ours.items():
            axes.plot([spread.lowest, spread.highest], [rows[cell]] * 2, color="black", linewidth=1)
        if paper:
            y, label = [rows[cell] for cell in paper], f"paper, {series.label}"
            axes.plot(list(paper.values()), y, "D", mec="black", mfc=series.colour, label=label)
    axes.set_yticks(range(len(outcome.cells)), [cell.label for cell in outcome.cells])
    axes.invert_yaxis()
    axes.set_xlabel("certified in %")
    style_axes(axes, grid="x")
    axes.legend(fontsize=7)


def _lines(outcome: Outcome, figure: "Figure") -> None:
    """Plot certified accuracy by the study's parameter and, below it, the share of training margins above theta."""
    certified, margins = figure.subplots(2, 1, sharex=True)
    for number, line in enumerate(dict.fromkeys(cell.line for cell in outcome.cells)):
        style = "o-" if number == 0 else "s--"
        for axes, series in ((certified, CERTIFIED[0]), (certified, CERTIFIED[1]), (margins, MARGINS)):
            _line(axes, outcome, line, series, style)
    positions = sorted({cell.at for cell in outcome.cells})
    positive = [position for position in positions if position > 0]
    for axes, label in ((certified, "certified in %"), (margins, "training images in %")):
        if positive and positive[-1] > 15 * positive[0]:  # a logarithmic axis that includes 0
            axes.set_xscale("symlog", linthresh=positive[0])
            axes.set_xticks(positions, [f"{position:g}" for position in positions])
        axes.set(xlabel=outcome.study.axis, ylabel=label)
        style_axes(axes)
        axes.legend(fontsize=7)


def _line(axes: "Axes", outcome: Outcome, line: str, series: Series, style: str) -> None:
    label = ", ".join(filter(None, (line, series.label)))
    ours = {cell.at: spread for cell, spread in series.ours(outcome).items() if cell.line == line}
    paper = {cell.at: share for cell, share in series.paper(outcome).items() if cell.line == line}
    medians = [spread.median for spread in ours.values()]
    axes.plot(list(ours), medians, style, color=series.colour, label=f"ours, {label}")
    for x, spread in ours.items():
        axes.plot([x, x], [spread.lowest, spread.highest], color=series.colour, linewidth=1)
    if paper:
        x, y = zip(*paper.items(), strict=True)
        axes.plot(x, y, style[0], mec=series.colour, mfc="none", ms=10, label=f"paper, {label}")


def _map(outcome: Outcome, figure: "Figure") -> None:
    figure.set_size_inches(11, 4)
    lines = list(dict.fromkeys(cell.line for cell in outcome.cells))
    positions = sorted({cell.at for cell in outcome.cells})
    panels = {
        f"ours, {series.label}": {cell: spread.median for cell, spread in series.ours(outcome).items()}
        for series in CERTIFIED
    }
    panels["paper, test"] = CERTIFIED[0].paper(outcome)
    for axes, (title, shares) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        rows = [[math.nan] * len(positions) for _ in lines]
        for cell, share in shares.items():
            x, y = positions.index(cell.at), lines.index(cell.line)
            rows[y][x] = share
            axes.text(x, y, f"{share:.1f}", ha="center", va="center", color="w")
        axes.imshow(rows, cmap="viridis", aspect="auto")
        axes.set_xticks(range(len(positions)), [f"{position:g}" for position in positions], fontsize=7)
        axes.set_yticks(range(len(lines)), lines)
        axes.set(title=f"{title}, certified in %", xlabel=outcome.study.axis)
