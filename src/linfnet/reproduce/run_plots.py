"""Plots of a run's event log: the margin shares of the paper's Figure 2(a), loss and accuracy by epoch."""

import gzip
import math
import zlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from linfnet.errors import LinfnetError
from linfnet.figures import new_figure, save_figure
from linfnet.recipes import Recipe, load_recipe
from linfnet.reproduce.studies import differing_sections
from linfnet.systems import has_effect
from linfnet.train import parse_events

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHARES = {"above": ("above θ", "tab:green"), "between": ("0 to θ", "tab:orange"), "below": ("below 0", "tab:red")}
# Other systems have no theta: their margins are counted above and below 0.
SHARES_WITHOUT_THETA = {"above": ("above 0", "tab:green"), "below": ("below 0", "tab:red")}


class CurvePoint(NamedTuple):
    """The authors' run on CIFAR-10 at 8/255 at the end of an epoch, counted from 1; shares in [0, 1]."""

    epoch: int
    p: float
    scale: float
    loss: float
    accuracy: float
    above: float  # share of training margins above theta
    test_accuracy: float | None = None  # at the p of the epoch


AUTHORS_CURVE = (
    CurvePoint(1, 8.0, 1.0, 1.076, 0.184, 0.099),
    CurvePoint(5, 8.0, 0.76, 0.827, 0.397, 0.288, 0.429),
    CurvePoint(10, 8.0, 0.66, 0.750, 0.450, 0.359, 0.474),
    CurvePoint(50, 8.0, 0.66, 0.594, 0.584, 0.477, 0.584),
    CurvePoint(100, 8.0, 0.77, 0.536, 0.634, 0.518, 0.612),
    CurvePoint(300, 18.5, 2.37, 0.584, 0.617, 0.302, 0.585),
    CurvePoint(500, 42.7, 2.94, 0.629, 0.579, 0.200, 0.552),
    CurvePoint(800, 151.0, 3.39, 0.638, 0.571, 0.155, 0.538),
    CurvePoint(1000, 349.0, 3.53, 0.629, 0.579, 0.153, 0.538),
    CurvePoint(1300, float("inf"), 3.60, 0.617, 0.589, 0.156, 0.542),
)


def comparable_epochs(recipe: Recipe) -> int:
    """The last epoch at which a run is comparable with the authors' run; 0 if it is not comparable.

    With the full recipe that is the last epoch. With shortened phases it is the end of the first phase, if that has at
    least ten epochs (the learning rate of a shortened run decays earlier: by 2.4 % within ten epochs of a hundred).
    """
    full = load_recipe("cifar10-8")
    if set(differing_sections(recipe, full)) - {"schedule", "run", "evaluation"}:
        return 0
    if recipe.schedule.p_start != full.schedule.p_start:
        return 0
    whole = replace(recipe.schedule, snap_p=False) == full.schedule
    start = recipe.schedule.epochs[0]
    return full.schedule.phases().total if whole else start if start >= 10 else 0


def read_events(path: Path) -> list[dict[str, Any]]:
    """Read the events of a log, compressed or not."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise LinfnetError(f"{path} is not a readable event log: {str(error).splitlines()[0]}") from None
    return parse_events(content.decode(errors="replace"))


def draw_run(path: Path, recipe: Recipe, events: list[dict[str, Any]], title: str) -> None:
    """Draw margin shares, loss and accuracies by epoch, with p above, as PNG, SVG or PDF by the suffix of the path."""
    figure = new_figure(7, 9)
    epochs = [event for event in events if event["event"] == "epoch"]
    tests = [event for event in events if event["event"] == "test"]
    if not epochs:
        raise LinfnetError("the event log has no epoch yet: there is nothing to draw")
    shares, losses, accuracies = figure.subplots(3, 1, sharex=True)
    numbers = [event["epoch"] for event in epochs]
    bands = SHARES if has_effect(recipe, "loss") else SHARES_WITHOUT_THETA
    names, colours = zip(*bands.values(), strict=True)
    columns = [[100 * event[key] for event in epochs] for key in bands]
    shares.stackplot(numbers, *columns, labels=names, colors=colours, alpha=0.7)
    shares.set(ylabel="training margins in %", ylim=(0, 100), title=title)
    losses.plot(numbers, [event["loss"] for event in epochs], label="loss")
    losses.set(ylabel="training loss")
    accuracies.plot(numbers, [100 * event["accuracy"] for event in epochs], label="train, at p")
    _draw_tests(accuracies, tests)
    accuracies.set(ylabel="accuracy in %", xlabel="epoch", xlim=(min(numbers), max(max(numbers), min(numbers) + 1)))
    if points := [point for point in AUTHORS_CURVE if point.epoch <= comparable_epochs(recipe)]:
        at = [point.epoch for point in points]
        losses.plot(at, [point.loss for point in points], "kx", label="the authors' run")
        accuracies.plot(at, [100 * point.accuracy for point in points], "kx", label="the authors' run, train")
    _mark_p(shares, epochs)
    for axes in (shares, losses, accuracies):
        axes.legend(fontsize=8)
    save_figure(figure, path)


def _draw_tests(axes: "Axes", tests: list[dict[str, Any]]) -> None:
    numbers = [test["epoch"] for test in tests]
    axes.plot(numbers, [100 * test["accuracy_at_p"] for test in tests], ".-", label="test, at p")
    axes.plot(numbers, [100 * test["clean"] for test in tests], ".-", label="test, at ∞")
    for epsilon in tests[0]["certified"] if tests else ():
        shares = [100 * test["certified"].get(epsilon, math.nan) for test in tests]
        axes.plot(numbers, shares, ".-", label=f"certified at {epsilon}")


def _mark_p(axes: "Axes", epochs: list[dict[str, Any]]) -> None:
    """Label p at some epochs along the upper edge."""
    marked = [epochs[k] for k in sorted({round(k * (len(epochs) - 1) / 6) for k in range(7)})]
    upper = axes.secondary_xaxis("top")
    labels = ["∞" if epoch["p"] == "inf" else f"{epoch['p']:.3g}" for epoch in marked]
    upper.set_xticks([epoch["epoch"] for epoch in marked], labels)
    upper.set_xlabel("p")
