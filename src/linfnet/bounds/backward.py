"""Linear relaxation backwards: linear functions of the outputs become linear functions of the inputs that bound them.

A linear function of the values of a layer is a row [...] in the shape of one sample; a batch has rows [B, R, ...].
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linfnet.bounds.boxes import Box
from linfnet.bounds.layers import (
    Activation,
    BatchNorm,
    ChannelScale,
    Layers,
    Window,
    channel_scale,
    layers_of,
    pair,
    window_of,
)
from linfnet.bounds.lines import Lines, Slope, check_slope, lines_of

Step = nn.Module | ChannelScale
"""A layer whose bounds do not depend on the statistics of a batch."""


def steps_of(layers: Sequence[nn.Module], boxes: Sequence[Box]) -> list[Step]:
    """Replace batch norm by what it computes for the batch whose boxes before each layer are given."""
    pairs = zip(layers, boxes, strict=False)  # there may be a box of the outputs
    return [channel_scale(layer, box.centre) if isinstance(layer, BatchNorm) else layer for layer, box in pairs]


def dot(rows: Tensor, values: Tensor) -> Tensor:
    """Return the products [B, R] of rows [B, R, ...] and values [B, ...]."""
    return (rows.flatten(2) @ values.flatten(1).unsqueeze(2)).squeeze(2)


def pull(step: Step, rows: Tensor, box: Box, slope: Slope) -> tuple[Tensor, Tensor | None]:
    """Return rows and constants [B, R] of linear functions of a layer's inputs that are below those of its outputs.

    Args:
        step: a layer.
        rows: [B, R, ...], linear functions of its outputs.
        box: bounds of its inputs.
        slope: how the lines of activations are chosen.
    """
    if isinstance(step, Activation):
        return pull_lines(lines_of(step, box.lower, box.upper, slope), rows)
    if isinstance(step, nn.Linear):
        return rows @ step.weight, with_bias(rows, step)
    if isinstance(step, nn.Conv2d):
        return transposed(rows, step.weight, window_of(step, box.shape[0]), box.shape), with_bias(rows, step)
    if isinstance(step, ChannelScale):
        return rows * step.along(2, rows.dim())[0], per_channel(rows) @ step.shift
    if isinstance(step, nn.Flatten):
        return rows.unflatten(2, box.shape), None
    assert isinstance(step, nn.AvgPool2d)
    return transposed(rows, averaging(step, rows), window_of(step, box.shape[0]), box.shape), None


def with_bias(rows: Tensor, layer: nn.Linear | nn.Conv2d) -> Tensor | None:
    """Return the products [B, R] of rows with the bias of a layer, if it has one."""
    bias: Tensor | None = layer.bias
    return None if bias is None else per_channel(rows) @ bias


def per_channel(rows: Tensor) -> Tensor:
    """Return the sum of rows [B, R, C, ...] over all dimensions after the channels."""
    return rows.flatten(3).sum(3) if rows.dim() > 3 else rows


def averaging(step: nn.AvgPool2d, rows: Tensor) -> Tensor:
    """Return the weight of the convolution, with one group for each channel, that is average pooling."""
    kernel = pair(step.kernel_size)
    return rows.new_full((rows.shape[2], 1, *kernel), 1 / (kernel[0] * kernel[1]))


def pull_lines(lines: Lines, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Pull rows back through an activation, whose lines bound it from below or above, depending on the sign."""
    negative = rows.clamp(max=0)
    constant = dot(negative, lines.upper_offset)
    if lines.lower_slope is lines.upper_slope:
        return rows * lines.upper_slope.unsqueeze(1), constant
    positive = rows.clamp(min=0)
    if lines.lower_offset is not None:
        constant = constant + dot(positive, lines.lower_offset)
    return positive * lines.lower_slope.unsqueeze(1) + negative * lines.upper_slope.unsqueeze(1), constant


