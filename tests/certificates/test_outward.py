"""Bounds of layers with matrix products contain every float32 result, in any order of summation; every term counts."""

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from benchmarks.outward import awkward, awkward_net, in_other_order, search, summed, without_rounding
from linfnet.boxes import inner_box, outer_box
from linfnet.certificates import certified_by_interval, interval_radius, outward
from linfnet.errors import ArgumentError
from linfnet.nn.label_margin import margin
from linfnet.systems.hybrid import HybridNet, ScaledLinear
from linfnet.systems.ibp import IbpNet

SEEDS = st.integers(0, 10**6)
WIDEST = st.sampled_from([1, 8, 40])


def contains(ends: tuple[Tensor, Tensor], values: Tensor) -> bool:
    return bool(((ends[0] <= values.double()) & (values.double() <= ends[1])).all())


def random_box(shape: tuple[int, ...], source: torch.Generator, widest: int) -> tuple[Tensor, Tensor]:
    one, width = awkward(shape, source, widest), awkward(shape, source, widest).abs()
    width *= (torch.rand(shape, generator=source) < 0.7).float()
    return one, one + width


def inside(ends: tuple[Tensor, Tensor], source: torch.Generator) -> Tensor:
    """Corners of a box, and random numbers."""
    low, high = (end.expand(40, *end.shape[1:]) for end in ends)
    share = torch.rand(low.shape, generator=source)
    share[:20].round_()
    return (low + share * (high - low)).clamp(low, high)


def random_layer(kind: str, seed: int, widest: int) -> tuple[nn.Module, tuple[int, ...]]:
    source = torch.Generator().manual_seed(seed)
    layers: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
        "linear": (lambda: nn.Linear(5, 3, bias=seed % 2 > 0), (1, 5)),
        "conv": (lambda: nn.Conv2d(2, 3, (2, 3), (2, 1), padding=(1, 2), bias=seed % 2 > 0), (1, 2, 3, 4)),
        "norm": (lambda: nn.BatchNorm1d(4, affine=seed % 2 > 0), (1, 4)),
        "norm2d": (lambda: nn.BatchNorm2d(2), (1, 2, 3, 3)),
        "average": (lambda: nn.AvgPool2d((2, 3), 1, (1, 0), count_include_pad=seed % 2 > 0), (1, 2, 3, 4)),
        "tanh": (nn.Tanh, (1, 9)),
        "relu": (nn.ReLU, (1, 9)),
        "flatten": (nn.Flatten, (1, 2, 2)),
    }
    make, shape = layers[kind]
    layer = make().eval()
    with torch.no_grad():
        for name, tensor in layer.state_dict().items():
            if tensor.is_floating_point():
                tensor.copy_(awkward(tuple(tensor.shape), source, widest))
                if name == "running_var":
                    tensor.abs_()
    return layer, shape


@pytest.mark.parametrize("kind", ["linear", "conv", "norm", "norm2d", "average", "tanh", "relu", "flatten"])
@given(seed=SEEDS, widest=WIDEST)
def test_a_box_contains_all_results(kind: str, seed: int, widest: int):
    source = torch.Generator().manual_seed(seed)
    layer, shape = random_layer(kind, seed, widest)
    ends = random_box(shape, source, widest)
    with torch.no_grad():
        found, x = outward.bounds([layer], *ends), inside(ends, source)
        assert contains(found, outward.evaluate([layer], x))
        torch.testing.assert_close(outward.evaluate([layer], x), layer(x), rtol=1e-3, atol=1e-3 * 4.0**widest)
        for _ in range(4):
            if isinstance(layer, nn.Linear):
                assert contains(found, summed(layer.weight, x.unsqueeze(2), layer.bias, source).squeeze(2))
            if isinstance(layer, nn.Conv2d):
                columns = nn.functional.unfold(x, (2, 3), padding=(1, 2), stride=(2, 1))
                result = summed(layer.weight.flatten(1), columns, layer.bias, source)
                assert contains(found, result.unflatten(2, found[0].shape[2:]))


def test_convolutions_in_parts_are_the_same(monkeypatch: pytest.MonkeyPatch):
    layer, x = random_layer("conv", 1, 1)[0], torch.rand(7, 2, 3, 4)
    with torch.no_grad():
        whole = outward.evaluate([layer], x)
        monkeypatch.setattr(outward, "_PATCHES_ON_CPU", 1)
        torch.testing.assert_close(outward.evaluate([layer], x), whole)
        assert outward.evaluate([layer], x[:0]).shape == (0, *whole.shape[1:])


