"""Interval bounds on three points: conventional nets and the distance net."""

from pathlib import Path

import pytest
import torch
from torch import nn

from linfnet.errors import ArgumentError
from linfnet.theory.plots import draw_three_points
from linfnet.theory.three_points import (
    RADIUS,
    conventional,
    distance_contender,
    interval_bounds,
    three_points,
    train_for_intervals,
    two_relu_net,
)


@pytest.mark.parametrize("t", [0.0, 0.5, 0.9])
def test_two_relus_are_robust_up_to_r_but_proven_only_up_to_a_part(t: float):
    net = conventional("f", two_relu_net(t))
    points, labels = three_points()
    for share in torch.linspace(-0.999, 0.999, 101).tolist():
        assert torch.equal(net.score(points + share * RADIUS) > 0, labels == 1)
    assert net.proven / RADIUS == pytest.approx((1 + t) / 2, abs=1e-6)


def test_the_distance_net_is_proven_up_to_r():
    assert distance_contender().proven == pytest.approx(RADIUS, rel=1e-5)
    assert distance_contender().proven < RADIUS


def test_training_for_the_bounds_stops_short_of_r(tmp_path: Path):
    trained = conventional("trained", train_for_intervals((16,), 0.8, steps=120))
    assert 0.5 < trained.proven / RADIUS < 0.999
    x = torch.rand(200)
    low, high = trained.bounds(x - 0.1, x + 0.1)
    inside = trained.score(x + 0.2 * torch.rand(200) - 0.1)
    assert ((low <= inside) & (inside <= high)).all()
    draw_three_points(tmp_path / "figure.png", [conventional("f", two_relu_net(0)), trained, distance_contender()])
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_bounds_know_their_layers():
    with pytest.raises(ArgumentError, match="net has a Tanh"):
        interval_bounds(nn.Sequential(nn.Tanh()), torch.zeros(1, 1), torch.ones(1, 1))
