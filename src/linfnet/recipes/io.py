"""Read recipes from TOML, change them by `key=value`, and write them; types and ranges are checked."""

import dataclasses
import json
import math
import tomllib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

import numpy as np

from linfnet.data import own_name, set_title
from linfnet.epsilon import format_epsilon, parse_epsilon, parse_rational
from linfnet.errors import ArgumentError, LinfnetError, nearest
from linfnet.losses import LOSSES
from linfnet.recipes.recipe import Data, EvaluationSettings, Recipe

Options = TypeVar("Options")
Changes = Sequence[str] | Mapping[str, Any]
SYSTEM = "system."  # prefix of the keys that a system defines
# Keys of the data that another data set does not keep.
OWN_DATA = ("data.path", "data.resize", "data.mode", "data.split_seed", "data.digest")
_FOLDER = resources.files("linfnet.recipes")


def recipe_names() -> tuple[str, ...]:
    """Return the names of the recipes in the package."""
    return tuple(sorted(file.name.removesuffix(".toml") for file in _FOLDER.iterdir() if file.name.endswith(".toml")))


def load_recipe(source: str | Path, changes: Changes = ()) -> Recipe:
    """Load a recipe by name or from a TOML file, and apply changes.

    A recipe with other data, another system or another first epsilon gets another title, and no `[reported]`.

    Args:
        source: one of `recipe_names()`, or a path that ends in `.toml`.
        changes: texts `key=value` as in `--set`, or a mapping from keys to values or texts, such as
            `{"model.width": 64, "theta": "48/255"}`. The section may be omitted if the key is unambiguous.

    >>> load_recipe("cifar10-8", ["width=64", "schedule.epochs=[4, 42, 3]"]).model.width
    64
    """
    name = str(source)
    if name.endswith(".toml"):
        try:
            return recipe_from_toml(Path(name).read_text(encoding="utf-8"), name, Path(name).stem, changes)
        except (OSError, UnicodeDecodeError) as error:
            raise LinfnetError(f"recipe file {name} cannot be read: {error}") from None
    if name not in recipe_names():
        raise LinfnetError(f"unknown recipe {name!r}{nearest(name, recipe_names())} (`linfnet recipes` lists them)")
    return recipe_from_toml((_FOLDER / f"{name}.toml").read_text(encoding="utf-8"), f"recipe {name}", name, changes)


def recipe_from_toml(text: str, where: str, name: str, changes: Changes = ()) -> Recipe:
    """Parse the text of a TOML file and apply changes as `load_recipe` does; error messages name the file `where`."""
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise LinfnetError(f"{where} is not valid TOML: {str(error).splitlines()[0]}") from None
    flat: dict[str, Any] = {"name": name}
    for key, value in tables.items():
        flat |= {f"{key}.{inner}": v for inner, v in value.items()} if isinstance(value, dict) else {key: value}
    known = _types(flat)
    for key in flat:
        if key not in known and not key.startswith(SYSTEM):
            raise LinfnetError(f"{where} has an unknown key {key!r}{nearest(key, known)}")
    return _changed(flat, known, changes)


def change_recipe(recipe: Recipe, changes: Changes) -> Recipe:
    """Return a recipe with other settings, as `load_recipe` does.

    >>> change_recipe(load_recipe("digits"), {"data.name": "mnist"}).title
    'MNIST at eps = 0.1, settings of digits'
    """
    return (
        recipe_from_toml(recipe_to_toml(recipe), f"recipe {recipe.name}", recipe.name, changes) if changes else recipe
    )


