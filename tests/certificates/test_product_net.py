"""Nets with matrix products: what may change their results or the precision of products is refused."""

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from linfnet import certify
from linfnet.certificates import certified_by_interval, certify_by_margin, certify_images, interval_radius, product_net
from linfnet.certificates.outward import product_of
from linfnet.certificates.product_net import ProductNet
from linfnet.errors import ArgumentError, LinfnetError
from linfnet.nn import CheckedNet, LpDistance
from linfnet.systems.cap import CapNet
from linfnet.systems.colt import ColtNet
from linfnet.systems.convolutional import ConvNet
from linfnet.systems.crown_ibp import CrownIbpNet
from linfnet.systems.crown_lbp import CrownLbpNet
from linfnet.systems.hybrid import HybridNet, ScaledLinear
from linfnet.systems.ibp import IbpNet

HUNDREDTH = Fraction(1, 100)


def hybrid() -> HybridNet:
    torch.manual_seed(0)
    return HybridNet((1, 4, 4), 3, (6, 5), 4, mean=0.4, std=0.5).eval()


def ibp() -> IbpNet:
    torch.manual_seed(0)
    return IbpNet((1, 4, 4), 3, "small", True, mean=0.4, std=0.5).eval()


def convolutional(kind: type[ConvNet]) -> Callable[[], ConvNet]:
    def make() -> ConvNet:
        torch.manual_seed(0)
        return kind((1, 4, 4), 3, "small", True, mean=0.4, std=0.5).eval()

    return make


NETS = {
    "hybrid": hybrid,
    "ibp": ibp,
    "crown-ibp": convolutional(CrownIbpNet),
    "crown-lbp": convolutional(CrownLbpNet),
    "cap": convolutional(CapNet),
    "colt": convolutional(ColtNet),
}
every_net = pytest.mark.parametrize("make", list(NETS.values()), ids=list(NETS))


def samples() -> tuple[Tensor, Tensor]:
    return torch.rand(5, 1, 4, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0, 1])


