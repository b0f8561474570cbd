"""The margin of a label: its logit minus the largest other logit."""

from torch import Tensor


def margin(logits: Tensor, labels: Tensor) -> Tensor:
    """The logit of the true class minus the largest other one: [B]. Positive where the prediction is right, no ties.

    >>> import torch
    >>> margin(torch.tensor([[3.0, 1.0, 2.5], [0.0, 0.0, -1.0]]), torch.tensor([0, 1]))
    tensor([0.5000, 0.0000])
    """
    column = labels.unsqueeze(1)
    others = logits.scatter(1, column, float("-inf"))
    return logits.gather(1, column).squeeze(1) - others.max(1).values
