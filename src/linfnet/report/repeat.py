"""What is needed to repeat a run: commands and environment, and the differences between several recipes."""

import shlex
import tomllib
from collections.abc import Sequence
from typing import Any

from linfnet.epsilon import format_epsilon
from linfnet.recipes import recipe_to_toml
from linfnet.report.run_summary import RunSummary


def commands(run: RunSummary) -> list[str]:
    """Commands that train and evaluate the run again, from the recipe in its folder."""
    lines: list[str] = []
    again = str(run.path) if run.recipe is None else f"{run.path}-again"
    if run.recipe is not None:
        lines.append(shlex.join(["linfnet", "train", str(run.path / "recipe.toml"), "--out", again]))
    if run.main:
        first = run.main[0]
        line = ["linfnet", "evaluate", again]
        line += ["--data", first.data] if run.recipe is None else []
        line += ["--eps", *(format_epsilon(result.eps) for result in run.main)]
        line += ["--limit", str(first.limit)] if first.limit is not None else []
        default = run.recipe.evaluation.pgd_steps if run.recipe else 100
        line += ["--steps", str(first.attack.steps)] if first.attack.steps != default else []
        lines.append(shlex.join(line))
    return lines


def differences(runs: Sequence[RunSummary]) -> list[tuple[str, list[str]]]:
    """The keys of the recipes that are not equal in all runs, with the value of each run."""
    flat = [_flat(tomllib.loads(recipe_to_toml(run.recipe))) if run.recipe else {} for run in runs]
    rows = [(key, [table.get(key, "–") for table in flat]) for key in dict.fromkeys(k for table in flat for k in table)]
    ignored = ("title", "reported.")
    return [(key, values) for key, values in rows if len(set(values)) > 1 and not key.startswith(ignored)]


def _flat(table: dict[str, Any], section: str = "") -> dict[str, str]:
    """Nested tables as section.key: value.

    >>> _flat({"name": "x", "data": {"pad": 3}})
    {'name': 'x', 'data.pad': '3'}
    """
    flat: dict[str, str] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{section}{key}.") if isinstance(value, dict) else {section + key: str(value)}
    return flat
