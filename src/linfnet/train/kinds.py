"""What values read from JSON may be: files that people can edit hold anything."""

from collections.abc import Callable
from typing import Any

Kind = Callable[[Any], bool]
MOST = 2**63  # larger numbers are no counts and no seconds


def finite(value: Any) -> bool:
    """A number that one can draw; NaN is none, True is none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -MOST < value < MOST


def share(value: Any) -> bool:
    """A part of a whole."""
    return finite(value) and 0 <= value <= 1


def amount(value: Any) -> bool:
    """Seconds and the like."""
    return finite(value) and value >= 0


def count(value: Any) -> bool:
    """How many."""
    return amount(value) and isinstance(value, int)


def text(value: Any) -> bool:
    """A string."""
    return isinstance(value, str)


def table(value: Any) -> bool:
    """A JSON object."""
    return isinstance(value, dict)


WORDS: dict[Kind, str] = {
    share: "a share from 0 to 1",
    amount: "a number of at least 0",
    count: "a whole number of at least 0",
    text: "text",
    table: "a table",
}
