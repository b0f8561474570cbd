"""Exceptions for errors of the user, which the command line prints as one line; common checks of arguments and text."""

import difflib
import importlib
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import field, fields
from types import ModuleType
from typing import Any


class LinfnetError(Exception):
    """An error that the user can fix, such as a wrong argument, a missing file or a folder with unexpected contents."""


class ArgumentError(LinfnetError, ValueError):
    """An argument is out of range; the message contains its name, its value and the range."""


# Largest number that any option accepts.
LARGEST = 2**31


def at_least(name: str, value: float, least: float, *, strictly: bool = False, most: float = LARGEST) -> None:
    """Raise an error unless least <= value <= most; with `strictly`, the value must be larger than `least`."""
    if not (value > least if strictly else value >= least):
        bound = "above" if strictly else "of at least"
        raise ArgumentError(f"{name} is {value}; expected a number {bound} {least}")
    if value > most:
        shown = "too large" if value > LARGEST else value  # do not print hundreds of digits
        raise ArgumentError(f"{name} is {shown}; expected a number of at most {most}")


def number(default: object, least: float = 0, **limits: Any) -> Any:
    """Declare a dataclass field whose range is checked by `check_numbers`; `limits` are arguments of `at_least`."""
    return field(default=default, metadata={"limits": {"least": least, **limits}})


def check_numbers(options: Any, section: str) -> None:
    """Raise an error if a field declared by `number` is out of range; the message names it as `section.field`.

    A field that is None is not set.
    """
    for each in fields(options):
        if "limits" in each.metadata and getattr(options, each.name) is not None:
            at_least(f"{section}.{each.name}", getattr(options, each.name), **each.metadata["limits"])


def printable(text: str) -> str:
    r"""Return a text with escapes instead of characters that may control a terminal or that UTF-8 cannot encode.

    >>> printable("Katze \x1b[2J")
    'Katze \\x1b[2J'
    """
    if text.isprintable():
        return text
    hidden = ("Cc", "Cs", "Zl", "Zp")  # control characters, halves of surrogate pairs, separators of lines
    return "".join(c.encode("unicode_escape").decode() if unicodedata.category(c) in hidden else c for c in text)


def nearest(word: str, known: Iterable[str], full: Mapping[str, str] | None = None) -> str:
    """Return a hint that suggests the most similar known word, or an empty text; `full` has longer forms of words."""
    match = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {(full or {}).get(match[0], match[0])!r}?" if match else ""


def require(module: str, extra: str) -> ModuleType:
    """Import and return an optional dependency, or raise an error that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.split(".")[0].replace("PIL", "Pillow")
        raise LinfnetError(f"this needs {package}: pip install 'linfnet[{extra}]'") from None
