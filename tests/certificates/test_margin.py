"""The margin certificate of the program, against rational arithmetic and against every image of small boxes."""

import itertools
import math
from fractions import Fraction

import pytest
import torch
from certificates.checks import change_bound, check_coarse_step, check_errors, check_small_box
from certificates.exact import ExactNet, awkward, awkward_net, rationals
from hypothesis import given
from hypothesis import strategies as st

from linfnet.certificates import certified_by_interval, certified_shares, certify_by_margin
from linfnet.certificates.real import real_certified
from linfnet.certificates.rounding import forward_with_magnitudes
from linfnet.errors import ArgumentError, LinfnetError
from linfnet.nn import LinfNet
from linfnet.nn.label_margin import margin

SEEDS = st.integers(0, 2**32 - 1)


def rounding_net() -> tuple[LinfNet, torch.Tensor, torch.Tensor]:
    """Distances near 2^20 come in steps of 1/16: a change of a millionth moves a logit by 1/16."""
    net = LinfNet((1, 1, 1), 2, (), identity_init=False).eval()
    with torch.no_grad():
        net.layers[0].weight.copy_(torch.tensor([[2.0**20], [0.0]]))
        net.layers[0].bias.copy_(torch.tensor([-(2.0**20), -0.05]))
    return net, torch.tensor([0.03124]).view(1, 1, 1, 1), torch.tensor([1])


@pytest.mark.parametrize("widest", [1, 8, 40, 120])
def test_the_error_bound_holds_in_rational_arithmetic(widest: int):
    """2,500 inputs for each spread of magnitudes: ordinary, cancelling, huge and tiny."""
    tightest = 0.0
    for seed in range(25):
        net = awkward_net(seed, widest)
        exact = ExactNet(net)
        generator = torch.Generator().manual_seed(seed)
        ordinary, large = torch.rand(50, 1, 1, 3, generator=generator), awkward((50, 1, 1, 3), generator, widest)
        large[30:, 0, 0, 0] = net.normalize.mean + net.normalize.std * net.layers[0].weight[0, 0]  # cancels
        for inputs, pixels in ((ordinary, (0.0, 1.0)), (large, (large.min().item(), large.max().item()))):
            tightest = max(tightest, check_errors(net, exact, inputs, pixels))
    assert tightest > 0.02  # a bound far above all errors would not test its proof


@pytest.mark.parametrize("widest", [0, 1, 3])
def test_no_image_of_a_small_box_changes_a_logit_by_more(widest: int):
    reached = 0.0
    for seed in range(40):
        reached = max(reached, check_small_box(awkward_net(seed, widest, (1, 1, 2)), seed)[0])
    assert reached > 0.05


@given(SEEDS, st.fractions(0, Fraction(1, 4), max_denominator=10**6))
def test_both_forms_of_the_certificate_agree(seed: int, epsilon: Fraction):
    """The closed-form radius is the largest epsilon whose change stays below half the margin, up to rounding."""
    net = awkward_net(seed, 1)
    images = torch.rand(20, 1, 1, 3, generator=torch.Generator().manual_seed(seed))
    certificate = certify_by_margin(net, images)
    gap = margin(certificate.logits.double(), certificate.labels)
    change = change_bound(forward_with_magnitudes(net, images), epsilon)
    certified = certificate.at(epsilon)
    if epsilon:
        assert (2 * change < gap)[certified].all()
        assert certified[2 * change < gap * (1 - 1e-9)].all()
    assert torch.equal(certificate.at(Fraction(0)), gap > 0)
    assert (certificate.radii <= certificate.real_radii.clamp(min=0) * (1 + 1e-6))[gap > 0].all()
    assert (certificate.radii == -math.inf)[gap <= 0].all()


def test_the_real_certificate_is_wrong_where_the_sound_one_is_right():
    net, image, label = rounding_net()
    epsilon = Fraction(1, 1000)
    moved = image + 0.0001
    assert abs(rationals(moved)[0] - rationals(image)[0]) <= epsilon
    assert margin(net(image), label) > 0
    assert margin(net(moved), label) < 0
    assert real_certified(net(image).detach(), label, net.lipschitz, epsilon).item()  # wrong: `moved` breaks it
    certificate = certify_by_margin(net, image, label)
    assert certificate.real_radii.item() > epsilon
    assert not certificate.at(epsilon).item()
    assert certificate.radii.item() == 0
    assert not certified_by_interval(net, image, label, epsilon).item()


