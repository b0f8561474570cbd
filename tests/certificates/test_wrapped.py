"""The certificates of wrapped nets against rational arithmetic, all images of small boxes, and corners at the radii."""

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from certificates.checks import check_coarse_step, check_errors, check_small_box
from certificates.exact import ExactBody, awkward_net, wrapped_net
from torch import Tensor, nn

from linfnet.attacks import pgd
from linfnet.boxes import inner_box, outer_box
from linfnet.certificates import certified_by_interval, certify_by_margin, certify_images, interval_radius
from linfnet.nn import Classifier, LpDistance, MeanShift
from linfnet.nn.label_margin import label_on_top


@pytest.mark.parametrize("widest", [1, 8, 40, 110])
def test_the_error_bound_holds_in_rational_arithmetic(widest: int):
    tightest = 0.0
    for seed in range(24):
        net = wrapped_net(seed, widest)
        images = torch.rand(6, *net.image_shape, generator=torch.Generator().manual_seed(seed))
        tightest = max(tightest, check_errors(net, ExactBody(net), images))
    assert tightest > 0.01


@pytest.mark.parametrize("widest", [0, 1, 3, 13, 20])
def test_every_image_of_a_small_box_obeys_both_bounds(widest: int):
    reached = certified = 0.0
    for seed in range(0, 45, 3):  # vectors of two numbers
        share, kept = check_small_box(wrapped_net(seed, widest), seed)
        reached, certified = max(reached, share), certified + kept
    assert reached > 0.02 or widest > 3
    assert certified > 5 or widest > 3


@pytest.mark.parametrize("widest", [0, 2, 8, 20])
@pytest.mark.parametrize("seed", range(9))
def test_corners_at_the_radius_keep_the_class(seed: int, widest: int):
    net = wrapped_net(seed, widest)
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(40, *net.image_shape, generator=generator)
    found = certify_images(net, [(images, None)], steps=10)
    for radii in found.radii.values():
        kept = radii > 0
        lower, upper = inner_box(images[kept], radii[kept].clamp(max=1))
        for trial in range(60):
            noise = torch.rand(lower.shape, generator=generator)
            moved = torch.where(noise < 0.5, lower, upper) if trial % 3 else lower + noise * (upper - lower)
            moved = moved.clamp(lower, upper)
            assert label_on_top(net(moved), found.labels[kept]).all()
        attacked = (
            pgd(net, images[kept], found.labels[kept], Fraction(min(radii[kept].min().item(), 1)))
            if kept.any()
            else images[:0]
        )
        assert label_on_top(net(attacked), found.labels[kept]).all()
    if widest < 3:
        assert (found.best_radii > 0).double().mean() > 0.5


@pytest.mark.parametrize("epsilon", [Fraction(0), Fraction(1, 2**24), Fraction(1, 1000), Fraction(1, 4)])
@pytest.mark.parametrize("widest", [0, 8, 20, 110])
def test_bounds_enclose_corners_and_random_images(widest: int, epsilon: Fraction):
    for seed in range(12):
        net = wrapped_net(seed, widest)
        generator = torch.Generator().manual_seed(seed)
        images = torch.rand(20, *net.image_shape, generator=generator)
        lower, upper = outer_box(images, epsilon)
        low, high = net.bounds(lower, upper)
        for trial in range(10):
            noise = torch.rand(images.shape, generator=generator)
            moved = torch.where(noise < 0.5, lower, upper) if trial % 2 else lower + noise * (upper - lower)
            logits = net(moved.clamp(lower, upper))
            assert ((low <= logits) & (logits <= high)).all()
        if epsilon == 0:
            assert torch.equal(low, net(images))
            assert torch.equal(high, low)


OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "negative product": lambda x: -0.5 * x,
    "product": lambda x: x * 0.75,
    "negative quotient": lambda x: x / -3.0,
    "quotient": lambda x: x / 3.0,
    "absolute": abs,
    "difference": lambda x: 0.25 - x,
    "sum": lambda x: x + 0.25,
    "negation": lambda x: -x,
    "clamp": lambda x: x.clamp(min=-0.1, max=0.2),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_bounds_of_each_operation_are_attained(name: str):
    """On boxes of negative and positive numbers, and around 0; the steps of the grid contain 0 and both ends."""

    class Body(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return OPERATIONS[name](x)

    net = Classifier.wrap(Body().eval(), (2,), 2, mean=(0.5, 0.5))
    for ends in ((0.0, 0.25), (0.125, 0.875), (0.375, 1.0), (0.75, 1.0)):
        points = torch.arange(ends[0], ends[1] + 1 / 32, 1 / 16)
        assert points[-1] == ends[1]
        logits = net(points.unsqueeze(1).expand(-1, 2))
        low, high = net.bounds(*(torch.full((1, 2), end) for end in ends))
        assert torch.equal(low[0], logits.amin(0))
        assert torch.equal(high[0], logits.amax(0))


class Copy(nn.Module):
    """The layers of a LinfNet in a user's own module."""

    def __init__(self, layers: nn.Sequential, negate: bool) -> None:
        super().__init__()
        self.layers, self.negate = layers, negate

    def forward(self, x: Tensor) -> Tensor:
        y = self.layers(x.view(x.size(0), -1))
        return -y if self.negate else y


@pytest.mark.parametrize("widest", [0, 1, 8, 30])
def test_a_wrapped_linf_net_has_the_same_certificates(widest: int):
    for seed in range(10):
        net = awkward_net(seed, widest, (2, 1, 2))
        own = Classifier.wrap(Copy(net.layers, net.negate_logits), (2, 1, 2), 3, mean=net.mean, std=net.std)
        images = torch.rand(50, 2, 1, 2, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(net(images), own(images))
        one, other = certify_by_margin(net, images), certify_by_margin(own, images)
        assert torch.equal(one.radii, other.radii)
        assert torch.equal(one.real_radii, other.real_radii)
        assert torch.equal(interval_radius(net, images, one.labels), interval_radius(own, images, one.labels))
        box = outer_box(images, Fraction(1, 50))
        assert all(torch.equal(a, b) for a, b in zip(net.bounds(*box), own.bounds(*box), strict=True))


COARSE = 2.0**20


def shifted_by(value: float) -> MeanShift:
    shift = MeanShift(1)
    shift.running_mean.fill_(value)
    return shift


class Coarse(nn.Module):
    """x + 2^20, which rounds in steps of 1/8, by one operation; the later steps are exact."""

    def __init__(self, step: Callable[[nn.Module, Tensor], Tensor], sign: float) -> None:
        super().__init__()
        self.step = step
        self.last = LpDistance(1, 2)
        self.offset = nn.Parameter(torch.tensor([COARSE]))
        self.register_buffer("minus", torch.tensor(-COARSE))
        self.shift, self.pool = shifted_by(-COARSE), nn.AvgPool2d(1)
        with torch.no_grad():
            self.last.weight.copy_(torch.tensor([[sign * COARSE], [sign * (COARSE + 1 / 8)]]))

    def forward(self, x: Tensor) -> Tensor:
        return -self.last(self.step(self, x))


STEPS = {
    "number": lambda body, x: x + COARSE,
    "parameter": lambda body, x: torch.add(x, body.offset),
    "difference": lambda body, x: x - body.minus,
    "subtracted": lambda body, x: body.minus - x,
    "mean shift": lambda body, x: body.shift(x),
    "branch of a maximum": lambda body, x: torch.maximum(x, x + COARSE),
    "coarser of two branches": lambda body, x: torch.maximum(x - 0.25, x + COARSE),
    "branch of cat": lambda body, x: torch.cat([x, x + COARSE], 1)[:, 1:],
    "average of a branch": lambda body, x: body.pool((x + COARSE)[:, :, None, None]).flatten(1),
    "padded": lambda body, x: nn.functional.pad(x + COARSE, (1, 1)).amax(1, keepdim=True),
}


@pytest.mark.parametrize("step", STEPS)
def test_the_magnitude_of_every_step_counts(step: str):
    net = Classifier.wrap(Coarse(STEPS[step], -1.0 if step == "subtracted" else 1.0).eval(), (1,), 2)
    image = torch.full((1, 1), 1 / 16)
    check_coarse_step(net, image)
    assert certified_by_interval(net, image, torch.tensor([0]), Fraction(0)).item()


@pytest.mark.parametrize("value", [math.inf, math.nan, 3e38])
def test_overflow_is_never_certified(value: float):
    for seed in range(3):
        net = wrapped_net(seed, 1)
        with torch.no_grad():
            list(net.body.parameters())[-2].fill_(value)
        images = torch.rand(20, *net.image_shape)
        labels = net(images).argmax(1)
        assert (certify_by_margin(net, images, labels).radii == -math.inf).all()
        assert not certified_by_interval(net, images, labels, Fraction(1, 100)).any()


def test_a_float64_net():
    net = wrapped_net(3, 2).double()
    images = torch.rand(20, 2, dtype=torch.float64)
    certificate = certify_by_margin(net, images)
    assert certificate.logits.dtype == torch.float64
    assert (certificate.radii <= certificate.real_radii).all()
    assert (certificate.radii >= certificate.real_radii - 1e-12).all()
