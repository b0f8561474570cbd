"""CROWN-IBP: its loss mixes both bounds, and its certificate is never looser than interval bounds."""

from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from systems.small import check_least_margin, digits, state_at
from torch import nn

from linfnet.bounds import interval_boxes, interval_margins, linear_margins, margin_bounds
from linfnet.boxes import inner_box
from linfnet.data import load
from linfnet.nn.label_margin import margin
from linfnet.recipes import load_recipe
from linfnet.systems import system_of
from linfnet.systems.convolutional import ConvNet, full_precision
from linfnet.systems.crown_ibp import CrownIbp, CrownIbpNet
from linfnet.systems.ibp import IbpNet

RECIPE = load_recipe("mnist-0.1-crown-ibp", ["data.name=digits", "system.architecture=small"])


def small_net(batch_norm: bool = False) -> CrownIbpNet:
    torch.manual_seed(0)
    net = CrownIbpNet((1, 8, 8), 10, "small", batch_norm, mean=0.3, std=0.4)
    for _ in range(3):
        net(digits()[0])
    return net.eval()


@pytest.mark.parametrize("batch_norm", [False, True])
def test_the_certificate_is_never_looser_than_interval_bounds(batch_norm: bool):
    net, (images, labels) = small_net(batch_norm), digits()
    ibp = IbpNet((1, 8, 8), 10, "small", batch_norm, mean=0.3, std=0.4)
    ibp.load_state_dict(net.state_dict())
    for eps in (Fraction(1, 100), Fraction(1, 10)):
        lower, upper = inner_box(images, eps)
        found = check_least_margin(net, lower, upper, labels, slack=1e-5)
        with torch.no_grad():
            assert bool((found >= ibp.eval().least_margin(lower, upper, labels) - 1e-5).all())


def test_the_better_of_two_bounds_counts():
    net, (images, labels) = small_net(), digits()
    box = net.box_around(images, 0.1)
    with torch.no_grad():
        bounds = [
            margin_bounds(net.body, *box.ends, labels, "crown-ibp", slope=slope) for slope in ("zero", "adaptive")
        ]
        torch.testing.assert_close(net.margins(box, labels), torch.maximum(*bounds))
    assert all(bool((one > other + 1e-3).any()) for one, other in (bounds, bounds[::-1]))


def test_parts_of_a_batch_have_the_same_certificates(monkeypatch: pytest.MonkeyPatch):
    net, (images, labels) = small_net(), digits()
    with torch.no_grad():
        whole = net.least_margin(images - 0.01, images + 0.01, labels)
        monkeypatch.setattr(ConvNet, "part", 5)
        torch.testing.assert_close(net.least_margin(images - 0.01, images + 0.01, labels), whole)
        assert net.least_margin(images[:0], images[:0], labels[:0]).shape == (0,)


@pytest.mark.parametrize("fusion", [False, True])
def test_the_loss_mixes_both_bounds(fusion: bool):
    net, (images, labels) = small_net(), digits()
    net.train()
    system = CrownIbp("small", False, Fraction(1, 20), 0, 0, 0.0, ramp="linear", beta_end=0.25, fusion=fusion)
    middle, end = (state_at(RECIPE, epoch) for epoch in (35.0, 200.0))
    for state, share in ((middle, 0.625), (end, 0.25)):
        boxes = interval_boxes(net.body, net.box_around(images, 0.05 * system.progress(state)))
        interval, linear = interval_margins(net.body, boxes, labels), linear_margins(net.body, boxes, labels)
        loss, logits = system.loss(RECIPE, net, images, labels, state)
        torch.testing.assert_close(logits, net(images))
        if not fusion:
            mixed = (1 - share) * interval + share * linear
            torch.testing.assert_close(loss, F.cross_entropy(-mixed, labels))
        else:
            # The fused bound is between the two losses up to the slack of the chords.
            assert F.cross_entropy(-linear, labels) - 0.01 < loss < F.cross_entropy(-interval, labels)


@pytest.mark.parametrize("fusion", [False, True])
def test_without_linear_relaxation_the_loss_is_that_of_ibp(fusion: bool):
    net, (images, labels) = small_net(True), digits()
    ibp = IbpNet((1, 8, 8), 10, "small", True, mean=0.3, std=0.4)
    ibp.load_state_dict(net.state_dict())
    shared = {"architecture": "small", "eps_train": "0.1", "kappa_start": 1.0, "kappa_end": 0.5, "ramp": "linear"}
    for epoch in (0.0, 200.0):
        losses: list[float] = []
        for name, module, more in (("crown-ibp", net, {"fusion": fusion}), ("ibp", ibp, {})):
            changes = {f"system.{key}": value for key, value in ({"name": name} | shared | more).items()}
            recipe = load_recipe("mnist-0.1-ibp-2021", changes)
            system = system_of(recipe)
            losses.append(system.loss(recipe, module.train(), images, labels, state_at(recipe, epoch))[0].item())
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_the_initialisation_is_chosen():
    info = load("digits").info
    widths: dict[str, float] = {}
    for name in ("ibp", "default"):
        recipe = load_recipe("mnist-0.1-crown-ibp", {"system.initialisation": name, "data.name": "digits"})
        torch.manual_seed(0)
        net = system_of(recipe).build(recipe, info)
        assert isinstance(net, CrownIbpNet)
        widths[name] = next(layer for layer in net.layers if isinstance(layer, nn.Linear)).weight.std().item()
    assert widths["ibp"] < 0.1 * widths["default"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_certificates_and_predictions_do_not_use_tensor_float_32():
    net = small_net(True).cuda()
    images, labels = (each.cuda() for each in digits())
    before = torch.backends.cudnn.allow_tf32
    with full_precision(images):
        assert not torch.backends.cudnn.allow_tf32
    assert torch.backends.cudnn.allow_tf32 == before
    with torch.no_grad():
        logits, bounds = net(images), net.least_margin(images, images, labels)
        net.cpu()
        torch.testing.assert_close(logits.cpu(), net(images.cpu()), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(bounds.cpu(), margin(logits.cpu(), labels.cpu()), rtol=1e-4, atol=1e-5)
