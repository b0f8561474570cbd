"""The propositions as properties, the published bound as a literal, and the ascent for nets with known constants."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from linfnet.errors import ArgumentError
from linfnet.nn import LinfNet, LpDistance
from linfnet.theory import layer_bounds, lipschitz_estimate, net_bounds

EXPONENTS = st.one_of(st.floats(1, 200), st.just(math.inf))


@given(n=st.integers(1, 8), d=st.integers(1, 40), p=EXPONENTS, seed=st.integers(0, 2**32), size=st.floats(1e-3, 10))
def test_a_layer_is_as_lipschitz_as_the_propositions_say(n: int, d: int, p: float, seed: int, size: float):
    torch.manual_seed(seed)
    layer = LpDistance(d, 5, p=p).double()
    x, change = torch.randn(n, d).double(), size * torch.randn(n, d).double()
    moved = (layer(x + change) - layer(x)).abs().amax(1)
    bound = layer_bounds((d,), p)[0] * change.abs().amax(1)
    # In float64, a sum of up to 40 powers has a relative error of at most 40 * 2^-53, as have the distances.
    assert (moved <= bound + 2 * 40 * 2.0**-53 * layer(x + change).amax(1).clamp(min=10)).all()


@given(d=st.integers(1, 40), p=EXPONENTS, start=st.floats(0.1, 3), step=st.floats(0.1, 3))
def test_the_bound_is_attained_along_the_diagonal(d: int, p: float, start: float, step: float):
    layer = LpDistance(d, 1, p=p).double()
    torch.nn.init.zeros_(layer.weight)
    ones = torch.ones(1, d, dtype=torch.float64)
    moved = (layer((start + step) * ones) - layer(start * ones)).item()
    assert moved == pytest.approx(step * layer_bounds((d,), p)[0], rel=1e-12)


@given(p=EXPONENTS, seed=st.integers(0, 2**32))
def test_a_net_is_bounded_by_the_product(p: float, seed: int):
    torch.manual_seed(seed)
    net = LinfNet((1, 3, 3), 4, hidden=(12, 7), std=0.5, p=p).double().eval()
    x, change = torch.rand(6, 1, 3, 3).double(), torch.randn(6, 1, 3, 3).double()
    moved = (net(x + change) - net(x)).abs().amax(1)
    bound = math.prod(net_bounds(net, p)) * net.lipschitz * change.abs().flatten(1).amax(1)
    assert (moved <= bound + 1e-11).all()


def test_the_published_bound():
    net = LinfNet((3, 32, 32), 10, hidden=(1,) * 5)
    net.hidden = (5120,) * 5
    assert round(math.prod(net_bounds(net, 8.0))) == 568
    assert round(3072 ** (1 / 8) * 5120 ** (5 / 8)) == 568
    assert math.prod(net_bounds(net, math.inf)) == 1


def diagonal_net(p: float, std: float = 1.0) -> LinfNet:
    """Return a net of distances to a far corner: pixels have equal effects, so a sign vector attains the bound."""
    net = LinfNet((1, 3, 3), 3, std=std, p=p)
    torch.nn.init.constant_(net.layers[0].weight, -4.0)
    return net


@pytest.mark.parametrize("std", [1.0, 0.25])
@pytest.mark.parametrize("p", [1.0, 3.0, 8.0])
def test_the_ascent_reaches_the_bound_where_it_is_attained(p: float, std: float):
    net = diagonal_net(p, std)
    estimate = lipschitz_estimate(net, torch.full((4, 1, 3, 3), 0.5), p, restarts=2)
    assert estimate.upper == pytest.approx(9 ** (1 / p))
    # A logit of up to 40 is rounded by 2^-20 several times; divided by eps = 1/255, the error is 1e-3.
    assert estimate.values.tolist() == pytest.approx([estimate.upper] * 4, rel=0.01)


def test_the_estimate_lies_between_random_moves_and_the_bound():
    torch.manual_seed(0)
    net = LinfNet((1, 4, 4), 5, hidden=(20, 20), std=0.4)
    net.train()
    net.layers[0].weight.requires_grad_(False)
    images, epsilon = torch.rand(6, 1, 4, 4), Fraction(1, 255)
    estimate = lipschitz_estimate(net, images, 8.0, restarts=2, batch=4, generator=torch.Generator().manual_seed(1))
    again = lipschitz_estimate(net, images, 8.0, restarts=2, batch=4, generator=torch.Generator().manual_seed(1))
    assert torch.equal(estimate.values, again.values)
    assert net.training
    assert math.isinf(net.p)
    assert [parameter.requires_grad for parameter in net.layers.parameters()][:2] == [False, True]
    assert (estimate.values <= estimate.upper * 1.001).all()
    net.eval()
    net.p = 8.0
    with torch.no_grad():
        signs = torch.randn(200, 6, 1, 4, 4).sign()
        moved = torch.stack([(net(images + float(epsilon) * s) - net(images)).abs().amax(1) for s in signs])
    assert (estimate.values > moved.amax(0) / float(epsilon) * net.std).all()
    summary = estimate.summary()
    assert summary["mean"] <= summary["max"] == summary["quantiles"]["1.0"] < summary["upper"]


def test_mistakes():
    net, images = diagonal_net(8.0), torch.rand(2, 1, 3, 3)
    with pytest.raises(ArgumentError, match="steps is 0"):
        lipschitz_estimate(net, images, 8.0, steps=0)
    with pytest.raises(ArgumentError, match="images is 0"):
        lipschitz_estimate(net, images[:0], 8.0)
    with pytest.raises(ArgumentError, match=r"p is 0\.5"):
        lipschitz_estimate(net, images, 0.5)
    with pytest.raises(ArgumentError, match="epsilon is 0"):
        lipschitz_estimate(net, images, 8.0, epsilon=Fraction(0))


def test_rounding_does_not_lift_the_lower_bound_above_the_upper_one():
    torch.manual_seed(0)
    net = LinfNet((1, 4, 4), 3, (16, 16), mean=0.3, std=0.4).eval()
    with torch.no_grad():
        net.layers[-1].bias.add_(1000.0)  # large logits have large rounding errors in float32
    images = torch.rand(6, 1, 4, 4)
    for p in (8.0, math.inf):
        estimate = lipschitz_estimate(net, images, p, epsilon=Fraction(1, 2_550_000), steps=5, restarts=1)
        assert (estimate.values > 0).any()
        assert (estimate.values <= estimate.upper * (1 + 1e-9)).all()
