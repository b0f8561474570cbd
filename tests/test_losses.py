"""The losses by hand, and the five objectives of the paper's ablation, each against its formula in pixel units."""

import math
from dataclasses import dataclass
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from linfnet.errors import ArgumentError
from linfnet.losses import (
    LOSSES,
    CrossEntropy,
    Hinge,
    Mixture,
    Objective,
    ThresholdedCrossEntropy,
    clipped_hinge,
    hinge,
    margin_shares,
    mixture,
    scaled_cross_entropy,
    thresholded,
)
from linfnet.nn.label_margin import margin
from linfnet.recipes import load_recipe
from linfnet.schedules import StepState

LOGITS = torch.tensor([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0], [1.0, 1.0, 0.0]], dtype=torch.float64)
LABELS = torch.tensor([0, 0, 1])


def test_margin_is_true_class_minus_best_other():
    assert margin(LOGITS, LABELS).tolist() == [1.0, -3.0, 0.0]


def test_losses_by_hand():
    # margins 1, -3, 0 with threshold 2: hinge terms 0.5, 2.5, 1
    assert hinge(LOGITS, LABELS, 2.0).item() == pytest.approx(4.0 / 3)
    assert clipped_hinge(LOGITS, LABELS, 2.0).item() == pytest.approx(2.5 / 3)
    terms = [
        math.log(sum(math.exp(3 * z) for z in row)) - 3 * row[y]
        for row, y in zip(LOGITS.tolist(), LABELS.tolist(), strict=True)
    ]
    assert scaled_cross_entropy(LOGITS, LABELS, 3.0).item() == pytest.approx(sum(terms) / 3)
    total = mixture(LOGITS, LABELS, threshold=2.0, mixing=0.1, scale=3.0).item()
    assert total == pytest.approx(0.1 * sum(terms) / 3 + 2.5 / 3)


def test_class_mixing_and_required_by_hand():
    # gaps to the true class: (0, 1, 2), (0, -3, -1), (0, 0, 1); terms at threshold 2 for the two other classes
    terms = [(0.5, 0.0), (2.5, 1.5), (1.0, 0.5)]
    expected = sum(0.75 * max(pair) + 0.25 * sum(pair) / 3 for pair in terms) / 3
    assert hinge(LOGITS, LABELS, 2.0, max_share=0.75).item() == pytest.approx(expected)
    # Only half the threshold is required: every term is smaller by 0.5, but not below 0.
    cooler = [tuple(max(term - 0.5, 0) for term in pair) for pair in terms]
    expected = sum(0.75 * max(pair) + 0.25 * sum(pair) / 3 for pair in cooler) / 3
    assert hinge(LOGITS, LABELS, 2.0, max_share=0.75, required=0.5).item() == pytest.approx(expected)


def test_lowering_the_true_logit_lowers_every_margin():
    assert margin(thresholded(LOGITS, LABELS, 0.5), LABELS).tolist() == [0.5, -3.5, -0.5]


def test_the_clipped_hinge_equals_the_max_over_classes_of_clipped_terms():
    torch.manual_seed(0)
    logits, labels = torch.randn(50, 7, dtype=torch.float64), torch.randint(7, (50,))
    gaps = logits.gather(1, labels[:, None]) - logits
    terms = (1 - gaps / 0.7).clamp(0, 1).scatter(1, labels[:, None], 0.0)
    assert clipped_hinge(logits, labels, 0.7).item() == pytest.approx(terms.max(1).values.mean().item())


def test_misclassified_samples_get_no_gradient_from_the_clipped_hinge():
    logits = LOGITS.clone().requires_grad_()
    clipped_hinge(logits, LABELS, 2.0).backward()
    assert logits.grad is not None
    assert logits.grad[1].tolist() == [0.0, 0.0, 0.0]
    assert logits.grad[0].tolist() == pytest.approx([-1 / 6, 1 / 6, 0.0])