@given(seed=SEEDS)
def test_tanh_is_within_its_error(seed: int):
    """All numbers, of all magnitudes: random bits."""
    bits = torch.randint(0, 0x7F800001, (10**5,), generator=torch.Generator().manual_seed(seed))
    x = bits.to(torch.int32).view(torch.float32)
    x = torch.cat([x, -x]).unsqueeze(0)
    assert contains(outward.bounds([nn.Tanh()], x, x), x.tanh())


@pytest.mark.parametrize(
    ("layer", "complaint"),
    [
        (nn.Softmax(1), "a layer is a Softmax, which has no interval bounds; expected Linear, Conv2d"),
        (nn.Conv2d(2, 2, 1, groups=2), "expected groups and dilation 1 and padding by a number of zeros"),
        (nn.Conv2d(2, 2, 1, dilation=2), "expected groups and dilation 1"),
        (nn.Conv2d(2, 2, 1, padding="same"), "padding by a number of zeros"),
        (nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"), "padding by a number of zeros"),
        (nn.AvgPool2d(2, divisor_override=-1), "divisor_override of a layer is -1; expected None"),
        (nn.BatchNorm2d(2, track_running_stats=False), "batch norm has no running statistics"),
    ],
)
def test_layers_without_a_rule_are_refused(layer: nn.Module, complaint: str):
    x = torch.rand(1, 2, 4, 4)
    with pytest.raises(ArgumentError, match=complaint):
        outward.evaluate([layer], x)
    with pytest.raises(ArgumentError, match=complaint):
        outward.bounds([layer], x, x)


def test_sums_of_too_many_products_are_refused():
    with pytest.raises(ArgumentError, match="an output is a sum of about 4194304 products"):
        outward.error_rate(2**22)


@pytest.mark.parametrize("roundings", [1, 100, 2**14])
def test_the_rate_of_many_roundings(roundings: int):
    rate, unit = Fraction(outward.error_rate(roundings)), Fraction(1, 2**24)
    assert (1 + unit) ** (roundings + 2) - 1 <= rate
    assert 1 - (1 - unit) ** (roundings + 2) <= rate


# For each term of the bounds a layer and an input for which the box without the term does not contain the result.


def linear(weights: list[float], bias: float = 0.0) -> nn.Linear:
    layer = nn.Linear(len(weights), 1)
    layer.weight.data, layer.bias.data = torch.tensor([weights]), torch.tensor([bias])
    return layer


def norm(scale: float, shift: float) -> nn.BatchNorm1d:
    layer = nn.BatchNorm1d(1, eps=0.0).eval()
    layer.weight.data, layer.bias.data = torch.tensor([scale]), torch.tensor([shift])
    return layer


def no_rate(roundings: int) -> float:
    return 2.0**-45


TERMS: dict[str, tuple[str, object, nn.Module, Tensor]] = {
    "rounding of products": ("error_rate", no_rate, linear([1.1]), torch.tensor([[1.1]])),
    "rounding of sums": ("error_rate", no_rate, linear([1.0, 1.0]), torch.tensor([[1e8, 1.0]])),
    "rounding of a bias": ("error_rate", no_rate, linear([1.0], 1e8), torch.tensor([[1.0]])),
    "underflow of products": ("TINY", 0.0, linear([2.0**-80]), torch.tensor([[2.0**-80]])),
    "overflow of products": ("LIMIT", math.inf, linear([2.0**100]), torch.tensor([[2.0**100]])),
    "overflow of a partial sum": (
        "LIMIT",
        math.inf,
        linear([2.0**127, 2.0**127, -(2.0**127), -(2.0**127)]),
        torch.ones(1, 4),
    ),
    "rounding of batch norm": ("error_rate", no_rate, norm(1.1, 0.0), torch.tensor([[1.1]])),
    "rounding of a shift": ("error_rate", no_rate, norm(1.0, 1e8), torch.tensor([[1.0]])),
    "underflow of batch norm": ("TINY", 0.0, norm(2.0**-80, 0.0), torch.tensor([[2.0**-80]])),
    "overflow of batch norm": ("LIMIT", math.inf, norm(2.0**100, 0.0), torch.tensor([[2.0**100]])),
    "rounding of averages": (
        "error_rate",
        no_rate,
        nn.AvgPool2d((1, 3)),
        torch.tensor([1.0, 0.0, 0.0]).view(1, 1, 1, 3),
    ),
    "overflow of averages": ("LIMIT", math.inf, nn.AvgPool2d((1, 2)), torch.full((1, 1, 1, 2), 3e38)),
    "underflow of averages": ("TINY", 0.0, nn.AvgPool2d((1, 3)), torch.tensor([1e-45, 0.0, 0.0]).view(1, 1, 1, 3)),
    "error of tanh": ("TANH_ULPS", -1, nn.Tanh(), torch.linspace(0.1, 3, 100).view(1, -1)),
}


@pytest.mark.parametrize("name", TERMS)
@torch.no_grad()
def test_every_term_is_needed(name: str, monkeypatch: pytest.MonkeyPatch):
    constant, without, layer, x = TERMS[name]

    def is_sound() -> bool:
        # A box of NaN says that the program may overflow: nothing is certified.
        ends = outward.bounds([layer], x, x)
        return bool(ends[0].isnan().all() and ends[1].isnan().all()) or contains(ends, result)

    source, result = torch.Generator().manual_seed(0), outward.evaluate([layer], x)
    if isinstance(layer, nn.Linear):  # some order of summation needs the term
        result = torch.cat([summed(layer.weight, x.unsqueeze(2), layer.bias, source).squeeze(2) for _ in range(20)])
    assert is_sound()
    monkeypatch.setattr(outward, constant, without)
    assert not is_sound()


@pytest.mark.parametrize("layer", [linear([1.0], 2.0**-25), norm(1.0, 2.0**-25)], ids=["sum", "norm"])
@torch.no_grad()
def test_the_end_with_the_largest_magnitude_counts(layer: nn.Module):
    """At -1 the sum -1 + 2^-25 is rounded to -1; the other end of the box is 0, where nothing is rounded."""
    ends = torch.tensor([[-1.0]]), torch.tensor([[0.0]])
    assert outward.evaluate([layer], ends[0]).item() == -1
    assert outward.bounds([layer], *ends)[0].item() <= -1


@torch.no_grad()
def test_tanh_may_have_an_error_of_four_units_in_the_last_place():
    x = torch.linspace(-20, 20, 1001).unsqueeze(0)
    exact, error = x.double().tanh(), outward.TANH_ULPS * 2.0**-23
    ends = outward.bounds([nn.Tanh()], x, x)
    assert contains(ends, exact * (1 + error))
    assert contains(ends, exact * (1 - error))


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (nn.AvgPool2d(2), torch.full((1, 1, 2, 2), 2.0**126)),  # the sum overflows, although the average does not
        (norm(3e38, 0.0), torch.full((1, 1), 1e-30)),  # the scale overflows, although the product does not
    ],
    ids=["sum", "scale"],
)
@torch.no_grad()
def test_a_step_before_the_result_overflows(layer: nn.Module, x: Tensor):
    if isinstance(layer, nn.BatchNorm1d):
        layer.running_var = torch.tensor([1e-10])
    assert bool(outward.evaluate([layer], x).isinf().all())
    assert all(bool(end.isnan().all()) for end in outward.bounds([layer], x, x))


