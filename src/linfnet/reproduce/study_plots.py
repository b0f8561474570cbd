"""Plots of a study: certified accuracy on test and training images, ours and the paper's."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from linfnet.figures import new_figure, save_figure
from linfnet.reproduce.outcome import Outcome, Spread, spreads
from linfnet.reproduce.studies import Cell, Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Series(NamedTuple):
    """A quantity: its field in `RunOutcome`, its label, its colour and its field in `Figures`."""

    name: str
    label: str
    colour: str
    published: str

    def ours(self, outcome: Outcome, cell: Cell) -> Spread | None:
        """The spread of our runs of a cell."""
        return spreads(outcome.of(cell)).get(self.name)

    def paper(self, cell: Cell) -> float | None:
        """The published value in percent."""
        return getattr(cell.paper, self.published)


CERTIFIED = (
    Series("certified_margin", "test", "tab:blue", "certified"),
    Series("certified_train", "train", "tab:orange", "certified_train"),
)
MARGINS = Series("above_theta", "margins above θ", "tab:green", "above_theta")


def draw_study(path: Path, study: Study, outcome: Outcome) -> None:
    """Draw a study as bars, lines or a map, as it asks for."""
    draw: dict[str, Callable[[Study, Outcome, Figure], None]] = {"bars": _bars, "lines": _lines, "map": _map}
    figure = new_figure(7, 8)
    draw[study.drawing](study, outcome, figure)
    differs = outcome.label()
    figure.suptitle(study.title + (f"\n{differs}" if differs else ""), fontsize=8, wrap=True)
    save_figure(figure, path)


def _bars(study: Study, outcome: Outcome, figure: "Figure") -> None:
    figure.set_size_inches(7, 1.5 + 0.6 * len(outcome.cells))
    axes = figure.subplots()
    for offset, series in zip((-0.2, 0.2), CERTIFIED, strict=True):
        rows = [(row + offset, series.ours(outcome, cell)) for row, cell in enumerate(outcome.cells)]
        ours = [(y, spread) for y, spread in rows if spread]
        medians = [100 * spread.median for _, spread in ours]
        axes.barh([y for y, _ in ours], medians, 0.36, color=series.colour, label=f"ours, {series.label}")
        for y, spread in ours:
            axes.plot([100 * spread.lowest, 100 * spread.highest], [y, y], color="black", linewidth=1)
        paper = [(x, row + offset) for row, cell in enumerate(outcome.cells) if (x := series.paper(cell)) is not None]
        if paper:
            label = f"paper, {series.label}"
            axes.plot(*zip(*paper, strict=True), "D", mec="black", mfc=series.colour, label=label)
    axes.set_yticks(range(len(outcome.cells)), [cell.label for cell in outcome.cells])
    axes.invert_yaxis()
    axes.set_xlabel("certified in %")
    axes.legend(fontsize=7)


def _lines(study: Study, outcome: Outcome, figure: "Figure") -> None:
    """Certified accuracy along the axis and, below it, the share of training images with a margin above theta."""
    certified, margins = figure.subplots(2, 1, sharex=True)
    for number, line in enumerate(dict.fromkeys(cell.line for cell in outcome.cells)):
        cells = [cell for cell in outcome.cells if cell.line == line]
        style = "o-" if number == 0 else "s--"
        for axes, series in ((certified, CERTIFIED[0]), (certified, CERTIFIED[1]), (margins, MARGINS)):
            _line(axes, outcome, cells, series, style)
    positions = sorted({cell.at or 0.0 for cell in outcome.cells})
    positive = [position for position in positions if position > 0]
    for axes, label in ((certified, "certified in %"), (margins, "training images in %")):
        if positive and positive[-1] > 15 * positive[0]:  # a logarithmic axis that also has room for 0
            axes.set_xscale("symlog", linthresh=positive[0])
            axes.set_xticks(positions, [f"{position:g}" for position in positions])
        axes.set(xlabel=study.axis, ylabel=label)
        axes.legend(fontsize=7)


def _line(axes: "Axes", outcome: Outcome, cells: list[Cell], series: Series, style: str) -> None:
    label = ", ".join(word for word in (cells[0].line, series.label) if word)
    ours = [(cell.at or 0.0, spread) for cell in cells if (spread := series.ours(outcome, cell))]
    medians = [100 * spread.median for _, spread in ours]
    axes.plot([x for x, _ in ours], medians, style, color=series.colour, label=f"ours, {label}")
    for x, spread in ours:
        axes.plot([x, x], [100 * spread.lowest, 100 * spread.highest], color=series.colour, linewidth=1)
    paper = [(cell.at or 0.0, y) for cell in cells if (y := series.paper(cell)) is not None]
    if paper:
        axes.plot(*zip(*paper, strict=True), style[0], mec=series.colour, mfc="none", ms=10, label=f"paper, {label}")


def _map(study: Study, outcome: Outcome, figure: "Figure") -> None:
    figure.set_size_inches(11, 4)
    lines = list(dict.fromkeys(cell.line for cell in outcome.cells))
    positions = sorted({cell.at or 0.0 for cell in outcome.cells})

    def table(value: Callable[[Cell], float | None]) -> list[list[float]]:
        known = {(cell.line, cell.at): x for cell in outcome.cells if (x := value(cell)) is not None}
        return [[known.get((line, position), math.nan) for position in positions] for line in lines]

    def ours(series: Series) -> Callable[[Cell], float | None]:
        return lambda cell: 100 * spread.median if (spread := series.ours(outcome, cell)) else None

    panels = [(f"ours, {series.label}", table(ours(series))) for series in CERTIFIED]
    panels.append(("paper, test", table(CERTIFIED[0].paper)))
    for axes, (title, rows) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        axes.imshow(rows, cmap="viridis", aspect="auto")
        for y, row in enumerate(rows):
            for x, number in enumerate(row):
                axes.text(x, y, "" if math.isnan(number) else f"{number:.1f}", ha="center", va="center", color="w")
        axes.set_xticks(range(len(positions)), [f"{position:g}" for position in positions], fontsize=7)
        axes.set_yticks(range(len(lines)), lines)
        axes.set(title=f"{title}, certified in %", xlabel=study.axis)
