"""What objectives are made of: pure functions of logits [B, K] and labels [B].

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


def thresholded(logits: Tensor, labels: Tensor, threshold: float) -> Tensor:
    """The logits with that of the true class lowered by the threshold.

    >>> thresholded(torch.tensor([[3.0, 1.0]]), torch.tensor([0]), 2.0)
    tensor([[1., 1.]])
    """
    lowered = torch.full_like(labels, -threshold, dtype=logits.dtype).unsqueeze(1)
    return logits.scatter_add(1, labels.unsqueeze(1), lowered)


def hinge(logits: Tensor, labels: Tensor, threshold: float, *, max_share: float = 1.0, warmth: float = 1.0) -> Tensor:
    """mean of max(1 - margin / threshold, 0), or with a share of it on the mean over all classes instead of the worst.

    The mean counts the true class as 0. A warmth below 1 asks for that part of the threshold only.

    >>> logits, labels = torch.tensor([[1.0, 0.0, -1.0, 2.0]]), torch.tensor([0])
    >>> hinge(logits, labels, 2.0), hinge(logits, labels, 2.0, max_share=0.75, warmth=0.0)
    (tensor(1.5000), tensor(0.4062))
    """
    column = labels.unsqueeze(1)
    gaps = logits.gather(1, column) - logits
    terms = (warmth - gaps / threshold).clamp(min=0).scatter(1, column, 0.0)
    return max_share * terms.max(1).values.mean() + (1 - max_share) * terms.mean()


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
