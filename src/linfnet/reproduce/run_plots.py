"""What a run's event log shows: the margin shares of the paper's Figure 2(a), loss and accuracy over the epochs."""

import gzip
import math
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linfnet.errors import LinfnetError
from linfnet.files import replacing
from linfnet.recipes import Recipe
from linfnet.reproduce.curve import AUTHORS_CURVE, comparable_epochs
from linfnet.systems import has_effect
from linfnet.train import parse_events

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHARES = (("above", "above θ", "tab:green"), ("between", "0 to θ", "tab:orange"), ("below", "below 0", "tab:red"))
# Other systems have no theta: their margins are counted above and below 0.
SHARES_WITHOUT_THETA = (("above", "above 0", "tab:green"), ("below", "below 0", "tab:red"))


def read_events(path: Path) -> list[dict[str, Any]]:
    """The events of a log, compressed or not."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise LinfnetError(f"{path} is not a readable event log: {str(error).splitlines()[0]}") from None
    return parse_events(content.decode(errors="replace"))


def draw_run(path: Path, recipe: Recipe, events: list[dict[str, Any]], title: str) -> None:
    """Draw margin shares, loss and accuracies over the epochs, with p above; PNG, SVG or PDF by the path's ending."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise LinfnetError("drawing needs matplotlib: pip install 'linfnet[plots]'") from None
    epochs = [event for event in events if event["event"] == "epoch"]
    tests = [event for event in events if event["event"] == "test"]
    if not epochs:
        raise LinfnetError("the event log holds no epoch yet: there is nothing to draw")
    figure = Figure((7, 9), layout="constrained")
    shares, losses, accuracies = figure.subplots(3, 1, sharex=True)
    numbers = [event["epoch"] for event in epochs]
    bands = SHARES if has_effect(recipe, "loss") else SHARES_WITHOUT_THETA
    keys, names, colours = zip(*bands, strict=True)
    shares.stackplot(
        numbers, *([100 * event[key] for event in epochs] for key in keys), labels=names, colors=colours, alpha=0.7
    )
    shares.set(ylabel="training margins in %", ylim=(0, 100), title=title)
    losses.plot(numbers, [event["loss"] for event in epochs], label="loss")
    losses.set(ylabel="training loss")
    accuracies.plot(numbers, [100 * event["accuracy"] for event in epochs], label="train, at p")
    _draw_tests(accuracies, tests)
    accuracies.set(ylabel="accuracy in %", xlabel="epoch", xlim=(min(numbers), max(max(numbers), min(numbers) + 1)))
    _draw_authors(losses, accuracies, recipe)
    _mark_p(shares, epochs)
    for axes in (shares, losses, accuracies):
        axes.legend(fontsize=8)
    with replacing(path) as temporary:
        figure.savefig(temporary, format=path.suffix.removeprefix(".") or "png", dpi=120)


def _draw_tests(axes: "Axes", tests: list[dict[str, Any]]) -> None:
    numbers = [test["epoch"] for test in tests]
    axes.plot(numbers, [100 * test["accuracy_at_p"] for test in tests], ".-", label="test, at p")
    axes.plot(numbers, [100 * test["clean"] for test in tests], ".-", label="test, at ∞")
    for epsilon in tests[0]["certified"] if tests else ():
        shares = [100 * test["certified"].get(epsilon, math.nan) for test in tests]
        axes.plot(numbers, shares, ".-", label=f"certified at {epsilon}")


def _draw_authors(losses: "Axes", accuracies: "Axes", recipe: Recipe) -> None:
    points = [point for point in AUTHORS_CURVE if point.epoch <= comparable_epochs(recipe)]
    if points:
        numbers = [point.epoch for point in points]
        losses.plot(numbers, [point.loss for point in points], "kx", label="the authors' run")
        accuracies.plot(numbers, [100 * point.accuracy for point in points], "kx", label="the authors' run, train")


def _mark_p(axes: "Axes", epochs: list[dict[str, Any]]) -> None:
    """Name p at some epochs along the upper edge."""
    places = sorted({round(k * (len(epochs) - 1) / 6) for k in range(7)})
    upper = axes.secondary_xaxis("top")
    upper.set_xticks(
        [epochs[place]["epoch"] for place in places],
        ["∞" if epochs[place]["p"] == "inf" else f"{epochs[place]['p']:.3g}" for place in places],
    )
    upper.set_xlabel("p")
