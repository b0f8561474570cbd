"""Nets and layers whose code was changed have no certificate, and what is certified is what runs."""

import math
import types
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from linfnet.certificates import certified_by_interval, certify, certify_by_margin
from linfnet.errors import ArgumentError
from linfnet.nn import (
    Classifier,
    LinfNet,
    LpDistance,
    LpDistanceConv2d,
    MeanShift,
    Nonexpansive,
    Normalize,
    ProvenNet,
    SparseDistance,
    SparseNet,
    WrappedNet,
)
from linfnet.nn.nonexpansive import Rounding
from linfnet.nn.operations import average_bounds
from linfnet.nn.sorted import SortDistance


def wrap(*layers: nn.Module, shape: tuple[int, ...] = (4,)) -> WrappedNet:
    return Classifier.wrap(nn.Sequential(*layers), shape, 2)


def check_refused(net: Classifier, message: str) -> None:
    images = torch.rand(5, *net.image_shape)
    with pytest.raises(ArgumentError, match=message) as caught:
        certify_by_margin(net, images)
    assert "\n" not in str(caught.value)
    with pytest.raises(ArgumentError, match=message):
        certified_by_interval(net, images, torch.zeros(5, dtype=torch.int64), Fraction(1, 9))


def method(name: str) -> Callable[..., object]:
    return lambda *arguments: 10 * getattr(super(type(arguments[0]), arguments[0]), name)(*arguments[1:])


CLASSES: list[tuple[type[nn.Module], str]] = [
    *((LpDistance, name) for name in ("forward", "bounds", "measure", "_finish", "_distance", "_distance_bounds")),
    *((LpDistanceConv2d, name) for name in ("_patches", "_image", "_distance")),
    *((MeanShift, name) for name in ("forward", "_check_eval", "train")),
    *((LpDistance, name) for name in ("__call__", "_call_impl", "__setattr__")),
]


@pytest.mark.parametrize(("kind", "name"), CLASSES, ids=lambda value: getattr(value, "__name__", str(value)))
def test_a_subclass_of_a_layer_must_not_override_its_code(kind: type[nn.Module], name: str):
    class Own(kind):
        pass

    class Mixed(types.new_class("Mixin", (nn.Module,)), kind):
        pass

    for changed, holder in ((Own, Own), (Mixed, Mixed.__mro__[1])):
        layer = changed(*((4,) if kind is MeanShift else (4, 2) if kind is LpDistance else (1, 2, 2)))
        layers = [layer, LpDistance(4, 2)] if kind is MeanShift else [layer, nn.Flatten()]
        net = wrap(*layers, shape=(1, 2, 2) if kind is LpDistanceConv2d else (4,)).eval()
        certify_by_margin(net, torch.rand(2, *net.image_shape))
        setattr(holder, name, method(name))
        with pytest.raises(ArgumentError):
            certify_by_margin(net, torch.rand(2, *net.image_shape))


def test_the_refused_attribute_of_a_subclass_is_named():
    class Patches(LpDistanceConv2d):
        def _patches(self, x: Tensor) -> tuple[Tensor, ...]:
            return tuple(10 * patches for patches in super()._patches(x))

    class Weighted(LpDistance):
        training = property(lambda self: False, lambda self, value: None)

    class Found(LpDistance):
        def __getattr__(self, name: str) -> Tensor | nn.Module:
            return super().__getattr__(name)

    class Exponent(LpDistance):
        p = property(lambda self: math.inf, lambda self, value: None)

    for kind, name in ((Found, "__getattr__"), (Exponent, "p")):
        with pytest.raises(ArgumentError, match=f"overrides {name} of LpDistance"):
            wrap(kind(4, 2))
    with pytest.raises(ArgumentError, match=r"Patches \('0'\).*overrides _patches of LpDistanceConv2d.*Nonexpansive"):
        wrap(Patches(1, 2, 2), nn.Flatten(), shape=(1, 2, 2))
    with pytest.raises(ArgumentError, match=r"Weighted \('0'\).*overrides training of LpDistance"):
        wrap(Weighted(4, 2))


def test_a_subclass_with_another_constructor_is_accepted():
    class Wide(LpDistance):
        """A layer with more documentation."""

        factor: float = 0.5

        def __init__(self) -> None:
            super().__init__(4, 2, mean_shift=True)

        def extra_repr(self) -> str:
            return "wide"

        def prototypes(self) -> Tensor:
            return self.weight

    certify_by_margin(wrap(Wide()), torch.rand(2, 4))


class Loud(MeanShift):
    def forward(self, x: Tensor) -> Tensor:
        return 10 * super().forward(x)


