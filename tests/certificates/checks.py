"""Checks of the certificates of all kinds of nets: against rational arithmetic and every image of a small box."""

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import torch
from certificates.exact import all_images, rationals
from torch import Tensor

from linfnet.boxes import outer_box
from linfnet.certificates import certified_by_interval, certify_by_margin
from linfnet.certificates.rounding import Pass, float_above, forward_with_magnitudes, unit_and_tiny
from linfnet.nn import ProvenNet
from linfnet.nn.label_margin import label_on_top


def up(value: float) -> float:
    """A number strictly above the exact result of the single operation that computed `value`."""
    return math.nextafter(value, math.inf)


def error_bound(run: Pass) -> Tensor:
    """float64 [N]: a bound on the difference between the logits of the program and those of the exact net at x."""
    unit, tiny = unit_and_tiny(run.logits.dtype)
    slope, rest = float_above(unit * (1 + unit) ** 2), float_above(2 * tiny)
    return torch.tensor([up(up(slope * magnitude) + rest) for magnitude in run.magnitudes], dtype=torch.float64)


def change_bound(run: Pass, epsilon: Fraction) -> Tensor:
    """float64 [N]: a bound on the change of each logit between x and any floating-point x' within epsilon of x."""
    unit, tiny = unit_and_tiny(run.logits.dtype)
    growth, slope = (1 + unit) ** run.steps, float_above(unit * (2 + unit))
    rest = float_above(Fraction(float_above(epsilon / Fraction(run.std))) + Fraction(float_above(3 * tiny)))
    bounds = [up(float_above(growth) * up(up(slope * magnitude) + rest)) for magnitude in run.magnitudes]
    return torch.tensor(bounds, dtype=torch.float64)


def check_program(net: ProvenNet, images: Tensor, expected: np.ndarray) -> None:
    """Check that a net computes these float32 numbers, to the bit, for all images together and one by one."""
    assert expected.dtype == np.float32
    assert np.array_equal(net(images).detach().numpy(), expected)
    assert np.array_equal(np.concatenate([net(image[None]).detach().numpy() for image in images]), expected)


def check_errors(
    net: ProvenNet,
    exact: Callable[[Tensor], list[Fraction]],
    images: Tensor,
    pixels: tuple[float, float] = (0.0, 1.0),
) -> float:
    """Check that rounding errors of logits stay within their bound; return the largest as a share of the bound."""
    run = forward_with_magnitudes(net, images, pixels)
    assert torch.equal(run.logits, net(images))
    share = 0.0
    for image, logits, bound in zip(images, run.logits, error_bound(run).tolist(), strict=True):
        error = max(abs(a - b) for a, b in zip(rationals(logits), exact(image), strict=True))
        assert error <= Fraction(bound)
        share = max(share, float(error) / bound)
    return share


def check_small_box(net: ProvenNet, seed: int) -> tuple[float, bool]:
    """Check both certificates on every image of a small box around a random image.

    Returns the largest change of a logit as a share of its bound, and whether the image is certified.
    """
    image = torch.rand(1, *net.image_shape, generator=torch.Generator().manual_seed(seed))
    epsilon = Fraction(2 + seed % 9, 2**25) + Fraction(1, 3 * 2**26)
    images = all_images(image[0], epsilon)
    assert len(images) > 3
    run, logits = forward_with_magnitudes(net, image), net(images)
    change, bound = (logits.double() - run.logits.double()).abs().max().item(), change_bound(run, epsilon).item()
    assert change <= bound
    low, high = net.bounds(*outer_box(image, epsilon))
    assert ((low <= logits) & (logits <= high)).all()
    label = run.logits.argmax(1)
    by_margin = certify_by_margin(net, image).at(epsilon).item()
    certified = by_margin or certified_by_interval(net, image, label, epsilon).item()
    assert not certified or label_on_top(logits, label.expand(len(images))).all()
    return change / bound, bool(certified)


def check_coarse_step(net: ProvenNet, image: Tensor) -> None:
    """Check that an image of class 0, beside one of class 1, is certified at no radius above 0 that includes both."""
    beside = torch.nextafter(image, torch.tensor(1.0))
    assert net(image).argmax().item() == 0
    assert net(beside).argmax().item() == 1
    certificate = certify_by_margin(net, image)
    assert certificate.real_radii.item() == 1 / 16
    assert certificate.radii.item() == 0
    assert not certified_by_interval(net, image, torch.tensor([0]), Fraction(1, 2**20)).item()
