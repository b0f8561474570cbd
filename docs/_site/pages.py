"""What MkDocs does while it builds the site: the page of the command line, records, examples, formulas."""

import contextlib
import io
import os
import re
import textwrap
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
# Folders next to docs/ in the repository whose files pages link to.
LINKED = ("records", "examples")
WIDTH = 76  # characters that fit into the column of the page


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages, the records and the examples to the site. MkDocs calls this with the pages in docs/."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, "reference/cli.md", content=command_line()))
    for path in (path for folder in LINKED for path in sorted((ROOT / folder).iterdir()) if path.is_file()):
        files.append(File.generated(config, f"{path.parent.name}/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Adapt links to records and examples, and convert formulas.

    Their folders are next to docs/ in the repository, but inside it on the site. Formulas between lines with `$$`
    become MathML, which browsers draw without a script.
    """
    markdown = re.sub(rf"\]\(\.\./((?:\.\./)*(?:{'|'.join(LINKED)})/)", r"](\1", markdown)
    return re.sub(r"^\$\$\n(.*?)\n\$\$$", lambda found: formula(found[1]), markdown, flags=re.DOTALL | re.MULTILINE)


def formula(tex: str) -> str:
    """Return a formula as MathML."""
    from latex2mathml.converter import convert

    return f'<div class="formula">{convert(" ".join(tex.split()), display="block")}</div>'


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
    """Return the output of `linfnet COMMAND --help`, wrapped to the width of the page."""
    os.environ["COLUMNS"] = str(WIDTH)
    from linfnet.cli.main import main

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main([*command, "--help"])
    return "\n".join(wrapped(line.rstrip()) for line in printed.getvalue().splitlines()).rstrip()


def wrapped(line: str) -> str:
    """Return a line, in several lines if it is too long for the page; the parser does not wrap all lines."""
    if len(line) <= WIDTH:
        return line
    indent = " " * (len(line) - len(line.lstrip()))
    words = re.sub(r",(?=\S)", ", ", line.strip())
    return "\n".join(textwrap.wrap(words, WIDTH, initial_indent=indent, subsequent_indent=indent + "  "))


def fence(text: str) -> str:
    """Return text in a fenced block."""
    return f"```text\n{text}\n```"