PARTS = {
    "shift": (lambda layer: setattr(layer, "shift", Loud(2)), "part 'shift' is a Loud"),
    "child": (lambda layer: layer.add_module("other", nn.ReLU()), "part 'other' is a ReLU"),
    "function": (lambda layer: setattr(layer, "shift", lambda d: 10 * d), "attribute 'shift' is a function"),
    "tensor": (lambda layer: setattr(layer, "shift", torch.zeros(2).double()), "attribute 'shift' is a Tensor"),
    "parametrization": (lambda layer: parametrizations.weight_norm(layer), "overrides __getstate__|parametrizations"),
    "dim": (lambda layer: setattr(layer, "dim", 0), "need the dimension of the features; the layer has dim = 0"),
    "_finish": (lambda layer: setattr(layer, "_finish", lambda d: 10 * d), "_finish of LpDistance .* was replaced"),
    "bounds": (lambda layer: setattr(layer, "bounds", lambda a, b: (a, b)), "bounds of LpDistance .* was replaced"),
    "measure": (lambda layer: setattr(layer, "measure", lambda x: (x, [])), "measure of LpDistance .* was replaced"),
    "forward": (lambda layer: setattr(layer, "forward", lambda x: 10 * x), "forward of LpDistance .* was replaced"),
    "buffer": (lambda layer: layer._buffers.__setitem__("_finish", torch.ones(1)), "_finish of LpDistance"),
}


@pytest.mark.parametrize("part", PARTS)
def test_a_changed_layer_is_refused(part: str):
    change, message = PARTS[part]
    for build in (lambda: wrap(LpDistance(4, 2)), lambda: LinfNet((4,), 2)):
        net = build()
        change(net.distance_layers()[0])
        check_refused(net, message)
    layer = LpDistance(4, 2)
    change(layer)
    with pytest.raises(ArgumentError, match=message):
        wrap(layer)


def test_parts_of_torch_and_containers_are_checked():
    net = wrap(LpDistance(4, 2), nn.ReLU())
    net.body[1].forward = lambda x: 10 * x
    check_refused(net, r"forward of ReLU \('1'\) in the body was replaced")
    wrapped = nn.Sequential(LpDistance(4, 2))
    wrapped.forward = lambda x: 10 * x
    with pytest.raises(ArgumentError, match="forward of Sequential in the body was replaced"):
        Classifier.wrap(wrapped, (4,), 2)
    for name in ("ReLU", "ReLU6", "Flatten", "Dropout", "MaxPool1d", "AvgPool2d", "ZeroPad2d", "Sequential", "Linear"):
        kind = getattr(nn, name)
        module = kind(*([1] * {"MaxPool1d": 1, "AvgPool2d": 1, "ZeroPad2d": 1, "Linear": 2}.get(name, 0)))
        certify_by_margin(Classifier.wrap(Unused(module), (4,), 2), torch.rand(2, 4))


