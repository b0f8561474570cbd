"""The curves of training as plain data, for the page's script and for the terminal."""

import math
from collections.abc import Sequence
from fractions import Fraction

from linfnet.epsilon import format_epsilon
from linfnet.report.chart_data import Figure
from linfnet.report.run_summary import RunRecord
from linfnet.systems import has_effect

# Logged for every system; the key of the recipe without which they mean nothing.
MEANT_BY = {"p": "schedule.p_end", **dict.fromkeys(("lambda", "scale", "above", "between", "below"), "loss")}


def training_panels(runs: Sequence[RunRecord]) -> list[Figure]:
    """The curves of training: several quantities of one run, or one quantity of several runs, in each panel."""
    shown = [run for run in runs if any(event["event"] == "epoch" for event in run.events)]
    if not shown:
        return []
    relaxed = [run for run in shown if run.recipe and has_effect(run.recipe, MEANT_BY["p"])]
    panels = _of_one(shown[0]) if len(runs) == 1 else _of_many(runs, shown)
    phases = _phases(shown[0]) if relaxed and len({_phases_key(run) for run in shown}) == 1 else None
    kept = [{**panel, "series": [s for s in panel["series"] if _drawn(s, panel)]} for panel in panels]
    return [{**panel, "phases": phases} for panel in kept if panel["series"]]


def _drawn(series: Figure, panel: Figure) -> bool:
    """Whether there is something to see: the mixing of an objective that does not mix is 0, and has no logarithm."""
    return any(value > 0 or not panel.get("log") for _, value in series["points"])


def _of_one(run: RunRecord) -> list[Figure]:
    epsilon = format_epsilon(run.epsilon) if run.epsilon is not None else ""
    test = [
        _series("training", run, "epoch", "accuracy", style="thin"),
        _series("test at p", run, "test", "accuracy_at_p", colour=5),
        _series("test at ∞", run, "test", "clean", colour=2),
        _series(f"certified at {epsilon}", run, "test", "certified", epsilon, colour=0),
    ]
    shares = [
        _series("above θ", run, "epoch", "above", colour=0),
        _series("0 to θ", run, "epoch", "between", colour=3),
        _series("below 0", run, "epoch", "below", colour=1),
    ]
    return [
        {"title": "Accuracy", "unit": "%", "series": test},
        {"title": "Loss", "series": [_series("loss", run, "epoch", "loss", colour=0)]},
        {"title": "Training margins", "unit": "%", "series": shares},
        {"title": "Exponent p", "log": True, "series": [_series("p", run, "epoch", "p", colour=0)]},
        {"title": "Mixing λ", "log": True, "series": [_series("λ", run, "epoch", "lambda", colour=0)]},
        {"title": "Temperature s", "series": [_series("s", run, "epoch", "scale", colour=0)]},
    ]


def _of_many(runs: Sequence[RunRecord], shown: Sequence[RunRecord]) -> list[Figure]:
    quantities: list[tuple[str, str, str, str, bool]] = [
        ("Certified accuracy at p = ∞", "test", "certified", "%", False),
        ("Test accuracy at p = ∞", "test", "clean", "%", False),
        ("Training accuracy", "epoch", "accuracy", "%", False),
        ("Loss", "epoch", "loss", "", False),
        ("Training margins above θ", "epoch", "above", "%", False),
        ("Exponent p", "epoch", "p", "", True),
        ("Mixing λ", "epoch", "lambda", "", True),
        ("Temperature s", "epoch", "scale", "", False),
    ]
    return [
        {
            "title": title,
            "unit": unit,
            "log": log,
            "series": [
                _series(run.name, run, event, key, format_epsilon(run.epsilon or Fraction(0)), colour=runs.index(run))
                for run in shown
            ],
        }
        for title, event, key, unit, log in quantities
    ]


def _series(
    name: str, run: RunRecord, event: str, key: str, inner: str = "", *, colour: int | None = None, style: str = ""
) -> Figure:
    """The values of one key of one kind of event, by epoch; infinite ones are left out.

    It has no points if the run's system makes nothing of that key.
    """
    points: list[tuple[int, float]] = []
    said = run.recipe is None or key not in MEANT_BY or has_effect(run.recipe, MEANT_BY[key])
    for entry in run.events if said else ():
        value = entry.get(key) if entry["event"] == event else None
        if isinstance(value, dict):
            value = value.get(inner)
        if isinstance(value, int | float) and math.isfinite(value) and isinstance(entry.get("epoch"), int):
            points.append((entry["epoch"], float(f"{value:.6g}")))
    return {"name": name, "colour": colour, "style": style, "points": points}


def _phases_key(run: RunRecord) -> tuple[int, ...] | None:
    return run.recipe.schedule.epochs if run.recipe else None


def _phases(run: RunRecord) -> Figure | None:
    """Where p is at its start, rising and infinite, and p at each epoch that was logged."""
    if run.recipe is None:
        return None
    start, rise, infinite = run.recipe.schedule.epochs
    p = {entry["epoch"]: entry.get("p") for entry in run.events if entry["event"] == "epoch"}
    return {
        "ends": [start, start + rise, start + rise + infinite],
        "start": run.recipe.schedule.p_start,
        "end": run.recipe.schedule.p_end,
        "p": [
            [epoch, value if isinstance(value, str) else float(f"{value:.4g}")] for epoch, value in p.items() if value
        ],
    }
