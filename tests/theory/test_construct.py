from fractions import Fraction
from pathlib import Path

import pytest
import torch

from linfnet.certify import certified_by_interval, certified_by_margin
from linfnet.data import load
from linfnet.errors import ArgumentError
from linfnet.nn import LinfNet
from linfnet.ops import lp_distance
from linfnet.theory import nearest_neighbour_net


def test_it_is_the_nearest_neighbour_classifier():
    train, test = load("digits", "train"), load("digits", "test")
    net = nearest_neighbour_net(train.pixels(), train.labels, 10)
    distances = lp_distance(test.pixels().flatten(1), train.pixels().flatten(1))
    nearest = torch.stack([distances[:, train.labels == k].amin(1) for k in range(10)], 1)
    torch.testing.assert_close(net(test.pixels()), -nearest, atol=4 * 2.0**-23, rtol=0)  # ulps of C = 4


def test_theorem_1_on_real_digits(tmp_path: Path):
    """Every training image is certified up to the separation of the set, and not beyond."""
    train = load("digits", "train").first(400)
    pixels, labels = train.pixels(), train.labels
    distances = lp_distance(pixels.flatten(1), pixels.flatten(1))
    separation = distances[labels[:, None] != labels[None, :]].min().item() / 2
    net = nearest_neighbour_net(pixels, labels, 10)
    net.save(tmp_path)
    net = LinfNet.load(tmp_path)
    below, above = Fraction(separation) * Fraction(99999, 100000), Fraction(separation) * Fraction(100001, 100000)
    logits = net(pixels).detach()
    assert certified_by_margin(logits, labels, net.lipschitz, below).all()
    assert certified_by_interval(net, pixels, labels, below).all()
    assert not certified_by_margin(logits, labels, net.lipschitz, above).all()


def test_every_class_needs_an_image():
    with pytest.raises(ArgumentError, match=r"labels lack the classes \[2\]"):
        nearest_neighbour_net(torch.rand(2, 1, 2, 2), torch.tensor([0, 1]), 3)
    with pytest.raises(ArgumentError, match=r"wanted \[0, 1\]"):
        nearest_neighbour_net(torch.rand(2, 1, 2, 2) + 1, torch.tensor([0, 1]), 2)
