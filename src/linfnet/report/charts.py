"""The charts of a report as plain data, drawn by the script of the page and in the terminal."""

import base64
import itertools
import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linfnet.certificates.rounding import float_above
from linfnet.epsilon import format_epsilon
from linfnet.report.run_summary import RunSummary
from linfnet.results import Result
from linfnet.systems import has_effect

BINS = 64  # approximate number of bins of the histogram
Chart = dict[str, Any]

# Logged values that apply only to recipes in which the given key has an effect.
USED_WITH = {"p": "schedule.p_end", **dict.fromkeys(("lambda", "scale", "above", "between", "below"), "loss")}


def uses_255ths(runs: Iterable[RunSummary]) -> bool:
    """Return whether to show lengths in 255ths, which is true if the epsilons of all runs are multiples of 1/255."""
    return all("/255" in format_epsilon(run.epsilon) for run in runs if run.epsilon is not None)


def reference_name(source: str) -> str:
    """Return a short name for the source of a recipe's reported accuracies.

    >>> reference_name("the paper"), reference_name("records/demo.json")
    ('paper', 'reference')
    """
    return "paper" if source.startswith("the paper") else "reference"


def certified_curve(runs: Sequence[RunSummary]) -> Chart | None:
    """Return certified accuracy at every epsilon, from the radii, and attacked accuracy at each evaluated epsilon."""
    shown = [run for run in runs if run.main or _radii(run) is not None]
    if not shown:
        return None
    ends = [float(result.eps) * 1.1 for run in shown for result in run.main]
    # The axis covers nearly all radii; including the few largest would make it too long.
    ends += [float(np.quantile(radii.clip(0), 0.995)) for run in shown if (radii := _radii(run)) is not None]
    return {
        "end": min(max(ends, default=0.1) or 0.1, 1.0),
        "levels": uses_255ths(shown),
        "start": next((float_above(run.epsilon) for run in shown if run.epsilon is not None), 0.0),
        "runs": [_curve_of(run, runs.index(run)) for run in shown],
    }


def _radii(run: RunSummary) -> NDArray[np.float64] | None:
    return run.samples.radii if run.samples else None


def _packed(values: NDArray[np.float64] | None) -> str | None:
    """Sort numbers and encode them as base64 of little-endian float64, without rounding."""
    return None if values is None else base64.b64encode(np.sort(values).astype("<f8").tobytes()).decode()


def _curve_of(run: RunSummary, colour: int) -> Chart:
    radii = _radii(run)
    reported = run.recipe.reported if run.recipe else None
    reference = None
    if reported and reported.certified and run.epsilon is not None:
        name = reference_name(reported.source)
        reference = {"name": name, "eps": float(run.epsilon), "certified": reported.certified / 100}
    return {
        "name": run.name,
        "colour": colour,
        "radii": _packed(radii),
        "interval": _packed(run.samples.interval_radii if run.samples else None),
        "exact": _packed(run.samples.exact_radii if run.samples else None),
        "clean": run.main[-1].clean if radii is None else float((radii >= 0).mean()),
        "attack": str(run.main[-1].attack) if run.main else None,
        "measured": [_point(result, radii is not None) for result in run.main],
        "reference": reference,
    }


def _point(result: Result, has_radii: bool) -> Chart:
    """Return accuracies at one evaluated epsilon, certified by margin if radii exist, else by the best certificate."""
    shown = "margin" if has_radii and "margin" in result.certified else result.best
    return {
        "eps": float_above(result.eps),
        "name": format_epsilon(result.eps),
        "attacked": result.attacked,
        "exact": result.exact.robust if result.exact else None,
        "certified": result.certified[shown],
        "others": {name: share for name, share in result.certified.items() if name != shown},
    }


def histogram(runs: Sequence[RunSummary]) -> Chart | None:
    """Return a histogram of half the margins, in pixel units; 0 and epsilon are bin edges."""
    shown = [(run, run.samples.real_radii) for run in runs if run.samples]
    columns = [(run, radii) for run, radii in shown if radii is not None]
    if not columns:
        return None
    low = min(float(np.quantile(radii, 0.002)) for _, radii in columns)
    high = max(float(np.quantile(radii, 0.998)) for _, radii in columns)
    epsilon = next((run.epsilon for run, _ in columns if run.epsilon), Fraction(0))
    width = (high - low) / BINS or 0.01
    if epsilon:
        width = float(epsilon) / max(1, round(float(epsilon) / width))
    first = math.floor(low / width)
    bins = max(math.ceil(high / width) - first, 1)

    def counts(radii: NDArray[np.float64]) -> list[int]:
        # Values beyond the ends are counted in the outermost bins.
        index = (np.floor(radii / width).astype(int) - first).clip(0, bins - 1)
        return np.bincount(index, minlength=bins).tolist()

    recipe = columns[0][0].recipe if len(columns) == 1 else None
    return {
        "width": width,
        "first": first,
        "eps": float(epsilon),
        "epsName": format_epsilon(epsilon),
        "levels": uses_255ths(run for run, _ in columns),
        "theta": float(recipe.loss.theta) / 2 if recipe else None,
        "runs": [
            {"name": run.name, "colour": runs.index(run), "total": len(radii), "counts": counts(radii)}
            for run, radii in columns
        ],
    }