def test_the_leak_is_the_slope_of_misclassified_samples():
    logits = LOGITS.clone().double().requires_grad_()
    gaps = margin(logits, LABELS)
    clipped_hinge(logits, LABELS, 2.0, leak=0.25).backward()
    slopes = logits.grad.gather(1, LABELS.unsqueeze(1)).squeeze(1) * -2.0 * len(LABELS)
    expected = [0.25 if gap < 0 else 1.0 if gap < 2 else 0.0 for gap in gaps.tolist()]
    assert 0.25 in expected
    assert slopes.tolist() == expected
    # At a margin of 0, the slope is that of the hinge, with and without a leak.
    for leak in (0.0, 0.25):
        border = torch.zeros(1, 2, requires_grad=True)
        clipped_hinge(border, torch.tensor([0]), 2.0, leak=leak).backward()
        assert border.grad.tolist() == [[-0.5, 0.5]]


@pytest.mark.parametrize(
    ("keys", "leaks"),
    [({}, (0, 0, 0)), ({"clip_leak": 0.1}, (0.1, 0.1, 0.1)), ({"clip_leak": 0.2, "clip_leak_end": 0.0}, (0.2, 0.1, 0))],
)
def test_the_leak_of_the_mixture_changes_while_p_rises(keys: dict[str, float], leaks: tuple[float, ...]):
    objective = Mixture(theta=Fraction(1, 2), **keys)
    assert [objective.leak(relaxed) for relaxed in (0.0, 0.5, 1.0)] == pytest.approx(leaks)
    logits, labels, scale = torch.tensor([[0.0, 1.0]]), torch.tensor([0]), torch.ones(())
    for relaxed, leak in zip((0.0, 0.5, 1.0), leaks, strict=True):
        state = StepState(epoch=0.0, started=1.0, relaxed=relaxed, p=8.0, mixing=0.0, lr=0.1)
        # The margin is -1 and the threshold 2 * 0.5, so the hinge is 2.
        assert objective(logits, labels, state, scale=scale, lipschitz=2.0).item() == pytest.approx(1 + leak)


def test_theta_of_the_mixture_changes_while_p_rises():
    """Exponentially: halfway from 1/2 to 1/8 it is 1/4, and the gradient of the hinge is 1 / (2 theta)."""
    labels, scale = torch.tensor([0]), torch.ones(())
    for end, thetas in ((None, (0.5, 0.5, 0.5)), (Fraction(1, 8), (0.5, 0.25, 0.125)), (Fraction(2), (0.5, 1.0, 2.0))):
        objective = Mixture(theta=Fraction(1, 2), theta_end=end)
        for relaxed, theta in zip((0.0, 0.5, 1.0), thetas, strict=True):
            assert objective.theta_at(relaxed) == pytest.approx(theta)
            state = StepState(epoch=0.0, started=1.0, relaxed=relaxed, p=8.0, mixing=0.0, lr=0.1)
            logits = torch.tensor([[0.1, 0.0]], requires_grad=True)
            loss = objective(logits, labels, state, scale=scale, lipschitz=2.0)
            assert loss.item() == pytest.approx(1 - 0.1 / (2 * theta), rel=1e-6)
            loss.backward()
            assert logits.grad.tolist()[0] == pytest.approx([-1 / (2 * theta), 1 / (2 * theta)], rel=1e-6)


def test_the_scale_learns_from_the_cross_entropy_alone():
    scale = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    mixture(LOGITS, LABELS, threshold=2.0, mixing=0.0, scale=scale).backward()
    assert scale.grad is not None
    assert scale.grad.item() == 0.0
    mixture(LOGITS, LABELS, threshold=2.0, mixing=1.0, scale=scale).backward()
    assert scale.grad.item() != 0.0


def test_all_losses_have_right_gradients():
    torch.manual_seed(1)
    logits = torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
    labels, scale = torch.randint(5, (6,)), torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: hinge(z, labels, 0.9), (logits,))
    assert torch.autograd.gradcheck(lambda z: hinge(z, labels, 0.9, max_share=0.6, required=0.8), (logits,))
    assert torch.autograd.gradcheck(lambda z: thresholded(z, labels, 0.9).logsumexp(1), (logits,))
    assert torch.autograd.gradcheck(lambda z: clipped_hinge(z, labels, 0.9), (logits,))
    assert torch.autograd.gradcheck(lambda z: clipped_hinge(z, labels, 0.9, leak=0.3), (logits,))
    assert torch.autograd.gradcheck(
        lambda z, s: mixture(z, labels, threshold=0.9, mixing=0.2, scale=s), (logits, scale)
    )


