"""Bounds on the margins of a net over a box of inputs, by name."""

from typing import Literal, get_args

import torch
from torch import Tensor

from linfnet.bounds.backward import linear_margins
from linfnet.bounds.boxes import Box
from linfnet.bounds.forward import forward_boxes
from linfnet.bounds.intervals import interval_boxes, interval_margins
from linfnet.bounds.layers import Layers, layers_of
from linfnet.bounds.lines import Slope, check_slope
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
        slope: see `Slope`; by default `adaptive`, for `crown-lbp` `zero`. `fast-lin` is `crown` with `parallel`, and
            `interval` has no lines: they ignore it.
        centre: [B, ...], the unperturbed inputs. Batch norm in training uses their statistics, and updates its running
            statistics; otherwise not needed.

    >>> import torch
    >>> net = [torch.nn.Linear(1, 2, bias=False)]
    >>> net[0].weight.data = torch.tensor([[1.0], [-1.0]])
    >>> margin_bounds(net, torch.tensor([[0.5]]), torch.tensor([[1.0]]), torch.tensor([0])).tolist()
    [[0.0, 1.0]]
    """
    if method not in get_args(Method):
        raise ArgumentError(f"method is {method!r}; expected one of {', '.join(get_args(Method))}")
    if slope is not None:
        check_slope(slope)
    _check_inputs(net, lower, upper, labels, centre)
    box = Box(lower, upper, centre)
    if method == "interval" or len(lower) == 0:
        boxes = interval_boxes(net, box)
        _check_classes(boxes[-1], labels)
        return interval_margins(net, boxes, labels)
    chosen: Slope = "parallel" if method == "fast-lin" else slope or ("zero" if method == "crown-lbp" else "adaptive")
    if method == "crown-ibp":
        boxes = interval_boxes(net, box)
    elif method == "crown-lbp":
        boxes = forward_boxes(net, box, chosen)
    else:
        boxes = backward_boxes(net, box, chosen)
    _check_classes(boxes[-1], labels)
    return linear_margins(net, boxes, labels, chosen)


def _check_inputs(net: Layers, lower: Tensor, upper: Tensor, labels: Tensor, centre: Tensor | None) -> None:
    layers = layers_of(net)
    if not layers:
        raise ArgumentError("the net has no layers; expected at least one")
    parameters = (parameter for layer in layers for parameter in layer.parameters())
    dtype = next((each.dtype for each in parameters), lower.dtype)
    for name, given in (("lower", lower), ("upper", upper), ("labels", labels)):
        if not isinstance(given, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentError(f"{name} is a {type(given).__name__}; expected a tensor")
    for name, ends in (("lower", lower), ("upper", upper), ("centre", centre)):
        if ends is not None and (ends.dtype != dtype or not dtype.is_floating_point):
            raise ArgumentError(f"{name} has dtype {ends.dtype}; expected the dtype of the net, a floating-point one")
        if ends is not None and ends.shape != lower.shape:
            raise ArgumentError(f"{name} has shape {tuple(ends.shape)}; expected that of lower, {tuple(lower.shape)}")
    if lower.dim() < 2:
        raise ArgumentError(f"lower has shape {tuple(lower.shape)}; expected a batch [B, ...]")
    if _is_known((lower > upper).any()):
        raise ArgumentError("lower is above upper for some inputs; expected lower <= upper")
    if labels.dtype != torch.int64 or labels.shape != lower.shape[:1]:
        found = f"shape {tuple(labels.shape)} and dtype {labels.dtype}"
        raise ArgumentError(f"labels has {found}; expected ({len(lower)},) and torch.int64")


def _check_classes(outputs: Box, labels: Tensor) -> None:
    if len(outputs.shape) != 1:
        raise ArgumentError(f"the net has outputs of shape {outputs.shape} for each input; expected logits (K,)")
    classes = outputs.shape[0]
    if _is_known(((labels < 0) | (labels >= classes)).any()):
        raise ArgumentError(f"labels are not all from 0 to {classes - 1}")


def _is_known(condition: Tensor) -> bool:
    """Return whether a condition holds; False where values cannot be read: in torch.compile, torch.vmap, captures."""
    if torch.compiler.is_compiling() or (condition.is_cuda and torch.cuda.is_current_stream_capturing()):
        return False
    try:
        return bool(condition)
    except RuntimeError:  # torch.vmap
        return False
