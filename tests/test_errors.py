"""Checks of arguments and of optional dependencies."""

import math
from dataclasses import dataclass

import pytest

from linfnet.errors import ArgumentError, LinfnetError, at_least, check_numbers, nearest, number, require


@pytest.mark.parametrize(
    ("value", "options", "message"),
    [
        (-1, {}, "steps is -1; .* of at least 0"),
        (0, {"strictly": True}, "steps is 0; .* above 0"),
        (math.nan, {}, "steps is nan; .* of at least 0"),
        (11, {"most": 10}, "steps is 11; .* of at most 10"),
        (10**400, {}, "steps is too large; .* of at most"),
    ],
)
def test_a_number_out_of_range_is_refused(value: float, options: dict, message: str):
    with pytest.raises(ArgumentError, match=message):
        at_least("steps", value, 0, **options)


def test_bounds_are_included_unless_strict():
    at_least("steps", 0, 0, most=10)
    at_least("steps", 10, 0, most=10)
    at_least("steps", 1e-9, 0, strictly=True)


def test_fields_with_limits_are_checked_by_name():
    @dataclass(frozen=True)
    class Options:
        width: int = number(4, 1)
        label: str = "any"

    check_numbers(Options(), "model")
    with pytest.raises(ArgumentError, match=r"model\.width is 0; .* of at least 1"):
        check_numbers(Options(width=0), "model")


def test_the_most_similar_word_is_suggested():
    assert nearest("epocs", ["epochs", "width"]) == "; did you mean 'epochs'?"
    assert nearest("zzz", ["epochs", "width"]) == ""


def test_an_optional_module_is_imported_or_its_extra_is_named():
    assert require("math", "plots") is math
    with pytest.raises(LinfnetError, match=r"needs no_such_package: pip install 'linfnet\[plots\]'"):
        require("no_such_package.part", "plots")
