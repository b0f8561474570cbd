"""Both certificates: ties are not certified, attacks break no certified sample, the interval one is never weaker."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from linfnet.attacks import pgd
from linfnet.certificates import certified_by_interval
from linfnet.certificates.real import real_certified, real_margin_radius
from linfnet.errors import ArgumentError
from linfnet.nn import LinfNet
from linfnet.nn.label_margin import margin

SEEDS = st.integers(0, 2**32 - 1)
EPSILONS = st.sampled_from([Fraction(1, 255), Fraction(8, 255), Fraction(1, 10), Fraction(3, 10)]) | st.fractions(
    0, 1, max_denominator=64
)


def random_net(seed: int, dtype: torch.dtype = torch.float32) -> tuple[LinfNet, torch.Tensor, torch.Tensor]:
    """A random net in eval mode, images, and mostly correct labels."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    net = LinfNet((1, 4, 4), 3, (12, 12), mean=0.3, std=0.4).to(dtype)
    images = torch.rand(16, 1, 4, 4, generator=generator).to(dtype)
    net(images)
    net.eval()
    labels = net(images).argmax(1).detach()
    labels[:4] = torch.randint(3, (4,), generator=generator)
    return net, images, labels


@given(SEEDS)
def test_zero_certifies_exactly_the_rightly_classified_without_ties(seed: int):
    net, images, labels = random_net(seed)
    logits = net(images).detach()
    right = margin(logits, labels) > 0
    assert torch.equal(real_certified(logits, labels, net.lipschitz, Fraction(0)), right)
    assert torch.equal(certified_by_interval(net, images, labels, Fraction(0)), right)


def test_ties_are_not_certified():
    net, images, _ = random_net(0)
    with torch.no_grad():
        net.layers[-1].weight.copy_(net.layers[-1].weight[:1].expand(3, -1))
    logits = net(images).detach()
    labels = logits.argmax(1)
    assert not real_certified(logits, labels, net.lipschitz, Fraction(0)).any()
    assert not certified_by_interval(net, images, labels, Fraction(0)).any()


def test_a_margin_of_exactly_twice_epsilon_is_not_enough():
    logits, labels = torch.tensor([[0.5, 0.0], [0.5000001, 0.0]]), torch.tensor([0, 0])
    assert real_certified(logits, labels, 1.0, Fraction(1, 4)).tolist() == [False, True]
    assert real_margin_radius(logits, labels, 2.0)[0].item() == 0.125


@given(SEEDS, EPSILONS)
def test_the_interval_proves_what_the_margin_proves(seed: int, epsilon: Fraction):
    net, images, labels = random_net(seed, torch.float64)
    radius = real_margin_radius(net(images).detach(), labels, net.lipschitz)
    by_interval = certified_by_interval(net, images, labels, epsilon)
    clearly = radius > float(epsilon) + 1e-9
    assert by_interval[clearly].all()


@given(SEEDS, EPSILONS)
def test_no_certified_sample_is_broken(seed: int, epsilon: Fraction):
    net, images, labels = random_net(seed)
    logits = net(images).detach()
    certified = certified_by_interval(net, images, labels, epsilon)
    certified |= real_certified(logits, labels, net.lipschitz, epsilon)
    generator = torch.Generator().manual_seed(seed)
    moved = pgd(net, images, labels, epsilon, steps=10, generator=generator)
    assert (margin(net(moved), labels)[certified] > 0).all()


def test_the_attack_does_break_what_is_not_certified():
    """Otherwise the test above could not fail."""
    broken = certified = 0
    for seed in range(20):
        net, images, labels = random_net(seed)
        right = margin(net(images), labels) > 0
        moved = pgd(net, images, labels, Fraction(1, 10), steps=20, generator=torch.Generator().manual_seed(seed))
        broken += int((right & (margin(net(moved), labels) <= 0)).sum())
        certified += int(certified_by_interval(net, images, labels, Fraction(1, 100)).sum())
    assert broken > 20
    assert certified > 20


def test_clipping_to_pixels_can_prove_more_than_the_margin():
    net = LinfNet((1, 1, 1), 2, (), mean_shift=False, identity_init=False)
    with torch.no_grad():
        net.layers[0].weight.copy_(torch.tensor([[0.0], [1.5]]))
    images, labels = torch.tensor([[[[1.0]]]]), torch.tensor([1])
    logits = net(images).detach()
    epsilon = Fraction(2, 5)
    assert real_margin_radius(logits, labels, net.lipschitz).item() == pytest.approx(0.25)
    assert not real_certified(logits, labels, net.lipschitz, epsilon).item()
    assert certified_by_interval(net, images, labels, Fraction(1, 5)).item()


def test_certificates_stand_at_infinity_whatever_p_is():
    net, images, labels = random_net(3)
    expected = certified_by_interval(net, images, labels, Fraction(1, 100))
    net.p = 8.0
    net.train()
    assert torch.equal(certified_by_interval(net, images, labels, Fraction(1, 100)), expected)
    assert net.p == 8.0


def test_images_outside_the_pixel_range_are_refused():
    net, images, labels = random_net(0)
    with pytest.raises(ArgumentError, match=r"expected \[0, 1\]"):
        certified_by_interval(net, images + 0.5, labels, Fraction(1, 100))
