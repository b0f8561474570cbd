"""Bounds of conventional nets: against brute force, against each other, and against their definitions."""

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from linfnet.bounds import (
    Box,
    Method,
    Ramp,
    Slope,
    backward_boxes,
    forward_boxes,
    fused_cross_entropy,
    interval_boxes,
    interval_margins,
    linear_margins,
    margin_bounds,
    smallest_margin,
    through,
)
from linfnet.bounds.backward import both_bounds, margin_rows, steps_of
from linfnet.bounds.layers import layers_of
from linfnet.bounds.lines import lines_of
from linfnet.errors import ArgumentError

METHODS: tuple[Method, ...] = ("interval", "crown-ibp", "crown-lbp", "crown", "fast-lin")
SLOPES: tuple[Slope, ...] = ("adaptive", "parallel", "zero")
# float64 sums of a few hundred numbers of size 1 have errors far below this.
ROUNDING = 1e-10


def settled(net: nn.Sequential, shape: tuple[int, ...]) -> nn.Sequential:
    """Return the net in float64 and eval mode, with random statistics and negative scales of batch norm."""
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.normal_(layer.weight)
            nn.init.normal_(layer.bias)
        if isinstance(layer, Ramp):
            nn.init.uniform_(layer.bend, 0.05, 0.5)
    net.double()
    for _ in range(3):
        net(torch.randn(16, *shape, dtype=torch.float64))
    return net.eval()


def flat_net(seed: int, ramp: float | None = None) -> nn.Sequential:
    torch.manual_seed(seed)

    def activation(width: int) -> nn.Module:
        return nn.ReLU() if ramp is None else Ramp((width,), ramp)

    layers = [nn.Linear(2, 6), activation(6), nn.Linear(6, 5), nn.BatchNorm1d(5), activation(5), nn.Linear(5, 3)]
    return settled(nn.Sequential(*layers), (2,))


def image_net(seed: int) -> nn.Sequential:
    """Return a net with all layers, with odd sizes, strides, paddings, dilations and groups."""
    torch.manual_seed(seed)
    first = nn.Sequential(nn.Conv2d(2, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.AvgPool2d(2, 1))
    second = [nn.Conv2d(4, 4, (3, 2), (1, 2), (2, 1), groups=2), nn.ReLU(), nn.Conv2d(4, 3, 2, dilation=2, bias=False)]
    last = [nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 5), nn.BatchNorm1d(5), nn.ReLU()]
    return settled(nn.Sequential(first, *second, nn.Identity(), *last, nn.Linear(5, 3, bias=False)), (2, 9, 10))


