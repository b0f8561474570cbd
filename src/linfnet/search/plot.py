"""The plot of a search: the trials of each variant, best first."""

from pathlib import Path

from linfnet.errors import LinfnetError
from linfnet.figures import INK, OCHRE, SOFT, TEAL, new_figure, save_figure, style_axes
from linfnet.search.outcome import SearchOutcome

# Certified accuracy on two kinds of images; the first is the one by which variants are ranked.
SERIES = {"certified": ("held-out images", TEAL), "certified_train": ("training images", OCHRE)}


def draw_search(path: Path, outcome: SearchOutcome) -> None:
    """Plot certified accuracy: a dot for each trial and a line at the mean; the suffix selects PNG, SVG or PDF."""
    ranked = outcome.ranked
    if not ranked:
        raise LinfnetError("no trial has finished: there is nothing to draw")
    figure = new_figure(7, 1.6 + 0.32 * len(ranked))
    figure.suptitle(outcome.title.replace(", ranked", "\nranked"), x=0.02, ha="left", color=INK, fontsize=10)
    axes = figure.subplots()
    for position, summary in enumerate(ranked):
        for name, (label, colour) in SERIES.items():
            values = [100 * getattr(trial, name) for trial in summary.trials]
            axes.plot(values, [position] * len(values), "o", ms=5, color=colour, label=None if position else label)
            middle = 100 * summary.spread(name).mean
            axes.plot([middle, middle], [position - 0.3, position + 0.3], color=colour, linewidth=1.5)
    axes.set_yticks(range(len(ranked)), [summary.variant.name for summary in ranked])
    axes.set(xlabel="certified accuracy in %", ylim=(len(ranked) - 0.5, -0.5))
    style_axes(axes, grid="x")
    axes.legend(frameon=False, fontsize=9, labelcolor=SOFT, ncols=2, loc="lower left", bbox_to_anchor=(0, 1))
    save_figure(figure, path)
