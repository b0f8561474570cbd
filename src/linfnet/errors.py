"""The one exception that a user's mistake turns into, and the words of common ones.

The command line prints it as one line and exits with 2.
"""

import difflib
import importlib
from collections.abc import Iterable
from types import ModuleType


class LinfnetError(Exception):
    """Something the user can mend: a wrong argument, a missing file, a folder that holds something else."""


class ArgumentError(LinfnetError, ValueError):
    """An argument is out of its range; the message names it, what it got and what it wanted."""


def at_least(name: str, value: float, least: float, *, strictly: bool = False, most: float = 2**31) -> None:
    """Raise unless least <= value <= most; `strictly` leaves out the least."""
    if not (value > least if strictly else value >= least):
        bound = "above" if strictly else "of at least"
        raise ArgumentError(f"{name} is {value}; wanted a number {bound} {least}")
    if value > most:
        got = value if value < 2**31 else "too large"  # not hundreds of digits
        raise ArgumentError(f"{name} is {got}; wanted a number of at most {most}")


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint at the known word that somebody may have meant, or nothing."""
    match = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {match[0]!r}?" if match else ""


def require(module: str, extra: str) -> ModuleType:
    """Import an optional dependency, or raise an error that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.split(".")[0]
        raise LinfnetError(f"this needs {package}: pip install 'linfnet[{extra}]'") from None
