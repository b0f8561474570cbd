"""Certificates by name over many images: batches, predictions, the curve and the files."""

import csv
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from certificates.exact import awkward_net
from hypothesis import given
from hypothesis import strategies as st

from linfnet.certificates import (
    ExactRadii,
    certificates_of,
    certified_by_interval,
    certified_shares,
    certify_by_margin,
    certify_images,
    decide,
    interval_radius,
    plot_curve,
    write_curve,
    write_radii,
)
from linfnet.errors import LinfnetError
from linfnet.nn import Classifier, LinfNet

EPSILONS = (Fraction(0), Fraction(1, 255), Fraction(1, 10))


def batches() -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.rand(30, 1, 1, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(3, (30,), generator=torch.Generator().manual_seed(1))
    return images, torch.where(torch.arange(30) % 3 > 0, awkward_net(7, 0)(images).argmax(1), labels)


def test_batches_give_what_the_whole_gives():
    net, (images, labels) = awkward_net(7, 0), batches()
    found = certify_images(net, zip(images.split(7), labels.split(7), strict=True), EPSILONS)
    margins = certify_by_margin(net, images, labels)
    assert found.names == ("margin", "interval")
    assert torch.equal(found.radii["margin"], margins.radii)
    assert torch.equal(found.radii["interval"], interval_radius(net, images, labels))
    assert torch.equal(found.best_radii, torch.maximum(*found.radii.values()))
    assert torch.equal(found.certified_by_any, found.certified["margin"] | found.certified["interval"])
    assert torch.equal(found.real_margin_radii, margins.real_radii)
    for row, epsilon in enumerate(EPSILONS):
        assert torch.equal(found.certified["margin"][row], margins.at(epsilon))
        assert torch.equal(found.certified["interval"][row], certified_by_interval(net, images, labels, epsilon))
    assert (
        found.certified["interval"][0].double().mean()
        == found.clean
        == certified_shares(margins.radii, [Fraction(0)])[0]
    )
    assert torch.equal(found.predictions, net(images).argmax(1))
    assert not (found.runners_up == found.predictions).any()


def test_coarse_bisection_loses_nothing_at_the_epsilons_asked_for():
    net, (images, labels) = awkward_net(7, 0), batches()
    found = certify_images(net, [(images, labels)], EPSILONS, steps=3)
    for row, epsilon in enumerate(EPSILONS):
        assert torch.equal(found.certified["interval"][row], certified_by_interval(net, images, labels, epsilon))


def test_an_epsilon_just_above_a_radius_is_not_certified():
    """Between two float64 numbers: rounding it to the nearer one would certify it."""
    net, (images, labels) = awkward_net(7, 0), batches()
    radius = certify_by_margin(net, images, labels).radii.max().item()
    found = certify_images(net, [(images, labels)], [Fraction(radius), Fraction(radius) + Fraction(1, 10**40)])
    assert found.certified["margin"].sum(1).tolist() == [1, 0]


def test_an_epsilon_just_above_an_exact_radius_is_decided(monkeypatch: pytest.MonkeyPatch):
    """The tie at 1/2 is further from the pixel than the radius, by less than half the distance of two float64 numbers.

    No smaller radius is found: the exact radius is given.
    """
    net, image = (
        LinfNet((1, 1, 1), 2, (), identity_init=False).eval(),
        torch.full((1, 1, 1, 1), 2.0**-54 * (1 - 2.0**-23)),
    )
    with torch.no_grad():
        net.layers[0].weight.copy_(torch.tensor([[0.0], [1.0]]))
    distance = Fraction(1, 2) - Fraction(image.item())
    radius = float(distance)
    assert Fraction(radius) < distance
    assert decide(net, image, eps=Fraction(radius)).robust.item()
    ends = torch.tensor([[radius], [1.0]], dtype=torch.float64)
    known = ExactRadii(*ends, image, torch.tensor([False]))
    monkeypatch.setattr("linfnet.certificates.images.exact_radius", lambda *arguments, **options: known)
    found = certify_images(net, [(image, None)], [Fraction(radius), distance], exact=True)
    assert found.certified["exact"].flatten().tolist() == [True, False]


def test_without_labels_the_predictions_are_certified():
    net, (images, _) = awkward_net(7, 0), batches()
    found = certify_images(net, [(images, None)])
    assert torch.equal(found.labels, found.predictions)
    assert found.clean == 1
    assert found.certified["margin"].shape == (0, 30)
    with pytest.raises(LinfnetError, match="no images"):
        certify_images(net, [])


def test_the_curve_falls_and_is_written(tmp_path: Path):
    net, (images, labels) = awkward_net(7, 0), batches()
    found = certify_images(net, [(images, labels)])
    curve = epsilons, shares = found.curve(20)
    assert (epsilons[0], epsilons[-1]) == (0, Fraction(found.best_radii.max().item()))
    assert list(shares) == ["margin", "interval"]
    assert max(column[-1] for column in shares.values()) > 0
    for column in shares.values():
        assert len(column) == 20
        assert column[0] == found.clean
        assert column == sorted(column, reverse=True)
    write_curve(curve, tmp_path / "curve.csv")
    write_radii(found, tmp_path / "radii.csv")
    plot_curve(curve, tmp_path / "curve.png", "a net")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    with (tmp_path / "radii.csv").open(newline="") as file:
        written = list(csv.DictReader(file))
    assert [float(row["margin_radius"]) for row in written] == found.radii["margin"].tolist()
    assert [float(row["interval_radius"]) for row in written] == found.radii["interval"].tolist()
    lines = (tmp_path / "curve.csv").read_text().splitlines()
    assert lines[0] == "eps,certified_margin,certified_interval"
    assert len(lines) == 21


class LinearNet(Classifier):
    """A net of another system: one certificate, in real arithmetic, by its own bounds."""

    system, certificate_names = "linear", ("corners",)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        score = images.flatten(1).sum(1) - 1
        return torch.stack([score, -score], 1)

    def least_margin(self, lower: torch.Tensor, upper: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        worst = torch.where(labels == 0, lower.flatten(1).sum(1) - 1, 1 - upper.flatten(1).sum(1))
        return 2 * worst


class ClosedFormNet(LinearNet):
    """The same with radii in closed form."""

    def certified_radius(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        score = (images.double().flatten(1).sum(1) - 1) * (1 - 2 * labels)
        return torch.where(score > 0, score / 2 - 1e-6, -torch.inf)


def test_at_epsilon_0_the_bounds_do_not_count():
    """Bounds round, so they may be negative for an image that is classified correctly, and positive for another."""

    class Wrong(LinearNet):
        def least_margin(self, lower: torch.Tensor, upper: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return torch.tensor([-1.0, 1.0])

    net, images = Wrong((1, 1, 2), 2), torch.full((2, 1, 1, 2), 0.75)
    assert net.certified(images, torch.tensor([0, 0]), Fraction(0)).tolist() == [True, True]
    assert net.certified(images, torch.tensor([0, 0]), Fraction(1, 10)).tolist() == [False, True]
    for epsilon in (Fraction(0), Fraction(1, 10)):
        assert net.certified(images, torch.tensor([1, 1]), epsilon).tolist() == [False, False]


@pytest.mark.parametrize("kind", [LinearNet, ClosedFormNet])
def test_another_system_has_its_own_certificate_by_name(kind: type[LinearNet], tmp_path: Path):
    net = kind((1, 1, 2), 2)
    images, labels = torch.tensor([[0.25, 0.25], [0.75, 0.5], [0.5, 0.5]]).view(3, 1, 1, 2), torch.tensor([1, 0, 0])
    (certificate,) = certificates_of(net).values()
    assert (certificate.name, certificate.arithmetic, certificate.confidence) == ("corners", "real", 1.0)
    radii = certificate.radius(images, labels)
    torch.testing.assert_close(radii[:2], torch.tensor([0.25, 0.125]).double(), atol=2**-15, rtol=0)
    assert radii[2] == -torch.inf
    epsilon = Fraction(1, 5)
    assert certificate.at(images, labels, epsilon).tolist() == [True, False, False]
    found = certify_images(net, [(images, labels)], [epsilon])
    assert (found.names, found.arithmetic, found.real_margin_radii) == (("corners",), "real", None)
    assert torch.equal(found.best_radii, radii)
    assert found.certified["corners"].tolist() == [[True, False, False]]
    write_radii(found, tmp_path / "radii.csv", ["a", "b", "c"])
    header, *rows = csv.reader((tmp_path / "radii.csv").read_text().splitlines())
    assert header == ["image", "label", "prediction", "runner_up", "corners_radius", "guarantee"]
    assert [row[-1] for row in rows] == [found.guarantee] * 3


@given(st.integers(0, 2**32 - 1), st.fractions(0, Fraction(1, 4), max_denominator=1000))
def test_each_certificate_is_consistent_with_its_radius(seed: int, epsilon: Fraction):
    net = awkward_net(seed, 0)
    images = torch.rand(6, 1, 1, 3, generator=torch.Generator().manual_seed(seed))
    labels = net(images).argmax(1)
    for certificate in certificates_of(net, steps=6).values():
        assert (certificate.arithmetic, certificate.confidence) == ("float32", 1.0)
        radii, certified = certificate.radius(images, labels), certificate.at(images, labels, epsilon)
        assert certified[radii >= float(epsilon) + 1e-9].all()
        assert not certified[radii + certificate.resolution < float(epsilon)].any()
        assert torch.equal(certificate.at_each(images, labels, radii, [epsilon])[0], certified)
