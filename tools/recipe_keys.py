"""The tables of all recipe keys, for docs/reference/recipe.md."""

import importlib
from itertools import groupby

from linfnet.recipes import Key, describe_keys
from tools.records import table

SECTIONS = {
    "": "Top level",
    "data": "[data]",
    "model": "[model]",
    "loss": "[loss]",
    "schedule": "[schedule]",
    "optimizer": "[optimizer]",
    "run": "[run]",
    "evaluation": "[evaluation]",
    "reported": "[reported]",
    "system": "[system]",
}


def recipe_keys() -> str:
    """Return a heading and a table for each section, and for each loss and system that has further keys."""
    importlib.import_module("linfnet.systems")  # registers the systems
    parts: list[str] = []
    for (section, of), group in groupby(describe_keys(), key=lambda key: (_section(key), key.of)):
        title = f"{'Loss' if section == 'loss' else 'System'} `{of}`" if of else SECTIONS[section]
        rows = [[f"`{key.name}`", key.type, f"`{key.default}`" if key.default else "–", _cell(key)] for key in group]
        parts.append(f"{'###' if of else '##'} {title}\n\n" + table(["key", "type", "default", "meaning"], rows))
    return "\n" + "\n".join(parts) + "\n"


def _section(key: Key) -> str:
    return key.name.rpartition(".")[0]


def _cell(key: Key) -> str:
    """Return the description of a key as a cell of a table."""
    return key.description.replace("|", "\\|") or "–"
