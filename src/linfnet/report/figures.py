"""The figures of a report as plain data, which the page's script draws."""

import base64
import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linfnet.certify.arithmetic import float_above
from linfnet.perturbation import format_epsilon
from linfnet.report.record import Measured, RunRecord

# Bins of the histogram, about.
BINS = 64
Figure = dict[str, Any]


def _packed(values: NDArray[np.float64]) -> str:
    """Sorted numbers in full, as base64 of little-endian float64."""
    return base64.b64encode(np.sort(values).astype("<f8").tobytes()).decode()


def _radii(run: RunRecord) -> NDArray[np.float64] | None:
    """The radii of a run's samples, if it has some."""
    return run.samples.radii if run.samples is not None and len(run.samples) else None


def _extent(runs: Sequence[RunRecord]) -> float:
    """The end of the axis of epsilon: all measured ones, and nearly all radii."""
    ends = [float(m.epsilon) * 1.1 for run in runs for m in run.main]
    ends += [float(np.quantile(radii.clip(0), 0.995)) for run in runs if (radii := _radii(run)) is not None]
    return min(max(ends, default=0.1) or 0.1, 1.0)


def in_255ths(runs: Iterable[RunRecord]) -> bool:
    """Whether lengths are told in grey levels: so they are if all the runs' perturbations are."""
    return all("/255" in format_epsilon(run.epsilon) for run in runs if run.epsilon is not None)


def certified_curve(runs: Sequence[RunRecord]) -> Figure | None:
    """Certified accuracy at every epsilon, from the radii, and what the attack left at those that were measured."""
    shown = [run for run in runs if run.main or _radii(run) is not None]
    if not shown:
        return None
    return {
        "end": _extent(shown),
        "levels": in_255ths(shown),
        "start": next((float_above(run.epsilon) for run in shown if run.epsilon is not None), 0.0),
        "runs": [_curve_of(run, runs.index(run)) for run in shown],
    }


def _curve_of(run: RunRecord, colour: int) -> Figure:
    radii = _radii(run)
    interval = run.samples.interval_radii if run.samples is not None else None
    reported = run.recipe.reported if run.recipe else None
    reference = None
    if reported and reported.certified and run.epsilon is not None:
        reference = {"name": reported.source, "eps": float(run.epsilon), "certified": reported.certified / 100}
    return {
        "name": run.name,
        "colour": colour,
        "radii": None if radii is None else _packed(radii),
        "interval": None if interval is None else _packed(interval),
        "clean": run.main[-1].clean if radii is None else float((radii >= 0).mean()),
        "attack": f"PGD-{run.main[-1].pgd_steps}" if run.main else None,
        "measured": [_point(m, radii is not None) for m in run.main],
        "reference": reference,
    }


def _point(m: Measured, has_radii: bool) -> Figure:
    """One measured epsilon; the curve goes by the margin where there are radii, else by the best certificate."""
    own = "margin" if has_radii and "margin" in m.certified else max(m.certified, key=lambda name: m.certified[name])
    others = {name: share for name, share in m.certified.items() if name != own}
    return {
        "eps": float_above(m.epsilon),
        "name": m.name,
        "pgd": m.pgd,
        "certified": m.certified[own],
        "others": others,
    }


def histogram(runs: Sequence[RunRecord]) -> Figure | None:
    """How many samples have which margin, in pixel units; the bins meet at 0 and at epsilon."""
    found = [(run, run.samples.real_radii) for run in runs if run.samples is not None and len(run.samples)]
    shown = [run for run, column in found if column is not None]
    values = [column for _, column in found if column is not None]
    if not shown:
        return None
    low = min(float(np.quantile(column, 0.002)) for column in values)
    high = max(float(np.quantile(column, 0.998)) for column in values)
    epsilon = next((run.epsilon for run in shown if run.epsilon), Fraction(0))
    width = (high - low) / BINS or 0.01
    if epsilon:
        width = float(epsilon) / max(1, round(float(epsilon) / width))
    first, last = math.floor(low / width), max(math.ceil(high / width), math.floor(low / width) + 1)
    # What lies beyond the ends is counted in the outermost bins.
    counts = [
        np.bincount((np.floor(v / width).astype(int).clip(first, last - 1) - first), minlength=last - first)
        for v in values
    ]
    return {
        "width": width,
        "first": first,
        "eps": float(epsilon),
        "epsName": format_epsilon(epsilon),
        "levels": in_255ths(shown),
        "theta": float(shown[0].recipe.loss.theta) / 2 if len(shown) == 1 and shown[0].recipe else None,
        "runs": [
            {"name": run.name, "colour": runs.index(run), "total": len(column), "counts": bars.tolist()}
            for run, column, bars in zip(shown, values, counts, strict=True)
        ],
    }


def training_panels(runs: Sequence[RunRecord]) -> list[Figure]:
    """The curves of training: several quantities of one run, or one quantity of several runs, in each panel."""
    shown = [run for run in runs if any(event["event"] == "epoch" for event in run.events)]
    if not shown:
        return []
    panels = _of_one(shown[0]) if len(runs) == 1 else _of_many(runs, shown)
    phases = _phases(shown[0]) if len({_phases_key(run) for run in shown}) == 1 else None
    kept = [{**panel, "series": [series for series in panel["series"] if series["points"]]} for panel in panels]
    return [{**panel, "phases": phases} for panel in kept if panel["series"]]


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
    """The values of one key of one kind of event, by epoch; infinite ones are left out."""
    points: list[tuple[int, float]] = []
    for entry in run.events:
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
