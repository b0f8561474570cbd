"""Recipes as TOML: read with types and ranges checked, changed by `key=value`, written back whole."""

import dataclasses
import difflib
import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from fractions import Fraction
from importlib import resources
from pathlib import Path
from typing import Any, cast, get_args, get_origin, get_type_hints

from linfnet.errors import ArgumentError, LinfnetError
from linfnet.perturbation import format_epsilon, parse_rational
from linfnet.recipes.recipe import Recipe

_FOLDER = resources.files("linfnet.recipes")


def recipe_names() -> tuple[str, ...]:
    """The recipes inside the package."""
    return tuple(sorted(file.name.removesuffix(".toml") for file in _FOLDER.iterdir() if file.name.endswith(".toml")))


def load_recipe(source: str | Path, changes: Iterable[str] = ()) -> Recipe:
    """A recipe by name, or from a TOML file, with `key=value` changes applied.

    >>> load_recipe("cifar10-8", ["width=64", "schedule.epochs=[4, 42, 3]"]).model.width
    64
    """
    name = str(source)
    if name in recipe_names():
        text, where = (_FOLDER / f"{name}.toml").read_text(encoding="utf-8"), f"recipe {name}"
    elif name.endswith(".toml"):
        path = Path(source)
        try:
            text, where, name = path.read_text(encoding="utf-8"), str(path), path.stem
        except (OSError, UnicodeDecodeError) as error:
            raise LinfnetError(f"recipe file {path} cannot be read: {error}") from None
    else:
        raise LinfnetError(f"unknown recipe {name!r}{_nearest(name, recipe_names())} (`linfnet recipes` lists them)")
    return recipe_from_toml(text, where, name, changes)


def recipe_from_toml(text: str, where: str, name: str, changes: Iterable[str] = ()) -> Recipe:
    """A recipe from the text of a TOML file; `where` is how errors name it."""
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise LinfnetError(f"{where} is not valid TOML: {str(error).splitlines()[0]}") from None
    flat: dict[str, Any] = {"name": tables.get("name", name)}
    for key, value in tables.items():
        if isinstance(value, dict):
            flat |= {f"{key}.{inner}": v for inner, v in cast(dict[str, Any], value).items()}
        else:
            flat[key] = value
    for key in flat:
        if key not in _types():
            raise LinfnetError(f"{where} has an unknown key {key!r}{_nearest(key, _types())}")
    for change in changes:
        key, value = _parse_change(change)
        flat[key] = value
    return _build({key: _coerce(key, value, _types()[key]) for key, value in flat.items()})


def recipe_to_toml(recipe: Recipe) -> str:
    """All keys of a recipe as TOML that `load_recipe` reads back to the same recipe."""
    lines = [f"name = {_literal(recipe.name)}", f"title = {_literal(recipe.title)}"]
    for section in dataclasses.fields(recipe)[2:]:
        lines += ["", f"[{section.name}]"]
        values: Any = getattr(recipe, section.name)
        lines += [f"{f.name} = {_literal(getattr(values, f.name))}" for f in dataclasses.fields(values)]
    return "\n".join(lines) + "\n"


def _types() -> dict[str, Any]:
    """Every key, dotted, with its type."""
    hints: dict[str, Any] = {"name": str, "title": str}
    for section in dataclasses.fields(Recipe)[2:]:
        kind = cast(type, get_type_hints(Recipe)[section.name])
        hints |= {f"{section.name}.{key}": hint for key, hint in get_type_hints(kind).items()}
    return hints


def _nearest(word: str, known: Iterable[str]) -> str:
    match = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {match[0]!r}?" if match else ""


def _parse_change(change: str) -> tuple[str, Any]:
    key, equals, text = change.partition("=")
    key, text = key.strip(), text.strip()
    if not equals or not key:
        raise ArgumentError(f"--set got {change!r}; wanted key=value")
    known = _types()
    if key not in known:
        full = [name for name in known if name.split(".")[-1] == key]
        if len(full) > 1:
            raise ArgumentError(f"key {key!r} is not clear; wanted one of {', '.join(full)}")
        if not full:
            leaves = {name.split(".")[-1]: name for name in known}
            hint = _nearest(key, known) or _nearest(key, leaves)
            raise ArgumentError(f"unknown key {key!r}{hint}")
        key = full[0]
    try:
        return key, tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return key, text


def _coerce(key: str, value: Any, kind: Any) -> Any:
    """The value in the type of its key: numbers for numbers, `48/255` for rationals, lists for tuples."""
    if get_origin(kind) is tuple:
        items: list[Any] = cast(list[Any], value) if isinstance(value, list) else [value]
        inner = get_args(kind)
        if inner[-1] is Ellipsis:
            return tuple(_coerce(key, item, inner[0]) for item in items)
        if len(items) != len(inner):
            raise ArgumentError(f"{key} is {value}; wanted a list of {len(inner)} numbers")
        return tuple(_coerce(key, item, part) for item, part in zip(items, inner, strict=True))
    if kind is Fraction:
        return parse_rational(value, key)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) < 2**63 else math.inf
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        wanted = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[kind]
        raise ArgumentError(f"{key} is {value!r}; wanted {wanted}")
    return value


def _build(flat: Mapping[str, Any]) -> Recipe:
    sections: dict[str, Any] = {key: value for key, value in flat.items() if "." not in key}
    for section in dataclasses.fields(Recipe)[2:]:
        kind = cast(type, get_type_hints(Recipe)[section.name])
        prefix = f"{section.name}."
        sections[section.name] = kind(**{k.removeprefix(prefix): v for k, v in flat.items() if k.startswith(prefix)})
    return Recipe(**sections)


def _literal(value: object) -> str:
    if isinstance(value, Fraction):
        return json.dumps(format_epsilon(value))
    if isinstance(value, tuple):
        return "[" + ", ".join(_literal(item) for item in cast(tuple[object, ...], value)) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    # A JSON string in ASCII is a TOML basic string, but for DEL; Python writes floats as TOML does.
    return json.dumps(value).replace("\x7f", "\\u007f") if isinstance(value, str) else repr(value)
