"""p, lambda and lr of the published CIFAR-10 8/255 run at the phase borders and midpoints, as literals."""

import math

import pytest

from linfnet.errors import ArgumentError
from linfnet.recipes import load_recipe
from linfnet.schedules import Phases, cosine_learning_rate, mixing_coefficient, relaxation_p, stepped_learning_rate
from linfnet.train import step_state

STEPS = 98  # ceil(50000 / 512)


@pytest.mark.parametrize(
    ("epoch", "p", "mixing", "lr"),
    [
        (0, 8.0, 0.1, 0.03),
        (50, 8.0, 0.1, 0.0298906331115),
        (100, 8.0, 0.1, 0.0295641272614),
        (387.5, 26.7496121991, 0.0265914794847, 0.0238899328705),
        (675, 89.4427191, 0.00707106781187, 0.0140943225387),
        (962.5, 299.069756244, 0.00188030154654, 0.00471858866497),
        (1250, math.inf, 5e-4, 0.000109366888529),
        (1275, math.inf, 5e-4, 2.73666866502e-5),
    ],
)
def test_the_published_schedule(epoch: float, p: float, mixing: float, lr: float):
    state = step_state(load_recipe("cifar10-8", ["snap_p=false"]), round(epoch * STEPS), STEPS)
    assert (state.p, state.mixing, state.lr) == (pytest.approx(p), pytest.approx(mixing), pytest.approx(lr))


def test_p_moves_with_every_step_and_never_takes_its_end():
    recipe = load_recipe("cifar10-8", ["snap_p=false"])
    first, second = (step_state(recipe, 100 * STEPS + k, STEPS).p for k in (0, 1))
    assert first == 8.0
    assert second == pytest.approx(8.0 * 125 ** (1 / (1150 * STEPS)))
    last = step_state(recipe, 1250 * STEPS - 1, STEPS).p
    assert 999 < last < 1000
    assert math.isinf(step_state(recipe, 1250 * STEPS, STEPS).p)


def test_the_text_of_the_paper_drops_the_cross_entropy_at_infinity():
    recipe = load_recipe("cifar10-8", ["mixing_zero_at_infinity=true"])
    assert step_state(recipe, 1250 * STEPS - 1, STEPS).mixing == pytest.approx(5e-4, rel=1e-3)
    assert step_state(recipe, 1250 * STEPS, STEPS).mixing == 0.0


def test_other_systems_mix_nothing():
    assert step_state(load_recipe("cifar10-8-hybrid"), 0, STEPS).mixing == 0.0


def test_snapping_takes_p_near_by_and_leaves_the_ends():
    exact, snapped = (load_recipe("cifar10-8", [f"snap_p={snap}"]) for snap in ("false", "true"))
    assert step_state(snapped, 0, STEPS).p == 8.0
    assert math.isinf(step_state(snapped, 1250 * STEPS, STEPS).p)
    pairs = [[step_state(recipe, epoch * STEPS, STEPS).p for recipe in (exact, snapped)] for epoch in range(101, 1250)]
    assert all(after == int(after) and abs(after / before - 1) <= 1 / 8 for before, after in pairs)
    assert all(abs(after / before - 1) <= 1 / 22 for before, after in pairs if before > 22)
    assert len({after for _, after in pairs}) > 200


def test_pure_functions():
    assert relaxation_p(0.5, start=2.0, end=8.0) == pytest.approx(4.0)
    assert mixing_coefficient(1.0, start=0.1, end=5e-4) == pytest.approx(5e-4)
    assert mixing_coefficient(0.5, start=0.02, end=0.02) == pytest.approx(0.02)  # a fixed coefficient
    assert [mixing_coefficient(r, start=0.1, end=0.0) for r in (0.0, 0.9, 1.0)] == [0.1, 0.1, 0.0]
    assert cosine_learning_rate(1.0, peak=0.03) == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("epoch", "p", "lr", "started"),
    [
        (0, 8.0, 0.02, 0.0),
        (50, 8.0, 0.02, 0.5),
        (100, 8.0, 0.02, 1.0),
        (425, 89.4427191, 0.0111196447610, 1.0),
        (450, 107.694959831, 0.01, 1.0),
        (750, math.inf, 0.000250720878182, 1.0),
        (775, math.inf, 6.28779010676e-5, 1.0),
    ],
)
def test_the_schedule_of_2021(epoch: float, p: float, lr: float, started: float):
    recipe = load_recipe("cifar10-8-2021")
    state = step_state(recipe, round(epoch * STEPS), STEPS)
    assert (state.p, state.lr) == (pytest.approx(p), pytest.approx(lr))
    assert (state.epoch, state.started, state.mixing) == (epoch, started, 0.0)


def test_a_first_phase_of_no_epochs_has_started():
    assert Phases(0, 2, 3).start_progress(0.0) == 1.0


def test_a_schedule_without_a_rise_jumps_to_infinity():
    phases = Phases(2, 0, 3)
    assert [phases.relaxation_progress(epoch) for epoch in (0, 1.99, 2, 4)] == [0.0, 0.0, 1.0, 1.0]


@pytest.mark.parametrize("epochs", [(-1, 2, 3), (0, 0, 0)])
def test_impossible_phases(epochs: tuple[int, int, int]):
    with pytest.raises(ArgumentError, match="epochs"):
        Phases(*epochs)


def test_the_learning_rate_drops_at_some_points():
    rates = [
        stepped_learning_rate(k / 160, peak=5e-4, drops=(0.75, 0.875), factor=0.2) for k in (0, 119, 120, 139, 140)
    ]
    assert rates == pytest.approx([5e-4, 5e-4, 1e-4, 1e-4, 2e-5])
