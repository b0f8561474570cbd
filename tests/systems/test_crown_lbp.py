"""CROWN-LBP: ramps are bent after the first phase, and certificates are those of linear relaxation."""

from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from systems.small import check_least_margin, digits, state_at

from linfnet.bounds import margin_bounds, smallest_margin
from linfnet.boxes import inner_box
from linfnet.data import load
from linfnet.errors import ArgumentError
from linfnet.recipes import load_recipe
from linfnet.systems import system_of
from linfnet.systems.crown_lbp import CrownLbp, CrownLbpNet
from linfnet.train import step_state

RECIPE = load_recipe("mnist-0.1-crown-lbp", ["data.name=digits", "system.architecture=small"])


def bent_net(certificate: str = "crown-lbp") -> CrownLbpNet:
    torch.manual_seed(0)
    net = CrownLbpNet((1, 8, 8), 10, "small", False, certificate, mean=0.3, std=0.4)
    for ramp in net.ramps:
        ramp.bend.data.uniform_(0.01, 0.3)
        ramp.bent.fill_(True)
        ramp.slope.fill_(0.05)
    return net.eval()


@pytest.mark.parametrize("certificate", ["crown-lbp", "crown-ibp"])
def test_no_image_in_the_ball_has_a_smaller_margin(certificate: str):
    net, (images, labels) = bent_net(certificate), digits()
    check_least_margin(net, *inner_box(images, Fraction(1, 50)), labels, slack=1e-5)


def test_samples_that_intervals_certify_are_not_bounded_again():
    net, (images, labels) = bent_net(), digits()
    with torch.no_grad():
        labels = net(images).argmax(1)
        eps = torch.linspace(0, 0.05, len(images)).view(-1, 1, 1, 1)
        lower, upper = (images - eps).clamp(min=0), (images + eps).clamp(max=1)
        ends = net.normalize.bounds(lower, upper)
        cheap, tight = (
            smallest_margin(margin_bounds(net.body, *ends, labels, method, slope="zero"), labels)
            for method in ("crown-ibp", "crown-lbp")
        )
        found = net.least_margin(lower, upper, labels)
    assert 0 < int((cheap > 0).sum()) < len(images)
    torch.testing.assert_close(found, torch.where(cheap > 0, cheap, tight))


def test_the_ramps_are_bent_after_the_first_phase():
    system, (images, labels) = system_of(RECIPE), digits()
    torch.manual_seed(0)
    net = system.build(RECIPE, load("digits").info).train()
    assert isinstance(net, CrownLbpNet)
    for step in range(3):
        loss, logits = system.loss(RECIPE, net, images, labels, step_state(RECIPE, step, 4))
    torch.testing.assert_close(loss, F.cross_entropy(logits, labels))
    first = net.ramps[0]
    outputs = first(net.layers[0](net.normalize(images))).mean(0).detach()
    torch.testing.assert_close(first.mean, outputs * (1 - 0.95**4))  # the line above is recorded, too
    assert not first.bent
    mean = first.mean.clone()
    net.eval()(images)
    assert torch.equal(first.mean, mean)
    system.loss(RECIPE, net.train(), images, labels, state_at(RECIPE, 10.5))
    assert bool(first.bent)
    torch.testing.assert_close(first.bend.detach(), mean)
    first.bend.data.add_(1)
    system.loss(RECIPE, net, images, labels, state_at(RECIPE, 10.75))
    torch.testing.assert_close(first.bend.detach(), mean + 1)
    assert torch.equal(first.mean, mean)


def test_the_slope_falls_to_zero():
    system = system_of(RECIPE)
    assert isinstance(system, CrownLbp)
    slopes = [system.slope_at(RECIPE, state_at(RECIPE, epoch)) for epoch in (0, 70, 105, 140, 199)]
    assert slopes == pytest.approx([0.01, 0.01, 0.005, 0, 0], abs=1e-12)


def test_another_certificate_is_refused():
    with pytest.raises(ArgumentError, match="certificate is 'exact'; expected one of crown-lbp, crown-ibp"):
        CrownLbpNet((1, 8, 8), 10, "small", False, "exact")
