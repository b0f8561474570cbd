"""Every term of the margin certificate: nets for which a radius without the term would be false.

Each test has an image, and an image beside it for which the net predicts another class.
"""

import math
from fractions import Fraction

import pytest
import torch
from certificates.checks import error_bound
from certificates.exact import awkward, awkward_net, rationals, thinned

from linfnet.certificates import certified_by_interval, certify_by_margin
from linfnet.certificates.rounding import forward_with_magnitudes, unit_and_tiny
from linfnet.nn import Classifier, LinfNet, LpDistance
from linfnet.nn.label_margin import label_on_top, margin

LARGEST = torch.finfo(torch.float32).max
# Numbers from here on have steps of 1/8, and half a step is u times the number.
COARSE = 2.0**20


def pixel(value: float) -> torch.Tensor:
    return torch.full((1, 1, 1, 1), value)


def above(image: torch.Tensor) -> torch.Tensor:
    """The image with the next float32 number in each pixel."""
    return torch.nextafter(image, torch.full_like(image, math.inf))


def check(net: Classifier, image: torch.Tensor, moved: torch.Tensor, *, before: float, after: float) -> None:
    """Check the margins of both images, and that no certificate of the first image contains the second."""
    label = net(image).argmax(1)
    assert margin(net(image).double(), label).item() == before
    assert margin(net(moved).double(), label).item() == pytest.approx(after, abs=0, rel=0, nan_ok=True)
    assert not label_on_top(net(moved), label).item()
    distance = max(abs(a - b) for a, b in zip(rationals(image), rationals(moved), strict=True))
    assert Fraction(max(certify_by_margin(net, image).radii.item(), 0.0)) < distance
    if distance <= 1:
        assert not certified_by_interval(net, image, label, distance).item()


def test_errors_at_the_moved_image_grow_with_the_distance():
    """(1 + u)^K. Every hidden layer adds slightly more than half a step of the numbers between 1/2 and 1.

    Near 0 the sum is exact. At 1/2 it is rounded up in each layer, and the error is u times the distance of the images.
    """
    net = LinfNet((1, 1, 1), 2, (1,) * 30, mean=0.5, mean_shift=False, negate_logits=False, identity_init=False).eval()
    with torch.no_grad():
        for layer in net.layers:
            layer.weight.fill_(-(2.0**-25) * (1 + 2.0**-10))
        net.layers[0].weight.fill_(-0.5)  # the mean is added again
        top = net.layers[:-1](net.normalize(pixel(0.5 + 2.0**-10)).flatten(1)).item()
        net.layers[-1].weight.copy_(torch.tensor([[0.0], [2 * top]]))
    for each in (net, thinned(net, 0, share=1.0)):
        check(each, pixel(0.0), pixel(0.5 + 2.0**-10), before=1.0019548824930098, after=0.0)


def test_quotients_underflow():
    """3 tiny. Pixels divided by the largest float32 number come in steps of 2^-149, the smallest float32 number."""
    step = 2.0**-149
    net = LinfNet((1, 1, 1), 2, (), mean=0.5, std=LARGEST, negate_logits=False, identity_init=False).eval()
    image = pixel(0.900000274181366)
    normalized = net.normalize(image).item()
    assert net.normalize(above(image)).item() == normalized + step
    with torch.no_grad():
        net.layers[0].weight.copy_(torch.tensor([[normalized + 3 * step], [normalized - step]]))
    check(net, image, above(image), before=2 * step, after=0.0)


def test_the_normalisation_rounds_twice():
    """2 |n|. The difference from the mean jumps by 1/8, and the quotient by 1/4."""
    net = LinfNet(
        (1, 1, 1), 2, (), mean=-1051073.375, std=0.9954531192779541, negate_logits=False, identity_init=False
    ).eval()
    with torch.no_grad():
        net.layers[0].weight.copy_(torch.tensor([[1055875.625], [1055874.5]]))
    check(net, pixel(11 / 16), above(pixel(11 / 16)), before=0.375, after=-0.125)


@pytest.mark.parametrize("coarse", range(3))
def test_the_largest_mean_of_a_channel_counts(coarse: int):
    """The normalised pixels of one channel are multiples of 1/16; the distances of both classes are below 1."""
    means = [COARSE if channel == coarse else 0.0 for channel in range(3)]
    net = LinfNet((3, 1, 1), 2, mean=means, mean_shift=False, identity_init=False).eval()
    with torch.no_grad():
        net.layers[0].weight.copy_(-torch.tensor([means, means]))
        net.layers[0].weight[0, coarse] += 0.5
    image, moved = torch.zeros(1, 3, 1, 1), torch.zeros(1, 3, 1, 1)
    image[0, coarse], moved[0, coarse] = 0.282, 0.281
    check(net, image, moved, before=0.125, after=0.0)