def one_coarse_step(step: str, width: int) -> LinfNet:
    """x + 2^20, which rounds in steps of 1/8, computed by one step of one neuron; the other numbers are small."""
    coarse, shifted = 2.0**20, "shift" in step
    net = LinfNet(
        (1, 1, 1), 2, (width,), mean=-coarse if step == "mean" else 0.0, mean_shift=shifted, hidden_bias="bias" in step,
        identity_init=False,
    ).eval()  # fmt: skip
    hidden, last = net.layers
    with torch.no_grad():
        hidden.weight.fill_(coarse if step == "mean" else 0.0)
        if "weight" in step:
            hidden.weight[0] = -coarse
        if step == "shift":
            hidden.shift.running_mean[0] = -coarse
        if "bias" in step:
            hidden.bias[0] = coarse
        start = 0.0 if step == "mean" else coarse  # the weight subtracts the large mean again
        last.weight.copy_(hidden(torch.full((1, 1), 1 / 16)))
        last.weight[:, 0] = torch.tensor([start, start + 1 / 8])
    return net


STEPS = ["weight", "weight before shift", "shift", "bias", "bias after shift"]


@pytest.mark.parametrize(("step", "width"), [("mean", 1), *itertools.product(STEPS, [1, 64])])
def test_the_magnitude_of_every_step_counts(step: str, width: int):
    """With 64 neurons, the mean over the neurons is far below the largest number."""
    check_coarse_step(one_coarse_step(step, width), torch.full((1, 1, 1, 1), 1 / 16))


def test_both_logits_may_jump_by_a_whole_step():
    """Distances above 2^20 come in steps of 1/8; at 1/16 one jumps up and the other down: an error at x and at x'."""
    net = LinfNet((1, 1, 1), 2, (), identity_init=False).eval()
    with torch.no_grad():
        net.layers[0].weight.copy_(torch.tensor([[-(2.0**20)], [2.0**20 + 1]]))
        net.layers[0].bias.copy_(torch.tensor([-(2.0**20), -(2.0**20) - 0.75]))
    image = torch.full((1, 1, 1, 1), 1 / 16)
    beside = torch.nextafter(image, torch.tensor(1.0))
    assert margin(net(torch.nextafter(image, torch.tensor(0.0))), torch.tensor([0])).item() == 0.25
    assert margin(net(beside), torch.tensor([0])).item() == 0
    assert certify_by_margin(net, torch.nextafter(image, torch.tensor(0.0)), torch.tensor([0])).radii.item() == 0


def test_an_epsilon_just_above_the_radius_is_not_certified():
    """Between two float64 numbers: rounding it to the nearer one would certify it."""
    certificate = certify_by_margin(awkward_net(1, 1), torch.rand(9, 1, 1, 3))
    radius = certificate.radii.max().item()
    assert radius > 0
    for epsilon, share in ((Fraction(radius), 1 / 9), (Fraction(radius) + Fraction(1, 10**40), 0.0)):
        assert certificate.at(epsilon).double().mean().item() == share
        assert certified_shares(certificate.radii, [epsilon]) == [share]


def test_radii_of_an_ordinary_net_lose_almost_nothing():
    torch.manual_seed(0)
    net = LinfNet((1, 8, 8), 10, (64, 64), mean=0.3, std=0.4).eval()
    certificate = certify_by_margin(net, torch.rand(50, 1, 8, 8))
    lost = certificate.real_radii - certificate.radii
    assert (lost > 0).all()
    assert lost.max() < 1e-5


@pytest.mark.parametrize("value", [math.inf, math.nan, 3e38])
def test_overflow_is_never_certified(value: float):
    net = awkward_net(0, 1)
    with torch.no_grad():
        net.layers[1].weight[0, 0] = value
    images = torch.rand(20, 1, 1, 3)
    assert (certify_by_margin(net, images).radii == -math.inf).all()


def test_a_float64_net():
    net = awkward_net(1, 2).double()
    images = torch.rand(50, 1, 1, 3, dtype=torch.float64)
    check_errors(net, ExactNet(net), images)
    certificate = certify_by_margin(net, images)
    assert (certificate.radii <= certificate.real_radii).all()
    assert (certificate.radii >= certificate.real_radii - 1e-12).all()


def test_certificates_leave_p_and_hooks_as_they_were():
    net, images = awkward_net(0, 1), torch.rand(4, 1, 1, 3)
    net.p = 8.0
    net.train()
    radii = certify_by_margin(net, images).radii
    assert net.p == 8.0
    assert net.training
    assert not any(module._forward_hooks for module in net.modules())
    with pytest.raises(ArgumentError, match="expected p = inf"):
        forward_with_magnitudes(net, images)
    with pytest.raises(ArgumentError, match="expected p = inf"):
        forward_with_magnitudes(net.eval(), images)
    with net.at_infinity():
        assert torch.equal(certify_by_margin(net, images).radii, radii)


@pytest.mark.parametrize("threads", [1, 2])
def test_flushed_subnormals_are_refused(threads: int):
    net, image, label = rounding_net()
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormal numbers")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with pytest.raises(LinfnetError, match="flushed to zero"):
            certify_by_margin(net, image, label)
        with pytest.raises(LinfnetError, match="flushed to zero"):
            certified_by_interval(net, image, label, Fraction(1, 10))
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(before)
