"""Create matplotlib figures without a display, and write them in one step."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from linfnet.errors import require
from linfnet.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The colours of page.css of the report, for light backgrounds.
PAPER, INK, SOFT, LINE = "#fbfaf7", "#1b1f24", "#575d65", "#e2dfd7"
TEAL, RUST, VIOLET, OCHRE, GREEN = "#0b6b74", "#b0441a", "#5546b3", "#7a6200", "#33691e"


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure with a width and height in inches; needs matplotlib."""
    figure: Figure = require("matplotlib.figure", "plots").Figure((width, height), layout="constrained")
    figure.set_facecolor(PAPER)
    return figure


def style_axes(axes: "Axes", grid: Literal["x", "y"] = "y") -> None:
    """Give axes the look of the charts in the report: no box, soft labels, grid lines at the ticks of one axis."""
    axes.set_facecolor(PAPER)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(SOFT)
    axes.tick_params(colors=SOFT, labelsize=9, left=False)
    axes.grid(axis=grid, color=LINE, linewidth=0.8)
    axes.set_axisbelow(True)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set(color=SOFT, fontsize=9.5)


def save_figure(figure: "Figure", path: Path) -> None:
    """Write a figure as PNG, SVG or PDF, depending on the suffix of the path."""
    with replacing(path) as temporary:
        figure.savefig(temporary, format=path.suffix.removeprefix(".") or "png", dpi=120)
