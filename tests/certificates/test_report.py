import csv
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from certificates.exact import awkward_net

from linfnet.certificates import (
    certified_by_interval,
    certify_by_margin,
    certify_images,
    interval_radius,
    plot_curve,
    write_curve,
    write_radii,
)
from linfnet.errors import LinfnetError

EPSILONS = (Fraction(0), Fraction(1, 255), Fraction(1, 10))


def batches() -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.rand(30, 1, 1, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(3, (30,), generator=torch.Generator().manual_seed(1))
    return images, torch.where(torch.arange(30) % 3 > 0, awkward_net(7, 0)(images).argmax(1), labels)


def test_batches_give_what_the_whole_gives():
    net, (images, labels) = awkward_net(7, 0), batches()
    found = certify_images(net, zip(images.split(7), labels.split(7), strict=True), EPSILONS)
    margins = certify_by_margin(net, images, labels)
    assert torch.equal(found.margin_radii, margins.radii)
    assert torch.equal(found.interval_radii, interval_radius(net, images, labels))
    for row, epsilon in enumerate(EPSILONS):
        assert torch.equal(found.by_margin[row], margins.at(epsilon))
        assert torch.equal(found.by_interval[row], certified_by_interval(net, images, labels, epsilon))
    assert found.by_interval[0].double().mean() == found.clean == margins.accuracy([Fraction(0)])[0]
    assert torch.equal(found.predictions, net(images).argmax(1))
    assert not (found.runners_up == found.predictions).any()


def test_coarse_bisection_loses_nothing_at_the_epsilons_asked_for():
    net, (images, labels) = awkward_net(7, 0), batches()
    found = certify_images(net, [(images, labels)], EPSILONS, steps=3)
    for row, epsilon in enumerate(EPSILONS):
        assert torch.equal(found.by_interval[row], certified_by_interval(net, images, labels, epsilon))


def test_without_labels_the_predictions_are_certified():
    net, (images, _) = awkward_net(7, 0), batches()
    found = certify_images(net, [(images, None)])
    assert torch.equal(found.labels, found.predictions)
    assert found.clean == 1
    assert found.by_margin.shape == (0, 30)
    with pytest.raises(LinfnetError, match="no images"):
        certify_images(net, [])


def test_the_curve_falls_and_is_written(tmp_path: Path):
    net, (images, labels) = awkward_net(7, 0), batches()
    found = certify_images(net, [(images, labels)])
    rows = found.curve(20)
    assert len(rows) == 20
    assert rows[0] == (0, found.clean, found.clean)
    assert rows[-1][0] == Fraction(found.radii.max().item())
    assert max(rows[-1][1:]) > 0
    for column in (1, 2):
        shares = [row[column] for row in rows]
        assert shares == sorted(shares, reverse=True)
    write_curve(rows, tmp_path / "curve.csv")
    write_radii(found, tmp_path / "radii.csv")
    plot_curve(rows, tmp_path / "curve.png", "a net")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    with (tmp_path / "radii.csv").open(newline="") as file:
        written = list(csv.DictReader(file))
    assert [float(row["margin_radius"]) for row in written] == found.margin_radii.tolist()
    assert [float(row["interval_radius"]) for row in written] == found.interval_radii.tolist()
    assert len((tmp_path / "curve.csv").read_text().splitlines()) == 21
