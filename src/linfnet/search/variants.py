"""Variants of a recipe: named changes, written one by one, in a TOML file, or as the cells of a grid."""

import itertools
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from linfnet.errors import ArgumentError, LinfnetError
from linfnet.recipes.io import split_change, toml_literal

# The value of a grid that leaves a key as it is in the recipe.
UNCHANGED = "none"


@dataclass(frozen=True)
class Variant:
    """A recipe with changes."""

    name: str
    """The name in tables."""
    changes: tuple[str, ...] = ()
    """Texts `key=value`, as after `--set`; empty for the recipe itself."""

    def __post_init__(self) -> None:
        if not self.folder:
            raise ArgumentError(f"the name of a variant is {self.name!r}; expected letters or digits")

    @property
    def folder(self) -> str:
        """The name of the folder of its trials.

        >>> Variant("theta=48/255, lr=0.03").folder
        'theta=48-255-lr=0.03'
        """
        return re.sub(r"[^\w.=+-]+", "-", self.name).strip("-.")


def grid(varied: Sequence[str]) -> list[Variant]:
    """Return a variant for each combination of values.

    Args:
        varied: texts `key=value,value,...`; the value `none` leaves the key as it is in the recipe.

    >>> [variant.name for variant in grid(["loss.clip_leak=0,0.1", "slopes_p=none,64"])]
    ['clip_leak=0', 'clip_leak=0, slopes_p=64', 'clip_leak=0.1', 'clip_leak=0.1, slopes_p=64']
    """
    axes: list[list[str]] = []
    for text in varied:
        key, values = split_change(text, "--vary")
        axes.append([f"{key}={value}" for value in _split(values)])
    variants: list[Variant] = []
    for cell in itertools.product(*axes) if axes else ():
        changes = tuple(change for change in cell if not change.endswith(f"={UNCHANGED}"))
        short = ", ".join(change[change[: change.index("=")].rfind(".") + 1 :] for change in changes)
        variants.append(Variant(short or "unchanged", changes))
    return variants


def _split(values: str) -> list[str]:
    """Split a text at the commas that are not in brackets.

    >>> _split("[8, 88, 4],[4, 92, 4]")
    ['[8, 88, 4]', '[4, 92, 4]']
    """
    parts = [part.strip() for part in re.split(r",(?![^\[]*\])", values)]
    if "" in parts:
        raise ArgumentError(f"--vary got the values {values!r}; expected values with commas between them, such as 1,2")
    return parts


def read_variants(path: Path | str) -> list[Variant]:
    """Read variants from a TOML file. Each table is a variant, and its entries are keys of the recipe.

    A table `[both]` with the lines `loss.clip_leak = 0.1` and `schedule.slopes_p = 64` is the variant `both`.
    """
    try:
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise LinfnetError(f"{path} cannot be read: {str(error).splitlines()[0]}") from None
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise LinfnetError(f"{path} has the key {name!r} outside of a table; expected tables [NAME] of changes")
    return [Variant(name, tuple(_flatten(table))) for name, table in tables.items()]


def _flatten(table: Mapping[str, Any], prefix: str = "") -> list[str]:
    changes: list[str] = []
    for key, value in table.items():
        if isinstance(value, dict):
            changes += _flatten(cast(dict[str, Any], value), f"{prefix}{key}.")
        else:
            changes.append(f"{prefix}{key}={toml_literal(value)}")
    return changes
