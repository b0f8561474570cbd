"""`Certified.at` compares radii with exact epsilons."""

import math
from fractions import Fraction

import pytest
import torch

from linfnet.certificates import certify
from linfnet.errors import ArgumentError
from linfnet.nn import LinfNet


def test_radii_are_certified_at_themselves():
    torch.manual_seed(0)
    net = LinfNet((1, 4, 4), 3, (12,), std=0.4)
    found = certify(net, torch.rand(50, 1, 4, 4), torch.arange(50) % 3)
    own, right = found.radius.clamp(0, 1), found.radius >= 0
    assert torch.equal(found.at(own), right)
    above = torch.nextafter(own, torch.tensor(2.0, dtype=torch.float64))
    assert not found.at(above).any()
    for index in right.nonzero().flatten().tolist():
        assert found.at(own[index])[index]
        assert found.at(Fraction(own[index].item()))[index]
        assert not found.at(above[index])[index]
    assert torch.equal(found.at(own[:1].squeeze()), found.radius >= own[0])


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
