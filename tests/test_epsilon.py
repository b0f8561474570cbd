"""Parsing and formatting of epsilon are exact."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linfnet.epsilon import format_epsilon, parse_epsilon
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


@pytest.mark.parametrize("text", ["8/0", "abc", "-1", "", "1.5", "nan", "inf", "8/255/2"])
def test_bad_epsilons(text: str):
    with pytest.raises(ArgumentError, match="eps is"):
        parse_epsilon(text)


@given(EPSILONS)
def test_formatting_loses_nothing(epsilon: Fraction):
    assert parse_epsilon(format_epsilon(epsilon)) == epsilon
