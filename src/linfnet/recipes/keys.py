"""All keys of recipes with their types, defaults and meanings, read from the dataclasses that define them."""

import ast
import inspect
import itertools
import textwrap
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from fractions import Fraction
from typing import Any, Literal, get_args, get_origin, get_type_hints

from linfnet.losses import LOSSES
from linfnet.recipes.io import toml_literal
from linfnet.recipes.recipe import Recipe
from linfnet.registry import Registry

_WORDS: Mapping[Any, str] = {int: "integer", float: "number", bool: "true or false", str: "text", Fraction: "number"}


@dataclass(frozen=True)
class Key:
    """A key of a recipe."""

    name: str
    """The name with its section, such as `model.width`, as in `--set`."""
    type: str
    """The type in words, such as `integer` or `list of 3 integers`."""
    default: str
    """The default as a TOML value; empty if the key is not set by default."""
    description: str
    """What the key means."""
    of: str = ""
    """The name of the loss or the system that has the key; empty for keys of all recipes."""


def describe_keys(recipe: Recipe | None = None) -> list[Key]:
    """Return all keys of recipes in the order of the sections, with the keys of every registered loss and system.

    Args:
        recipe: return only the keys of this recipe's loss and system, with its values instead of the defaults.

    >>> key = next(key for key in describe_keys() if key.name == "model.width")
    >>> key.type, key.default, key.description
    ('integer', '5120', 'Number of neurons in each hidden layer.')
    """
    systems: Registry[type[Any]] = Registry.of_kind.get("system.name") or Registry("system.name")
    keys = _keys_of(Recipe, "", recipe)
    for section, kind in get_type_hints(Recipe).items():
        if section != "loss" and is_dataclass(kind) and isinstance(kind, type):
            keys += _keys_of(kind, section, recipe and getattr(recipe, section))
        if section == "loss":
            chosen = LOSSES.names() if recipe is None else (recipe.loss.name,)
            default = "mixture" if recipe is None else recipe.loss.name
            keys.append(Key("loss.name", "text", toml_literal(default), f"The loss: {', '.join(LOSSES.names())}."))
            for name in chosen:
                keys += _keys_of(LOSSES[name], "loss", recipe and recipe.loss, of=name)
    default = "linf" if recipe is None else recipe.system_name
    keys.append(Key("system.name", "text", toml_literal(default), f"The system: {', '.join(systems.names())}."))
    for name in systems.names() if recipe is None else (recipe.system_name,):
        keys += _keys_of(systems[name], "system", recipe and recipe.system, of=name)
    return keys


def _keys_of(kind: type[Any], section: str, values: Any, *, of: str = "") -> list[Key]:
    """Return the keys of one dataclass; `values` is an instance or a table with values instead of the defaults."""
    hints, descriptions, keys = get_type_hints(kind), field_descriptions(kind), list[Key]()
    for field in fields(kind):
        if is_dataclass(hints[field.name]) or (get_origin(hints[field.name]) is not None and not section):
            continue
        value = _default(field)
        if values is not None:
            value = values.get(field.name, value) if isinstance(values, Mapping) else getattr(values, field.name)
        shown = "" if value is None else toml_literal(value)
        name = f"{section}.{field.name}" if section else field.name
        keys.append(Key(name, _words(hints[field.name]), shown, descriptions.get(field.name, ""), of))
    return keys


def _default(field: Field[Any]) -> Any:
    return None if field.default is MISSING else field.default


def field_descriptions(kind: type[Any]) -> dict[str, str]:
    """Return the docstring below each field of a class and its base classes; empty if there is no source code.

    >>> field_descriptions(Key)["type"]
    'The type in words, such as `integer` or `list of 3 integers`.'
    """
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError, SyntaxError):
            continue
        body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
        for field, text in itertools.pairwise(body):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                    found[name] = " ".join(words.split())
                case _:
                    pass
    return found


def _words(hint: Any) -> str:
    """Return a type in words."""
    arguments = get_args(hint)
    if type(None) in arguments:
        return _words(arguments[0])
    if get_origin(hint) is Literal:
        return " or ".join(map(str, arguments))
    if get_origin(hint) is tuple:
        count = "" if arguments[-1] is Ellipsis else f"{len(arguments)} "
        return f"list of {count}{_words(arguments[0])}s"
    return _WORDS.get(hint, getattr(hint, "__name__", str(hint)))
