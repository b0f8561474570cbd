"""The preconditions of the proofs in docs/certificates.md: each holds to the bit, or its violation is refused."""

import itertools
import math
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch
from certificates.checks import check_program
from certificates.exact import awkward_net, rationals
from hypothesis import example, given
from hypothesis import strategies as st

from linfnet.boxes import outer_box
from linfnet.certificates import (
    certificates_of,
    certified_by_interval,
    certify_by_margin,
    certify_images,
    interval_radius,
)
from linfnet.errors import ArgumentError
from linfnet.nn import LinfNet, LpDistance
from linfnet.nn.normalization import Normalize

SEEDS = st.integers(0, 2**32 - 1)
FLOATS = st.floats(0, 1, width=32)
HUNDREDTH = Fraction(1, 100)


def step_by_step(net: LinfNet, images: torch.Tensor) -> np.ndarray:
    """The program of docs/certificates.md in NumPy, one float32 operation at a time: nothing can be fused."""
    mean, std = net.normalize.mean.view(-1, 1, 1).numpy(), net.normalize.std.numpy()
    shifted = images.numpy() - mean
    x = (shifted / std).reshape(len(images), -1)
    for layer in net.layers:
        difference = x[:, None, :] - layer.weight.detach().numpy()[None]
        x = np.abs(difference).max(2)
        if layer.shift is not None:
            x = x - layer.shift.running_mean.numpy()
        if layer.bias is not None:
            x = x + layer.bias.detach().numpy()
    return -x if net.negate_logits else x


@given(SEEDS, st.sampled_from([1, 8, 40, 126]))
def test_the_program_is_the_one_of_the_proof_to_the_bit(seed: int, widest: int):
    """No fused multiply-add, no product with a reciprocal instead of a quotient, no flushed subnormal."""
    net = awkward_net(seed, widest, (3, 1, 2), hidden=(19, 5))
    images = torch.rand(7, 3, 1, 2, generator=torch.Generator().manual_seed(seed))
    images[0], images[1], images[2] = 0.0, -0.0, 2.0**-140
    check_program(net, images, step_by_step(net, images))


@given(SEEDS)
def test_the_normalisation_is_the_one_of_the_proof_to_the_bit(seed: int):
    """Later layers may hide the last bits of the normalised pixels."""
    generator = torch.Generator().manual_seed(seed)
    mean, std = torch.rand(3, generator=generator).tolist(), float(torch.rand((), generator=generator)) + 0.05
    normalize, images = Normalize(mean, std), torch.rand(5, 3, 4, 4, generator=generator)
    shifted = images.numpy() - normalize.mean.view(-1, 1, 1).numpy()
    assert np.array_equal(normalize(images).numpy(), shifted / normalize.std.numpy())


@example(0.75, Fraction(3, 4) - Fraction(7, 10 * 2**53))  # only eps itself is rounded here, downwards
@given(FLOATS, st.fractions(0, 1, max_denominator=10**9) | st.sampled_from([Fraction(1, 10**30), Fraction(8, 255)]))
def test_boxes_are_rounded_outwards_in_rational_arithmetic(pixel: float, epsilon: Fraction):
    low, high = (rationals(end)[0] for end in outer_box(torch.tensor([pixel]), epsilon))
    x = Fraction(pixel)
    assert 0 <= low <= max(x - epsilon, 0)
    assert min(x + epsilon, 1) <= high <= 1
    if epsilon == 0:
        assert low == high == x


def test_grey_levels_can_lie_outside_their_fraction():
    """See docs/certificates.md: each byte is rounded separately when it is converted to float32."""
    levels = rationals((torch.arange(256) / 255).float())
    beyond = [abs(levels[k + 8] - levels[k]) - Fraction(8, 255) for k in range(248)]
    assert 0 < max(beyond) < Fraction(1, 10**7)


def test_a_box_takes_no_negative_epsilon():
    """The ends would be exchanged, and an empty box would certify everything."""
    for epsilon in (Fraction(-1, 10), torch.tensor([-0.1]).double(), torch.tensor([math.nan]).double()):
        with pytest.raises(ArgumentError, match="expected a number of at least 0"):
            outer_box(torch.tensor([[0.5]]), epsilon)


def test_minus_zero_is_zero():
    net = awkward_net(3, 1)
    with torch.no_grad():
        net.layers[0].weight[:, 0] = -net.normalize.mean / net.normalize.std
    zero, minus = torch.zeros(1, 1, 1, 3), torch.full((1, 1, 1, 3), -0.0)
    assert math.copysign(1, minus[0, 0, 0, 0].item()) == -1
    assert torch.equal(net(zero), net(minus))
    for epsilon in (Fraction(0), Fraction(1, 10**6), HUNDREDTH):
        held = [certified_by_interval(net, x, net(zero).argmax(1), epsilon) for x in (zero, minus)]
        assert torch.equal(*held)
    assert torch.equal(certify_by_margin(net, zero).radii, certify_by_margin(net, minus).radii)


