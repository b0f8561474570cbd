"""Theorem 1 and its extension: nets that certify separated sets."""

import math
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from linfnet.certificates import certified_by_interval
from linfnet.certificates.real import real_certified
from linfnet.data import load
from linfnet.errors import ArgumentError, LinfnetError
from linfnet.nn import LinfNet
from linfnet.ops import lp_distance
from linfnet.theory import (
    ClosePair,
    Separation,
    check_separation,
    nearest_neighbour_net,
    point_separation,
    rounding,
    set_separation,
    widest_layer,
)

BELOW, ABOVE = Fraction(99999, 100000), Fraction(100001, 100000)


def minus_nearest(x: Tensor, images: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return minus the distance to the nearest image of each class, in float64."""
    distance = lp_distance(x.flatten(1).double(), images.flatten(1).double())
    return -torch.stack([distance[:, labels == k].amin(1) for k in range(classes)], 1)


def random_set(n: int, d: int, classes: int, seed: int, *, by_class: bool) -> tuple[Tensor, Tensor, torch.Generator]:
    """Return labelled images [n, 1, 1, d]; if they are sorted by class, most prefixes lack most classes."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.cat([torch.arange(classes), torch.randint(classes, (n - classes,), generator=generator)])
    images = torch.rand(n, 1, 1, d, generator=generator)
    return images, labels.sort().values if by_class else labels, generator


@given(
    n=st.integers(4, 60),
    d=st.integers(1, 12),
    classes=st.integers(2, 4),
    layers=st.integers(2, 8),
    by_class=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_nets_of_all_depths_are_the_nearest_neighbour_classifier(
    n: int, d: int, classes: int, layers: int, by_class: bool, seed: int
):
    layers = min(layers, n + 1)
    images, labels, generator = random_set(n, d, classes, seed, by_class=by_class)
    net = nearest_neighbour_net(images, labels, classes, layers=layers)
    assert len(net.layers) == layers
    assert max(net.hidden) <= widest_layer(n, classes, d, layers)
    x = torch.rand(40, 1, 1, d, generator=generator)
    # At the corners of the cube, distances are largest and the bounds of the proof are tight.
    x = torch.cat([x, x[:10].round(), torch.zeros(1, 1, 1, d), torch.ones(1, 1, 1, d), images])
    error = (net(x).double() - minus_nearest(x, images, labels, classes)).abs().max().item()
    assert error <= float(rounding(layers))


def test_the_widths_of_the_theorems():
    images, labels, _ = random_set(50, 6, 3, 0, by_class=False)
    assert nearest_neighbour_net(images, labels, 3).hidden == (50,)
    assert nearest_neighbour_net(images, labels, 3, layers=6).hidden == (25, 25, 25, 25, 13)
    assert widest_layer(50, 3, 6, 6) == 10 + 3 + 12 == 25


@pytest.mark.parametrize("layers", [2, 3, 5, 8])
def test_a_separated_set_is_certified_below_r_and_not_above(layers: int):
    images, labels, _ = random_set(120, 40, 5, layers, by_class=False)
    found = point_separation(images, labels)
    assert found.radius > 0.1
    check_separation(found, found.radius * BELOW, layers)
    net = nearest_neighbour_net(images, labels, 5, layers=layers)
    logits = net(images).detach()
    assert real_certified(logits, labels, net.lipschitz, found.radius * BELOW).all()
    assert certified_by_interval(net, images, labels, found.radius * BELOW).all()
    assert not real_certified(logits, labels, net.lipschitz, found.radius * ABOVE).all()


@pytest.mark.parametrize("layers", [2, 4])
def test_the_promised_radius_holds_to_the_last_bit(layers: int):
    """The net certifies r minus the rounding that `check_separation` assumes, for sets of every scale."""
    for scale in (1.0, 1e-2, 1e-4):
        images, labels, _ = random_set(40, 30, 3, layers, by_class=False)
        images = 0.4 + scale * 0.6 * images
        found = point_separation(images, labels)
        epsilon = found.radius - rounding(layers)
        check_separation(found, epsilon, layers)
        net = nearest_neighbour_net(images, labels, 3, layers=layers)
        assert certified_by_interval(net, images, labels, epsilon * BELOW).all()


def test_real_digits_saved_and_loaded(tmp_path: Path):
    train = load("digits", "train").first(400)
    epsilon = set_separation(train).radius * BELOW
    for layers in (2, 4):
        nearest_neighbour_net(train.pixels(), train.labels, 10, layers=layers).save(tmp_path / str(layers))
        net = LinfNet.load(tmp_path / str(layers))
        assert certified_by_interval(net, train.pixels(), train.labels, epsilon).all()
        assert real_certified(net(train.pixels()).detach(), train.labels, net.lipschitz, epsilon).all()


def test_every_class_needs_an_image():
    with pytest.raises(ArgumentError, match=r"labels have the classes \[0, 1\]; expected every class from 0 to 2"):
        nearest_neighbour_net(torch.rand(2, 1, 2, 2), torch.tensor([0, 1]), 3)
    with pytest.raises(ArgumentError, match=r"expected \[0, 1\]"):
        nearest_neighbour_net(torch.rand(2, 1, 2, 2) + 1, torch.tensor([0, 1]), 2)


@pytest.mark.parametrize(
    ("n", "labels", "layers", "message"),
    [
        (0, [], 2, r"labels have the classes \[\]"),
        (2, [0, 1], 1, "layers is 1; expected 2 to 3"),
        (2, [0, 1], 4, "layers is 4; expected 2 to 3"),
        (2, [0, 1, 1], 2, "labels \\(3,\\)"),
        (3, [0, 1, 5], 2, r"labels have the classes \[0, 1, 5\]; expected every class from 0 to 1"),
    ],
)
def test_mistakes(n: int, labels: list[int], layers: int, message: str):
    with pytest.raises(ArgumentError, match=message):
        nearest_neighbour_net(torch.rand(n, 1, 1, 2), torch.tensor(labels), 2, layers=layers)


def test_what_cannot_be_certified_says_why():
    with pytest.raises(LinfnetError, match="images 3 and 8 are equal and of different classes"):
        check_separation(Separation((ClosePair(Fraction(0), 3, 8),)), Fraction(0), 2)
    close = Separation((ClosePair(Fraction(1, 1000), 3, 8),))
    check_separation(close, close.radius - rounding(3), 3)
    with pytest.raises(LinfnetError, match=r"distance 0\.001 between images 3 and 8.*with 3 layers .* 5\.66e-07"):
        check_separation(close, close.radius * BELOW, 3)
    assert math.isclose(float(rounding(2)), 1.8e-7, rel_tol=0.01)
