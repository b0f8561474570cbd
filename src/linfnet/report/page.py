"""The HTML page of a report: one self-contained file, rendered from templates."""

import shlex
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from linfnet.epsilon import format_epsilon
from linfnet.nn.model_path import system_name
from linfnet.recipes import recipe_to_toml
from linfnet.report.charts import certified_curve, histogram, reference_name, training_panels, uses_255ths
from linfnet.report.gallery import gallery
from linfnet.report.results_table import attack_name, certificate_names, headline, published, row_groups
from linfnet.report.run_summary import RunSummary
from linfnet.reproduce.plots import run_title
from linfnet.version import __version__


def render(runs: Sequence[RunSummary]) -> str:
    """Render the report of one run, or of several runs on shared axes, as HTML."""
    runs = _with_unique_names(runs)
    several = len(runs) > 1
    curve, margins, panels = certified_curve(runs), histogram(runs), training_panels(runs)
    galleries = [(k, run.name, gallery(run, uses_255ths([run]))) for k, run in enumerate(runs)]
    galleries = [(k, name, groups) for k, name, groups in galleries if groups]
    table = [(k, run, row_groups(run), published(run)) for k, run in enumerate(runs) if run.results.evaluations]
    sections = (
        ("results", "Results", table),
        ("curve", "Certified accuracy", curve),
        ("training", "Training", panels),
        ("margins", "Margins", margins),
        ("gallery", "Gallery", galleries),
        ("repeat", "How to repeat it", runs),
    )
    figures, about = ([], "") if several else headline(runs[0])
    environment = Environment(
        loader=PackageLoader("linfnet.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters["epsilon"] = format_epsilon
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "ensure_ascii": False}
    return environment.get_template("page.html").render(
        version=__version__,
        css=_read("page.css"),
        js=_read("plot.js") + _read("charts.js"),
        charts={"curve": curve, "histogram": margins, "training": panels, "several": several},
        sections=[(name, title) for name, title, contents in sections if contents],
        runs=runs,
        several=several,
        title=_title(runs),
        kind=_kind(runs),
        facts=_facts(runs[0]),
        headline=figures,
        headline_about=about,
        reference=reference_name(runs[0].recipe.reported.source) if runs[0].recipe else "",
        notes=[(f"{run.name}: " if several else "") + note for run in runs for note in run.notes],
        table=table,
        certificates=certificate_names(runs),
        exact=any(result.exact for run in runs for result in run.results.evaluations),
        counts=sorted({result.count for run in runs for result in run.results.evaluations}),
        other_nets={result.net for run in runs for result in run.results.evaluations},
        attack=attack_name([result for run in runs for result in run.results.evaluations]),
        main_attack=attack_name([result for run in runs for result in run.main]),
        panels=panels,
        epsilon=next((format_epsilon(run.epsilon) for run in runs if run.epsilon), ""),
        galleries=galleries,
        differences=differences(runs),
        commands=[commands(run) for run in runs],
        recipes=[recipe_to_toml(run.recipe) if run.recipe else "" for run in runs],
        promises=_promises(runs),
    )


def _promises(runs: Sequence[RunSummary]) -> dict[str, list[str]]:
    """Return the names of the runs by what their certificates promise."""
    promises: dict[str, list[str]] = {}
    for run in runs:
        radii = run.samples is not None and run.samples.radii is not None
        for promise in dict.fromkeys(result.guarantee for result in run.main) or ([run.guarantee] if radii else []):
            promises.setdefault(promise, []).append(run.name)
    return promises


def _read(name: str) -> Markup:
    return Markup((resources.files("linfnet.report") / name).read_text(encoding="utf-8"))


def _with_unique_names(runs: Sequence[RunSummary]) -> list[RunSummary]:
    """Return the runs; those whose folders have the same name are named by their paths."""
    names = [run.name for run in runs]
    return [replace(run, name=str(run.path)) if names.count(run.name) > 1 else run for run in runs]


def _kind(runs: Sequence[RunSummary]) -> str:
    """Return the kinds of the nets as text."""
    systems = sorted({system_name(run.config) for run in runs})
    return ", ".join("ℓ∞-distance net" if name == "linf" else f"system {name}" for name in systems)


def _title(runs: Sequence[RunSummary]) -> str:
    if len(runs) > 1:
        return f"{len(runs)} runs compared"
    run = runs[0]
    return run.name if run.recipe is None else run_title(run.recipe)


def _facts(run: RunSummary) -> list[str]:
    """Return the size of the net and the cost of its training, as texts."""
    facts: list[str] = []
    widths: Any = run.config.get("hidden")
    if widths and isinstance(widths, list) and all(isinstance(size, int) for size in widths):
        equal = len(set(widths)) == 1
        sizes = ", ".join(f"{size:,}" for size in (widths[:1] if equal else widths))
        facts.append(f"{len(widths) + 1} layers, {'width' if equal else 'widths'} {sizes}")
    if training := run.results.training:
        facts.append(f"{training.parameters:,} parameters")
        facts.append(f"{training.epochs:,} epochs in {_duration(training.seconds)}")
    return facts


def _duration(seconds: float) -> str:
    """Format a duration.

    >>> _duration(24.3), _duration(373.2), _duration(7325)
    ('24 s', '6 min 13 s', '2 h 2 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def commands(run: RunSummary) -> list[str]:
    """Return commands that train and evaluate the run again, from the recipe in its folder."""
    lines: list[list[str]] = []
    again = str(run.path) if run.recipe is None else f"{run.path}-again"
    if run.recipe is not None:
        lines.append(["train", str(run.path / "recipe.toml"), "--out", again])
    if run.main:
        first, default = run.main[0], run.recipe.evaluation.pgd_steps if run.recipe else 100
        line = ["evaluate", again, *(["--data", first.data] if run.recipe is None else [])]
        line += ["--eps", *(format_epsilon(result.eps) for result in run.main)]
        line += ["--limit", str(first.limit)] if first.limit is not None else []
        line += ["--steps", str(first.attack.steps)] if first.attack.steps != default else []
        lines.append(line)
    return [shlex.join(["linfnet", *line]) for line in lines]


def differences(runs: Sequence[RunSummary]) -> list[tuple[str, list[str]]]:
    """Return the recipe keys whose values are not equal in all runs, with the value of each run."""
    flat = [_flat(tomllib.loads(recipe_to_toml(run.recipe))) if run.recipe else {} for run in runs]
    rows = [(key, [table.get(key, "–") for table in flat]) for key in dict.fromkeys(k for table in flat for k in table)]
    ignored = ("title", "reported.")
    return [(key, values) for key, values in rows if len(set(values)) > 1 and not key.startswith(ignored)]


def _flat(table: dict[str, Any], section: str = "") -> dict[str, str]:
    """Flatten nested tables to entries `section.key: value`.

    >>> _flat({"name": "x", "data": {"pad": 3}})
    {'name': 'x', 'data.pad': '3'}
    """
    flat: dict[str, str] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{section}{key}.") if isinstance(value, dict) else {section + key: str(value)}
    return flat
