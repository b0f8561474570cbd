"""The page itself: one HTML file that needs nothing else."""

import json
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from importlib import resources
from typing import Any, cast

from linfnet.data import set_info
from linfnet.epsilon import format_epsilon
from linfnet.report.chart_data import certified_curve, histogram
from linfnet.report.repeat import repeat_section
from linfnet.report.run_summary import RunRecord
from linfnet.report.sections import curve_section, gallery_section, histogram_section, training_section
from linfnet.report.table import headline, results_section
from linfnet.report.training_curves import training_panels
from linfnet.version import __version__

_FOLDER = resources.files("linfnet.report")


def render(runs: Sequence[RunRecord]) -> str:
    """The report of one run, or of several on shared axes."""
    runs = _told_apart(runs)
    figures: dict[str, Any] = {
        "curve": certified_curve(runs),
        "histogram": histogram(runs),
        "training": training_panels(runs),
        "several": len(runs) > 1,
    }
    sections = [
        ("results", "Results", results_section(runs)),
        ("curve", "Certified accuracy", curve_section(runs) if figures["curve"] else ""),
        ("training", "Training", training_section(figures["training"])),
        ("margins", "Margins", histogram_section(runs) if figures["histogram"] else ""),
        ("gallery", "Gallery", gallery_section(runs)),
        ("repeat", "How to repeat it", repeat_section(runs)),
    ]
    present = [(name, title, text) for name, title, text in sections if text]
    links = "".join(f'<li><a href="#{name}">{title}</a></li>' for name, title, _ in present)
    body = "".join(
        f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{title}</h2>{text}</section>'
        for name, title, text in present
    )
    # "</script" inside a script element would end it, "<!--<script" would hide its end; \u003c is the same JSON.
    data = json.dumps(figures, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="linfnet {__version__}">
<title>{escape(_title(runs))} · linfnet</title>
<link rel="icon" href="data:,">
<style>{_read("page.css")}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the results</a>
<header>
<p class="kicker">{escape(_kind(runs))}</p>
<h1>{escape(_title(runs))}</h1>
<p class="lead">{_lead(runs)}</p>
{headline(runs[0]) if len(runs) == 1 else ""}
{_notes(runs)}
</header>
<nav aria-label="On this page"><ul>{links}</ul></nav>
<main id="main" tabindex="-1">
<noscript><p class="note">A script inside this file draws the charts; tables and pictures need none.</p></noscript>
{body}
</main>
<footer><p>Written by linfnet {__version__}. Accuracies are percentages of all images of the set; ε and radii are in
pixel units, where black is 0 and white 1. {_arithmetic(runs)}</p>
</footer>
<script type="application/json" id="figures">{data}</script>
<script>(() => {{ "use strict";
{_read("plot.js")}
{_read("charts.js")}}})();</script>
</body>
</html>
"""


def _arithmetic(runs: Sequence[RunRecord]) -> str:
    """What the certificates speak of."""
    real = [run.name for run in runs if any(m.arithmetic != "float32" for m in run.main)]
    if not real:
        return "Certificates hold for the floating-point program, rounding included."
    whose = "" if len(runs) == 1 else f" of {escape(', '.join(real))}"
    sure = min((m.confidence for run in runs for m in run.main), default=1.0)
    chance = f" Some hold with probability {sure:g} each." if sure < 1 else ""
    return f"Certificates{whose} hold in real arithmetic: the rounding of the program is not accounted for.{chance}"


def _told_apart(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Runs whose folders have the same name are called by their paths."""
    names = [run.name for run in runs]
    return [replace(run, name=str(run.path)) if names.count(run.name) > 1 else run for run in runs]


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _kind(runs: Sequence[RunRecord]) -> str:
    """What kind of nets the runs trained."""
    systems = sorted({str(run.config.get("system", "linf")) for run in runs})
    return ", ".join("ℓ∞-distance net" if name == "linf" else f"system {name}" for name in systems)


def _title(runs: Sequence[RunRecord]) -> str:
    if len(runs) > 1:
        return f"{len(runs)} runs compared"
    run = runs[0]
    if run.recipe is None or run.epsilon is None:
        return run.name
    return f"{set_info(run.recipe.data.name).title} at ε = {format_epsilon(run.epsilon)}"


def _lead(runs: Sequence[RunRecord]) -> str:
    if len(runs) > 1:
        return ", ".join(f'<span class="key c{k % 6}">{escape(run.name)}</span>' for k, run in enumerate(runs))
    run = runs[0]
    facts = [f"Run <code>{escape(run.name)}</code>"]
    if run.recipe is not None:
        facts.append(f"recipe <code>{escape(run.recipe.name)}</code>")
    given: Any = run.config.get("hidden")
    hidden = [size for size in cast(list[Any], given) if isinstance(size, int)] if isinstance(given, list) else []
    if hidden:
        same = len(set(hidden)) == 1
        width = f"width {hidden[0]:,}" if same else "widths " + ", ".join(f"{size:,}" for size in hidden)
        facts.append(f"{len(hidden) + 1} layers, {width}")
    train: dict[str, Any] = run.results.get("train") or {}
    if "parameters" in train:
        facts.append(f"{train['parameters']:,} parameters")
    if "epochs" in train and "seconds" in train:
        facts.append(f"{train['epochs']:,} epochs in {_duration(train['seconds'])}")
    return " · ".join(facts)


def _duration(seconds: float) -> str:
    """
    >>> _duration(24.3), _duration(373.2), _duration(7325)
    ('24 s', '6 min 13 s', '2 h 2 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def _notes(runs: Sequence[RunRecord]) -> str:
    named = [(f"{run.name}: " if len(runs) > 1 else "") + note for run in runs for note in run.notes]
    return "".join(f'<p class="note">{escape(note)}</p>' for note in named)
