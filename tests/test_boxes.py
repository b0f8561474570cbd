"""Boxes around images, against rational arithmetic."""

from fractions import Fraction

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from linfnet.boxes import check_images, inner_box, outer_box
from linfnet.errors import ArgumentError

EPSILONS = st.fractions(0, 1, max_denominator=1000) | st.sampled_from(
    [Fraction(8, 255), Fraction(1, 10), Fraction(3, 10)]
)
PIXELS = st.floats(0, 1, width=32, allow_subnormal=True)


@example([0.5, 0.25, 1.0], Fraction(1, 4))
@given(st.lists(PIXELS, min_size=1, max_size=5), st.integers(0, 2**24).map(lambda k: Fraction(k, 2**24)))
def test_the_inner_box_is_the_largest(pixels: list[float], epsilon: Fraction):
    """Its ends are within epsilon; the next float32 numbers are not, or are outside [0, 1]."""
    for low, high, pixel in zip(*inner_box(torch.tensor(pixels), epsilon), map(Fraction, pixels), strict=True):
        below, above = torch.nextafter(low, torch.tensor(-1.0)).item(), torch.nextafter(high, torch.tensor(2.0)).item()
        assert pixel - epsilon <= Fraction(low.item()) <= Fraction(high.item()) <= pixel + epsilon
        assert below < 0 or Fraction(below) < pixel - epsilon
        assert above > 1 or Fraction(above) > pixel + epsilon


@given(st.lists(PIXELS, min_size=1, max_size=8), EPSILONS, st.sampled_from([torch.float32, torch.float64]))
def test_boxes_bracket_the_exact_ball(pixels: list[float], epsilon: Fraction, dtype: torch.dtype):
    images = torch.tensor(pixels, dtype=dtype)
    outer, inner = outer_box(images, epsilon), inner_box(images, epsilon)
    for k, pixel in enumerate(images.tolist()):
        low, high = max(Fraction(0), Fraction(pixel) - epsilon), min(Fraction(1), Fraction(pixel) + epsilon)
        assert Fraction(outer[0][k].item()) <= low
        assert Fraction(outer[1][k].item()) >= high
        assert low <= Fraction(inner[0][k].item()) <= Fraction(pixel) <= Fraction(inner[1][k].item()) <= high
    # Tight: float32 end points are at most two numbers away from the exact ones.
    spread = torch.finfo(dtype).eps * 2
    assert (outer[0] >= (images.double() - float(epsilon)).clamp(min=0) - spread).all()
    assert (outer[1] <= (images.double() + float(epsilon)).clamp(max=1) + spread).all()


def test_no_perturbation_is_the_image_itself():
    images = torch.rand(4)
    assert all(torch.equal(end, images) for box in (outer_box, inner_box) for end in box(images, Fraction(0)))


@pytest.mark.parametrize("value", [-1e-7, 1.0000001, float("nan")])
def test_pixels_outside_are_refused(value: float):
    with pytest.raises(ArgumentError, match=r"expected \[0, 1\]"):
        check_images(torch.tensor([0.5, value]))