def norm_net(seed: int) -> nn.Sequential:
    """Return a net with batch norm directly before padded convolutions, which read zeros outside its outputs."""
    torch.manual_seed(seed)
    layers = [nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Conv2d(3, 2, 3, padding=1), nn.ReLU()]
    layers += [nn.BatchNorm2d(2), nn.Conv2d(2, 2, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(180, 3)]
    return settled(nn.Sequential(*layers), (2, 9, 10))


def box_around(images: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return images - eps, images + eps


def smallest_on_grid(net: nn.Sequential, lower: Tensor, upper: Tensor, labels: Tensor) -> Tensor:
    """Return the smallest margins [B, K] over a grid of each box of two inputs."""
    steps = torch.linspace(0, 1, 41, dtype=torch.float64)
    grid = torch.cartesian_prod(steps, steps)
    points = lower.unsqueeze(1) + grid * (upper - lower).unsqueeze(1)
    logits = net(points.flatten(0, 1)).view(len(lower), len(grid), -1)
    return (logits.gather(2, labels.view(-1, 1, 1).expand(-1, len(grid), 1)) - logits).amin(1)


@given(st.integers(0, 10**6), st.sampled_from([0.01, 0.2, 2.0]), st.sampled_from([None, 0.0, 0.1]))
def test_no_point_of_the_box_has_a_smaller_margin(seed: int, eps: float, ramp: float | None):
    net, images, labels = flat_net(seed, ramp), torch.randn(4, 2, dtype=torch.float64), torch.randint(3, (4,))
    lower, upper = box_around(images, eps)
    smallest = smallest_on_grid(net, lower, upper, labels)
    for method, slope in itertools.product(METHODS, SLOPES):
        if ramp is not None and "parallel" in (slope, "parallel" if method == "fast-lin" else ""):
            continue
        found = margin_bounds(net, lower, upper, labels, method, slope=slope)
        assert bool((found <= smallest + ROUNDING).all()), (method, slope)
        assert bool((found.gather(1, labels.unsqueeze(1)).abs() < ROUNDING).all())


@settings(max_examples=6)
@given(st.integers(0, 10**6), st.sampled_from([0.02, 0.3]))
def test_no_image_of_the_box_has_a_smaller_margin(seed: int, eps: float):
    net, images, labels = image_net(seed), torch.randn(3, 2, 9, 10, dtype=torch.float64), torch.randint(3, (3,))
    lower, upper = box_around(images, eps)
    bounds = {
        (each, slope): margin_bounds(net, lower, upper, labels, each, slope=slope)
        for each in METHODS
        for slope in SLOPES
    }
    for _ in range(10):
        logits = net(torch.lerp(lower, upper, torch.rand_like(lower).round()))
        margins = logits.gather(1, labels.unsqueeze(1)) - logits
        for name, found in bounds.items():
            assert bool((found <= margins + ROUNDING).all()), name


@given(st.integers(0, 10**6))
def test_small_boxes_have_exact_bounds(seed: int):
    """If no activation changes its sign in the box, linear relaxation is exact; for a point, all methods are."""
    net, images, labels = flat_net(seed), torch.randn(4, 2, dtype=torch.float64), torch.randint(3, (4,))
    for eps, methods in ((1e-9, METHODS[1:]), (0.0, METHODS)):
        lower, upper = box_around(images, eps)
        corners = [
            torch.where(torch.tensor(signs), upper, lower) for signs in itertools.product((True, False), repeat=2)
        ]
        logits = torch.stack([net(corner) for corner in corners])
        smallest = (logits.gather(2, labels.view(1, -1, 1).expand(len(corners), -1, 1)) - logits).amin(0)
        for method in methods:
            torch.testing.assert_close(margin_bounds(net, lower, upper, labels, method), smallest, rtol=0, atol=1e-12)


def contains(outer: Tensor, inner: Tensor) -> bool:
    return bool((outer <= inner + ROUNDING).all())


@pytest.mark.parametrize(
    "make", [flat_net, image_net, lambda seed: flat_net(seed, 0.0), lambda seed: flat_net(seed, 0.1)]
)
@pytest.mark.parametrize("eps", [0.01, 0.1, 1.0])
def test_lines_of_slope_zero_give_an_order(make: Any, eps: float):
    """Interval bounds contain those of CROWN-IBP, which contain those of CROWN-LBP, which contain those of CROWN."""
    for seed in range(5):
        net = make(seed)
        shape = (2,) if isinstance(net[0], nn.Linear) else (2, 9, 10)
        images, labels = torch.randn(4, *shape, dtype=torch.float64), torch.randint(3, (4,))
        ends = box_around(images, eps)
        order = [margin_bounds(net, *ends, labels, each, slope="zero") for each in METHODS[:4]]
        assert all(contains(outer, inner) for outer, inner in itertools.pairwise(order))


@pytest.mark.parametrize("slope", SLOPES)
@pytest.mark.parametrize("boxes_of", [backward_boxes, forward_boxes])
def test_boxes_of_all_layers_are_tighter_than_intervals(boxes_of: Any, slope: Slope):
    net, images = image_net(0), torch.randn(4, 2, 9, 10, dtype=torch.float64)
    box = Box(*box_around(images, 0.1))
    plain, tight = interval_boxes(net, box), boxes_of(net, box, slope)
    values = images
    for layer, wide, narrow in zip([*layers_of(net), nn.Identity()], plain, tight, strict=True):
        assert contains(wide.lower, narrow.lower)
        assert contains(narrow.upper, wide.upper)
        assert contains(narrow.lower, values)
        assert contains(values, narrow.upper)
        values = layer(values)
    widths = [(box[-1].upper - box[-1].lower).mean() for box in (plain, tight)]
    assert widths[1] < 0.9 * widths[0]


@pytest.mark.parametrize("slope", SLOPES)
@pytest.mark.parametrize("make", [image_net, norm_net])
def test_receptive_fields_give_the_bounds_of_whole_images(make: Any, slope: Slope):
    """The rows of all outputs of a convolution over the whole image give the same bounds as those over its field."""
    net, images = make(1), torch.randn(2, 2, 9, 10, dtype=torch.float64)
    layers = layers_of(net)
    boxes = backward_boxes(net, Box(*box_around(images, 0.1)), slope)
    for index in (index for index, layer in enumerate(layers) if isinstance(layer, nn.ReLU) and index > 2):
        box, before = boxes[index], boxes[:index]
        size = box.lower[0].numel()
        rows = torch.eye(size, dtype=torch.float64).view(1, size, *box.shape)
        lower, upper = both_bounds(steps_of(layers[:index], before), before, rows, slope)
        interval = through(layers[index - 1], before[-1])
        torch.testing.assert_close(torch.maximum(lower.view_as(box.lower), interval.lower), box.lower)
        torch.testing.assert_close(torch.minimum(upper.view_as(box.lower), interval.upper), box.upper)


@given(st.integers(0, 10**6), st.sampled_from(SLOPES), st.sampled_from([0.0, 0.01, 0.3]))
def test_lines_bound_the_activation(seed: int, slope: Slope, flat: float):
    torch.manual_seed(seed)
    ramp = Ramp((50,), flat).double()
    nn.init.uniform_(ramp.bend, 0.01, 2)
    ramp.bend.data[:2] = torch.tensor([-1.0, 0.0])  # a step of training may lead there
    ends = torch.randn(2, 20, 50, dtype=torch.float64) * 2
    ends[0, 0], ends[0, 1], ends[:, 2] = 0, ramp.bends().detach(), 1  # corners at an end, and a point
    lower, upper = ends.amin(0), ends.amax(0)
    for layer in [nn.ReLU(), ramp] if slope != "parallel" else [nn.ReLU()]:
        lines = lines_of(layer, lower, upper, slope)
        points = torch.linspace(0, 1, 101, dtype=torch.float64).view(-1, 1, 1) * (upper - lower) + lower
        below = lines.lower_slope * points + (0 if lines.lower_offset is None else lines.lower_offset)
        above = lines.upper_slope * points + lines.upper_offset
        assert contains(below, layer(points))
        assert contains(layer(points), above)
        if slope == "zero":  # tighter than the constants of interval bounds
            assert contains(layer(lower).expand_as(below), below)
            assert contains(above, layer(upper).expand_as(above))
        touching = torch.stack([(below - layer(points)).abs().amin(0), (above - layer(points)).abs().amin(0)])
        assert touching.amax().item() < 0.05  # the lines are not moved away from the activation


@pytest.mark.parametrize("slope", SLOPES)
def test_lines_bound_a_relu_over_a_very_short_interval(slope: Slope):
    lower, upper = torch.tensor([-4e-13]).double(), torch.tensor([5e-13]).double()
    lines = lines_of(nn.ReLU(), lower, upper, slope)
    for z in (lower, torch.zeros(1).double(), upper):
        assert bool(lines.lower_slope * z <= z.relu())
        assert bool(lines.upper_slope * z + lines.upper_offset >= z.relu())


def test_fast_lin_is_the_zonotope():
    """With parallel lines, bounds are those of a zonotope: each unstable ReLU adds one error term."""
    torch.manual_seed(0)
    net = flat_net(3)
    first, _, second, norm, _, last = net
    box = Box(*box_around(torch.randn(6, 2, dtype=torch.float64), 0.3))
    middle, reach = box.middle_and_reach
    centre, terms = F.linear(middle, first.weight, first.bias), torch.diag_embed(reach) @ first.weight.T
    for layers in ((second, norm), (last,)):
        reach = terms.abs().sum(1)
        lower, upper = centre - reach, centre + reach
        slope = torch.where(lower >= 0, 1.0, torch.where(upper <= 0, 0.0, upper / (upper - lower)))
        new = torch.where((lower < 0) & (upper > 0), -slope * lower / 2, 0.0)
        centre, terms = slope * centre + new, torch.cat([terms * slope.unsqueeze(1), torch.diag_embed(new)], 1)
        for layer in layers:
            terms = layer(terms.flatten(0, 1)).view(*terms.shape[:2], -1) - layer(torch.zeros_like(terms[0, :1]))
            centre = layer(centre)
    boxes = backward_boxes(net, box, "parallel")
    rows = torch.eye(3, dtype=torch.float64).unsqueeze(0)
    lower, upper = both_bounds(steps_of(layers_of(net), boxes), boxes, rows, "parallel")
    torch.testing.assert_close(lower, centre - terms.abs().sum(1))
    torch.testing.assert_close(upper, centre + terms.abs().sum(1))


@pytest.mark.parametrize("method", METHODS)
def test_gradients_are_those_of_differences(method: Method):
    net = flat_net(0)
    images, labels = torch.randn(3, 2, dtype=torch.float64), torch.tensor([0, 1, 2])
    weights = [parameter for parameter in net.parameters() if parameter.dim() == 2]

    def bound(*values: Tensor) -> Tensor:
        with torch.no_grad():
            for weight, value in zip(weights, values, strict=True):
                weight.copy_(value)
        return margin_bounds(net, images - 0.3, images + 0.3, labels, method).sum()

    start = [weight.detach().clone() for weight in weights]
    found = torch.autograd.grad(bound(*start), weights)
    for index, gradient in enumerate(found):
        moved = torch.randn_like(gradient)
        before, after = start[:index], start[index + 1 :]
        ends = [bound(*before, start[index] + step * moved, *after).detach() for step in (1e-6, -1e-6)]
        torch.testing.assert_close((ends[0] - ends[1]) / 2e-6, (gradient * moved).sum(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("method", METHODS)
def test_in_training_batch_norm_uses_the_statistics_of_the_centre(method: Method):
    net, images, labels = image_net(0), torch.randn(6, 2, 9, 10, dtype=torch.float64), torch.randint(3, (6,))
    net.train()
    logits = net(images)
    found = margin_bounds(net, images, images, labels, method, centre=images)
    torch.testing.assert_close(found, logits.gather(1, labels.unsqueeze(1)) - logits)
    wide = margin_bounds(net, images - 0.1, images + 0.1, labels, method, centre=images)
    assert contains(wide, found)
    gradients = torch.autograd.grad(wide.sum(), list(net.parameters()))
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)
    with pytest.raises(ArgumentError, match="unperturbed"):
        margin_bounds(net, images, images, labels, method)


@given(st.integers(0, 10**6), st.sampled_from(SLOPES), st.sampled_from([0.0, 0.05, 0.5]))
def test_the_fused_bound_is_above_the_cross_entropy(seed: int, slope: Slope, eps: float):
    net, images, labels = flat_net(seed), torch.randn(4, 2, dtype=torch.float64), torch.randint(3, (4,))
    lower, upper = box_around(images, eps)
    boxes = interval_boxes(net, Box(lower, upper))
    largest = torch.stack(
        [
            F.cross_entropy(net(torch.lerp(lower, upper, torch.rand_like(lower))), labels, reduction="none")
            for _ in range(50)
        ]
    ).amax(0)
    interval = F.cross_entropy(-interval_margins(net, boxes, labels), labels, reduction="none")
    torch.testing.assert_close(fused_cross_entropy(net, boxes, labels, 0.0), interval)
    for share in (0.0, 0.5, 1.0):
        found = fused_cross_entropy(net, boxes, labels, share, slope)
        assert contains(largest, found)
    if eps == 0:
        torch.testing.assert_close(found, largest)
    if slope == "zero":
        assert contains(found, interval)


def test_the_fused_bound_of_large_logits_is_finite():
    """In float32 the sum of exponentials, relative to the largest, is the difference of two numbers of 1e8 or more."""
    net, images = nn.Sequential(nn.Linear(1, 3)), torch.tensor([[1.0], [3.0], [0.7]])
    net[0].weight.data, net[0].bias.data = torch.tensor([[0.0], [1e8], [1.1e8]]), torch.zeros(3)
    labels = torch.zeros(3, dtype=torch.long)
    found = fused_cross_entropy(net, interval_boxes(net, Box(images, images)), labels, 1.0)
    torch.testing.assert_close(found, F.cross_entropy(net(images), labels, reduction="none"))


def test_degenerate_boxes_have_finite_gradients():
    """Inputs and neurons that are exactly 0 give intervals of width 0 at the corner of the ReLU."""
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(1, 2, 3, padding=1, bias=False),
        nn.ReLU(),
        nn.Conv2d(2, 2, 3, padding=1, bias=False),
        nn.ReLU(),
    ]
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(32, 3))
    images, labels = torch.zeros(2, 1, 4, 4), torch.tensor([0, 1])
    for method in METHODS:
        margin_bounds(net, images, images, labels, method).sum().backward()
    fused_cross_entropy(net, interval_boxes(net, Box(images, images)), labels, 1.0).sum().backward()
    assert all(bool(parameter.grad.isfinite().all()) for parameter in net.parameters())


def test_margins_of_all_class_pairs():
    rows = margin_rows(torch.tensor([2, 0]), 4)
    logits = torch.randn(2, 4)
    expected = logits.gather(1, torch.tensor([[2], [0]])) - logits
    torch.testing.assert_close((rows @ logits.unsqueeze(2)).squeeze(2), expected)


def test_the_label_is_not_its_own_rival():
    margins = torch.tensor([[0.0, 2.0, 1.0], [3.0, -1.0, 0.0]])
    assert smallest_margin(margins, torch.tensor([0, 2])).tolist() == [1, -1]


def test_batch_norm_uses_a_weight_whatever_its_attribute_says():
    layer = nn.BatchNorm1d(2).double().eval()
    layer.weight.data.fill_(-3.0)
    layer.bias.data.fill_(1.0)
    box = Box(torch.zeros(1, 2).double(), torch.ones(1, 2).double())
    ends = through(layer, box).ends
    layer.affine = False
    for found, expected, x in zip(through(layer, box).ends, ends, (box.upper, box.lower), strict=True):
        assert torch.equal(found, expected)
        torch.testing.assert_close(found, layer(x))


def test_a_net_may_end_with_another_layer():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU()).double()
    lower, labels = torch.randn(20, 2, dtype=torch.float64), torch.randint(3, (20,))
    smallest = smallest_on_grid(net, lower, lower + 1, labels)
    for method in METHODS:
        found = margin_bounds(net, lower, lower + 1, labels, method)
        assert contains(found, smallest)
        assert (smallest - found).mean() < 0.5
    with pytest.raises(ArgumentError, match="the last layer is ReLU; expected Linear"):
        fused_cross_entropy(net, interval_boxes(net, Box(lower, lower)), labels, 1.0)


def test_wrong_names_are_refused():
    net, zeros, labels = flat_net(0), torch.zeros(1, 2, dtype=torch.float64), torch.tensor([0])
    with pytest.raises(ArgumentError, match="method is 'ibp'; expected one of interval, crown-ibp"):
        margin_bounds(net, zeros, zeros, labels, "ibp")  # pyright: ignore
    with pytest.raises(ArgumentError, match="slope is 'one'; expected one of adaptive, parallel, zero"):
        linear_margins(net, interval_boxes(net, Box(zeros, zeros)), labels, "one")  # pyright: ignore
    with pytest.raises(ArgumentError, match="slope is 'parallel'; expected 'adaptive' or 'zero'"):
        margin_bounds(flat_net(0, 0.0), zeros, zeros, labels, "fast-lin")
