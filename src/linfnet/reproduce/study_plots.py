"""A study as a picture: what is certified of test and training images, ours and the paper's."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from linfnet.errors import LinfnetError
from linfnet.files import replacing
from linfnet.reproduce.outcome import Outcome, Spread, spreads
from linfnet.reproduce.study import Cell, Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The figure of ours, its name in the legend, its colour and how the paper's stands in `Figures`.
SERIES = (
    ("certified_margin", "test", "tab:blue", "certified"),
    ("certified_train", "train", "tab:orange", "certified_train"),
)


def draw_study(path: Path, study: Study, outcome: Outcome) -> None:
    """Draw certified accuracy on test and train as the study wants it: bars, lines or a map; PNG."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise LinfnetError("drawing needs matplotlib: pip install 'linfnet[plots]'") from None
    draw: dict[str, Callable[[Study, Outcome, Figure], None]] = {"bars": _bars, "lines": _lines, "map": _map}
    figure = Figure(layout="constrained")
    draw[study.drawing](study, outcome, figure)
    differs = outcome.label()
    figure.suptitle(study.title + (f"\n{differs}" if differs else ""), fontsize=8, wrap=True)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120)


def _ours(outcome: Outcome, cell: Cell, name: str) -> Spread | None:
    return spreads(outcome.of(cell)).get(name)


def _bars(study: Study, outcome: Outcome, figure: "Figure") -> None:
    figure.set_size_inches(7, 1.5 + 0.6 * len(outcome.cells))
    axes = figure.subplots()
    for place, (name, label, colour, published) in enumerate(SERIES):
        rows = [(row, _ours(outcome, cell, name)) for row, cell in enumerate(outcome.cells)]
        found = [(row + 0.4 * place - 0.2, spread) for row, spread in rows if spread]
        axes.barh([y for y, _ in found], [100 * s.median for _, s in found], 0.36, color=colour, label=f"ours, {label}")
        for y, spread in found:
            axes.plot([100 * spread.lowest, 100 * spread.highest], [y, y], color="black", linewidth=1)
        papers = [(row + 0.4 * place - 0.2, getattr(cell.paper, published)) for row, cell in enumerate(outcome.cells)]
        papers = [(y, x) for y, x in papers if x is not None]
        if papers:
            axes.plot(
                [x for _, x in papers], [y for y, _ in papers], "D", mec="black", mfc=colour, label=f"paper, {label}"
            )
    axes.set_yticks(range(len(outcome.cells)), [cell.label for cell in outcome.cells])
    axes.invert_yaxis()
    axes.set_xlabel("certified in %")
    axes.legend(fontsize=7)


def _lines(study: Study, outcome: Outcome, figure: "Figure") -> None:
    """Certified accuracy along the axis and, below it, how many training images have a margin above theta."""
    figure.set_size_inches(7, 8)
    certified, margins = figure.subplots(2, 1, sharex=True)
    lines = list(dict.fromkeys(cell.line for cell in outcome.cells))
    for number, line in enumerate(lines):
        cells = [cell for cell in outcome.cells if cell.line == line]
        style = "o-" if number == 0 else "s--"
        for series in SERIES:
            _line(certified, outcome, cells, series, style)
        _line(margins, outcome, cells, ("above_theta", "margins above θ", "tab:green", "above_theta"), style)
    places = [cell.at or 0.0 for cell in outcome.cells]
    for axes, words in ((certified, "certified in %"), (margins, "training images in %")):
        _scale(axes, places)
        axes.set(xlabel=study.axis, ylabel=words)
        axes.legend(fontsize=7)


def _line(axes: "Axes", outcome: Outcome, cells: list[Cell], series: tuple[str, str, str, str], style: str) -> None:
    name, label, colour, published = series
    words = ", ".join(word for word in (cells[0].line, label) if word)
    found = [(cell.at or 0.0, spread) for cell in cells if (spread := _ours(outcome, cell, name))]
    axes.plot([x for x, _ in found], [100 * s.median for _, s in found], style, color=colour, label=f"ours, {words}")
    for x, spread in found:
        axes.plot([x, x], [100 * spread.lowest, 100 * spread.highest], color=colour, linewidth=1)
    papers = [(cell.at or 0.0, y) for cell in cells if (y := getattr(cell.paper, published)) is not None]
    if papers:
        axes.plot(*zip(*papers, strict=True), style[0], mec=colour, mfc="none", ms=10, label=f"paper, {words}")


def _scale(axes: "Axes", places: list[float]) -> None:
    """Powers of ten for places that span several, with room for 0."""
    positive = [place for place in places if place > 0]
    if positive and max(positive) > 15 * min(positive):
        axes.set_xscale("symlog", linthresh=min(positive))
        axes.set_xticks(sorted(set(places)), [f"{place:g}" for place in sorted(set(places))])


def _map(study: Study, outcome: Outcome, figure: "Figure") -> None:
    figure.set_size_inches(11, 4)
    lines = list(dict.fromkeys(cell.line for cell in outcome.cells))
    places = sorted({cell.at or 0.0 for cell in outcome.cells})

    def values(of: Callable[[Cell], float | None]) -> list[list[float]]:
        found = {(cell.line, cell.at): of(cell) for cell in outcome.cells}
        rows = [[found.get((line, place)) for place in places] for line in lines]
        return [[math.nan if value is None else value for value in row] for row in rows]

    def ours(name: str) -> Callable[[Cell], float | None]:
        return lambda cell: 100 * spread.median if (spread := _ours(outcome, cell, name)) else None

    panels = [(f"ours, {label}", values(ours(name))) for name, label, _, _ in SERIES]
    panels.append(("paper, test", values(lambda cell: cell.paper.certified)))
    for axes, (title, table) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        axes.imshow(table, cmap="viridis", aspect="auto")
        for row, numbers in enumerate(table):
            for column, number in enumerate(numbers):
                axes.text(
                    column, row, "" if math.isnan(number) else f"{number:.1f}", ha="center", va="center", color="w"
                )
        axes.set_xticks(range(len(places)), [f"{place:g}" for place in places], fontsize=7)
        axes.set_yticks(range(len(lines)), lines)
        axes.set(title=f"{title}, certified in %", xlabel=study.axis)
