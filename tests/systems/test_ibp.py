"""Interval bound propagation: boxes enclose the outputs, the initialisation preserves widths, losses are correct."""

import itertools
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from systems.small import check_least_margin, state_at
from torch import nn

from linfnet.boxes import inner_box
from linfnet.errors import ArgumentError
from linfnet.recipes import load_recipe
from linfnet.systems import system_of
from linfnet.systems.ibp import Ibp, IbpNet, balance, smooth_ramp, tightness
from linfnet.systems.layers import ARCHITECTURES, Box, conv_layers, through


def small_net(seed: int, batch_norm: bool) -> IbpNet:
    torch.manual_seed(seed)
    net = IbpNet((1, 8, 8), 4, "small", batch_norm, mean=0.4, std=0.5)
    for layer in net.layers:
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.normal_(layer.weight)  # negative scales swap lower and upper bounds
    for _ in range(3):
        net(torch.rand(20, 1, 8, 8))
    return net.eval()


@given(st.integers(0, 1000), st.booleans())
def test_no_image_in_the_ball_has_a_smaller_margin(seed: int, batch_norm: bool):
    net = small_net(seed, batch_norm)
    images, labels = torch.rand(6, 1, 8, 8), torch.randint(4, (6,))
    lower, upper = inner_box(images, Fraction(1, 50))
    check_least_margin(net, lower, upper, labels, corners=10)


@pytest.mark.parametrize("batch_norm", [False, True])
def test_a_box_of_one_point_is_the_net(batch_norm: bool):
    net, images = small_net(0, batch_norm), torch.rand(7, 1, 8, 8)
    with torch.no_grad():
        end = net.boxes(Box(images, images, images))[-1]
        expected = net.layers(net.normalize(images))
    for values in (end.lower, end.upper, end.centre):
        torch.testing.assert_close(values, expected)


def test_in_training_batch_norm_goes_by_the_unperturbed_values():
    torch.manual_seed(0)
    layer, x = nn.BatchNorm2d(3), torch.randn(5, 3, 4, 4)
    found = through(layer, Box(x - 0.5, x + 0.5, x))
    assert found.centre is not None
    torch.testing.assert_close((found.lower + found.upper) / 2, found.centre)
    torch.testing.assert_close(found.centre.mean((0, 2, 3)), torch.zeros(3), atol=1e-6, rtol=0)
    with pytest.raises(ArgumentError, match="unperturbed"):
        through(layer, Box(x, x))


def test_boxes_refuse_layers_they_do_not_know():
    with pytest.raises(ArgumentError, match="Softmax"):
        through(nn.Softmax(1), Box(torch.zeros(1, 2), torch.ones(1, 2)))


def test_the_initialisation_keeps_the_width_of_boxes():
    torch.manual_seed(0)
    net, images = IbpNet((1, 28, 28), 10, "cnn7", False), torch.rand(4, 1, 28, 28)
    with torch.no_grad():
        boxes = net.boxes(Box(images - 0.1, images + 0.1))
        widths = [
            (box.upper - box.lower).mean().item()
            for box, layer in zip(boxes, net.layers, strict=False)
            if isinstance(layer, nn.ReLU)
        ]
    # The first layer has no ReLU before it and doubles the width; after it, the width changes by a bounded factor.
    assert all(0.2 < width / widths[0] < 2 for width in widths)


def test_tightness_speaks_beyond_the_tolerance():
    def box(width: float) -> Box:
        return Box(torch.zeros(4), torch.full((4,), width))

    assert tightness([box(1.0), box(1.5), box(2.0)]).item() == 0
    assert tightness([box(1.0), box(4.0)]).item() == pytest.approx(0.5)
    assert tightness([box(1.0), box(4.0), box(1.0)]).item() == pytest.approx(0.25)


def test_balance_is_lost_when_neurons_are_switched_off():
    even = Box(torch.tensor([1.0, -2.0]), torch.tensor([2.0, -1.0]))
    off = Box(torch.tensor([-1.0, -2.0]), torch.tensor([-0.5, -1.0]))
    unsure = Box(torch.tensor([-1.0, -2.0]), torch.tensor([1.0, 1.0]))
    assert balance([even]).item() == 0
    assert balance([off]).item() == 2
    assert balance([unsure]).item() == 0