@pytest.mark.parametrize(("weight", "x"), [(2.0**60, 2.0**-127), (2.0**-127, 2.0**60)])
@torch.no_grad()
def test_products_may_flush_subnormal_numbers(weight: float, x: float):
    """One factor is subnormal; the product is 2^-67, or 0 if the factor is flushed to zero."""
    ends = outward.bounds([linear([weight])], torch.tensor([[x]]), torch.tensor([[x]]))
    assert contains(ends, torch.tensor([[0.0], [2.0**-67]]))


@torch.no_grad()
def test_the_scale_of_batch_norm_underflows():
    layer, x = norm(2.0**-149, 0.0), torch.full((1, 1), 2.0**100)
    layer.running_var = torch.tensor([16.0])  # the scale is 2^-151, which is rounded to 0
    assert outward.evaluate([layer], x).item() == 0
    assert contains(outward.bounds([layer], x, x), torch.zeros(1, 1))


@torch.no_grad()
def test_scaled_weights_are_rounded_three_times():
    """In rational arithmetic, with all roundings in the same direction. On a GPU, the program rounds the root, its
    reciprocal and the product with it; then the product with the input, the sum with three zeros and with the bias."""
    layer, x = ScaledLinear(4, 1), torch.tensor([[1.0, 0.0, 0.0, 0.0]]).double()
    layer.weight.copy_(torch.tensor([[1.0, 0.0, 0.0, 0.0]]))
    low, high = (Fraction(end.item()) for end in layer.product().bounds(x, x))
    unit, weight = Fraction(1, 2**24), Fraction(1, 2)
    for factor in (1 + unit, 1 - unit):
        scaled = weight * factor**3
        assert low < scaled * factor * factor**3 * factor < high