def _changed(flat: dict[str, Any], known: Mapping[str, Any], changes: Changes) -> Recipe:
    """Return the recipe with the keys and values of `flat` and the changes."""
    pairs = list(changes.items()) if isinstance(changes, Mapping) else list(map(split_change, changes))
    for key, value in pairs:
        if key == "loss.name":
            # Another objective has other keys: drop the keys in the file that the new objective does not have.
            flat["loss.name"] = _parse_value(value)
            known = _types(flat)
            flat = {key: value for key, value in flat.items() if key in known or key.startswith(SYSTEM)}
    changed = {_full_key(key, known): _parse_value(value) for key, value in pairs}
    if "data.name" in changed and "data.path" not in changed:
        flat = {key: value for key, value in flat.items() if key not in OWN_DATA}
    after = flat | changed
    if _subject(after) != _subject(flat):
        after = {key: value for key, value in after.items() if not key.startswith("reported.") or key in changed}
        if "title" not in changed:
            after["title"] = _title(after, flat)
    return _build(after, known)


def _title(after: Mapping[str, Any], before: Mapping[str, Any]) -> str:
    """Return the title of a recipe with other data, another system or another epsilon."""
    name, (_, system, eps) = after.get("data.name", Data.name), _subject(after)
    if after.get("data.path") and not after.get("data.digest"):
        name = own_name(Path(str(after["data.path"])).stem)  # before a run has read the data
    other = f", system {system}" if system != before.get(f"{SYSTEM}name", "linf") else ""
    return f"{set_title(name)} at eps = {', '.join(map(format_epsilon, eps))}, settings of {after['name']}{other}"


def recipe_to_toml(recipe: Recipe) -> str:
    """Return all keys of a recipe as TOML text, from which `recipe_from_toml` creates the same recipe."""
    lines = [f"name = {toml_literal(recipe.name)}", f"title = {toml_literal(recipe.title)}"]
    tables = {section: vars(getattr(recipe, section)) for section in _sections({})} | {"system": recipe.system}
    tables["loss"] = {"name": recipe.loss.name, **tables["loss"]}
    for section, values in tables.items():
        if values:
            # TOML has no value for "not set".
            given = (f"{key} = {toml_literal(value)}" for key, value in values.items() if value is not None)
            lines += ["", f"[{section}]", *given]
    return "\n".join(lines) + "\n"


def missing_sections(text: str) -> list[str]:
    """Return the sections that `recipe_to_toml` always writes and that a TOML text does not have."""
    tables = tomllib.loads(text)
    return [section for section in _sections({}) if section not in tables]


def options_from_mapping(kind: type[Options], values: Mapping[str, Any], where: str) -> Options:
    """Create a dataclass from the keys of a TOML table named `where`, each converted to the type of its field."""
    hints = _field_types(kind)
    for key in values:
        if key not in hints:
            raise ArgumentError(f"unknown key {f'{where}.{key}'!r}{nearest(key, hints)}")
    return kind(**{key: _coerce(f"{where}.{key}", value, hints[key]) for key, value in values.items()})