def test_the_ramp_is_smooth_and_whole():
    values = [smooth_ramp(k / 100) for k in range(101)]
    steps = [after - before for before, after in itertools.pairwise(values)]
    assert (values[0], values[100]) == (0, pytest.approx(1))
    assert all(step >= 0 for step in steps)
    assert max(abs(after - before) for before, after in itertools.pairwise(steps)) < 0.002


@pytest.mark.parametrize("batch_norm", ["false", "true"])
def test_without_a_perturbation_the_loss_is_the_cross_entropy(batch_norm: str):
    recipe = load_recipe("mnist-0.3-ibp", [f"system.batch_norm={batch_norm}"])
    system = system_of(recipe)
    torch.manual_seed(0)
    net = IbpNet((1, 8, 8), 4, "small", batch_norm == "true")
    pixels, labels = torch.rand(10, 1, 8, 8), torch.randint(4, (10,))
    loss, _ = system.loss(recipe, net, pixels, labels, state_at(recipe, 0.5))
    torch.testing.assert_close(loss, F.cross_entropy(net(pixels), labels))
    assert system.loss(recipe, net, pixels, labels, state_at(recipe, 30.0))[0] > loss


def test_the_perturbed_pixels_stay_in_range_and_the_regularisers_fade():
    recipe = load_recipe("mnist-0.3-ibp")
    net, labels = small_net(0, False), torch.randint(4, (10,))
    nn.init.normal_(net.layers[0].weight)  # boxes grow
    pixels = torch.rand(10, 1, 8, 8).round()  # with a perturbation of 1, the box of every image is [0, 1]
    plain, regularised = (Ibp("small", False, Fraction(1), 0.0, 0.0, share) for share in (0.0, 0.5))
    late, amid = float(recipe.schedule.phases().total), 11.0
    worst = plain.loss(recipe, net, pixels, labels, state_at(recipe, late))[0]
    torch.testing.assert_close(plain.loss(recipe, net, 1 - pixels, labels, state_at(recipe, late))[0], worst)
    torch.testing.assert_close(regularised.loss(recipe, net, pixels, labels, state_at(recipe, late))[0], worst)
    more = [system.loss(recipe, net, pixels, labels, state_at(recipe, amid))[0] for system in (plain, regularised)]
    assert more[1] > more[0] + 0.01


def test_kappa_goes_to_its_end():
    recipe = load_recipe("mnist-0.3-ibp", ["system.kappa_start=1.0", "system.kappa_end=0.25"])
    system = Ibp("small", False, Fraction(1, 10), 1.0, 0.25, 0.0)
    net, pixels, labels = small_net(0, False), torch.rand(10, 1, 8, 8), torch.randint(4, (10,))
    robust = Ibp("small", False, Fraction(1, 10), 0.0, 0.0, 0.0)
    late = float(recipe.schedule.phases().total)
    clean = F.cross_entropy(net(pixels), labels)
    torch.testing.assert_close(system.loss(recipe, net, pixels, labels, state_at(recipe, 0.0))[0], clean)
    worst = robust.loss(recipe, net, pixels, labels, state_at(recipe, late))[0]
    torch.testing.assert_close(
        system.loss(recipe, net, pixels, labels, state_at(recipe, late))[0], 0.25 * clean + 0.75 * worst
    )


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architectures_run_on_cifar(name: str):
    layers, features = conv_layers(name, (3, 32, 32), True)
    assert layers.eval()(torch.rand(2, 3, 32, 32)).shape == (2, features)


def test_architectures_say_when_images_are_too_small():
    with pytest.raises(ArgumentError, match="too deep"):
        conv_layers("small", (1, 2, 2), False)
    with pytest.raises(ArgumentError, match="expected one of small, medium, cnn7"):
        conv_layers("large", (1, 28, 28), False)
