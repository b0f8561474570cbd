"""`Certified.at` compares radii with exact epsilons."""

import math
from fractions import Fraction

import pytest
import torch

from linfnet.certificates import certify
from linfnet.certificates.certified import BATCH
from linfnet.errors import ArgumentError
from linfnet.nn import LinfNet


def test_radii_are_certified_at_themselves():
    torch.manual_seed(0)
    net = LinfNet((1, 4, 4), 3, (12,), std=0.4)
    found = certify(net, torch.rand(50, 1, 4, 4), torch.arange(50) % 3)
    own, right = found.radius.clamp(0, 1), found.radius >= 0
    assert torch.equal(found.prediction == found.labels, right)
    assert torch.equal(found.labels, torch.arange(50) % 3)
    assert torch.equal(found.at(own), right)
    above = torch.nextafter(own, torch.tensor(2.0, dtype=torch.float64))
    assert not found.at(above).any()
    for index in right.nonzero().flatten().tolist():
        assert found.at(own[index])[index]
        assert found.at(Fraction(own[index].item()))[index]
        assert not found.at(above[index])[index]
        # Between two float64 numbers: rounding it to the nearer one would certify it.
        assert not found.at(Fraction(own[index].item()) + Fraction(1, 10**40))[index]
    assert torch.equal(found.at(own[:1].squeeze()), found.radius >= own[0])


def test_several_epsilons_at_once():
    torch.manual_seed(0)
    found = certify(LinfNet((1, 4, 4), 3, (12,), std=0.4), torch.rand(50, 1, 4, 4))
    own = [Fraction(radius) for radius in found.radius.clamp(0, 1).tolist()]
    for epsilons in ([0, "0.01", 0.02, (1, 255), Fraction(1, 30)], own):
        assert torch.equal(found.at_each(epsilons), torch.stack([found.at(eps) for eps in epsilons]))
    assert found.at_each([]).shape == (0, 50)
    with pytest.raises(ArgumentError, match="eps is 8; expected a number from 0 to 1"):
        found.at_each([0.1, 8])


def test_what_changes_between_batches_is_checked():
    def compile_net(images: int) -> None:
        net.compile(backend="eager")

    def change_image(images: int) -> None:
        pixels[-1] = 2.0

    for change, message in ((compile_net, "the net is compiled"), (change_image, "have pixels from")):
        net, pixels = LinfNet((1, 2, 2), 2), torch.rand(BATCH + 1, 1, 2, 2)
        with pytest.raises(ArgumentError, match=message):
            certify(net, pixels, advance=change)


@pytest.mark.parametrize(
    ("eps", "message"),
    [
        (torch.tensor([0.1, -math.inf]), "eps is from -inf to 0.1"),
        (torch.tensor([0.1, 8]), "eps is from 0.1.* to 8; expected numbers from 0 to 1"),
        (torch.tensor([0.1, 0.1, 0.1]), r"eps has shape \(3,\)"),
        (torch.tensor(math.nan), "eps is from nan"),
        (torch.tensor([0, 1]), "expected one number, or a float64 tensor"),
    ],
)
def test_mistakes(eps: torch.Tensor, message: str):
    found = certify(LinfNet((1, 4, 4), 3, (12,)), torch.rand(2, 1, 4, 4))
    with pytest.raises(ArgumentError, match=message):
        found.at(eps)