def _field_types(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _sections(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the class of each section; `loss.name` selects the class of [loss].

    The section [system] is not included, because each system defines its keys.
    """
    loss = LOSSES[_coerce("loss.name", flat.get("loss.name", "mixture"), str)]
    kinds = {name: kind for name, kind in _field_types(Recipe).items() if dataclasses.is_dataclass(kind)}
    return kinds | {"loss": loss}


def _types(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the type of each key (`section.key`) of a recipe with the objective that `flat` selects."""
    types: dict[str, Any] = {"name": str, "title": str, "loss.name": str}
    for section, kind in _sections(flat).items():
        types |= {f"{section}.{key}": hint for key, hint in _field_types(kind).items()}
    return types


def split_change(change: str, option: str = "--set") -> tuple[str, str]:
    """Return the key and the value of a text `key=value`, which an option of the command line got."""
    key, equals, text = (part.strip() for part in change.partition("="))
    if not equals or not key:
        raise ArgumentError(f"{option} got {change!r}; expected key=value")
    return key, text


def _full_key(key: str, known: Mapping[str, Any]) -> str:
    """Return a key with its section, which may be omitted."""
    if key in known or key.startswith(SYSTEM):
        return key
    full = [name for name in known if name.split(".")[-1] == key]
    if not full:
        full_names = {name.split(".")[-1]: name for name in known}
        hint = nearest(key, known) or nearest(key, full_names, full_names)
        raise ArgumentError(f"unknown key {key!r}{hint}")
    if len(full) > 1:
        raise ArgumentError(f"key {key!r} is ambiguous; expected one of {', '.join(full)}")
    return full[0]


def _parse_value(value: object) -> Any:
    """Return the value of a change: text is parsed as a TOML value if it is one; other values stay as they are."""
    if isinstance(value, list | tuple):
        return type(value)(map(_plain, cast(Sequence[object], value)))
    if not isinstance(value, str):
        return str(value) if isinstance(value, Path) else _plain(value)
    try:
        return tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        return value


def _plain(value: object) -> Any:
    """Return a number or an array of NumPy as numbers of Python; a float as the number of its shortest decimal form."""
    if isinstance(value, np.floating):
        return float(str(cast(object, value)))
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value  # pyright: ignore


def _subject(flat: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the data set, the system and the first epsilon. If any of them changes, reported figures do not apply."""
    eps = _coerce("evaluation.eps", flat.get("evaluation.eps", list(EvaluationSettings.eps)), tuple[Fraction, ...])
    data = flat.get("data.path"), flat.get("data.digest"), flat.get("data.name", Data.name)
    return data, flat.get(f"{SYSTEM}name", "linf"), eps[:1]


def _coerce(key: str, value: Any, kind: Any) -> Any:
    """Convert a TOML value to the type of its key, for example `48/255` to a fraction or a list to a tuple."""
    if type(None) in get_args(kind):
        return None if value is None else _coerce(key, value, get_args(kind)[0])
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise ArgumentError(f"{key} is {value!r}; expected {' or '.join(map(repr, get_args(kind)))}")
        return value
    if get_origin(kind) is tuple:
        items = cast(list[Any], [*value] if isinstance(value, list | tuple) else [value])
        if kind == tuple[Fraction, ...] and isinstance(value, tuple) and list(map(type, items)) == [int, int]:
            items = [value]  # a ratio such as (8, 255)
        kinds = get_args(kind)
        kinds = kinds[:1] * len(items) if kinds[-1] is Ellipsis else kinds
        if len(items) != len(kinds):
            raise ArgumentError(f"{key} is {value}; expected a list of {len(kinds)} numbers")
        return tuple(_coerce(key, item, inner) for item, inner in zip(items, kinds, strict=True))
    if kind is Fraction:
        # The message of an epsilon that is out of range shows it as the user has written it.
        return parse_epsilon(value, key) if key == "evaluation.eps" else parse_rational(value, key)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) < 2**63 else math.inf
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        expected = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[kind]
        raise ArgumentError(f"{key} is {value!r}; expected {expected}")
    return value


def _build(flat: Mapping[str, Any], known: Mapping[str, Any]) -> Recipe:
    tables: dict[str, Any] = defaultdict(dict)
    for key, value in flat.items():
        section, dot, name = key.partition(".")
        # `linfnet.systems.system_of` checks the types of the keys of [system].
        typed = _coerce(key, value, known[key]) if key in known else value
        if dot:
            tables[section][name] = typed
        else:
            tables[key] = typed
    tables["loss"].pop("name", None)
    return Recipe(**tables | {section: kind(**tables[section]) for section, kind in _sections(flat).items()})


def toml_literal(value: object) -> str:
    """Return a value as it is written in TOML."""
    if isinstance(value, Fraction):
        return json.dumps(format_epsilon(value))
    if isinstance(value, tuple | list):
        return "[" + ", ".join(toml_literal(item) for item in cast(Sequence[object], value)) + "]"
    # JSON in ASCII is valid TOML, except for the character DEL in strings and for infinite numbers.
    return json.dumps(value).replace("\x7f", "\\u007f") if isinstance(value, str | bool) else repr(value)
