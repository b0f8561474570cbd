"""Pages made while the site is built, so that they cannot drift: commands from --help, results from records/."""

import contextlib
import io
import json
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
RECORDS = ROOT / "records"


def on_files(files: Any, config: Any) -> Any:
    """Called by MkDocs once it knows the written pages."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, "reference/cli.md", content=command_line()))
    files.append(File.generated(config, "results.md", content=results()))
    for record in sorted(RECORDS.iterdir()):
        if record.suffix != ".md":
            files.append(File.generated(config, f"records/{record.name}", abs_src_path=str(record)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by MkDocs for each page: the repository has records/ beside docs/, the site has them inside."""
    return re.sub(r"\]\(\.\./((?:\.\./)*records/)", r"](\1", markdown)


def command_line() -> str:
    """A section for each command with what `--help` prints."""
    overview = help_of([])
    (named,) = re.findall(r"^usage: linfnet \[-h\] \{(.*?)\}", overview, re.DOTALL)
    commands = [name.strip() for name in named.split(",")]
    parts = [
        "# Command line",
        "Made from `linfnet COMMAND --help`. A mistake is one line and exit code 2.",
        fence(overview),
    ]
    for command in commands:
        parts += [f"## linfnet {command}", fence(help_of([command]))]
    return "\n\n".join(parts) + "\n"


def help_of(command: list[str]) -> str:
    """What a command prints when asked for help, 100 columns wide."""
    os.environ["COLUMNS"] = "100"
    from linfnet.cli.main import main

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main([*command, "--help"])
    return "\n".join(line.rstrip() for line in printed.getvalue().splitlines()).rstrip()


def fence(text: str) -> str:
    """Preformatted text."""
    return f"```text\n{text}\n```"


def results() -> str:
    """The accuracies and pictures in records/, and the list of all records with how to repeat them."""
    lines = [
        "# Results",
        "Made from the files in `records/` when this site was built. Accuracies are in %, ε in pixel units; certified "
        "is the better of both certificates where there are two; *paper* is what the published row certifies.",
    ]
    records = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RECORDS.glob("*.json"))}
    for name, record in records.items():
        rows = list(accuracies(record))
        if not rows:
            continue
        lines += ["", f"## {name.removesuffix('.json')}", "", f"[{name}](records/{name}): {plain(record['what'])}", ""]
        lines += ["| ε | clean | PGD | certified | paper |", "|---|---:|---:|---:|---:|"]
        for epsilon, row in rows:
            cells = [row.get(key) for key in ("clean", "pgd", "certified", "paper")]
            numbers = ["–" if cell is None else f"{100 * cell:.2f}" for cell in cells]
            lines.append(f"| {epsilon} | {' | '.join(numbers)} |")
    lines += ["", "## Figures"]
    for picture in sorted(RECORDS.glob("*.png")):
        what = records.get(f"{picture.stem}.json", {}).get("what") or picture.stem.replace("-", " ")
        lines += ["", f"![{plain(what)}](records/{picture.name})", "", f"{plain(what)}"]
    listed = (RECORDS / "README.md").read_text(encoding="utf-8").replace("# Records", "## All records", 1)
    return "\n".join([*lines, "", listed])


def accuracies(record: Any) -> Iterator[tuple[str, dict[str, float]]]:
    """(eps, shares) for each evaluation that a record holds."""
    from linfnet.epsilon import parse_epsilon
    from linfnet.recipes import load_recipe

    if not isinstance(record, dict):
        return
    published = tomllib.loads(record["recipe"]) if isinstance(record.get("recipe"), str) else {}
    # What was published is of the epsilon that the recipe was written for, not of one it was changed to.
    reported = published.get("reported", {})
    targets = load_recipe(published["name"]).evaluation.eps[:1] if reported.get("source") == "the paper" else ()
    for key, row in (record.get("results") or {}).items():
        found = re.fullmatch(r"(\S+) eps=(\S+)", key)
        proven = (
            [share for name, share in row.items() if name.startswith("certified_")] if isinstance(row, dict) else []
        )
        if found and proven:
            paper = reported["certified"] if parse_epsilon(found[2]) in targets else None
            shares = {"clean": row["clean"], "pgd": row.get("pgd"), "certified": max(proven)}
            # As `result_key` names them: not all images, other steps than 100.
            first, steps = (re.search(rf"-{what}-(\d+)", found[1]) for what in ("first", "pgd"))
            apart = (f", first {first[1]} images" if first else "") + (f", PGD-{steps[1]}" if steps else "")
            yield found[2] + apart, {**shares, "paper": None if paper is None else paper / 100}
    for epsilon, row in (record.get("certified") or {}).items() if isinstance(record.get("certified"), dict) else ():
        if isinstance(row, dict) and {"margin", "interval"} <= row.keys():
            yield epsilon, {"clean": record["clean"], "certified": max(row["margin"], row["interval"])}


def plain(text: str) -> str:
    """Text that stays in one cell of a table."""
    return " ".join(text.replace("|", "/").split())
