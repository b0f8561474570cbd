"""The curves of training in a terminal, drawn with Braille dots: two by four to a character."""

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from linfnet.report.chart_data import Figure
from linfnet.report.run_summary import RunRecord
from linfnet.report.training_curves import training_panels

COLOURS = ("cyan", "red", "magenta", "yellow", "bright_magenta", "green")
# The bits of a Braille character, by row and column of its dots.
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
LABELS = 8  # columns left of a chart


def draw_lines(
    series: Sequence[Sequence[tuple[float, float]]],
    columns: int,
    rows: int,
    *,
    x: tuple[float, float],
    y: tuple[float, float],
) -> list[list[tuple[str, int | None]]]:
    """Characters and the series that colours each, row by row from the top, of lines within a box of x and y.

    >>> rows = draw_lines([[(0, 0), (3, 1)]], 2, 1, x=(0, 3), y=(0, 1))
    >>> "".join(character for character, _ in rows[0])
    '⡠⠊'
    """
    wide, high = 2 * columns, 4 * rows
    bits = [[0] * columns for _ in range(rows)]
    owner: list[list[int | None]] = [[None] * columns for _ in range(rows)]

    def mark(column: int, row: int, index: int) -> None:
        if 0 <= column < wide and 0 <= row < high:
            bits[row // 4][column // 2] |= DOTS[row % 4][column % 2]
            owner[row // 4][column // 2] = index

    for index, points in enumerate(series):
        places = [
            (
                (px - x[0]) / ((x[1] - x[0]) or 1) * (wide - 1),
                (1 - (py - y[0]) / ((y[1] - y[0]) or 1)) * (high - 1),
            )
            for px, py in points
        ]
        for (x0, y0), (x1, y1) in zip(places[:1] + places, places, strict=False):
            steps = max(1, math.ceil(max(abs(x1 - x0), abs(y1 - y0))))
            for step in range(steps + 1):
                share = step / steps
                mark(round(x0 + share * (x1 - x0)), round(y0 + share * (y1 - y0)), index)
    return [[(chr(0x2800 + bit), own) for bit, own in zip(*row, strict=True)] for row in zip(bits, owner, strict=True)]


def draw_panel(panel: Figure, columns: int, rows: int) -> Text:
    """One panel: its title, the newest values in the colours of their lines, and the lines."""
    log, share = bool(panel.get("log")), panel.get("unit") == "%"
    lines = [[(e, math.log10(v) if log else v) for e, v in s["points"] if v > 0 or not log] for s in panel["series"]]
    values = [v for line in lines for _, v in line] or [0.0, 1.0]
    low, high = min(values) if log else min(0.0, *values), max(values)
    high = min(1.0, math.ceil(10 * high + 0.2) / 10) if share else high
    if high <= low:
        high = low + 1
    ends: list[int] | None = panel["phases"]["ends"] if panel.get("phases") else None
    epochs: list[float] = [1.0, *(e for line in lines for e, _ in line), *(ends or ())]
    last = max(epochs)
    text = Text(f"{panel['title']}  ", style="bold", overflow="ellipsis", no_wrap=True)
    for series in reversed(panel["series"]):  # what matters most comes last, and must not be cut off
        value = series["points"][-1][1]
        told = f"{100 * value:.2f} %" if share else "∞" if _infinite(panel) else f"{value:.4g}"
        text.append(f"{series['name']} {told}  ", style=f"not bold {_colour(series)}")
    drawn = draw_lines(lines, max(columns - LABELS - 1, 4), rows, x=(0, last), y=(low, high))
    for row, characters in enumerate(drawn):
        edge = high if row == 0 else low if row == rows - 1 else None
        text.append("\n" + _label(edge, log, share).rjust(LABELS - 1) + " ", style="not bold dim")
        for character, own in characters:
            text.append(character, style="not bold" if own is None else f"not bold {_colour(panel['series'][own])}")
    text.append("\n" + " " * LABELS + f"0{f'epoch {last:g}':>{max(columns - LABELS - 2, 8)}}\n", style="not bold dim")
    return text


def _infinite(panel: Figure) -> bool:
    """Whether the panel is of p and p has become infinite, which no line can show."""
    return panel["title"] == "Exponent p" and bool(panel["phases"]) and panel["phases"]["p"][-1][1] == "inf"


def _colour(series: Figure) -> str:
    return "white" if series["colour"] is None else COLOURS[series["colour"] % 6]


def _label(value: float | None, log: bool, share: bool) -> str:
    if value is None:
        return ""
    return f"{100 * value:.0f} %" if share else f"{10**value if log else value:.3g}"


def frame(run: RunRecord, width: int, height: int, state: str) -> Group:
    """All panels of a run, and a line on where it stands, to fit a terminal of that size if it can."""
    figures = training_panels([run])
    across = max(1, min(3, width // 38))
    rows = (height - 3) // max(1, math.ceil(len(figures) / across)) - 3
    grid = Table.grid(padding=(0, 2, 0, 0))
    panels = [draw_panel(panel, width // across - 2, max(2, min(rows, 10))) for panel in figures]
    for start in range(0, len(panels), across):
        grid.add_row(*panels[start : start + across])
    head = Text(f"{run.name}  ", style="bold", overflow="ellipsis", no_wrap=True)
    head.append("  ".join([*_standing(run, state == "training"), state]), style="not bold")
    return Group(head, Text(), grid) if panels else Group(head)


def _standing(run: RunRecord, training: bool) -> list[str]:
    """The epoch, the schedule and the time, as of the newest event."""
    epochs: list[dict[str, Any]] = [event for event in run.events if event["event"] == "epoch"]
    if not epochs or run.recipe is None:
        return ["no epoch yet"]
    last, total = epochs[-1], run.recipe.schedule.phases().total
    p = "∞" if last["p"] == "inf" else f"{last['p']:.4g}"
    seconds = float(last["seconds"])
    left = seconds / last["epoch"] * (total - last["epoch"])
    parts = [f"epoch {last['epoch']}/{total}", f"p {p}", f"lr {last['lr']:.2g}", f"{seconds:.0f} s"]
    return [*parts, *([f"about {left:.0f} s left"] if left and training else [])]