def check_refused(net: CheckedNet, message: str, images: Tensor | None = None) -> None:
    """Every function that certifies raises the error, in one line."""
    pixels, labels = samples()
    pixels = pixels if images is None else images
    calls: list[Callable[[], object]] = [
        lambda: net.certified(pixels, labels, HUNDREDTH),
        lambda: certify(net, pixels),
        lambda: certify_images(net, [(pixels, labels)]),
    ]
    if "interval" in net.certificate_names:
        calls.append(lambda: certified_by_interval(net, pixels, labels, HUNDREDTH))
        calls.append(lambda: interval_radius(net, pixels, labels))
    for call in calls:
        with pytest.raises(LinfnetError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("make", [hybrid, ibp])
def test_certificates_hold_for_the_program(make: Callable[[], ProductNet]):
    net, images = make(), samples()[0]
    found = certify(net, images)
    assert (found.method, found.arithmetic, found.confidence) == ("interval", "float32", 1.0)
    assert bool((found.radius >= 0).all())
    assert bool((found.radius > 0).any())
    assert torch.equal(net.certified(images, found.labels, found.radius), torch.ones(5, dtype=torch.bool))
    with pytest.raises(ArgumentError, match="has no certificate for the float32 program; it has: interval"):
        certify_by_margin(net, images)


def test_bounds_are_almost_those_of_real_arithmetic():
    images, labels = samples()
    for net in (hybrid(), ibp()):
        exact = net.double()
        with torch.no_grad():
            x = images.double()
            logits = exact(x)
            gaps = logits.gather(1, labels.unsqueeze(1)) - logits
            expected = gaps.scatter(1, labels.unsqueeze(1), math.inf).amin(1)
            found = exact.least_margin(x, x, labels)
        assert bool((found < expected).all())
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


@every_net
def test_hooks_are_refused(make: Callable[[], CheckedNet]):
    for module in ("", "normalize", "last", "layers.1"):
        for register in ("register_forward_hook", "register_forward_pre_hook"):
            net = make()
            getattr(net.get_submodule(module), register)(lambda *arguments: None)
            check_refused(net, "has a forward hook, which may change its output; remove it to certify")
    handle = nn.modules.module.register_module_forward_hook(lambda *arguments: None)
    try:
        check_refused(make(), "a forward hook of all modules is registered")
    finally:
        handle.remove()


class OwnTensor(Tensor):
    """A subclass may define what operations on it compute, as quantised weights do."""


@every_net
def test_subclasses_of_tensor_are_refused(make: Callable[[], CheckedNet]):
    net = make()
    net.get_submodule("last").weight = nn.Parameter(net.get_submodule("last").weight.detach().as_subclass(OwnTensor))
    check_refused(net, "^last.weight of the net is a OwnTensor, which may define its own operations")
    net = make()
    net.normalize.mean = net.normalize.mean.as_subclass(OwnTensor)
    check_refused(net, "^normalize.mean of the net is a OwnTensor")


@every_net
@pytest.mark.parametrize("module", ["", "last", "layers.0", "normalize"])
def test_a_replaced_forward_is_refused(make: Callable[[], CheckedNet], module: str):
    net = make()
    part = net.get_submodule(module)
    part.forward = part.forward
    check_refused(net, "forward of .* was replaced; expected the method of its class")


@pytest.mark.parametrize("name", ["scaled", "product"])
def test_a_replaced_method_of_a_layer_is_refused(name: str):
    net = hybrid()
    setattr(net.first, name, getattr(net.first, name))
    check_refused(net, f"{name} of ScaledLinear in the first was replaced")


def test_other_methods_of_the_net_must_not_be_replaced():
    for name in ("head", "features", "least_margin"):
        net = hybrid()
        setattr(net, name, getattr(net, name))
        check_refused(net, f"{name} of the net, a HybridNet, was replaced")


class Louder(HybridNet):
    def head(self, features: Tensor) -> Tensor:
        return 10 * super().head(features)


class OwnLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 10 * super().forward(x)


class OwnScaled(ScaledLinear):
    pass


def test_subclasses_and_other_layers_are_refused():
    check_refused(Louder((1, 4, 4), 3, (6,), 4), "overrides head, but certificates hold for HybridNet")
    net = ibp()
    net.last = OwnLinear(100, 3)
    check_refused(net, r"OwnLinear \('last'\), which cannot be certified|a layer is a OwnLinear")
    net = hybrid()
    net.first = OwnScaled(5, 4)
    check_refused(net, r"net contains OwnScaled \('first'\), which cannot be certified")
    net = hybrid()
    net.layers[0].shift = nn.Identity()
    check_refused(net, "cannot be certified")
    net = ibp()
    parametrizations.weight_norm(net.last)
    check_refused(net, r"ParametrizedLinear \('last'\), which cannot be certified|a layer is a ParametrizedLinear")


class Shifted(LpDistance):
    def _finish(self, distance: Tensor) -> Tensor:
        return super()._finish(distance) + 1


def test_changed_distance_layers_are_refused():
    net = hybrid()
    net.layers[0] = Shifted(16, 6, mean_shift=True).eval()
    check_refused(net, "overrides _finish of LpDistance")


@pytest.mark.parametrize("make", [hybrid, ibp])
def test_autocast_is_refused(make: Callable[[], ProductNet]):
    with torch.autocast("cpu", torch.bfloat16):
        check_refused(make(), "autocast is enabled, so products have a lower precision")


@every_net
def test_reduced_precision_is_refused(make: Callable[[], CheckedNet], monkeypatch: pytest.MonkeyPatch):
    net, (images, labels) = make(), samples()
    before = torch.get_float32_matmul_precision()
    try:
        for precision in ("medium", "high"):
            torch.set_float32_matmul_precision(precision)
            check_refused(net, r"call torch.set_float32_matmul_precision\('highest'\) to certify")
            # Training reports what the bounds say, whatever the precision.
            assert len(net.certified_in_training(images, labels, HUNDREDTH)) == 5
    finally:
        torch.set_float32_matmul_precision(before)
    for name, reduced, full in (
        ("ONEDNN_DEFAULT_FPMATH_MODE", "BF16", "STRICT"),
        ("DNNL_DEFAULT_FPMATH_MODE", "BF16", "STRICT"),
        ("CUBLAS_EMULATE_SINGLE_PRECISION", "1", "0"),
    ):
        with monkeypatch.context() as context:
            context.setenv(name, reduced)
            check_refused(net, f"the environment variable {name} is '{reduced}'.*; unset it to certify")
            context.setenv(name, full)
            net.certified(images, labels, HUNDREDTH)


def test_an_old_torch_has_one_setting(monkeypatch: pytest.MonkeyPatch):
    class Old:
        pass

    monkeypatch.setattr(torch.backends.mkldnn, "matmul", Old(), raising=False)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "medium")
    with pytest.raises(ArgumentError, match=r"torch.get_float32_matmul_precision\(\) is 'medium'"):
        product_net.check_products(torch.zeros(1))