@given(st.integers(0, 2**32 - 1), st.floats(0.1, 5))
def test_margin_shares_count_every_sample_once(seed: int, threshold: float):
    generator = torch.Generator().manual_seed(seed)
    logits, labels = torch.randn(40, 4, generator=generator), torch.randint(4, (40,), generator=generator)
    shares = margin_shares(logits, labels, threshold)
    gaps = margin(logits, labels)
    assert shares.sum().item() == 40
    assert shares.tolist() == [(gaps > threshold).sum(), ((gaps >= 0) & (gaps <= threshold)).sum(), (gaps < 0).sum()]


def test_margins_at_the_borders():
    """A margin of exactly theta, or of 0, is between; float32 represents these margins exactly."""
    logits = torch.tensor([[2.0, 0.0], [0.0, 0.0], [2.25, 0.0], [0.0, 0.25]])
    assert margin_shares(logits, torch.zeros(4, dtype=torch.long), 2.0).tolist() == [1, 2, 1]


# Objectives, in pixel units.
SCALE, LIPSCHITZ = 1.7, 4.0


def value(loss: Objective, *, relaxed: float = 0.0, started: float = 1.0) -> float:
    state = StepState(epoch=1.0, started=started, relaxed=relaxed, p=8.0, mixing=loss.mixing(relaxed), lr=0.01)
    scale = torch.tensor(SCALE, dtype=torch.float64)
    return loss(LOGITS, LABELS, state, scale=scale, lipschitz=LIPSCHITZ).item()


def cross_entropy(z: list[float], y: int) -> float:
    return math.log(sum(map(math.exp, z))) - z[y]


def hinge_term(z: list[float], y: int) -> float:
    return max(max(z[j] for j in range(3) if j != y) - z[y] + 1, 0)


def mean(term) -> float:
    return sum(term(g, y) for g, y in zip(LOGITS.tolist(), LABELS.tolist(), strict=True)) / 3


# theta = 1/2 in pixel units is 2 in the units of these logits.
THETA, THRESHOLD = Fraction(1, 2), 2.0


def clipped(g: list[float], y: int) -> float:
    return min(hinge_term([z / THRESHOLD for z in g], y), 1)


def scaled(g: list[float], y: int, s: float = SCALE) -> float:
    return cross_entropy([s * z for z in g], y)


def test_1_hinge():
    expected = mean(lambda g, y: hinge_term([z / THRESHOLD for z in g], y))
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
        expected = mean(lambda g, y, part=started: max(hinge_term([z / THRESHOLD for z in g], y) - (1 - part), 0))
        assert value(loss, started=started) == pytest.approx(expected)


def test_the_published_thresholds_are_the_defaults():
    thetas = {kind: kind().theta * 255 for kind in (Hinge, ThresholdedCrossEntropy, Mixture)}
    assert thetas == {Hinge: 80, ThresholdedCrossEntropy: 32, Mixture: 48}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Hinge(theta=Fraction(0)), "loss.theta is 0.0; expected a number above 0"),
        (lambda: Hinge(theta=Fraction(9, 4)), "loss.theta is 2.25; expected at most 2"),
        (lambda: Hinge(max_share=1.5), "loss.max_share is 1.5; expected a number of at most 1"),
        (lambda: CrossEntropy(fixed_scale=0.0), "loss.fixed_scale is 0.0"),
        (lambda: Mixture(mixing_start=-1.0), "loss.mixing_start is -1.0"),
        (
            lambda: load_recipe("digits", ["loss.name=hing"]),
            "loss.name is 'hing'; expected one of .*; did you mean 'hinge'",
        ),
        (lambda: load_recipe("digits", ["loss.name=3"]), "loss.name is 3; expected text"),
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