def test_a_tie_has_no_class_whichever_argmax_takes():
    net = LinfNet((1, 1, 1), 3, (), identity_init=False).eval()
    with torch.no_grad():
        net.layers[0].weight.copy_(torch.tensor([[0.0], [1.0], [9.0]]))
    image = torch.full((1, 1, 1, 1), 0.5)
    assert net(image)[0, 0] == net(image)[0, 1]
    for label in range(3):
        labels = torch.tensor([label])
        assert certify_by_margin(net, image, labels).radii.item() == -math.inf
        assert not certified_by_interval(net, image, labels, Fraction(0)).item()
    found = certify_images(net, [(image, None)])
    assert found.best_radii.item() == -math.inf
    # At the next float32 numbers there is no tie.
    for towards, label in ((0.0, 0), (1.0, 1)):
        beside = torch.nextafter(image, torch.tensor(towards))
        assert certify_by_margin(net, beside).labels.item() == label
        assert certify_by_margin(net, beside).radii.item() == 0
        assert not certified_by_interval(net, beside, torch.tensor([label]), Fraction(1, 10**6)).item()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_images_of_another_precision_are_refused(dtype: torch.dtype):
    net, images = awkward_net(0, 1), torch.rand(2, 1, 1, 3).to(dtype)
    with pytest.raises(ArgumentError, match=f"images have dtype {dtype}, the net computes in torch.float32"):
        certify_by_margin(net, images)
    with pytest.raises(ArgumentError, match="expected the same"):
        certified_by_interval(net, images, torch.tensor([0, 0]), HUNDREDTH)


@pytest.mark.parametrize("part", ["bias", "shift"])
def test_a_part_of_another_precision_is_refused(part: str):
    """With one float64 bias the logits are float64 and their rounding error would be underestimated."""
    net = awkward_net(4, 1)
    if part == "shift":
        net.layers[0].shift.double()
    else:
        net.layers[-1].bias = torch.nn.Parameter(net.layers[-1].bias.double())
    images = torch.rand(2, 1, 1, 3)
    for certify in (
        lambda: certify_by_margin(net, images),
        lambda: certified_by_interval(net, images, torch.tensor([0, 0]), HUNDREDTH),
    ):
        with pytest.raises(ArgumentError, match=r"the net computes in torch.float64 \(layers"):
            certify()


def test_a_negative_std_is_refused():
    """Dividing by it would exchange the ends of the box, and an empty box would certify everything."""
    net, images = awkward_net(0, 1), torch.rand(2, 1, 1, 3)
    for std in (-1.0, 0.0, math.nan):
        net.normalize.std.fill_(std)
        with pytest.raises(ArgumentError, match="expected a std above 0"):
            certified_by_interval(net, images, torch.tensor([0, 0]), HUNDREDTH)
        with pytest.raises(ArgumentError, match="expected a std above 0"):
            certify_by_margin(net, images)


def test_half_precision_nets_are_refused():
    net = awkward_net(0, 1).half()
    with pytest.raises(ArgumentError, match="expected float32 or float64"):
        certify_by_margin(net, torch.rand(2, 1, 1, 3).half())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_changes_no_bit(dtype: torch.dtype):
    net, images = awkward_net(1, 3), torch.rand(9, 1, 1, 3)
    expected, radii = net(images), certify_by_margin(net, images).radii
    bounds = net.bounds(*outer_box(images, HUNDREDTH))
    precision = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        with torch.autocast("cpu", dtype):
            assert torch.equal(net(images), expected)
            assert torch.equal(certify_by_margin(net, images).radii, radii)
            assert all(
                torch.equal(a, b) for a, b in zip(net.bounds(*outer_box(images, HUNDREDTH)), bounds, strict=True)
            )
    finally:
        torch.set_float32_matmul_precision(precision)


def test_compiled_nets_are_refused():
    net, images, labels = awkward_net(0, 1), torch.rand(2, 1, 1, 3), torch.tensor([0, 1])
    in_place = awkward_net(0, 1)
    in_place.compile(backend="eager")
    part_in_place, part = awkward_net(0, 1), awkward_net(0, 1)
    part_in_place.normalize.compile(backend="eager")
    part.layers[0] = torch.compile(part.layers[0], backend="eager")
    for compiled in (torch.compile(net, backend="eager"), in_place, part_in_place, part):
        for certify in (
            lambda net: certify_by_margin(net, images),
            lambda net: certified_by_interval(net, images, labels, HUNDREDTH),
            lambda net: certify_images(net, [(images, None)]),
        ):
            with pytest.raises(ArgumentError, match="the net is compiled"):
                certify(compiled)


