"""Training curves in a terminal, drawn with Braille characters of two by four dots."""

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from linfnet.report.charts import Chart, training_panels
from linfnet.report.run_summary import RunSummary

COLOURS = ("cyan", "red", "magenta", "yellow", "bright_magenta", "green")
# The bits of a Braille character, by row and column of its dots.
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
LEAST_ROWS, MOST_ROWS = 4, 16  # the heights of a chart, in characters
LABELS = 8  # width of the labels to the left of a chart, in characters


def draw_lines(
    series: Sequence[Sequence[tuple[float, float]]],
    columns: int,
    rows: int,
    *,
    x: tuple[float, float],
    y: tuple[float, float],
) -> list[list[tuple[str, int | None]]]:
    """Draw lines in a box; return rows of characters from the top, each with the index of its line or None.

    >>> rows = draw_lines([[(0, 0), (3, 1)]], 2, 1, x=(0, 3), y=(0, 1))
    >>> "".join(character for character, _ in rows[0])
    '⡠⠊'
    """
    wide, high = 2 * columns, 4 * rows
    bits = [[0] * columns for _ in range(rows)]
    owner: list[list[int | None]] = [[None] * columns for _ in range(rows)]
    across, down = (wide - 1) / ((x[1] - x[0]) or 1), (high - 1) / ((y[1] - y[0]) or 1)
    for index, points in enumerate(series):
        dots = [((px - x[0]) * across, high - 1 - (py - y[0]) * down) for px, py in points]
        for (x0, y0), (x1, y1) in zip(dots[:1] + dots, dots, strict=False):
            steps = max(1, math.ceil(max(abs(x1 - x0), abs(y1 - y0))))
            for step in range(steps + 1):
                column, row = round(x0 + step / steps * (x1 - x0)), round(y0 + step / steps * (y1 - y0))
                if 0 <= column < wide and 0 <= row < high:
                    bits[row // 4][column // 2] |= DOTS[row % 4][column % 2]
                    owner[row // 4][column // 2] = index
    return [[(chr(0x2800 + bit), own) for bit, own in zip(*row, strict=True)] for row in zip(bits, owner, strict=True)]


def draw_panel(panel: Chart, columns: int, rows: int) -> Text:
    """Draw one panel: its title, the newest value of each line in the line's colour, and the lines."""
    log, share = bool(panel.get("log")), panel.get("unit") == "%"
    lines = [[(e, math.log10(v) if log else v) for e, v in s["points"] if v > 0 or not log] for s in panel["series"]]
    values = [v for line in lines for _, v in line] or [0.0, 1.0]
    phases = panel["phases"]
    ends: list[int] = phases["ends"] if phases else []
    last = max([1.0, *(e for line in lines for e, _ in line), *ends])
    low, high = min(values) if log else min(0.0, *values), max(values)
    if share:  # as in the report, the first tenth of the epochs does not determine the axis
        late = [v for line in lines for e, v in line if e > 0.1 * line[-1][0]] or values
        low, high = math.floor(10 * min(late)) / 10, min(1.0, math.ceil(10 * high + 0.2) / 10)
    if high <= low:
        high = low + 1
    # A line cannot show an infinite p, so the title shows it.
    infinite = panel["id"] == "p" and phases and phases["p"][-1][1] == "inf"
    text = Text(f"{panel['title']}  ", style="bold", overflow="ellipsis", no_wrap=True)
    for series in reversed(panel["series"]):  # the last line is the most important and must not be cut off
        value = series["points"][-1][1]
        shown = f"{100 * value:.2f} %" if share else "∞" if infinite else f"{value:.4g}"
        item = f"{series['name']} {shown}"
        if len(text) + len(item) <= columns:
            text.append(f"{item}  ", style=f"not bold {_colour(series)}")
    drawn = draw_lines(lines, max(columns - LABELS - 1, 4), rows, x=(0, last), y=(low, high))
    for row, characters in enumerate(drawn):
        label = _label(high if row == 0 else low, log, share) if row in (0, rows - 1) else ""
        text.append("\n" + label.rjust(LABELS - 1) + " ", style="not bold dim")
        for character, own in characters:
            text.append(character, style="not bold" if own is None else f"not bold {_colour(panel['series'][own])}")
    text.append("\n" + " " * LABELS + f"0{f'epoch {last:g}':>{max(columns - LABELS - 2, 8)}}\n", style="not bold dim")
    return text


def _colour(series: Chart) -> str:
    return "white" if series["colour"] is None else COLOURS[series["colour"] % 6]


def _label(value: float, log: bool, share: bool) -> str:
    return f"{100 * value:.0f} %" if share else f"{10**value if log else value:.3g}"


def frame(run: RunSummary, width: int, height: int, state: str, *, whole: bool = False) -> Group:
    """Return the panels of a run and a line about its progress, fitted to the size of the terminal.

    If the terminal is too low for all panels, the last ones are left out, unless `whole` is true.
    """
    charts = training_panels([run])
    across = max(1, min(3, width // 38))
    wanted = math.ceil(len(charts) / across)
    rows = _rows(max(height - 3, wanted * (LEAST_ROWS + 3) if whole else 0), wanted)
    grid = Table.grid(padding=(0, 2, 0, 0))
    for start, high in zip(range(0, len(charts), across), rows, strict=False):
        grid.add_row(*(draw_panel(panel, width // across - 2, high) for panel in charts[start : start + across]))
    head = Text(f"{run.name}  ", style="bold", overflow="ellipsis", no_wrap=True)
    head.append(_progress(run, state, width - len(head)), style="not bold")
    return Group(head, Text(), grid) if charts else Group(head)


def _rows(height: int, wanted: int) -> list[int]:
    """Return the heights of rows of panels that fill a height; each panel also needs three lines of text.

    >>> _rows(37, 6), _rows(21, 6), _rows(5, 6)
    ([5, 5, 4, 4, 4], [4, 4, 4], [2])
    """
    count = max(1, min(wanted, height // (LEAST_ROWS + 3)))
    high, rest = divmod(height, count)
    return [max(2, min(high - 3 + (k < rest), MOST_ROWS)) for k in range(count)]


def _progress(run: RunSummary, state: str, width: int) -> str:
    """Return a text about the newest logged epoch; the least important parts are left out if it is too wide."""
    epochs: list[dict[str, Any]] = [event for event in run.events if event["event"] == "epoch"]
    if not epochs or run.recipe is None:
        return f"no epoch yet  {state}"
    last, total = epochs[-1], run.recipe.schedule.phases().total
    seconds = float(last["seconds"])
    left = seconds / max(last["epoch"], 1) * (total - last["epoch"])
    parts = {
        "epoch": f"epoch {last['epoch']}/{total}",
        "p": "p ∞" if last["p"] == "inf" else f"p {last['p']:.4g}",
        "lr": f"lr {last['lr']:.2g}",
        "seconds": f"{seconds:.0f} s",
        "left": f"about {left:.0f} s left" if left and state == "training" else "",
        "state": state,
    }
    for key in ("", "lr", "seconds", "p", "left"):
        parts.pop(key, "")
        text = "  ".join(filter(None, parts.values()))
        if len(text) <= width:
            break
    return text
