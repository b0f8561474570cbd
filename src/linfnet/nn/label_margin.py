"""The margin of a label: its logit minus the largest other logit."""

from torch import Tensor


def margin(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the logit of the label minus the largest other logit, [B]; positive if the label is the only maximum.

    >>> import torch
    >>> margin(torch.tensor([[3.0, 1.0, 2.5], [0.0, 0.0, -1.0]]), torch.tensor([0, 1]))
    tensor([0.5000, 0.0000])
    """
    own, other = _own_and_other(logits, logits, labels)
    return own - other


def label_on_top(logits: Tensor, labels: Tensor, upper: Tensor | None = None) -> Tensor:
    """Return bool [B]: whether the logit of the label is strictly larger than all other logits.

    Args:
        logits: [B, K].
        labels: [B].
        upper: [B, K], the values of the other logits; by default `logits`. If `logits` are lower bounds and `upper` are
            upper bounds, the result holds for all logits between them.

    >>> import torch
    >>> label_on_top(torch.tensor([[3.0, 1.0], [0.0, 0.0]]), torch.tensor([0, 1]))
    tensor([ True, False])
    """
    own, other = _own_and_other(logits, logits if upper is None else upper, labels)
    return own > other


def never_predicted(logits: Tensor, labels: Tensor) -> list[int]:
    """Return the classes among the labels that have the largest logit for no sample.

    >>> import torch
    >>> never_predicted(torch.tensor([[3.0, 1.0, 0.0], [2.0, 0.0, 0.0]]), torch.tensor([0, 1]))
    [1]
    """
    return sorted({*labels.tolist()} - {*logits.argmax(1).tolist()})


def _own_and_other(logits: Tensor, upper: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    column = labels.unsqueeze(1)
    return logits.gather(1, column).squeeze(1), upper.scatter(1, column, float("-inf")).max(1).values
