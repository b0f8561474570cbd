"""VNN-LIB properties: the box contains the ball, and the counterexamples are exactly the misclassified images."""

import re
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from linfnet.errors import ArgumentError
from linfnet.export import vnnlib_property


@given(
    st.lists(st.floats(0, 1, width=32), min_size=2, max_size=6),
    st.fractions(0, 1, max_denominator=1000),
    st.integers(0, 3),
)
def test_the_box_holds_the_ball_and_hardly_more(pixels: list[float], epsilon: Fraction, label: int):
    text = vnnlib_property(torch.tensor(pixels).view(1, 1, -1), label, 4, epsilon)
    for index, pixel in enumerate(pixels):
        (low,) = re.findall(rf"\(assert \(>= X_{index} ([0-9.]+)\)\)", text)
        (high,) = re.findall(rf"\(assert \(<= X_{index} ([0-9.]+)\)\)", text)
        exact = max(Fraction(pixel) - epsilon, Fraction(0)), min(Fraction(pixel) + epsilon, Fraction(1))
        assert 0 <= exact[0] - Fraction(low) < Fraction(1, 10**18)
        assert 0 <= Fraction(high) - exact[1] < Fraction(1, 10**18)
    assert text.count("(declare-const X_") == len(pixels)
    assert text.count("(declare-const Y_") == 4
    others = re.findall(rf"\(and \(>= Y_(\d) Y_{label}\)\)", text)
    assert others == [str(j) for j in range(4) if j != label]
    assert text.count("(") == text.count(")")


def test_the_title_and_a_wrong_label():
    text = vnnlib_property(torch.rand(1, 2, 2), 1, 3, Fraction(8, 255))
    assert text.startswith("; class 1 within eps = 8/255")
    with pytest.raises(ArgumentError, match="label is 3"):
        vnnlib_property(torch.rand(1, 2, 2), 3, 3, Fraction(8, 255))
