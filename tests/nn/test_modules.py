"""Layers: their outputs, their bounds and their Lipschitz constants."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from linfnet.errors import ArgumentError
from linfnet.nn import LpDistance, LpDistanceConv2d, MeanShift, Normalize
from linfnet.ops import lp_distance

SEEDS = st.integers(0, 2**32 - 1)


def test_a_layer_is_distance_then_shift_then_bias():
    torch.manual_seed(0)
    layer = LpDistance(5, 7, p=3.0, bias=True, mean_shift=True)
    assert layer.bias is not None
    with torch.no_grad():
        layer.bias.normal_()
    x = torch.randn(6, 5)
    distance = lp_distance(x, layer.weight, 3.0)
    torch.testing.assert_close(layer(x), distance - distance.mean(0) + layer.bias)


def test_plain_layers_have_neither_shift_nor_bias():
    layer = LpDistance(5, 7)
    assert layer.p == math.inf
    assert [name for name, _ in layer.named_parameters()] == ["weight"]
    assert list(layer.buffers()) == []


@pytest.mark.parametrize(("inputs", "outputs"), [(3, 7), (4, 4), (7, 3)])
def test_identity_init(inputs: int, outputs: int):
    torch.manual_seed(0)
    layer = LpDistance(inputs, outputs, identity_init=True)
    marked = (layer.weight == -10).nonzero().tolist()
    assert marked == ([[i, i % inputs] for i in range(outputs)] if inputs <= outputs else [])
    if inputs <= outputs:  # each output copies an input, up to the constant 10
        x = torch.rand(5, inputs)
        torch.testing.assert_close(layer(x) - 10, x[:, torch.arange(outputs) % inputs], atol=1e-5, rtol=0)


def test_weights_start_standard_normal():
    torch.manual_seed(0)
    weight = LpDistance(300, 400).weight
    assert abs(weight.mean().item()) < 4 / math.sqrt(weight.numel())
    assert abs(weight.std().item() - 1) < 4 / math.sqrt(2 * weight.numel())


def test_p_is_checked():
    layer = LpDistance(2, 2)
    with pytest.raises(ArgumentError, match=r"p is 0\.9"):
        layer.p = 0.9
    with pytest.raises(ArgumentError, match="p is 0"):
        LpDistance(2, 2, p=0)


class TestMeanShift:
    def test_running_mean_uses_a_momentum_of_a_tenth(self):
        shift = MeanShift(1)
        for value in (1.0, 2.0):
            shift(torch.full((4, 1), value))
        assert shift.running_mean.item() == pytest.approx(0.9 * 0.1 * 1 + 0.1 * 2)
        assert shift.eval()(torch.tensor([[5.0]])).item() == pytest.approx(5 - 0.29)

    def test_gradients_flow_through_the_mean(self):
        x = torch.randn(4, 3, requires_grad=True)
        MeanShift(3)(x)[0, 0].backward()
        assert x.grad is not None
        assert x.grad[:, 0].tolist() == [0.75, -0.25, -0.25, -0.25]

    def test_channels(self):
        x = torch.randn(2, 3, 4, 5)
        assert MeanShift(3, dim=1)(x).mean((0, 2, 3)).abs().max() < 1e-6

    def test_without_momentum_all_batches_count_the_same(self):
        shift = MeanShift(1, momentum=None)
        for value in (1.0, 2.0, 6.0):
            shift(torch.full((2, 1), value))
        assert shift.running_mean.item() == pytest.approx(3.0)


def test_normalize_has_one_std():
    x = torch.rand(2, 3, 4, 4)
    normalize = Normalize((0.1, 0.2, 0.3), 0.25)
    torch.testing.assert_close(normalize(x), (x - torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1)) / 0.25)
    with pytest.raises(ArgumentError, match="std is 0"):
        Normalize((0.0,), 0)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("stride", "padding", "kernel"), [(1, 0, 3), (2, 1, 3), (1, 2, 2), (3, 0, 1)])
def test_convolution_is_the_distance_of_every_patch(groups: int, stride: int, padding: int, kernel: int):
    torch.manual_seed(0)
    layer = LpDistanceConv2d(4, 6, kernel, stride=stride, padding=padding, groups=groups, p=3.0)
    x = torch.randn(2, 4, 7, 8)
    padded = F.pad(x, (padding,) * 4)
    got = layer(x)
    weight = layer.weight.view(6, 4 // groups, kernel, kernel)
    for channel in range(6):
        group = channel // (6 // groups)
        source = padded[:, group * (4 // groups) : (group + 1) * (4 // groups)]
        for row in range(got.shape[2]):
            for column in range(got.shape[3]):
                top, left = row * stride, column * stride
                patch = source[:, :, top : top + kernel, left : left + kernel]
                exact = (patch - weight[channel]).abs().pow(3).sum((1, 2, 3)).pow(1 / 3)
                torch.testing.assert_close(got[:, channel, row, column], exact)
    assert got.shape[2:] == F.conv2d(x, torch.zeros(1, 4, kernel, kernel), stride=stride, padding=padding).shape[2:]


@pytest.mark.parametrize(
    ("channels", "out", "kernel", "stride", "groups", "pixels"),
    [
        (2, 8, 4, 2, 1, [5, 5, 6, 6, 9, 9, 10, 10]),
        (2, 8, 4, 2, 2, [5, 6, 9, 10, 5, 6, 9, 10]),
        (2, 6, 4, 2, 1, [10] * 6),  # not enough channels for all four
        (1, 9, 2, 3, 1, [3] * 9),  # no 3 x 3 pixels in a patch
        (1, 4, 3, 3, 1, [4] * 4),
        (1, 9, 3, 3, 1, [0, 1, 2, 3, 4, 5, 6, 7, 8]),
    ],
)
def test_channels_that_copy_pixels(channels: int, out: int, kernel: int, stride: int, groups: int, pixels: list[int]):
    layer = LpDistanceConv2d(channels, out, kernel, stride=stride, groups=groups, identity_init=True)
    inputs = channels // groups
    rows, places = (layer.weight == -10).nonzero().T
    assert rows.tolist() == list(range(out))
    assert (places % kernel**2).tolist() == pixels
    assert (places // kernel**2).tolist() == [output % inputs for output in range(out)]


def test_convolution_identity_init_and_wrong_arguments():
    torch.manual_seed(0)
    layer = LpDistanceConv2d(2, 4, 3, padding=1, identity_init=True)
    x = torch.rand(1, 2, 5, 5)
    torch.testing.assert_close((layer(x) - 10)[:, :2], x, atol=1e-5, rtol=0)
    with pytest.raises(ArgumentError, match="groups is 3"):
        LpDistanceConv2d(4, 6, 3, groups=3)
    with pytest.raises(ArgumentError, match="groups=0 must be at least 1"):
        LpDistanceConv2d(4, 6, 3, groups=0)
    with pytest.raises(ArgumentError, match="expected \\[B, 2, H, W\\]"):
        layer(torch.rand(1, 3, 5, 5))


def layers() -> list[tuple[str, torch.nn.Module, tuple[int, ...]]]:
    return [
        ("dense", LpDistance(12, 9, bias=True, mean_shift=True), (5, 12)),
        (
            "convolution",
            LpDistanceConv2d(4, 6, 3, stride=2, padding=1, groups=2, mean_shift=True, bias=True),
            (5, 4, 6, 6),
        ),
    ]


@given(SEEDS, st.sampled_from([0, 1]), st.floats(0, 1))
def test_layers_are_1_lipschitz_at_infinity_and_their_bounds_enclose(seed: int, which: int, size: float):
    torch.manual_seed(seed)
    _, layer, shape = layers()[which]
    layer.eval()
    x = torch.randn(shape, dtype=torch.float64)
    layer.double()
    step = size * (2 * torch.rand_like(x) - 1)
    change = (layer(x + step) - layer(x)).abs().flatten(1).amax(1)
    assert (change <= step.abs().flatten(1).amax(1) + 1e-12).all()
    lower, upper = layer.bounds(x - size, x + size)
    assert (lower <= layer(x + step) + 1e-12).all()
    assert (layer(x + step) <= upper + 1e-12).all()


@given(SEEDS, st.floats(1, 20))
def test_layers_are_lipschitz_at_p_and_attain_the_bound(seed: int, p: float):
    torch.manual_seed(seed)
    layer = LpDistance(12, 9, p=p).double()
    x, step = torch.randn(5, 12, dtype=torch.float64), 0.1 * (2 * torch.rand(5, 12, dtype=torch.float64) - 1)
    change = (layer(x + step) - layer(x)).abs().amax(1)
    assert (change <= 12 ** (1 / p) * step.abs().amax(1) + 1e-12).all()
    # From the prototype itself, a step of the same size everywhere attains d^(1/p).
    start = layer.weight[:1].detach()
    attained = (layer(start + 0.5) - layer(start))[0, 0].item() / 0.5
    assert attained == pytest.approx(12 ** (1 / p), rel=1e-9)


def test_bounds_need_infinity_and_eval_mode():
    with pytest.raises(ArgumentError, match="p = inf"):
        LpDistance(2, 2, p=8.0).bounds(torch.zeros(1, 2), torch.ones(1, 2))
    with pytest.raises(ArgumentError, match="eval mode"):
        LpDistance(2, 2, mean_shift=True).bounds(torch.zeros(1, 2), torch.ones(1, 2))
