"""Interval radii by bisection, and the enclosure of every image of small boxes."""

from fractions import Fraction

import torch
from certificates.exact import all_images, awkward_net
from hypothesis import given
from hypothesis import strategies as st

from linfnet.boxes import outer_box
from linfnet.certificates import certified_by_interval, certify_by_margin, interval_radius
from linfnet.nn.label_margin import margin

SEEDS = st.integers(0, 2**32 - 1)


@given(SEEDS)
def test_reported_radii_are_certified_and_the_next_are_not(seed: int):
    net = awkward_net(seed, 0)
    images = torch.rand(12, 1, 1, 3, generator=torch.Generator().manual_seed(seed))
    labels = net(images).argmax(1)
    labels[:3] = (labels[:3] + 1) % 3
    radii = interval_radius(net, images, labels, steps=10)
    wrong = margin(net(images), labels) <= 0
    assert (radii[wrong] == -torch.inf).all()
    for index in (~wrong).nonzero().flatten().tolist():
        radius, sample = Fraction(radii[index].item()), slice(index, index + 1)
        assert certified_by_interval(net, images[sample], labels[sample], radius).item()
        if radius < 1:
            further = radius + Fraction(1, 2**10)
            assert not certified_by_interval(net, images[sample], labels[sample], further).item()
    by_margin = certify_by_margin(net, images, labels).radii
    assert (radii[~wrong] >= by_margin[~wrong].clamp(max=1) - 2**-10).all()


def test_a_net_that_nothing_can_change_has_radius_one():
    net = awkward_net(3, 0)
    with torch.no_grad():
        net.layers[-1].bias.copy_(torch.tensor([-100.0, 0.0, 100.0]) * (1 if net.negate_logits else -1))
    images = torch.rand(4, 1, 1, 3)
    assert interval_radius(net, images, torch.zeros(4, dtype=torch.int64)).tolist() == [1.0] * 4
    assert interval_radius(net, images[:0], torch.zeros(0, dtype=torch.int64)).shape == (0,)


def test_every_image_of_a_small_box_is_enclosed():
    """All float32 images within a few units in the last place, at ordinary, border and subnormal pixels."""
    certified = 0
    for seed in range(60):
        net = awkward_net(seed, seed % 13, (1, 1, 2))
        generator = torch.Generator().manual_seed(seed)
        image = torch.rand(1, 1, 1, 2, generator=generator)
        epsilon = Fraction(1 + seed % 7, 2**24) + Fraction(1, 3 * 2**25)
        if seed % 4 == 1:
            image[0, 0, 0, 0] = 1.0
        if seed % 4 == 2:
            image *= 2.0**-130
            epsilon = Fraction(11, 2**149) + Fraction(1, 2**151)
        if seed % 4 == 3:
            image[0, 0, 0, 1] = -0.0
            epsilon = Fraction(1, 2**147) + Fraction(1, 2**151)
        images = all_images(image[0], epsilon)
        lower, upper = outer_box(image, epsilon)
        assert (lower <= images).all()
        assert (images <= upper).all()
        logits = net(images)
        low, high = net.bounds(lower, upper)
        assert (low <= logits).all()
        assert (logits <= high).all()
        label = net(image).argmax(1)
        if certified_by_interval(net, image, label, epsilon).item():
            certified += 1
            assert (margin(logits, label.expand(len(images))) > 0).all()
    assert certified > 20


@given(SEEDS)
def test_an_epsilon_for_each_image(seed: int):
    images = torch.rand(5, 1, 2, 2, generator=torch.Generator().manual_seed(seed))
    sizes = [Fraction(0), Fraction(1, 1024), Fraction(1, 8), Fraction(1, 2), Fraction(1)]
    boxes = outer_box(images, torch.tensor([float(size) for size in sizes], dtype=torch.float64))
    for index, size in enumerate(sizes):
        alone = outer_box(images[index : index + 1], size)
        assert all(torch.equal(box[index : index + 1], one) for box, one in zip(boxes, alone, strict=True))
