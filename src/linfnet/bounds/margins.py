"""Bounds on the margins of a net over a box of inputs, by name."""

from typing import Literal, get_args

from torch import Tensor

from linfnet.bounds.backward import linear_margins
from linfnet.bounds.boxes import Box
from linfnet.bounds.forward import forward_boxes
from linfnet.bounds.intervals import interval_boxes, interval_margins
from linfnet.bounds.layers import Layers
from linfnet.bounds.lines import Slope
from linfnet.bounds.tight import backward_boxes
from linfnet.errors import ArgumentError

Method = Literal["interval", "crown-ibp", "crown-lbp", "crown", "fast-lin"]


def margin_bounds(
    net: Layers,
    lower: Tensor,
    upper: Tensor,
    labels: Tensor,
    method: Method = "crown-ibp",
    *,
    slope: Slope | None = None,
    centre: Tensor | None = None,
) -> Tensor:
    """Return for each class j a lower bound on the margin between the label and j: [B, K], 0 at the label.

    The bounds are differentiable in the parameters of the net, and hold in real arithmetic: rounding is ignored.

    Args:
        net: Linear, Conv2d, BatchNorm1d, BatchNorm2d, AvgPool2d, Flatten, ReLU and Ramp layers, in turn.
        lower: [B, ...], the lower ends of the boxes of inputs; `upper` has the upper ends.
        labels: [B].
        method: `interval` bounds all layers by intervals. The others bound the margins by linear functions backwards;
            they bound the inputs of activations by intervals (`crown-ibp`), by linear functions forwards (`crown-lbp`)
            or backwards (`crown`, `fast-lin`).
        slope: see `Slope`; by default `adaptive`, for `crown-lbp` `zero`. `fast-lin` is `crown` with `parallel`.
        centre: [B, ...], the unperturbed inputs. Batch norm in training uses their statistics; otherwise not needed.

    >>> import torch
    >>> net = [torch.nn.Linear(1, 2, bias=False)]
    >>> net[0].weight.data = torch.tensor([[1.0], [-1.0]])
    >>> margin_bounds(net, torch.tensor([[0.5]]), torch.tensor([[1.0]]), torch.tensor([0])).tolist()
    [[0.0, 1.0]]
    """
    if method not in get_args(Method):
        raise ArgumentError(f"method is {method!r}; expected one of {', '.join(get_args(Method))}")
    box = Box(lower, upper, centre)
    if method == "interval":
        return interval_margins(net, interval_boxes(net, box), labels)
    chosen: Slope = "parallel" if method == "fast-lin" else slope or ("zero" if method == "crown-lbp" else "adaptive")
    if method == "crown-ibp":
        boxes = interval_boxes(net, box)
    elif method == "crown-lbp":
        boxes = forward_boxes(net, box, chosen)
    else:
        boxes = backward_boxes(net, box, chosen)
    return linear_margins(net, boxes, labels, chosen)