class Unused(nn.Module):
    def __init__(self, other: nn.Module) -> None:
        super().__init__()
        self.layer, self.other = LpDistance(4, 2), other
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("precise", torch.tensor([math.inf], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class Louder(LinfNet):
    def forward(self, images: Tensor) -> Tensor:
        return 10 * super().forward(images)


class Named(LinfNet):
    system = "named"

    def __init__(self) -> None:
        super().__init__((4,), 2, (5,))

    def describe(self) -> str:
        return "named"


class Ten(Normalize):
    def forward(self, x: Tensor) -> Tensor:
        return 10 * super().forward(x)


def test_nets_with_another_forward_pass_are_refused():
    check_refused(Louder((4,), 2), "net is a Louder that overrides forward, but certificates hold for LinfNet")
    certify_by_margin(Named(), torch.rand(3, 4))
    for build in (Named, lambda: LinfNet((4,), 2), lambda: wrap(LpDistance(4, 2))):
        for name in ("forward", "bounds", "measure", "check_shape", "at_infinity"):
            net = build()
            setattr(net, name, getattr(net, name))
            check_refused(net, f"{name} of the net, a .* was replaced")
        net = build()
        net.normalize = Ten((0.0,), 1.0, dims=1)
        check_refused(net, "normalize of the net is a Ten; expected linfnet.nn.Normalize")
        net.normalize = Normalize((0.0,), 1.0, dims=1)
        certify_by_margin(net, torch.rand(3, 4))
        net.normalize.forward = lambda x: 10 * x
        check_refused(net, "forward of Normalize in the normalize was replaced")

    class Layers(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return 10 * super().forward(x)

    net = LinfNet((4,), 2)
    net.layers = Layers(LpDistance(4, 2))
    check_refused(net, r"net contains Layers \('layers'\).*Classifier.wrap")


def test_an_own_proven_net_defines_all_three_methods():
    class Own(ProvenNet):
        def __init__(self) -> None:
            super().__init__((4,), 2)
            self.layer = LpDistance(4, 2)

        def forward(self, images: Tensor) -> Tensor:
            return self.layer(self.normalize(images))

        def bounds(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
            return self.layer.bounds(*self.normalize.bounds(lower, upper))

        def measure(self, images: Tensor) -> tuple[Tensor, Rounding]:
            output, sizes = self.layer.measure(self.normalize(images))
            return output, Rounding().then(sizes)

    certify_by_margin(Own(), torch.rand(3, 4))


def test_global_hooks_are_refused():
    for net in (LinfNet((4,), 2), wrap(LpDistance(4, 2))):
        for register in (
            nn.modules.module.register_module_forward_hook,
            nn.modules.module.register_module_forward_pre_hook,
        ):
            handle = register(lambda *arguments: None)
            try:
                check_refused(net, "a forward hook of all modules is registered")
            finally:
                handle.remove()
        certify_by_margin(net, torch.rand(3, 4))


@pytest.mark.parametrize(
    ("body", "shape"),
    [(LpDistance(4, 2, mean_shift=True), (4,)), (MeanShift(2), (2,)), (nn.Flatten(), (2, 1, 1)), (nn.ReLU(), (2,))],
    ids=lambda value: type(value).__name__,
)
def test_a_single_layer_is_a_body(body: nn.Module, shape: tuple[int, ...]):
    net, images = Classifier.wrap(body, shape, 2).eval(), torch.rand(9, *shape)
    assert torch.equal(net(images), body(images))
    assert (certify_by_margin(net, images).radii >= 0).any()


def test_a_shared_layer_that_is_appended_is_found():
    shared = LpDistance(2, 2)
    body = nn.Sequential(shared, LpDistance(2, 2))
    net, images = Classifier.wrap(body, (2,), 2).eval(), torch.rand(9, 2)
    body.append(shared)
    assert torch.equal(net(images), body(images))
    body[0], body[1] = body[1], body[0]
    assert torch.equal(net(images), body(images))


class Settings:
    def __init__(self) -> None:
        self.factors, self.inner = [0.5], types.SimpleNamespace(sign=1)


class Adjusted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.settings = LpDistance(4, 2), Settings()
        self.register_buffer("offset", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.settings.factors[0] * self.settings.inner.sign + self.offset


def test_changes_of_settings_and_buffers_are_found():
    body, images = Adjusted().eval(), torch.rand(9, 4)
    net = Classifier.wrap(body, (4,), 2).eval()

    def check() -> None:
        assert torch.equal(net(images), body(images))
        assert torch.equal(certify_by_margin(net, images).logits, body(images))

    for change in (
        lambda: body.settings.factors.__setitem__(0, 0.25),
        lambda: setattr(body.settings.inner, "sign", -1),
        lambda: body.offset.fill_(3),
        lambda: body.load_state_dict({**body.state_dict(), "offset": torch.ones(2)}),
    ):
        before = net(images)
        change()
        assert not torch.equal(net(images), before)
        check()
    body.settings.factors[0] = 5.0
    check_refused(net, "number is 5.0")


def test_a_body_in_training_mode_does_not_make_an_evaluated_net_random():
    net, images = wrap(LpDistance(4, 8, mean_shift=True), nn.Dropout(), LpDistance(8, 2)).eval(), torch.rand(50, 4)
    expected, mean = net(images), net.body[0].shift.running_mean.clone()
    net.body.train()
    assert torch.equal(net(images), expected)
    assert torch.equal(certify_by_margin(net, images).logits, expected)
    assert torch.equal(net.body[0].shift.running_mean, mean)
    assert net.body[1].training
    net.train()
    assert not torch.equal(net(images), net(images))


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_weights_that_are_not_finite_are_refused(value: float):
    for name in ("weight", "bias"):
        layer = LpDistance(4, 2, bias=True)
        getattr(layer, name).data.view(-1)[0] = value
        with pytest.raises(ArgumentError, match=rf"body.0.{name} contains NaN or infinity"):
            wrap(layer)


def test_two_precisions_are_refused():
    with pytest.raises(ArgumentError, match=r"body.1.weight has dtype torch.float64; expected torch.float32"):
        wrap(LpDistance(4, 4), LpDistance(4, 2).double())


def test_std_and_mean():
    body = nn.Sequential(LpDistance(4, 2))
    net = Classifier.wrap(body, (4,), 2, mean=np.float32(0.25), std=np.float32(0.5))  # pyright: ignore
    assert (net.mean, net.std) == ((0.25,), 0.5)
    assert LinfNet((4,), 2, mean=np.float64(0.25), std=np.int64(2)).std == 2.0  # pyright: ignore
    for std in (1e-30, 1e-10):
        with pytest.raises(ArgumentError, match=f"std is {std:g}; expected a number from"):
            Classifier.wrap(body, (4,), 2, std=std)
        check_refused(LinfNet((4,), 2, std=std), f"std is {std:g}; expected a number from")
    with pytest.raises(ArgumentError, match="expected one number"):
        Classifier.wrap(body, (4,), 2, std=(0.1, 0.2))  # pyright: ignore


def test_a_std_that_was_changed_to_infinity_is_refused():
    net = LinfNet((4,), 2)
    net.normalize.std.fill_(math.inf)
    check_refused(net, "std is inf; expected a number from")


def test_the_largest_normalised_pixel_of_a_float64_net():
    normalize = LinfNet((1, 1, 1), 2, mean=0.1, std=0.3).double().normalize
    normalize.mean.fill_(0.1)
    normalize.std.fill_(0.3)
    ends = torch.tensor([0.0, 1.0]).double().view(2, 1, 1, 1)
    assert normalize.largest((0.0, 1.0)) == normalize(ends).abs().max().item()
    normalize.mean = torch.tensor([0.1, math.nan]).double()
    assert math.isnan(normalize.largest((0.0, 1.0)))


def test_bounds_of_averages_include_the_rounding_errors_of_their_largest_input():
    lower, upper, window = -torch.ones(1, 1, 2, 2), torch.zeros(1, 1, 2, 2), 4
    low, _ = average_bounds(nn.AvgPool2d(2), lower, upper)
    assert low.item() <= -1 - 2 * (window + 2) * 2.0**-24


def test_sizes_of_sorted_sums_bound_negative_results():
    layer = SortDistance(4, 3, keep=0.5, bias=True).eval()
    layer.get_parameter("bias").data.fill_(-100.0)
    output, sizes = layer.measure(torch.rand(5, 4))
    assert bool((sizes[-1] >= output.abs().amax(1)).all())


def test_a_mean_shift_along_the_samples_is_refused():
    """As many samples as features: each would be shifted by another mean."""
    net = LinfNet((4,), 2, (3,)).eval()
    shift = net.layers[0].get_submodule("shift")
    shift.dim = 0  # pyright: ignore
    for certificate in ("margin", "interval"):
        with pytest.raises(ArgumentError, match="need the dimension of the features"):
            certify(net, torch.rand(3, 4), method=certificate)


def test_errors_name_the_part():
    class Empty(Nonexpansive):
        def forward(self, x: Tensor) -> Tensor:
            return x

        def bounds(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
            raise KeyError

        def measure(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
            raise AssertionError

    class Called(Empty):
        def __call__(self, x: Tensor) -> Tensor:
            return super().__call__(x)

    with pytest.raises(ArgumentError, match=r"Empty \('0'\), which raises an error: AssertionError"):
        wrap(Empty(), LpDistance(4, 2))
    with pytest.raises(ArgumentError, match=r"Called \('0'\).*overrides __call__"):
        wrap(Called(), LpDistance(4, 2))


def sparse_net() -> SparseNet:
    first = SparseDistance(
        torch.rand(8), torch.tensor([0, 1, 2, 3] * 2), torch.tensor([0, 4, 8]), 4, mean=torch.rand(2)
    )
    last = SparseDistance(torch.rand(6), torch.tensor([0, 1] * 3), torch.tensor([0, 2, 4, 6]), 2, bias=torch.rand(3))
    return SparseNet((4,), 3, [first, last]).eval()


CHANGES: dict[str, Callable[[LinfNet | SparseNet], object]] = {
    "linear layer": lambda net: net.layers.__setitem__(0, nn.Linear(4, 2)),
    "other layer": lambda net: net.layers.__setitem__(
        0, LpDistance(4, 2) if isinstance(net, SparseNet) else sparse_net().layers[0]
    ),
    "other width": lambda net: net.layers.__setitem__(0, net.layers[1]),
    "long bias": lambda net: setattr(net.layers[1], "bias", nn.Parameter(torch.zeros(5))),
    "short bias": lambda net: setattr(net.layers[1], "bias", nn.Parameter(torch.zeros(1))),
    "scalar bias": lambda net: setattr(net.layers[1], "bias", nn.Parameter(torch.zeros(()))),
    "bias with two dimensions": lambda net: setattr(net.layers[1], "bias", nn.Parameter(torch.zeros(1, 3))),
    "long mean": lambda net: setattr(net.layers[0].shift, "running_mean", torch.zeros(5)),
    "short mean": lambda net: setattr(net.layers[0].shift, "running_mean", torch.zeros(1)),
}


@pytest.mark.parametrize("method", ["margin", "interval", "exact"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_a_replaced_layer_or_vector_is_refused_by_every_method(kind: str, change: str, method: str):
    net = sparse_net() if kind == "sparse" else LinfNet((4,), 3, (2,)).eval()
    CHANGES[change](net)
    with pytest.raises(ArgumentError) as caught:
        certify(net, torch.rand(3, 4), [0, 1, 2], method=method, eps="0.1" if method == "exact" else None)
    assert "\n" not in str(caught.value)