def test_the_distance_and_the_difference_from_the_mean_both_round():
    """The distance jumps by 1/8. Both differences from the mean are ties, rounded down and up: a jump of 1/4."""
    net = LinfNet((1, 1, 1), 2, (1,), negate_logits=False, identity_init=False).eval()
    with torch.no_grad():
        net.layers[0].weight.fill_(-COARSE)
        net.layers[0].shift.running_mean.fill_(-1 / 16)
        net.layers[1].weight.copy_(torch.tensor([[COARSE + 3 / 8], [COARSE]]))
    check(net, pixel(1 / 16), above(pixel(1 / 16)), before=0.375, after=-0.125)


def test_the_distance_and_the_bias_both_round():
    """The same with a bias instead of a mean."""
    net = LinfNet(
        (1, 1, 1), 2, (1,), mean_shift=False, hidden_bias=True, negate_logits=False, identity_init=False
    ).eval()
    with torch.no_grad():
        net.layers[0].weight.fill_(-COARSE)
        net.layers[0].bias.fill_(1 / 16)
        net.layers[1].weight.copy_(torch.tensor([[COARSE + 3 / 8], [COARSE]]))
    check(net, pixel(1 / 16), above(pixel(1 / 16)), before=0.375, after=-0.125)


def test_negative_results_are_as_coarse_as_positive_ones():
    """The largest result is near 0 or negative, the smallest is -2^20."""
    net = LinfNet((1, 1, 1), 2, (), negate_logits=False, identity_init=False).eval()
    with torch.no_grad():
        net.layers[0].weight.copy_(torch.tensor([[1.0], [0.0]]))
        net.layers[0].bias.fill_(-COARSE)
    check(net, pixel(15 / 32 - 2.0**-20), pixel(15 / 32 + 2.0**-20), before=0.125, after=0.0)


def test_a_number_near_the_largest_overflows():
    """The overflow guard. A layer passes its input on, and rounds it up to the next power of two only if it is a tie.

    From 8 - 2^-21 to 8, the first layer jumps to 2^28, the next to 2^53, and the fifth to infinity.
    """
    net = LinfNet((1, 1, 1), 2, (1,) * 5, std=1 / 8, mean_shift=False, identity_init=False).eval()
    with torch.no_grad():
        for layer, exponent in zip(net.layers, (28, 53, 78, 103, 128), strict=False):
            layer.weight.fill_(-(2.0**exponent - 2.0 ** (exponent - 24)))
        net.layers[-1].weight.copy_(torch.tensor([[LARGEST], [LARGEST - 2.0**114]]))
    image = torch.nextafter(pixel(1.0), torch.zeros(()))
    check(net, image, pixel(1.0), before=2.0**114, after=math.nan)
    assert net(pixel(1.0)).isinf().all()


class Deep(torch.nn.Module):
    """The hidden layers of the first test as sums, joined with the image itself."""

    def __init__(self) -> None:
        super().__init__()
        self.last = LpDistance(2, 2)

    def deep(self, x: torch.Tensor) -> torch.Tensor:
        x = x + 0.5
        for _ in range(30):
            x = x + 2.0**-25 * (1 + 2.0**-10)
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.cat([x + 0.5, self.deep(x)], 1))


def test_the_branch_with_more_steps_counts():
    """Where two branches join, K is the larger number of steps."""
    body = Deep()
    top = body.deep(torch.tensor([2.0**-10])).item()
    with torch.no_grad():
        body.last.weight.copy_(torch.tensor([[0.0, 0.0], [top, 2 * top]]))
    net = Classifier.wrap(body.eval(), image_shape=(1,), classes=2, mean=(0.5,))
    check(net, torch.zeros(1, 1), torch.full((1, 1), 0.5 + 2.0**-10), before=1.0019548526615836, after=0.0)


class Pooled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pool, self.last = torch.nn.AvgPool2d(32), LpDistance(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.pool(x).flatten(1))


def test_every_sum_of_an_average_rounds():
    """The averages of 1,024 equal numbers and of the next float32 numbers differ by hundreds of float32 numbers."""
    values = torch.linspace(0.5, 1.0, 500)
    images = values.view(-1, 1, 1, 1).expand(-1, 1, 32, 32)
    body = Pooled().eval()
    averages = torch.stack([body.pool(images).flatten(), body.pool(above(images)).flatten()])
    jump, chosen = averages.diff(dim=0)[0].max(0)
    assert jump > 100 * 2.0**-24
    with torch.no_grad():
        body.last.weight.copy_(averages[0, chosen] + torch.tensor([[2.0], [0.0]]) * jump)
    net, image = Classifier.wrap(body, image_shape=(1, 32, 32), classes=2), images[chosen][None]
    check(net, image, above(image), before=2 * jump.item(), after=0.0)


