"""The curve over epsilon and the histogram of a report, as plain data that the page's script draws."""

import base64
import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linfnet.certificates.rounding import float_above
from linfnet.epsilon import format_epsilon
from linfnet.report.run_summary import Measured, RunRecord

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
