"""The paper's system gives the loss of a batch as every other does; its loss sees the images through logits alone."""

from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor

from linfnet import load
from linfnet.losses import Moment, Objective
from linfnet.nn import LinfNet
from linfnet.recipes import load_recipe
from linfnet.systems import SeenSystem, system_of

DIGITS = load("digits", "train").first(20)


@dataclass(frozen=True)
class Witness(Objective):
    """Remembers the moments it was asked at."""

    seen: list[Moment] = field(default_factory=list)

    def __call__(self, logits: Tensor, labels: Tensor, moment: Moment) -> Tensor:
        self.seen.append(moment)
        return logits.gather(1, labels.unsqueeze(1)).mean()


@pytest.mark.parametrize(
    ("epoch", "started", "relaxed"), [(0.0, 0.0, 0.0), (1.5, 0.75, 0.0), (7.0, 1.0, 0.5), (12.5, 1.0, 1.0)]
)
def test_the_objective_is_asked_at_the_moment_of_the_schedule(epoch: float, started: float, relaxed: float):
    recipe = replace(load_recipe("digits", ["width=8", "epochs=[2, 10, 1]"]), loss=Witness())
    system = system_of(recipe)
    net = system.build(recipe, DIGITS.info)
    loss, logits = system.loss(recipe, net, DIGITS.pixels(), DIGITS.labels, epoch)
    assert isinstance(recipe.loss, Witness)
    assert isinstance(net, LinfNet)
    (moment,) = recipe.loss.seen
    assert (moment.started, moment.relaxed, moment.lipschitz) == (started, relaxed, net.lipschitz)
    assert moment.scale is net.scale
    assert torch.equal(loss, logits.gather(1, DIGITS.labels.unsqueeze(1)).mean())


def test_logits_may_be_computed_apart():
    """What a trainer does that runs the net by itself: the objective on logits alone, then backward through the net."""
    recipe = load_recipe("digits", ["width=8"])
    system = system_of(recipe)
    assert isinstance(system, SeenSystem)
    net = system.build(recipe, DIGITS.info)
    loss, logits = system.loss(recipe, net, DIGITS.pixels(), DIGITS.labels, 1.0)
    expected = torch.autograd.grad(loss, list(net.parameters()))
    found = system.seen(net, DIGITS.pixels())
    leaf = found.detach().requires_grad_()
    apart, _ = system.loss_of_seen(recipe, net, leaf, DIGITS.labels, 1.0)
    apart.backward()
    found.backward(leaf.grad)
    assert torch.equal(loss, apart)
    assert torch.equal(logits, found)
    for (name, weight), gradient in zip(net.named_parameters(), expected, strict=True):
        assert weight.grad is not None
        assert torch.equal(weight.grad, gradient), name
