"""The hybrid net: features change by at most eps, bounds enclose the outputs, and the loss equals its definition."""

import math
from fractions import Fraction

import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from systems.small import check_least_margin, state_at

from linfnet.boxes import inner_box
from linfnet.data import load
from linfnet.nn import LpDistance
from linfnet.nn.label_margin import margin
from linfnet.recipes import load_recipe
from linfnet.systems import system_of
from linfnet.systems.hybrid import Hybrid, HybridNet, ScaledLinear
from linfnet.systems.layers import linear_bounds, smallest_margin, worst_margins


def small_net(seed: int = 0) -> HybridNet:
    torch.manual_seed(seed)
    net = HybridNet((1, 3, 3), 4, (7, 6), 5, mean=0.4, std=0.5)
    net.train()
    for _ in range(3):
        net(torch.rand(20, 1, 3, 3))
    return net.eval()


@given(st.integers(0, 1000))
def test_no_image_in_the_ball_has_a_smaller_margin(seed: int):
    net = small_net(seed)
    images, labels, epsilon = torch.rand(6, 1, 3, 3), torch.randint(4, (6,)), Fraction(1, 10)
    check_least_margin(net, *inner_box(images, epsilon), labels)


def test_the_training_box_holds_the_proof_s_box():
    net, images = small_net(), torch.rand(50, 1, 3, 3)
    labels = torch.randint(4, (50,))
    with torch.no_grad():
        exact = net.least_margin(images - 0.05, images + 0.05, labels)
        features = net.features(images)
        around = smallest_margin(net.head_margins(features - 0.1, features + 0.1, labels), labels)
    assert bool((around <= exact + 1e-5).all())
    assert not torch.equal(around, exact)


@given(st.integers(0, 1000))
def test_margins_of_the_loss_hold_for_all_features_of_a_box(seed: int):
    net = small_net(seed)
    features, labels = torch.randn(6, net.first.weight.shape[1]), torch.randint(4, (6,))
    with torch.no_grad():
        bound = smallest_margin(net.head_margins(features - 0.3, features + 0.3, labels), labels)
        for _ in range(20):
            inside = features + 0.6 * (torch.rand_like(features).round() - 0.5)
            assert bool((margin(net.head(inside), labels) >= bound - 1e-5).all())


def test_bounds_of_a_linear_layer_are_attained():
    torch.manual_seed(0)
    weight, bias, lower = torch.randn(3, 4), torch.randn(3), torch.randn(2, 4)
    upper = lower + torch.rand(2, 4)
    low, high = linear_bounds(lower, upper, weight, bias)
    corner = torch.where(weight.unsqueeze(0) > 0, lower.unsqueeze(1), upper.unsqueeze(1))
    torch.testing.assert_close((corner * weight).sum(-1) + bias, low)
    corner = torch.where(weight.unsqueeze(0) > 0, upper.unsqueeze(1), lower.unsqueeze(1))
    torch.testing.assert_close((corner * weight).sum(-1) + bias, high)


def test_merging_the_last_layer_is_tighter_than_logits_apart():
    torch.manual_seed(0)
    weight, bias, lower, labels = torch.randn(5, 8), torch.randn(5), torch.randn(9, 8), torch.randint(5, (9,))
    upper = lower + 0.3
    merged = worst_margins(lower, upper, weight, bias, labels)
    low, high = linear_bounds(lower, upper, weight, bias)
    apart = (low.gather(1, labels.unsqueeze(1)) - high).scatter(1, labels.unsqueeze(1), 0.0)
    assert bool((merged >= apart - 1e-5).all())
    assert bool((merged > apart + 0.1).any())
    assert bool((merged.gather(1, labels.unsqueeze(1)) == 0).all())


def test_weights_are_scaled_when_they_run():
    torch.manual_seed(0)
    layer = ScaledLinear(10_000, 50)
    assert abs(layer.weight.std().item() - 1) < 0.01
    assert abs(layer(torch.ones(1, 10_000)).std().item() - 1) < 0.3


def test_without_a_perturbation_the_worst_case_is_the_cross_entropy():
    recipe = load_recipe("mnist-0.3-hybrid", ["model.width=6", "model.depth=2"])
    system = system_of(recipe)
    assert isinstance(system, Hybrid)
    net = small_net()
    pixels, labels = torch.rand(10, 1, 3, 3), torch.randint(4, (10,))
    loss, logits = system.loss(recipe, net, pixels, labels, state_at(recipe, 0.0))
    torch.testing.assert_close(loss, F.cross_entropy(logits, labels))
    grown = [
        system.loss(recipe, net, pixels, labels, state_at(recipe, epoch))[0].item()
        for epoch in (0.0, 10.0, 50.0, 300.0)
    ]
    assert grown[0] < grown[1] < grown[2] == grown[3]


def test_recipes_are_the_published_ones():
    cifar, mnist = load_recipe("cifar10-8-hybrid"), load_recipe("mnist-0.3-hybrid")
    assert system_of(cifar) == Hybrid(hidden=512, eps_train=Fraction(88, 2550), worst_share=1.0)
    assert system_of(mnist) == Hybrid(hidden=256, eps_train=Fraction(35, 100), worst_share=0.5)
    assert (cifar.model.depth, mnist.model.depth) == (5, 4)
    assert (cifar.data.pad, cifar.data.flip, mnist.data.pad, mnist.data.flip) == (4, True, 1, False)
    assert (cifar.schedule.epochs, mnist.schedule.epochs) == ((100, 650, 50), (50, 300, 50))
    assert cifar.optimizer.lr == mnist.optimizer.lr == 0.02
    assert cifar.optimizer.weight_decay == mnist.optimizer.weight_decay == 5e-3
    assert cifar.schedule.hold_lr
    assert mnist.schedule.hold_lr


def test_all_distance_layers_are_shifted_and_at_the_first_p():
    recipe = load_recipe("mnist-0.3-hybrid", ["model.width=8"])
    net = system_of(recipe).build(recipe, load("digits", "test").info)
    assert isinstance(net, HybridNet)
    assert net.p == 8.0
    assert len(net.layers) == 4
    for layer in net.layers:
        assert isinstance(layer, LpDistance)
        assert layer.shift is not None
        assert layer.bias is None
    with net.at_infinity():
        assert net.p == math.inf