@pytest.mark.parametrize("make", [hybrid, ibp])
def test_other_dtypes_are_refused(make: Callable[[], ProductNet]):
    images = samples()[0]
    check_refused(make(), "images have dtype torch.float64, the net computes in torch.float32", images.double())


@every_net
def test_half_precision_is_refused(make: Callable[[], CheckedNet]):
    check_refused(make().half(), "expected float32 or float64", samples()[0].half())


@pytest.mark.parametrize("name", ["ibp", "crown-ibp", "cap", "colt"])
def test_relus_in_place_change_no_radius(name: str):
    net, images = NETS[name](), samples()[0]
    radii = certify(net, images).radius
    relus = [layer for layer in net.modules() if isinstance(layer, nn.ReLU)]
    for layer in relus:
        layer.inplace = True
    assert relus
    assert torch.equal(certify(net, images).radius, radii)


@every_net
def test_two_precisions_are_refused(make: Callable[[], CheckedNet]):
    net = make()
    net.get_submodule("last").double()
    with pytest.raises(ArgumentError, match=r"the net computes in torch.float64 \(last.weight\); expected the same"):
        certified_by_interval(net, *samples(), HUNDREDTH)


@every_net
def test_a_bad_std_is_refused(make: Callable[[], CheckedNet]):
    net = make()
    net.normalize.std.fill_(-1.0)
    check_refused(net, "expected a std above 0")


@pytest.mark.parametrize("slope", [-1.0, 1.5, math.nan])
def test_a_ramp_that_is_not_increasing_is_refused(slope: float):
    net = NETS["crown-lbp"]()
    net.layers[2].slope.fill_(slope)
    check_refused(net, f"the slope of a ramp is {slope:g}; expected a number from 0 to 1")


@pytest.mark.parametrize("name", ["crown-ibp", "crown-lbp", "cap", "colt"])
def test_autocast_changes_neither_logits_nor_radii(name: str):
    net, images = NETS[name](), samples()[0]
    logits, radii = net(images), certify(net, images).radius
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(net(images), logits)
        assert torch.equal(certify(net, images).radius, radii)


@pytest.mark.parametrize("make", [hybrid, ibp])
def test_flushed_subnormals_are_refused(make: Callable[[], ProductNet]):
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormal numbers")
    try:
        check_refused(make(), "subnormal numbers are flushed to zero")
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize("value", [math.nan, math.inf, 3e38])
@pytest.mark.parametrize("name", ["last.weight", "last.bias", "first.weight", "first.bias", "layers.0.weight"])
def test_weights_that_are_not_finite_or_overflow_certify_nothing(name: str, value: float):
    images = samples()[0]
    for net in (hybrid(), ibp()):
        own = name if name in dict(net.named_parameters()) else "layers.0.bias"
        with torch.no_grad():
            net.get_parameter(own).view(-1)[0] = value
        for label in range(3):
            labels = torch.full((5,), label)
            assert not net.certified(images, labels, HUNDREDTH).any(), own


def test_a_user_s_net_with_matrix_products():
    """A subclass of `ProductNet` itself declares that its bounds are those of its forward pass."""

    class Own(ProductNet):
        other_layers = frozenset({nn.Linear})

        def __init__(self) -> None:
            super().__init__((1, 4, 4), 3)
            self.last = nn.Linear(16, 3)

        def forward(self, images: Tensor) -> Tensor:
            return self.last(self.normalize(images).flatten(1))

        def least_margin(self, lower: Tensor, upper: Tensor, labels: Tensor) -> Tensor:
            ends = (end.flatten(1).double() for end in self.normalize.bounds(lower, upper))
            return product_of(self.last).least_margin(*ends, labels)

    net = Own().eval()
    found = certify(net, samples()[0])
    assert found.arithmetic == "float32"
    assert bool((found.radius > 0).all())
    net.last = OwnLinear(16, 3)
    check_refused(net, "OwnLinear")


