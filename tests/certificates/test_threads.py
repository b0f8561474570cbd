"""Threads that share a net: certificates do not change it, and do not depend on its p, its mode and its hooks."""

import math
import sys
import threading
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from linfnet import attack, certify, evaluate
from linfnet.certificates import certify_by_margin, interval_radius
from linfnet.nn import Classifier, LinfNet, LpDistance
from linfnet.systems.ibp import IbpNet

IMAGES = torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(3))
LABELS = torch.tensor([0, 1, 2, 0, 1, 2])


@pytest.fixture
def _switching() -> Iterator[None]:
    """Let threads take turns as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def nets() -> list[Classifier]:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Flatten(), LpDistance(16, 8, mean_shift=True), nn.Dropout(0.5), LpDistance(8, 3, bias=True))
    return [
        LinfNet((1, 4, 4), 3, (8, 8)).eval(),
        Classifier.wrap(body, (1, 4, 4), 3).eval(),
        IbpNet((1, 4, 4), 3, "small", batch_norm=True).eval(),
    ]


@pytest.mark.parametrize("net", nets(), ids=lambda net: net.system)
@pytest.mark.usefixtures("_switching")
def test_four_threads_compute_the_same_radii(net: Classifier):
    """One thread changes p and the mode all the time, and attacks by hooks; the others certify."""
    expected = certify(net, IMAGES, LABELS).radius
    net.p = 8.0
    net.train()
    wrong: list[object] = []

    def disturb() -> None:
        for number in range(6):
            net.p = 8.0 + number % 2
            net.train(number % 2 == 0)
            attack(net, IMAGES, LABELS, "0.1", method="smoothed", steps=2, restarts=1)

    def check() -> None:
        try:
            found = [certify(net, IMAGES, LABELS).radius for _ in range(12)]
            wrong.extend(radius for radius in found if not torch.equal(radius, expected))
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for work in (disturb, check, check, check)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert net.p == (9.0 if net.distance_layers() else math.inf)
    assert not net.training


@pytest.mark.parametrize("net", nets()[:2], ids=lambda net: net.system)
def test_a_frozen_net_shares_its_tensors_and_nothing_else(net: Classifier):
    net.p = 8.0
    net.train()
    copy = net.frozen()
    assert (copy.p, copy.training, net.p, net.training) == (math.inf, False, 8.0, True)
    assert all(not module.training for module in copy.modules())
    assert [id(part) for part in copy.parameters()] == [id(part) for part in net.parameters()]
    assert [name for name, _ in copy.named_modules()] == [name for name, _ in net.named_modules()]
    assert not set(map(id, copy.modules())) & set(map(id, net.modules()))
    expected = copy(IMAGES)
    for layer in net.distance_layers():
        layer.register_forward_hook(lambda layer, inputs, output: 2 * output)
        layer.bias = nn.Parameter(torch.ones(layer.out_features))
    assert torch.equal(copy(IMAGES), expected)
    net.eval()
    net.p = math.inf
    assert not torch.equal(net(IMAGES), expected)


def test_certificates_attacks_and_evaluations_leave_the_net_alone(monkeypatch: pytest.MonkeyPatch):
    net = nets()[0]
    monkeypatch.setattr(LpDistance, "p", property(LpDistance.p.fget, lambda *_: pytest.fail("p was changed")))
    for module in net.modules():
        object.__setattr__(module, "training", True)
    certify_by_margin(net, IMAGES)
    interval_radius(net, IMAGES, LABELS, steps=2)
    monkeypatch.undo()
    certify(net, IMAGES)
    evaluate(net, (IMAGES, LABELS), "0.1", steps=1)
    attack(net, IMAGES, LABELS, "0.1", steps=1)
    assert all(module.training for module in net.modules())


def test_a_changed_body_is_traced_once():
    net = nets()[1]
    net.body[2] = nn.Identity()
    first = net.frozen()
    assert net.frozen().program().graph is first.program().graph is net.program().graph