def test_nan_is_not_lost_in_later_layers():
    """tanh and ReLU of an overflow are finite, but NaN is possible as well."""
    hidden = nn.Linear(1, 2)
    hidden.weight.data.fill_(3e38)
    for activation in (nn.Tanh(), nn.ReLU()):
        ends = outward.bounds([hidden, activation, nn.Linear(2, 3)], torch.ones(1, 1), torch.ones(1, 1))
        assert all(bool(end.isnan().all()) for end in ends)


def large_bias_net() -> HybridNet:
    """The logits of this net are near 10^8, where float32 numbers are multiples of 8."""
    net = HybridNet((1, 1, 1), 2, (1,), 1).eval()
    with torch.no_grad():
        for name, value in (("layers.0.weight", 0.0), ("first.weight", 2.0), ("first.bias", 0.0)):
            net.get_parameter(name).fill_(value)
        net.last.weight.copy_(torch.tensor([[0.0], [10.0]]))
        net.last.bias.fill_(1e8)
    return net


@torch.no_grad()
def test_a_large_bias_leaves_no_false_radius():
    """In real arithmetic class 1 wins for every positive pixel; in float32 both logits are equal for small pixels."""
    net, image, label = large_bias_net(), torch.full((1, 1, 1, 1), 0.5), torch.tensor([1])
    assert net(image).argmax() == 1
    ties = margin(net(torch.full((1, 1, 1, 1), 0.125)), label)
    assert ties.item() == 0
    assert interval_radius(net, image, label).item() < 0.375
    with without_rounding():
        assert interval_radius(net, image, label).item() > 0.49


@torch.no_grad()
def test_rounding_of_the_hidden_layer_is_not_lost():
    """Only the first product rounds: 1e8 + 2x in multiples of 8, minus 1e8 by a second layer without rounding."""
    net = IbpNet((1, 4, 4), 2, "small", False).eval()
    net.layers = nn.Sequential(nn.Flatten(), linear([2.0] + [0.0] * 15, 1e8), nn.ReLU(), linear([1.0], -1e8))
    net.last = nn.Linear(1, 2)
    net.last.weight.data, net.last.bias.data = torch.tensor([[0.0], [1.0]]), torch.tensor([0.5, 0.0])
    image, label = torch.full((1, 1, 4, 4), 0.75), torch.tensor([0])
    assert net(image).argmax() == 0  # although 2x is above 0.5
    for epsilon in (Fraction(1, 100), Fraction(1, 2)):
        assert not certified_by_interval(net, image, label, epsilon).item()
    assert certified_by_interval(net, image, label, 0).item()  # the image itself


@pytest.mark.slow
def test_no_certificate_is_broken():
    certified, broken = zip(*map(search, range(12)), strict=True)
    assert sum(broken) == 0
    assert sum(certified) > 100


@pytest.mark.slow
def test_the_search_breaks_certificates_that_ignore_rounding():
    with without_rounding():
        assert sum(search(seed)[1] for seed in range(12)) > 10


@given(seed=st.integers(0, 300))
def test_radii_are_certified_and_margins_are_below_all_computed_ones(seed: int):
    net = awkward_net(seed)
    source = torch.Generator().manual_seed(seed)
    images = torch.rand(5, *net.image_shape, generator=source)
    with torch.no_grad():
        labels = net(images).argmax(1)
        radii = interval_radius(net, images, labels)
        assert bool(certified_by_interval(net, images, labels, radii.clamp(min=0))[radii >= 0].all())
        bound = net.least_margin(*outer_box(images, Fraction(1, 50)), labels)
        low, high = inner_box(images, Fraction(1, 50))
        for _ in range(10):
            moved = torch.where(torch.rand(low.shape, generator=source) < 0.5, low, high)
            for logits in (net(moved), in_other_order(net, moved, source)):
                gap = margin(logits.double(), labels)
                assert bool(((gap >= bound) | bound.isnan()).all())
