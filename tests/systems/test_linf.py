"""The paper's system passes the state of the step to its objective; its loss depends on images through logits only."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from linfnet import load
from linfnet.losses import Objective
from linfnet.recipes import load_recipe
from linfnet.schedules import StepState
from linfnet.systems import FeatureSystem, system_of
from linfnet.train import step_state

DIGITS = load("digits", "train").first(20)


@dataclass(frozen=True)
class Recorder(Objective):
    """Records its arguments."""

    calls: list[tuple[StepState, dict[str, Any]]] = field(default_factory=list)

    def __call__(self, logits: Tensor, labels: Tensor, state: StepState, **net: Any) -> Tensor:
        self.calls.append((state, net))
        return logits.gather(1, labels.unsqueeze(1)).mean()


@pytest.mark.parametrize(
    ("epoch", "started", "relaxed"), [(0.0, 0.0, 0.0), (1.5, 0.75, 0.0), (7.0, 1.0, 0.5), (12.5, 1.0, 1.0)]
)
def test_the_objective_gets_the_state_of_the_step(epoch: float, started: float, relaxed: float):
    recipe = replace(load_recipe("digits", ["width=8", "epochs=[2, 10, 1]"]), loss=Recorder())
    system, state = system_of(recipe), step_state(recipe, round(2 * epoch), 2)
    net = system.build(recipe, DIGITS.info)
    loss, logits = system.loss(recipe, net, DIGITS.pixels(), DIGITS.labels, state)
    assert isinstance(recipe.loss, Recorder)
    assert recipe.loss.calls == [(state, {"scale": net.scale, "lipschitz": net.lipschitz})]
    assert (state.epoch, state.started, state.relaxed) == (epoch, started, relaxed)
    assert torch.equal(loss, logits.gather(1, DIGITS.labels.unsqueeze(1)).mean())


def test_features_may_be_computed_separately():
    """Compute the objective on detached features, then the gradients of the net, as with CUDA graphs."""
    recipe = load_recipe("digits", ["width=8"])
    system, state = system_of(recipe), step_state(recipe, 1, 1)
    assert isinstance(system, FeatureSystem)
    net = system.build(recipe, DIGITS.info)
    loss, logits = system.loss(recipe, net, DIGITS.pixels(), DIGITS.labels, state)
    expected = torch.autograd.grad(loss, list(net.parameters()))
    features = system.features(net, DIGITS.pixels())
    leaf = features.detach().requires_grad_()
    separate, _ = system.loss_from_features(recipe, net, leaf, DIGITS.labels, state)
    separate.backward()
    features.backward(leaf.grad)
    assert torch.equal(loss, separate)
    assert torch.equal(logits, features)
    for (name, weight), gradient in zip(net.named_parameters(), expected, strict=True):
        assert weight.grad is not None
        assert torch.equal(weight.grad, gradient), name
