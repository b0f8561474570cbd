"""The objectives of the paper as pure functions of logits [B, K] and labels [B].

Thresholds are in the units of the logits: a threshold of theta in pixels is `theta * net.lipschitz` here.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def margin(logits: Tensor, labels: Tensor) -> Tensor:
    """The logit of the true class minus the largest other one: [B]. Positive where the prediction is right, no ties.

    >>> margin(torch.tensor([[3.0, 1.0, 2.5], [0.0, 0.0, -1.0]]), torch.tensor([0, 1]))
    tensor([0.5000, 0.0000])
    """
    column = labels.unsqueeze(1)
    others = logits.scatter(1, column, float("-inf"))
    return logits.gather(1, column).squeeze(1) - others.max(1).values


def scaled_cross_entropy(logits: Tensor, labels: Tensor, scale: Tensor | float = 1.0) -> Tensor:
    """Cross-entropy of `scale * logits`, averaged over the batch; the scale s is learnable, as the net has none."""
    return F.cross_entropy(scale * logits, labels)


def hinge(logits: Tensor, labels: Tensor, threshold: float) -> Tensor:
    """mean of max(1 - margin / threshold, 0).

    >>> hinge(torch.tensor([[1.0, 0.0]]), torch.tensor([1]), 2.0)
    tensor(1.5000)
    """
    return (1 - margin(logits, labels) / threshold).clamp(min=0).mean()


def clipped_hinge(logits: Tensor, labels: Tensor, threshold: float) -> Tensor:
    """mean of min(max(1 - margin / threshold, 0), 1): flat for misclassified samples.

    >>> clipped_hinge(torch.tensor([[1.0, 0.0]]), torch.tensor([1]), 2.0)
    tensor(1.)
    """
    return (1 - margin(logits, labels) / threshold).clamp(min=0, max=1).mean()


def mixture(
    logits: Tensor, labels: Tensor, *, threshold: float, mixing: Tensor | float, scale: Tensor | float
) -> Tensor:
    """The paper's objective: mixing * scaled cross-entropy + clipped hinge.

    >>> logits, labels = torch.tensor([[2.0, 0.0]]), torch.tensor([0])
    >>> mixture(logits, labels, threshold=4.0, mixing=0.0, scale=1.0)
    tensor(0.5000)
    """
    return mixing * scaled_cross_entropy(logits, labels, scale) + clipped_hinge(logits, labels, threshold)


def margin_shares(logits: Tensor, labels: Tensor, threshold: float) -> Tensor:
    """How many samples have a margin above the threshold, in [0, threshold], and below 0: a count tensor [3].

    >>> margin_shares(torch.tensor([[9.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0, 0]), 2.0)
    tensor([1, 1, 1])
    """
    gap = margin(logits, labels)
    return torch.stack([(gap > threshold).sum(), ((gap >= 0) & (gap <= threshold)).sum(), (gap < 0).sum()])
