"""What it takes to repeat a run: commands, recipe, environment, and how several runs differ."""

import shlex
from collections.abc import Sequence
from html import escape

from linfnet.epsilon import format_epsilon
from linfnet.recipes import recipe_to_toml
from linfnet.report.run_summary import RunRecord
from linfnet.report.table import scrolling


def commands(run: RunRecord) -> list[str]:
    """Commands that train and evaluate the run again, from the recipe in its folder."""
    lines: list[str] = []
    again = str(run.path) if run.recipe is None else f"{run.path}-again"
    if run.recipe is not None:
        lines.append(shlex.join(["linfnet", "train", str(run.path / "recipe.toml"), "--out", again]))
    asked = run.main
    if asked and run.what is not None:
        line = ["linfnet", "evaluate", again]
        if run.recipe is None:
            line += ["--data", run.what.split("-test")[0]]
        line += ["--eps", *(format_epsilon(m.epsilon) for m in asked)]
        line += ["--limit", str(asked[0].samples)] if "-first-" in run.what else []
        default = run.recipe.evaluation.pgd_steps if run.recipe else 100
        line += ["--steps", str(asked[0].pgd_steps)] if asked[0].pgd_steps != default else []
        lines.append(shlex.join(line))
    return lines


def repeat_section(runs: Sequence[RunRecord]) -> str:
    """Commands, recipe and environment of each run, and what differs between several."""
    parts = [_differences(runs)] if len(runs) > 1 else []
    for k, run in enumerate(runs):
        if len(runs) > 1:
            parts.append(f'<h3 class="key c{k % 6}">{escape(run.name)}</h3>')
        commit = run.environment.get("commit")
        at = f"at commit <code>{escape(str(commit))}</code>" if commit else "(no commit was noted)"
        lines = "\n".join(commands(run))
        parts.append(f"<p>With linfnet {escape(str(run.environment.get('linfnet', '?')))} {at}:</p>")
        parts.append(_code(lines, f"Commands to repeat {run.name}"))
        if run.environment.get("command"):
            parts.append("<p>It was run as:</p>" + _code(str(run.environment["command"]), f"Command of {run.name}"))
        if run.recipe is not None:
            parts.append(_details("Recipe", _code(recipe_to_toml(run.recipe), f"Recipe of {run.name}")))
        if run.environment:
            rows = "".join(
                f"<tr><th scope=row>{escape(name)}</th><td>{escape(str(value))}</td></tr>"
                for name, value in run.environment.items()
                if value is not None and name != "command"
            )
            parts.append(_details("Environment", scrolling(f"Environment of {run.name}", rows)))
    return "".join(parts)


def _code(text: str, label: str) -> str:
    box = f'<pre tabindex="0" role="region" aria-label="{escape(label)}"><code>{escape(text)}</code></pre>'
    return f'<div class="code">{box}<button type="button" class="copy">Copy</button></div>'


def _details(title: str, inside: str) -> str:
    return f"<details><summary>{title}</summary>{inside}</details>"


def _differences(runs: Sequence[RunRecord]) -> str:
    """A table of the keys of the recipes that are not the same in all runs."""
    flat = [_flat(recipe_to_toml(run.recipe)) if run.recipe else {} for run in runs]
    keys = [
        key
        for key in dict.fromkeys(key for table in flat for key in table)
        if key != "title" and not key.startswith("reported.")
    ]
    rows = [(key, [table.get(key, "–") for table in flat]) for key in keys]
    rows = [(key, values) for key, values in rows if len(set(values)) > 1]
    if not rows:
        return "<p>All runs have the same recipe.</p>"
    head = "".join(
        f'<th scope="col"><span class="key c{k % 6}">{escape(run.name)}</span></th>' for k, run in enumerate(runs)
    )
    cells = [(key, "".join(f"<td>{escape(value)}</td>" for value in values)) for key, values in rows]
    body = "".join(f"<tr><th scope=row><code>{escape(key)}</code></th>{inside}</tr>" for key, inside in cells)
    table = f'<thead><tr><th scope="col">key</th>{head}</tr></thead><tbody>{body}</tbody>'
    return "<p>Where the recipes differ:</p>" + scrolling("Differences of the recipes", table)


def _flat(toml: str) -> dict[str, str]:
    """The lines of a recipe as section.key → value.

    >>> _flat('name = "x"\\n[data]\\npad = 3')
    {'name': '"x"', 'data.pad': '3'}
    """
    section, table = "", dict[str, str]()
    for line in toml.splitlines():
        if line.startswith("["):
            section = line.strip("[]") + "."
        elif "=" in line:
            key, _, value = line.partition("=")
            table[section + key.strip()] = value.strip()
    return table
