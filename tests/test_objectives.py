"""The five objectives of the paper's ablation, each against its formula, in pixel units."""

import math
from dataclasses import dataclass
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from linfnet.errors import ArgumentError
from linfnet.losses import (
    LOSSES,
    CrossEntropy,
    Hinge,
    Mixture,
    Objective,
    ThresholdedCrossEntropy,
)
from linfnet.recipes import load_recipe
from linfnet.schedules import StepState

SCALE, LIPSCHITZ = 1.7, 4.0
LOGITS = [[2.0, 1.0, 0.0], [0.0, 3.0, 1.0], [1.0, 1.0, 0.0]]
LABELS = [0, 0, 1]


def value(loss: Objective, *, relaxed: float = 0.0, started: float = 1.0) -> float:
    state = StepState(epoch=1.0, started=started, relaxed=relaxed, p=8.0, mixing=loss.mixing(relaxed), lr=0.01)
    scale = torch.tensor(SCALE, dtype=torch.float64)
    logits = torch.tensor(LOGITS, dtype=torch.float64)
    return loss(logits, torch.tensor(LABELS), state, scale=scale, lipschitz=LIPSCHITZ).item()


def cross_entropy(z: list[float], y: int) -> float:
    return math.log(sum(map(math.exp, z))) - z[y]


def hinge(z: list[float], y: int) -> float:
    return max(max(z[j] for j in range(3) if j != y) - z[y] + 1, 0)


def mean(term) -> float:
    return sum(term(g, y) for g, y in zip(LOGITS, LABELS, strict=True)) / 3


# theta = 1/2 in pixels is 2 in the units of these logits.
THETA, THRESHOLD = Fraction(1, 2), 2.0


def clipped(g: list[float], y: int) -> float:
    return min(hinge([z / THRESHOLD for z in g], y), 1)


def scaled(g: list[float], y: int, s: float = SCALE) -> float:
    return cross_entropy([s * z for z in g], y)


def test_1_hinge():
    expected = mean(lambda g, y: hinge([z / THRESHOLD for z in g], y))
    assert value(Hinge(theta=THETA)) == pytest.approx(expected)


def test_2_cross_entropy_has_a_fixed_scale_of_1():
    assert value(CrossEntropy()) == pytest.approx(mean(lambda g, y: scaled(g, y, 1.0)))
    assert value(CrossEntropy(fixed_scale=3.0)) == pytest.approx(mean(lambda g, y: scaled(g, y, 3.0)))
    assert not CrossEntropy.learns_scale


def test_3_cross_entropy_with_a_threshold_on_the_output():
    def term(g: list[float], y: int) -> float:
        return scaled([z - THRESHOLD * (j == y) for j, z in enumerate(g)], y)

    assert value(ThresholdedCrossEntropy(theta=THETA)) == pytest.approx(mean(term))
    assert ThresholdedCrossEntropy.learns_scale


def test_4_a_fixed_mixture():
    loss = Mixture(theta=THETA, mixing_start=0.02, mixing_end=0.02)
    expected = mean(lambda g, y: 0.02 * scaled(g, y) + clipped(g, y))
    assert [value(loss, relaxed=relaxed) for relaxed in (0.0, 0.6, 1.0)] == pytest.approx([expected] * 3)


def test_5_a_decaying_mixture():
    loss = Mixture(theta=THETA, mixing_start=0.1, mixing_end=0.001)
    for relaxed, mixing in ((0.0, 0.1), (0.5, 0.01), (1.0, 0.001)):
        expected = mean(lambda g, y, mixing=mixing: mixing * scaled(g, y) + clipped(g, y))
        assert value(loss, relaxed=relaxed) == pytest.approx(expected)
        assert loss.mixing(relaxed) == pytest.approx(mixing)
    assert Mixture(mixing_start=0.0, mixing_end=0.0).mixing(0.5) == 0.0


def test_the_warm_up_asks_for_a_growing_part_of_theta():
    loss = Hinge(theta=THETA, warmup=True)
    for started in (0.0, 0.25, 1.0):
        expected = mean(lambda g, y, part=started: max(hinge([z / THRESHOLD for z in g], y) - (1 - part), 0))
        assert value(loss, started=started) == pytest.approx(expected)


def test_the_published_thresholds_are_the_defaults():
    thetas = {kind: kind().theta * 255 for kind in (Hinge, ThresholdedCrossEntropy, Mixture)}
    assert thetas == {Hinge: 80, ThresholdedCrossEntropy: 32, Mixture: 48}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Hinge(theta=Fraction(0)), "loss.theta is 0.0; wanted a number above 0"),
        (lambda: Hinge(max_share=1.5), "loss.max_share is 1.5; wanted a number from 0 to 1"),
        (lambda: CrossEntropy(fixed_scale=0.0), "loss.fixed_scale is 0.0"),
        (lambda: Mixture(mixing_start=-1.0), "loss.mixing_start is -1.0"),
        (
            lambda: load_recipe("digits", ["loss.name=hing"]),
            "loss.name is 'hing'; wanted one of .*; did you mean 'hinge'",
        ),
        (lambda: load_recipe("digits", ["loss.name=3"]), "loss.name is 3; wanted text"),
    ],
)
def test_wrong_values_are_told(make, message: str):
    with pytest.raises(ArgumentError, match=message):
        make()


def test_a_name_belongs_to_one_objective():
    assert {"cross_entropy", "hinge", "mixture", "thresholded_cross_entropy"} <= set(LOSSES)
    with pytest.raises(ArgumentError, match=r"loss\.name 'hinge' is already registered"):

        @LOSSES.register("hinge")
        @dataclass(frozen=True)
        class Other(Objective):
            def __call__(
                self, logits: Tensor, labels: Tensor, state: StepState, *, scale: Tensor, lipschitz: float
            ) -> Tensor:
                return logits.sum()