def test_products_underflow():
    """The product of 30 * 2^-149 and 0.99 is rounded to 30 * 2^-149, a hundred times."""

    class Products(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(100):
                x = 0.99 * x
            return torch.cat([x, -x], 1)

    net = Classifier.wrap(Products().eval(), image_shape=(1,), classes=2, mean=(0.5,), std=LARGEST)
    image = torch.full((1, 1), 0.50003)
    run = forward_with_magnitudes(net, image)
    logits = [Fraction(0.99) ** 100 * sign * Fraction(net.normalize(image).item()) for sign in (1, -1)]
    error = max(abs(a - b) for a, b in zip(rationals(run.logits), logits, strict=True))
    assert 10 * Fraction(1, 2**149) < error <= Fraction(error_bound(run).item())


class Average(torch.nn.Module):
    """Two logits of the average of 32 x 32 pixels: the first is at least a large number, the second is the average."""

    def __init__(self, least: float) -> None:
        super().__init__()
        self.pool, self.least = torch.nn.AvgPool2d(32), least

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        average = self.pool(x).flatten(1)
        return torch.cat([average.clamp(min=self.least), average], 1)


def test_the_sum_of_an_average_overflows():
    """The limits of magnitudes and margin: images far outside [0, 1] are within the radius of a huge margin."""
    least = 2.0**120
    net = Classifier.wrap(Average(least), image_shape=(1, 32, 32), classes=2)
    image = torch.zeros(1, 1, 32, 32)
    check(net, image, torch.full_like(image, 2.0**118), before=least, after=math.nan)
    assert net(torch.full_like(image, 2.0**118)).isinf().all()
    small = Classifier.wrap(Average(2.0**100), image_shape=(1, 32, 32), classes=2)
    assert certify_by_margin(small, image).radii.item() > 2.0**98


@torch.no_grad()
def formula(net: LinfNet, image: torch.Tensor) -> Fraction:
    """The radius of docs/certificates.md in rational arithmetic, for a net without means and biases.

    The largest normalised pixel must be an end of [0, 1].
    """
    unit, tiny = unit_and_tiny(image.dtype)
    values = net.normalize(image).flatten(1)
    largest = [values.abs().max()] * 2
    for layer in net.layers:
        values = layer(values)
        largest.append(values.abs().max())
    largest.append(values.abs().max())  # the bias of the last layer, which is 0
    best, second = sorted(rationals(values if not net.negate_logits else -values), reverse=True)[:2]
    bound = (best - second) / (2 * (1 + unit) ** len(largest)) - unit * (2 + unit) * sum(
        map(Fraction, map(float, largest))
    )
    return Fraction(net.normalize.std.item()) * (bound - 3 * tiny)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_radius_is_that_of_the_proof_rounded_down(dtype: torch.dtype):
    """Without the decrease by 2^-49, every other radius would be too large."""
    positive = 0
    for seed in range(200):
        generator = torch.Generator().manual_seed(seed)
        std = float(torch.rand((), generator=generator)) + 0.05
        net = LinfNet((1, 1, 3), 3, (4, 3), mean=0.25, std=std, mean_shift=False, identity_init=False).to(dtype).eval()
        with torch.no_grad():
            for layer in net.layers:
                size = awkward(tuple(layer.weight.shape), generator, seed % 12).to(dtype)
                layer.weight.copy_(size * (1 + torch.rand(size.shape, generator=generator, dtype=dtype)))
        image = torch.tensor([1.0, *torch.rand(2, generator=generator)], dtype=dtype).view(1, 1, 1, 3)
        radius, exact = Fraction(max(certify_by_margin(net, image).radii.item(), 0.0)), formula(net, image)
        assert radius <= max(exact, 0)
        gap = Fraction(margin(net(image).double(), net(image).argmax(1)).item())
        assert radius >= exact - gap * Fraction(net.normalize.std.item()) / 2**48
        positive += radius > 0
    assert positive > 50


@pytest.mark.parametrize("widest", [8, 40])
def test_magnitudes_are_not_below_their_exact_sum(widest: int):
    """Numbers of very different magnitudes: a float64 sum rounds."""
    for seed in range(30):
        net = awkward_net(seed, widest)
        net.normalize.mean.fill_(0.25 + seed % 2 / 2)  # the largest normalised pixel is 1 or 0
        images = torch.rand(20, 1, 1, 3, generator=torch.Generator().manual_seed(seed))
        rounding, run = net.measure(images)[1], forward_with_magnitudes(net, images)
        assert run.steps == rounding.steps + 2 == len(rounding.sizes) + 2
        twice = 2 * Fraction(max(abs(net.normalize(end).item()) for end in (pixel(0.0), pixel(1.0))))
        exact = [sum(column) + twice for column in zip(*map(rationals, rounding.sizes), strict=True)]
        assert all(Fraction(found) >= sum_ for found, sum_ in zip(run.magnitudes, exact, strict=True))
        assert all(
            Fraction(found) <= sum_ * (1 + Fraction(1, 2**40))
            for found, sum_ in zip(run.magnitudes, exact, strict=True)
        )
