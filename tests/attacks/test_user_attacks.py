"""Attacks of the user may work in place; one that changes the net or leaves the ball is an error."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from linfnet.attacks import ATTACKS, attack, attack_all
from linfnet.errors import ArgumentError
from linfnet.evaluation import evaluate
from linfnet.nn import Classifier, LinfNet

Found = tuple[Classifier, Tensor, Tensor]


def net_and_images() -> Found:
    torch.manual_seed(0)
    net = LinfNet((1, 3, 3), 3, (8,)).eval()
    images = torch.rand(20, 1, 3, 3)
    return net, images, net(images).argmax(1).detach()


def by_attack(net: Classifier, images: Tensor, labels: Tensor, function: Callable[..., Any]) -> None:
    attack(net, images, labels, "0.1", function)


def by_evaluate(net: Classifier, images: Tensor, labels: Tensor, function: Callable[..., Any]) -> None:
    evaluate(net, (images, labels), "0.1", attack=function)


def by_suite(net: Classifier, images: Tensor, labels: Tensor, function: Callable[..., Any]) -> None:
    def registered(net: Classifier, x: Tensor, y: Tensor, eps: Fraction, generator: torch.Generator) -> Tensor:
        return function(net, x, y, float(eps))

    registered.__name__ = function.__name__
    attack_all(net, images, labels, "0.1", {function.__name__: registered})


DOORS = pytest.mark.parametrize("door", [by_attack, by_evaluate, by_suite])


@DOORS
def test_an_attack_in_place_cannot_leave_the_ball(door: Callable[..., None]):
    def flip(net: Classifier, x: Tensor, y: Tensor, eps: float) -> Tensor:
        return x.copy_(1 - x)

    net, images, labels = net_and_images()
    before = images.clone()
    with pytest.raises(ArgumentError, match="'flip' left the ball"):
        door(net, images, labels, flip)
    assert torch.equal(images, before)


@DOORS
def test_an_attack_in_place_cannot_change_the_labels(door: Callable[..., None]):
    def relabel(net: Classifier, x: Tensor, y: Tensor, eps: float) -> Tensor:
        y.zero_()
        return x

    net, images, labels = net_and_images()
    before = labels.clone()
    door(net, images, labels, relabel)
    assert torch.equal(labels, before)
    found = attack(net, images, labels, "0.1", relabel)
    assert not found.success.any()
    assert torch.equal(found.prediction, labels)


@DOORS
def test_p_and_the_mode_are_restored_after_an_attack(door: Callable[..., None]):
    seen: list[float] = []

    def relax(net: Classifier, x: Tensor, y: Tensor, eps: float) -> Tensor:
        seen.append(net.p)
        net.train()
        net.p = 8
        return x

    net, images, labels = net_and_images()
    door(net, images, labels, relax)
    assert seen == [math.inf]
    assert net.p == math.inf
    assert not any(module.training for module in net.modules())


@DOORS
@pytest.mark.parametrize("key", ["layers.0.weight", "layers.0.shift.running_mean"])
def test_an_attack_that_changes_the_net_is_an_error(door: Callable[..., None], key: str):
    def tamper(net: Classifier, x: Tensor, y: Tensor, eps: float) -> Tensor:
        net.state_dict()[key].add_(1)
        return x

    net, images, labels = net_and_images()
    key = next(name for name in net.state_dict() if key.split(".")[-1] in name)
    with pytest.raises(ArgumentError, match=f"'tamper' changed '{key}' of the net"):
        door(net, images, labels, tamper)


@pytest.mark.parametrize("dtype", [object, np.complex64, str])
def test_a_result_of_another_kind_is_an_error(dtype: Any):
    def odd(net: Classifier, x: Tensor, y: Tensor, eps: float) -> Any:
        return x.numpy().astype(dtype)

    net, images, labels = net_and_images()
    with pytest.raises(ArgumentError, match="'odd' returned an invalid result: images has dtype"):
        attack(net, images, labels, "0.1", odd)


def test_a_sparse_result_is_an_error():
    net, images, labels = net_and_images()
    with pytest.raises(ArgumentError, match="invalid result: images is a sparse tensor"):
        attack(net, images, labels, "0.1", lambda net, x, y, eps: x.to_sparse())  # pyright: ignore


def test_the_signature_of_an_attack_is_checked(monkeypatch: pytest.MonkeyPatch):
    net, images, labels = net_and_images()
    with pytest.raises(ArgumentError, match=r"attack '<lambda>' cannot be called with \(net, images, labels, eps\)"):
        attack(net, images, labels, "0.1", lambda images: images)
    monkeypatch.setattr(ATTACKS, "_entries", dict(ATTACKS._entries))
    ATTACKS.register("four")(lambda net, images, labels, epsilon: images)
    with pytest.raises(ArgumentError, match=r"attack 'four' cannot be called with .*generator\): too many positional"):
        attack(net, images, labels, "0.1", "four")
