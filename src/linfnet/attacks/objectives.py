"""What attacks raise: one number for each sample, larger where the class is closer to being lost."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from linfnet.errors import ArgumentError
from linfnet.nn.margin import margin

Objective = Callable[[Tensor, Tensor, float], Tensor]


def cross_entropy(logits: Tensor, labels: Tensor, scale: float) -> Tensor:
    """Cross-entropy of the scaled logits: [N]."""
    return F.cross_entropy(scale * logits, labels, reduction="none")


def lost_margin(logits: Tensor, labels: Tensor, scale: float) -> Tensor:
    """Minus the margin: [N].

    >>> lost_margin(torch.tensor([[3.0, 1.0]]), torch.tensor([0]), 1.0)
    tensor([-2.])
    """
    return -margin(logits, labels)


def dlr(logits: Tensor, labels: Tensor, scale: float) -> Tensor:
    """Difference-of-logits ratio: minus the margin over (first - third largest logit): [N]; two classes: over 1.

    >>> dlr(torch.tensor([[4.0, 2.0, 0.0]]), torch.tensor([0]), 1.0)
    tensor([-0.5000])
    """
    gap = -margin(logits, labels)
    if logits.shape[1] < 3:
        return gap
    top = logits.topk(3).values
    return gap / (top[:, 0] - top[:, 2]).clamp(min=1e-12)


OBJECTIVES: dict[str, Objective] = {"ce": cross_entropy, "margin": lost_margin, "dlr": dlr}


def find_objective(name: str) -> Objective:
    """The objective of that name, or an error that lists the names."""
    if name not in OBJECTIVES:
        raise ArgumentError(f"objective is {name!r}; known are {', '.join(OBJECTIVES)}")
    return OBJECTIVES[name]


@torch.no_grad()
def still_right(logits: Tensor, labels: Tensor) -> Tensor:
    """Which samples [N] keep their class strictly on top."""
    return margin(logits, labels) > 0
