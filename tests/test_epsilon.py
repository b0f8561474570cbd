"""Parsing and formatting of epsilon are exact."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linfnet.epsilon import Epsilon, format_epsilon, parse_epsilon, parse_epsilons
from linfnet.errors import ArgumentError

EPSILONS = st.fractions(0, 1, max_denominator=1000) | st.sampled_from(
    [Fraction(8, 255), Fraction(1, 10), Fraction(3, 10)]
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8/255", Fraction(8, 255)),
        ("0.1", Fraction(1, 10)),
        ("2/255", Fraction(2, 255)),
        ("0", Fraction(0)),
        ("1e-3", Fraction(1, 1000)),
    ],
)
def test_parsing_is_exact(text: str, value: Fraction):
    assert parse_epsilon(text) == value
    assert parse_epsilon(format_epsilon(value)) == value


@pytest.mark.parametrize("text", ["8/0", "abc", "-1", "", "1.5", "nan", "inf", "8/255/2", "1e-100"])
def test_bad_epsilons(text: str):
    with pytest.raises(ArgumentError, match="eps is"):
        parse_epsilon(text)


@pytest.mark.parametrize(
    ("value", "exact"),
    [
        (0.1, Fraction(1, 10)),
        (1e-300, Fraction(1, 10**300)),
        (Fraction(0.1), Fraction(0.1)),
        ((8, 255), Fraction(8, 255)),
    ],
)
def test_numbers_are_exact(value: Epsilon, exact: Fraction):
    assert parse_epsilon(value) == exact


def test_grey_levels_are_recognised():
    for value in (8, 8.0, "8", Fraction(8), (16, 2)):
        with pytest.raises(ArgumentError, match=r"from 0 to 1 \(pixel units\); did you mean 8/255\?$"):
            parse_epsilon(value)
    with pytest.raises(ArgumentError, match=r"eps is 1.5; expected a number from 0 to 1 \(pixel units\)$"):
        parse_epsilon(1.5)


def test_a_ratio_is_one_epsilon_and_a_list_is_several():
    assert parse_epsilons((1, 2)) == (Fraction(1, 2),)
    assert parse_epsilons([0, 1]) == (0, 1)
    assert parse_epsilons(("1/2",)) == parse_epsilons("1/2") == (Fraction(1, 2),)
    for wrong in ((True, 2), (1, 0)):
        with pytest.raises(ArgumentError, match="eps is"):
            parse_epsilons(wrong)


@given(EPSILONS)
def test_formatting_loses_nothing(epsilon: Fraction):
    assert parse_epsilon(format_epsilon(epsilon)) == epsilon
