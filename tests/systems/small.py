"""What the tests of several systems share: states of a schedule, a few digits, and attacks on bounds of margins."""

import torch
from torch import Tensor

from linfnet.data import load
from linfnet.nn import Classifier
from linfnet.nn.label_margin import margin
from linfnet.recipes import Recipe
from linfnet.schedules import StepState
from linfnet.train import step_state


def state_at(recipe: Recipe, epoch: float) -> StepState:
    """Return the state at an epoch of a run with four steps per epoch."""
    return step_state(recipe, round(4 * epoch), 4)


def digits(count: int = 12) -> tuple[Tensor, Tensor]:
    images = load("digits", "test").first(count)
    return images.pixels(), images.labels


@torch.no_grad()
def check_least_margin(
    net: Classifier, lower: Tensor, upper: Tensor, labels: Tensor, *, slack: float = 0.0, corners: int = 20
) -> Tensor:
    """Check the bounds on the margins at random corners of the boxes, and return them.

    With slack 0, they must hold for the floating-point program.
    """
    bound = net.least_margin(lower, upper, labels)
    for _ in range(corners):
        inside = torch.where(torch.rand_like(lower) < 0.5, lower, upper)
        assert bool((margin(net(inside).double(), labels) >= bound - slack).all())
    return bound