def transposed(rows: Tensor, weight: Tensor, window: Window, shape: Sequence[int]) -> Tensor:
    """Pull rows [B, R, C, H, W] back through a convolution whose inputs have a shape (C, H, W)."""
    ends = zip(shape[1:], rows.shape[3:], window.kernel, window.stride, window.padding, window.dilation, strict=True)
    rest = [size - ((out - 1) * s - 2 * p + d * (k - 1) + 1) for size, out, k, s, p, d in ends]
    sizes = (window.stride, window.padding, rest, window.groups, window.dilation)
    return F.conv_transpose2d(rows.flatten(0, 1), weight, None, *sizes).unflatten(0, rows.shape[:2])


def lower_bounds(steps: Sequence[Step], boxes: Sequence[Box], rows: Tensor, slope: Slope) -> Tensor:
    """Return lower bounds [B, R] on linear functions `rows` [B, R, ...] of the outputs of layers.

    Args:
        steps: the layers, from `steps_of`.
        boxes: the bounds of the inputs of each layer; those before activations and the first are used.
        rows: [B, R, ...], or [1, R, ...] for the same functions of all samples.
        slope: how the lines of activations are chosen.
    """
    total = rows.new_zeros(())
    for step, box in zip(reversed(steps), reversed(boxes[: len(steps)]), strict=True):
        rows, constant = pull(step, rows, box, slope)
        total = total if constant is None else total + constant
    middle, reach = boxes[0].middle_and_reach
    return dot(rows, middle) - dot(rows.abs(), reach) + total


def both_bounds(steps: Sequence[Step], boxes: Sequence[Box], rows: Tensor, slope: Slope) -> tuple[Tensor, Tensor]:
    """Return lower and upper bounds, each [B, R], as `lower_bounds` does."""
    if slope != "parallel":
        found = lower_bounds(steps, boxes, torch.cat([rows, -rows], 1), slope)
        return found[:, : rows.shape[1]], -found[:, rows.shape[1] :]
    # The linear functions below and above differ by a constant, so that one is enough.
    total, gap = rows.new_zeros(()), rows.new_zeros(())
    for step, box in zip(reversed(steps), reversed(boxes[: len(steps)]), strict=True):
        if isinstance(step, Activation):
            gap = gap + dot(rows.abs(), lines_of(step, box.lower, box.upper, slope).upper_offset)
        rows, constant = pull(step, rows, box, slope)
        total = total if constant is None else total + constant
    middle, reach = boxes[0].middle_and_reach
    spread = dot(rows.abs(), reach)
    lower = dot(rows, middle) - spread + total
    return lower, lower + 2 * spread + gap


def margin_rows(labels: Tensor, classes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the rows [B, K, K] whose products with logits are the margins between the label and each class.

    >>> margin_rows(torch.tensor([1]), 3).tolist()
    [[[-1.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 1.0, -1.0]]]
    """
    own = F.one_hot(labels, classes).to(dtype)
    return own.unsqueeze(1) - torch.eye(classes, dtype=dtype, device=labels.device)


def linear_margins(net: Layers, boxes: Sequence[Box], labels: Tensor, slope: Slope = "adaptive") -> Tensor:
    """Return for each class j a lower bound on the margin between the label and j: [B, K], 0 at the label.

    The bounds are found by linear relaxation backwards from the margins of all class pairs. Which method this is
    depends on the boxes: CROWN-IBP with `interval_boxes`, CROWN or Fast-Lin with `backward_boxes`, CROWN-LBP with
    `forward_boxes`. In real arithmetic.

    Args:
        net: the layers; the outputs are logits [B, K].
        boxes: bounds of the inputs of each layer, and of the outputs.
        labels: [B].
        slope: how the lines of activations are chosen.
    """
    check_slope(slope)
    layers = layers_of(net)
    end = boxes[len(layers)]
    rows = margin_rows(labels, end.shape[0], end.lower.dtype)
    return lower_bounds(steps_of(layers, boxes), boxes, rows, slope)
