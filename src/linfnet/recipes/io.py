"""Reading, changing (`key=value`) and writing recipes as TOML, with types and ranges checked."""

import dataclasses
import json
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args, get_origin, get_type_hints

from linfnet.epsilon import format_epsilon, parse_rational
from linfnet.errors import ArgumentError, LinfnetError, nearest
from linfnet.losses import LOSSES, Objective
from linfnet.recipes.recipe import Data, Evaluation, Recipe

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Options = TypeVar("Options", bound="DataclassInstance")
# Prefix of the keys that a system defines.
SYSTEM = "system."
DEFAULT_LOSS = "mixture"
_FOLDER = resources.files("linfnet.recipes")


def recipe_names() -> tuple[str, ...]:
    """The names of the recipes in the package."""
    return tuple(sorted(file.name.removesuffix(".toml") for file in _FOLDER.iterdir() if file.name.endswith(".toml")))


def load_recipe(source: str | Path, changes: Iterable[str] = ()) -> Recipe:
    """Load a recipe by name or from a TOML file, and apply `key=value` changes.

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
        raise LinfnetError(f"unknown recipe {name!r}{nearest(name, recipe_names())} (`linfnet recipes` lists them)")
    return recipe_from_toml(text, where, name, changes)


def recipe_from_toml(text: str, where: str, name: str, changes: Iterable[str] = ()) -> Recipe:
    """Parse the text of a TOML file; errors call it `where`."""
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
    known = _types(_loss(flat))
    for key in flat:
        if key not in known and not key.startswith(SYSTEM):
            raise LinfnetError(f"{where} has an unknown key {key!r}{nearest(key, known)}")
    changes = list(changes)
    for change in changes:
        if change.partition("=")[0].strip() == "loss.name":
            # Another objective has other keys: drop the keys of the file that only the old one has.
            flat["loss.name"] = _parse_change(change, known)[1]
            known = _types(_loss(flat))
            flat = {key: value for key, value in flat.items() if key in known or key.startswith(SYSTEM)}
    changed = dict(_parse_change(change, known) for change in changes)
    if _subject(flat | changed, known) != _subject(flat, known):
        flat = {key: value for key, value in flat.items() if not key.startswith("reported.")}
    flat |= changed
    # The types of a system's keys are checked by the system (`linfnet.systems.system_of`).
    system = {key.removeprefix(SYSTEM): value for key, value in flat.items() if key.startswith(SYSTEM)}
    return _build({key: _coerce(key, value, known[key]) for key, value in flat.items() if key in known}, system)


def recipe_to_toml(recipe: Recipe) -> str:
    """All keys of a recipe as TOML; `load_recipe` reads the same recipe from it."""
    lines = [f"name = {_literal(recipe.name)}", f"title = {_literal(recipe.title)}"]
    for section in _sections():
        lines += ["", f"[{section.name}]"]
        values: Any = getattr(recipe, section.name)
        lines += [f"name = {_literal(values.name)}"] if isinstance(values, Objective) else []
        lines += [f"{f.name} = {_literal(getattr(values, f.name))}" for f in dataclasses.fields(values)]
    if recipe.system:
        lines += ["", "[system]", *(f"{key} = {_literal(value)}" for key, value in recipe.system.items())]
    return "\n".join(lines) + "\n"


def options_from_mapping(kind: type[Options], values: Mapping[str, Any], where: str) -> Options:
    """Create a dataclass from the keys of a TOML table named `where`, each converted to the type of its field."""
    hints = {field.name: get_type_hints(kind)[field.name] for field in dataclasses.fields(kind)}
    for key in values:
        if key not in hints:
            raise ArgumentError(f"unknown key {f'{where}.{key}'!r}{nearest(key, hints)}")
    return kind(**{key: _coerce(f"{where}.{key}", value, hints[key]) for key, value in values.items()})


def _sections() -> list[dataclasses.Field[Any]]:
    """The sections of a recipe whose keys are fixed: all but [system]."""
    return [field for field in dataclasses.fields(Recipe) if field.name not in ("name", "title", "system")]


def _loss(flat: Mapping[str, Any]) -> type[Objective]:
    """The class of the objective that the keys select."""
    return LOSSES[_coerce("loss.name", flat.get("loss.name", DEFAULT_LOSS), str)]


def _section(name: str, loss: type[Objective]) -> type:
    """The class of a section."""
    return loss if name == "loss" else cast(type, get_type_hints(Recipe)[name])


def _types(loss: type[Objective]) -> dict[str, Any]:
    """The type of each key (`section.key`) of a recipe with that objective."""
    types: dict[str, Any] = {"name": str, "title": str, "loss.name": str}
    for section in _sections():
        kind = _section(section.name, loss)
        hints = get_type_hints(kind)
        types |= {f"{section.name}.{field.name}": hints[field.name] for field in dataclasses.fields(kind)}
    return types


def _parse_change(change: str, known: Mapping[str, Any]) -> tuple[str, Any]:
    key, equals, text = change.partition("=")
    key, text = key.strip(), text.strip()
    if not equals or not key:
        raise ArgumentError(f"--set got {change!r}; wanted key=value")
    if key not in known and not key.startswith(SYSTEM):
        full = [name for name in known if name.split(".")[-1] == key]
        if len(full) > 1:
            raise ArgumentError(f"key {key!r} is ambiguous; wanted one of {', '.join(full)}")
        if not full:
            leaves = {name.split(".")[-1]: name for name in known}
            hint = nearest(key, known) or nearest(key, leaves)
            raise ArgumentError(f"unknown key {key!r}{hint}")
        key = full[0]
    try:
        return key, tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return key, text


def _subject(flat: Mapping[str, Any], known: Mapping[str, Any]) -> tuple[Any, ...]:
    """Data set, system and first epsilon. Reported figures do not apply to a recipe that changes any of them."""
    eps = _coerce("evaluation.eps", flat.get("evaluation.eps", list(Evaluation.eps)), known["evaluation.eps"])
    return flat.get("data.name", Data.name), flat.get(f"{SYSTEM}name", "linf"), eps[:1]


def _coerce(key: str, value: Any, kind: Any) -> Any:
    """Convert a TOML value to the type of its key: `48/255` to a fraction, a list to a tuple."""
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


def _build(flat: Mapping[str, Any], system: Mapping[str, Any]) -> Recipe:
    sections: dict[str, Any] = {key: value for key, value in flat.items() if "." not in key} | {"system": system}
    loss = _loss(flat)
    for section in _sections():
        prefix = f"{section.name}."
        given = {key.removeprefix(prefix): value for key, value in flat.items() if key.startswith(prefix)}
        if section.name == "loss":
            given.pop("name", None)
        sections[section.name] = _section(section.name, loss)(**given)
    return Recipe(**sections)


def _literal(value: object) -> str:
    if isinstance(value, Fraction):
        return json.dumps(format_epsilon(value))
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_literal(item) for item in cast(Sequence[object], value)) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    # An ASCII JSON string is a valid TOML string, except for DEL. Python and TOML write floats in the same way.
    return json.dumps(value).replace("\x7f", "\\u007f") if isinstance(value, str) else repr(value)
