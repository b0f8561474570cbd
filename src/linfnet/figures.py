"""Create matplotlib figures without a display, and write them in one step."""

from pathlib import Path
from typing import TYPE_CHECKING

from linfnet.errors import require
from linfnet.files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure with a width and height in inches; needs matplotlib."""
    return require("matplotlib.figure", "plots").Figure((width, height), layout="constrained")


def save_figure(figure: "Figure", path: Path) -> None:
    """Write a figure as PNG, SVG or PDF, depending on the suffix of the path."""
    with replacing(path) as temporary:
        figure.savefig(temporary, format=path.suffix.removeprefix(".") or "png", dpi=120)
