"""Pages that MkDocs generates while it builds the site: the command line from --help, results from records/."""

import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
RECORDS = ROOT / "records"


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages and the records to the site. MkDocs calls this with the pages in docs/."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, "reference/cli.md", content=command_line()))
    files.append(File.generated(config, "results.md", content=results()))
    for record in sorted(RECORDS.iterdir()):
        if record.suffix != ".md":
            files.append(File.generated(config, f"records/{record.name}", abs_src_path=str(record)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Adapt links to records: records/ is next to docs/ in the repository, but inside it on the site."""
    return re.sub(r"\]\(\.\./((?:\.\./)*records/)", r"](\1", markdown)


def command_line() -> str:
    """Return the page with the output of `--help` of each command."""
    from linfnet.cli.commands import COMMANDS

    overview = help_of([])
    parts = [
        "# Command line",
        "Generated from `linfnet COMMAND --help`. User errors print one line and exit with status 2.",
        fence(overview),
    ]
    for command in COMMANDS:
        parts += [f"## linfnet {command}", fence(help_of([command]))]
    return "\n\n".join(parts) + "\n"


def help_of(command: list[str]) -> str:
    """Return the output of `linfnet COMMAND --help`, 100 columns wide."""
    os.environ["COLUMNS"] = "100"
    from linfnet.cli.main import main

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main([*command, "--help"])
    return "\n".join(line.rstrip() for line in printed.getvalue().splitlines()).rstrip()


def fence(text: str) -> str:
    """Return text in a fenced block."""
    return f"```text\n{text}\n```"


def results() -> str:
    """Return the page of results: a summary, the accuracies of each record, figures, and the list of all records."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))  # tools/ is not part of the package; MkDocs restores the path after loading hooks
    from tools.accuracy_tables import results as summary
    from tools.records import percent, table

    parts = [
        "# Results",
        "Generated from the files in `records/`. Accuracies are in percent of the test images, ε is in pixel units; "
        "a dash means not measured.",
        "## Summary",
        summary(),
        "## By record",
        "*Certified* is the larger figure where there are two certificates; *paper* is the certified accuracy of the "
        "published row.",
    ]
    records = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RECORDS.glob("*.json"))}
    for name, record in records.items():
        rows = [
            [row.epsilon, percent(row.clean), percent(row.attacked), percent(row.certified), percent(row.paper)]
            for row in accuracies(record)
        ]
        if rows:
            parts += [f"### {name.removesuffix('.json')}", f"[{name}](records/{name}): {plain(record['what'])}"]
            parts.append(table(["ε", "clean", "PGD", "certified", "paper"], rows))
    parts.append("## Figures")
    for picture in sorted(RECORDS.glob("*.png")):
        what = plain(records.get(f"{picture.stem}.json", {}).get("what") or picture.stem.replace("-", " "))
        parts += [f"![{what}](records/{picture.name})", what]
    parts.append(
        (RECORDS / "README.md")
        .read_text(encoding="utf-8")
        .replace("\n## ", "\n### ")
        .replace("# Records", "## All records", 1)
    )
    return "\n\n".join(parts)


@dataclass(frozen=True)
class Row:
    """One evaluation of a record; accuracies in [0, 1], None where not measured."""

    epsilon: str
    clean: float
    attacked: float | None
    certified: float
    paper: float | None = None


def accuracies(record: Any) -> Iterator[Row]:
    """Yield a row for each evaluation in a record."""
    from linfnet.epsilon import format_epsilon, parse_epsilon
    from linfnet.recipes import load_recipe, recipe_from_toml
    from linfnet.results import PGD_100, results_from_json

    if not isinstance(record, dict):
        return
    recipe = recipe_from_toml(record["recipe"], "recipe", "recipe") if isinstance(record.get("recipe"), str) else None
    published = recipe.reported if recipe and recipe.reported.source == "the paper" else None
    # The published row belongs to the epsilon of the packaged recipe; the recipe of the run may have a different one.
    target = load_recipe(recipe.name).evaluation.eps[0] if recipe and published else None
    for result in results_from_json(record.get("results") or {}).evaluations:
        epsilon = f"{result.net} {format_epsilon(result.eps)}".strip()
        epsilon += f", first {result.limit} images" if result.limit else ""
        epsilon += f", {result.attack}" if result.attack != PGD_100 else ""
        paper = published.certified / 100 if published and result.eps == target else None
        yield Row(epsilon, result.clean, result.attacked, result.best_certified, paper)
    certified = record.get("certified")
    for epsilon, row in certified.items() if isinstance(certified, dict) else ():
        if isinstance(row, dict) and {"margin", "interval"} <= row.keys():
            best = max(row["margin"], row["interval"])
            yield Row(format_epsilon(parse_epsilon(epsilon)), record["clean"], None, best)


def plain(text: str) -> str:
    """Return text without line breaks and bars, which would end a cell of a table."""
    return " ".join(text.replace("|", "/").split())