@pytest.mark.parametrize("foreign", [torch.nn.Sequential(torch.nn.Flatten(), LpDistance(3, 2)), torch.nn.Linear(3, 2)])
def test_a_module_that_is_not_a_classifier_is_named(foreign: torch.nn.Module):
    images, labels = torch.rand(2, 1, 1, 3), torch.tensor([0, 1])
    for certify in (
        lambda: certify_by_margin(foreign, images),
        lambda: certified_by_interval(foreign, images, labels, HUNDREDTH),
        lambda: interval_radius(foreign, images, labels),
        lambda: certify_images(foreign, [(images, None)]),
        lambda: certificates_of(foreign),
    ):
        with pytest.raises(ArgumentError, match=f"net is a {type(foreign).__name__}, not a linfnet Classifier"):
            certify()
    with pytest.raises(ArgumentError, match="the net is compiled"):
        certificates_of(torch.compile(foreign, backend="eager"))


def test_nets_of_other_systems_have_no_certificate_of_the_program():
    class Other(LinfNet):
        system, certificate_names, arithmetic = "other", ("bounds",), "real"

    with pytest.raises(ArgumentError, match=r"the net of system 'other' has no certificate for the float32 .* bounds"):
        certify_by_margin(Other((1, 1, 3), 2), torch.rand(2, 1, 1, 3))


@pytest.mark.process
def test_threads_that_flush_subnormals_are_found():
    """Threads inherit the switch of the thread that starts them: switching it off later does not affect them."""
    script = """
import torch
torch.set_num_threads(2)
if not torch.set_flush_denormal(True):
    raise SystemExit("cannot flush")
torch.rand(10**6).add(1.0)
torch.set_flush_denormal(False)
from linfnet import LinfNet
from linfnet.certificates import certify_by_margin
try:
    certify_by_margin(LinfNet((1, 2, 2), 2), torch.rand(1, 1, 2, 2))
except Exception as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    if "cannot flush" in done.stderr:
        pytest.skip("this processor cannot flush subnormal numbers")
    assert "flushed to zero" in done.stdout, done.stderr


@given(SEEDS)
def test_subnormal_pixels_weights_and_differences(seed: int):
    """All logits of a net of tiny numbers are subnormal; the enclosure holds for every mixture of end points."""
    generator = torch.Generator().manual_seed(seed)
    net = LinfNet((1, 1, 3), 2, (3,), mean_shift=False, hidden_bias=True, identity_init=False).eval()
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.dim():
                parameter.copy_(torch.randint(-99, 99, parameter.shape, generator=generator) * 2.0**-149)
    units = torch.randint(0, 99, (1, 1, 1, 3), generator=generator)
    reach = int(torch.randint(1, 40, (), generator=generator))
    steps = torch.tensor(list(itertools.product([-reach, -1, 0, 1, reach], repeat=3))).view(-1, 1, 1, 3)
    image, moved, epsilon = units * 2.0**-149, (units + steps).clamp(min=0) * 2.0**-149, Fraction(reach, 2**149)
    lows, highs = net.bounds(*outer_box(image, epsilon))
    logits = net(moved)
    assert ((lows <= logits) & (logits <= highs)).all()
    held = certify_by_margin(net, image).at(epsilon) | certified_by_interval(net, image, net(image).argmax(1), epsilon)
    if held.item():
        assert (logits.argmax(1) == net(image).argmax(1)).all()


def test_overflow_proves_nothing():
    net = awkward_net(0, 1)
    images = torch.rand(20, 1, 1, 3)
    with torch.no_grad():
        net.layers[0].weight.fill_(3e38)
        net.layers[1].weight.fill_(-3e38)
    labels = net(images).argmax(1)
    assert not net(images).isfinite().all()
    assert not certified_by_interval(net, images, labels, Fraction(0)).any()
    assert (certify_by_margin(net, images).radii == -math.inf).all()


def test_a_standard_deviation_that_float32_does_not_hold_is_refused():
    for std in (1e-60, 1e60, -1.0, math.nan):
        with pytest.raises(ArgumentError, match="std"):
            LinfNet((1, 1, 1), 2, std=std)
    with pytest.raises(ArgumentError, match="expected finite numbers"):
        LinfNet((1, 1, 1), 2, mean=math.nan)
