"""Interval bounds on three points: conventional nets and the distance net."""

from pathlib import Path

import pytest
import torch

from linfnet.theory.three_points import (
    LABELS,
    POINTS,
    RADIUS,
    Contender,
    draw_three_points,
    three_points_net,
    train_for_intervals,
    two_relu_net,
)


@pytest.mark.parametrize("t", [0.0, 0.5, 0.9])
def test_two_relus_are_robust_up_to_r_but_proven_only_up_to_a_part(t: float):
    net = Contender("f", two_relu_net(t))
    for share in torch.linspace(-0.999, 0.999, 101).tolist():
        assert torch.equal(net.score(POINTS + share * RADIUS) > 0, LABELS == 1)
    assert net.proven / RADIUS == pytest.approx((1 + t) / 2, abs=1e-6)


def test_the_distance_net_is_proven_up_to_r():
    proven = Contender("distance", three_points_net()).proven
    assert proven == pytest.approx(RADIUS, rel=1e-5)
    assert proven < RADIUS


def test_training_for_the_bounds_stops_short_of_r(tmp_path: Path):
    trained = Contender("trained", train_for_intervals((16,), 0.8, steps=120))
    assert 0.5 < trained.proven / RADIUS < 0.999
    x = torch.rand(200)
    low, high = trained.bounds(x - 0.1, x + 0.1)
    inside = trained.score(x + 0.2 * torch.rand(200) - 0.1)
    assert ((low <= inside) & (inside <= high)).all()
    nets = [Contender("f", two_relu_net(0)), trained, Contender("distance", three_points_net())]
    draw_three_points(tmp_path / "figure.png", nets)
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