def training_panels(runs: Sequence[RunSummary]) -> list[Chart]:
    """Return charts over epochs; a panel shows several quantities of one run, or one quantity of several runs."""
    shown = [run for run in runs if any(event["event"] == "epoch" for event in run.events)]
    if not shown:
        return []
    panels = _panels_of_one(shown[0]) if len(runs) == 1 else _panels_of_many(runs, shown)
    phases = _phases(shown)
    for panel in panels:
        panel["phases"] = phases
        # A series of zeros has no logarithm: the mixing coefficient of an objective without mixing is not drawn.
        panel["series"] = [s for s in panel["series"] if any(v > 0 or not panel.get("log") for _, v in s["points"])]
    return [panel for panel in panels if panel["series"]]


def _panels_of_one(run: RunSummary) -> list[Chart]:
    epoch, test = partial(_series, run, "epoch"), partial(_series, run, "test")
    certified = f"certified at {format_epsilon(run.epsilon)}" if run.epsilon is not None else ""
    accuracies = [
        epoch("accuracy", "training", None, "thin"),
        test("accuracy_at_p", "test at p", 5),
        test("clean", "test at ∞", 2),
        test("certified", certified),
    ]
    margins = [epoch("above", "above θ"), epoch("between", "0 to θ", 3), epoch("below", "below 0", 1)]
    return [
        {"id": "accuracy", "title": "Accuracy", "unit": "%", "series": accuracies},
        {"id": "loss", "title": "Loss", "series": [epoch("loss", "loss")]},
        {"id": "margins", "title": "Training margins", "unit": "%", "series": margins},
        {"id": "p", "title": "Exponent p", "log": True, "series": [epoch("p", "p")]},
        {"id": "lambda", "title": "Mixing λ", "log": True, "series": [epoch("lambda", "λ")]},
        {"id": "scale", "title": "Temperature s", "series": [epoch("scale", "s")]},
    ]


# The panels for several runs: title, kind of event, key of the event, unit, and whether the axis is logarithmic.
_QUANTITIES = (
    ("Certified accuracy at p = ∞", "test", "certified", "%", False),
    ("Test accuracy at p = ∞", "test", "clean", "%", False),
    ("Training accuracy", "epoch", "accuracy", "%", False),
    ("Loss", "epoch", "loss", "", False),
    ("Training margins above θ", "epoch", "above", "%", False),
    ("Exponent p", "epoch", "p", "", True),
    ("Mixing λ", "epoch", "lambda", "", True),
    ("Temperature s", "epoch", "scale", "", False),
)


def _panels_of_many(runs: Sequence[RunSummary], shown: Sequence[RunSummary]) -> list[Chart]:
    panels: list[Chart] = []
    for title, event, key, unit, log in _QUANTITIES:
        series = [_series(run, event, key, run.name, runs.index(run)) for run in shown]
        panels.append({"id": key, "title": title, "unit": unit, "log": log, "series": series})
    return panels


def _series(run: RunSummary, event: str, key: str, name: str, colour: int | None = 0, style: str = "") -> Chart:
    """Return the finite values of one key of one kind of event by epoch; empty if the run's system ignores the key.

    `colour` is an index, or None for grey; `style` is the CSS class of the line.
    """
    points: list[tuple[int, float]] = []
    used = run.recipe is None or key not in USED_WITH or has_effect(run.recipe, USED_WITH[key])
    for entry in run.events if used else ():
        value = entry.get(key) if entry["event"] == event else None
        if isinstance(value, dict):  # one value for each epsilon
            value = value.get(format_epsilon(run.epsilon or Fraction(0)))
        if isinstance(value, int | float) and math.isfinite(value):
            points.append((entry["epoch"], float(f"{value:.6g}")))
    return {"name": name, "colour": colour, "style": style, "points": points}


def _phases(runs: Sequence[RunSummary]) -> Chart | None:
    """Return the last epoch of each phase of p (constant, rising, infinite), and p at each epoch of the first run.

    Return None if the schedules of the runs differ, or if no run uses p.
    """
    recipes = [run.recipe for run in runs]
    schedules = {recipe.schedule.epochs if recipe else None for recipe in recipes}
    relaxed = any(recipe and has_effect(recipe, USED_WITH["p"]) for recipe in recipes)
    if recipes[0] is None or len(schedules) > 1 or not relaxed:
        return None
    p = {entry["epoch"]: entry["p"] for entry in runs[0].events if entry["event"] == "epoch"}
    return {
        "ends": list(itertools.accumulate(recipes[0].schedule.epochs)),
        "start": recipes[0].schedule.p_start,
        "end": recipes[0].schedule.p_end,
        "p": [[epoch, v if isinstance(v, str) else float(f"{v:.4g}")] for epoch, v in p.items()],
    }
