"""Straight-through slopes: the distances at p with the gradients of the distances at a smaller exponent."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from linfnet.errors import ArgumentError
from linfnet.nn import DistanceModule, LinfNet, LpDistance, LpDistanceConv2d, SparseDistance

SLOPES_P = 3.0


def dense() -> tuple[DistanceModule, Tensor]:
    return LpDistance(5, 4, bias=True, mean_shift=True), torch.randn(6, 5, dtype=torch.float64)


def conv() -> tuple[DistanceModule, Tensor]:
    return LpDistanceConv2d(2, 4, 3, padding=1, groups=2), torch.randn(2, 2, 4, 4, dtype=torch.float64)


def sparse() -> tuple[DistanceModule, Tensor]:
    index, offsets = torch.tensor([0, 2, 4, 1, 3]), torch.tensor([0, 3, 5])
    return SparseDistance(torch.randn(5), index, offsets, 5), torch.randn(6, 5, dtype=torch.float64)


@pytest.mark.parametrize("make", [dense, conv, sparse])
@pytest.mark.parametrize("p", [20.0, math.inf])
def test_values_at_p_and_gradients_at_slopes_p(make: Callable[[], tuple[DistanceModule, Tensor]], p: float):
    torch.manual_seed(0)
    layer, x = make()
    layer.double().train()
    layer.p = p
    values = layer(x)
    weights = torch.randn_like(values)
    layer.slopes_p = SLOPES_P
    x.requires_grad_()
    through = layer(x)
    assert torch.equal(through, values)
    found = torch.autograd.grad((through * weights).sum(), [x, layer.weight])
    layer.p, layer.slopes_p = SLOPES_P, math.inf
    expected = torch.autograd.grad((layer(x) * weights).sum(), [x, layer.weight])
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    # The gradients at the smaller exponent are those of finite differences.
    assert torch.autograd.gradcheck(lambda images: layer(images), (x,))


def test_the_gradient_by_hand():
    layer = LpDistance(2, 1).train()
    layer.slopes_p = 2.0
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[3.0, -4.0]]))
    x = torch.zeros(1, 2, requires_grad=True)
    y = layer(x)
    y.backward(torch.ones(1, 1))
    assert y.item() == 4  # the largest |x - w|
    torch.testing.assert_close(x.grad, torch.tensor([[-0.6, 0.8]]))  # (x - w) / ||x - w||_2
    torch.testing.assert_close(layer.weight.grad, torch.tensor([[0.6, -0.8]]))


def test_slopes_have_no_effect_at_smaller_p_and_outside_training():
    torch.manual_seed(0)
    layer, x = LpDistance(5, 4, p=2.0), torch.randn(3, 5)

    def gradient() -> Tensor:
        return torch.autograd.grad(layer(x).sum(), layer.weight)[0]

    for p, training in ((2.0, True), (8.0, False)):
        layer.p, layer.slopes_p = p, math.inf
        layer.train(training)
        expected = gradient()
        layer.slopes_p = 4.0
        assert torch.equal(gradient(), expected)
    layer.p = 8.0
    assert not torch.equal(layer.train()(x), LpDistance(5, 4)(x))
    assert not torch.equal(gradient(), expected)


def test_the_slopes_of_a_net():
    net = LinfNet((1, 4, 4), 3, (8, 8))
    assert net.slopes_p == math.inf
    net.slopes_p = 64.0
    assert [layer.slopes_p for layer in net.distance_layers()] == [64.0] * 3
    assert net.slopes_p == 64.0
    assert "slopes_p" not in net.config()


@pytest.mark.parametrize("value", [0.5, math.nan])
def test_slopes_are_checked(value: float):
    with pytest.raises(ArgumentError, match="slopes_p is"):
        LpDistance(2, 2).slopes_p = value