# Replaced parts whose classes are known, but which do not fit to the rest of the net.
MISFITS: dict[str, tuple[Callable[[], ProductNet], Callable[[ProductNet], object], str]] = {
    "hybrid layers": (hybrid, lambda net: setattr(net, "layers", LpDistance(16, 5)), "layers of the net is a LpDist"),
    "hybrid layer": (hybrid, lambda net: net.layers.append(nn.Linear(3, 3)), "net contains Linear"),
    "hybrid shift": (hybrid, lambda net: net.layers.append(net.normalize), "layers.2 of the net is a Normalize"),
    "hybrid no layer": (hybrid, lambda net: setattr(net, "layers", nn.Sequential()), "first .*expected a weight"),
    "hybrid width": (hybrid, lambda net: net.layers.append(LpDistance(7, 5)), "7"),
    "hybrid first": (hybrid, lambda net: setattr(net, "first", LpDistance(5, 4)), "first of the net is a LpDistance"),
    "hybrid inputs": (hybrid, lambda net: setattr(net, "first", ScaledLinear(6, 4)), "first .*expected a weight"),
    "hybrid outputs": (hybrid, lambda net: setattr(net, "last", ScaledLinear(4, 2)), "last .*expected a weight"),
    "hybrid no weight": (hybrid, lambda net: setattr(net.first, "weight", None), "first .*expected a weight"),
    "hybrid no bias": (hybrid, lambda net: setattr(net.first, "bias", None), "first .*expected a weight"),
    "hybrid forward": (hybrid, lambda net: setattr(net.layers[0], "forward", lambda x: x), "was replaced"),
    "ibp layers": (ibp, lambda net: setattr(net, "layers", nn.Linear(16, 100)), "layers of the net is a Linear"),
    "ibp last": (ibp, lambda net: setattr(net, "last", nn.ReLU()), "last of the net is a ReLU; expected a Linear"),
    "ibp sequence": (ibp, lambda net: setattr(net, "last", nn.Sequential(net.last)), "last of the net is a Sequential"),
    "ibp outputs": (ibp, lambda net: setattr(net, "last", nn.Linear(100, 2)), "last of the net has 2 outputs"),
    "ibp inputs": (ibp, lambda net: setattr(net, "last", nn.Linear(99, 3)), "Linear.*does not fit to inputs of shape"),
    "ibp linear": (ibp, lambda net: net.layers.append(nn.Linear(3, 3)), "Linear.*does not fit to inputs of shape"),
    "ibp bias": (ibp, lambda net: setattr(net.last, "bias", nn.Parameter(torch.zeros(2))), "Linear.*does not fit"),
    "ibp images": (ibp, lambda net: net.layers.append(nn.Conv2d(1, 1, 1)), "Conv2d.*does not fit to inputs of shape"),
    "ibp channels": (ibp, lambda net: net.layers.insert(0, nn.Conv2d(2, 1, 1)), "Conv2d.*does not fit to inputs"),
    "ibp kernel": (ibp, lambda net: net.layers.insert(0, nn.Conv2d(1, 1, 5)), "Conv2d.*does not fit to inputs"),
    "ibp stride": (ibp, lambda net: setattr(net.layers[0], "stride", (3, 3)), "does not fit to inputs of shape"),
    "ibp norm": (ibp, lambda net: net.layers.insert(0, nn.BatchNorm2d(2).eval()), "BatchNorm2d.*does not fit"),
    "ibp average": (ibp, lambda net: net.layers.append(nn.AvgPool2d(2)), "AvgPool2d.*does not fit to inputs"),
    "ibp window": (ibp, lambda net: net.layers.insert(0, nn.AvgPool2d((1, 5))), "AvgPool2d.*does not fit to inputs"),
    "ibp batch": (ibp, lambda net: net.layers.insert(0, nn.Flatten(0, 1)), "Flatten.*does not fit to inputs"),
    "ibp dimension": (ibp, lambda net: net.layers.append(nn.Flatten(3)), "Flatten.*does not fit to inputs of shape"),
    "ibp precision": (ibp, lambda net: net.layers.double(), "the net computes in torch.float64"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_layers_that_do_not_fit_are_refused(name: str):
    make, change, message = MISFITS[name]
    net = make()
    change(net)
    check_refused(net, message)
