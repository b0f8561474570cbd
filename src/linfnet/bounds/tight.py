"""Bounds of the inputs of all activations by linear relaxation backwards, as in CROWN, Fast-Lin and CAP."""

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linfnet.bounds.backward import (
    Step,
    averaging,
    both_bounds,
    dot,
    per_channel,
    pull_lines,
    steps_of,
    transposed,
    with_bias,
)
from linfnet.bounds.boxes import Box
from linfnet.bounds.layers import Activation, ChannelScale, Layers, Window, layers_of, through, window_of
from linfnet.bounds.lines import Lines, Slope, check_slope, lines_of


def backward_boxes(net: Layers, box: Box, slope: Slope = "adaptive") -> list[Box]:
    """Return the box before each layer of a net, and the box of its outputs.

    The boxes before activations are bounded by linear relaxation backwards to the inputs, and by intervals from the
    layer before; the tighter bound counts. The boxes before other layers are interval bounds. The memory grows with the
    number of neurons: a linear function of the inputs for each, and for convolutions one of their receptive field.
    """
    check_slope(slope)
    layers, boxes, products = layers_of(net), [box], 0
    for index, layer in enumerate(layers):
        found = through(layer, boxes[-1])
        products += isinstance(layer, nn.Linear | nn.Conv2d | nn.AvgPool2d)
        # Interval bounds of one product are exact.
        if products > 1 and index + 1 < len(layers) and isinstance(layers[index + 1], Activation):
            found = _tightened(steps_of(layers[: index + 1], boxes), boxes, found, slope)
        boxes.append(found)
    return boxes


def _tightened(steps: Sequence[Step], boxes: Sequence[Box], box: Box, slope: Slope) -> Box:
    if len(box.shape) == 3:
        lower, upper = _bounds_of_images(steps, boxes, box, slope)
    else:
        rows = torch.eye(box.shape[0], dtype=box.lower.dtype, device=box.lower.device).unsqueeze(0)
        lower, upper = both_bounds(steps, boxes, rows, slope)
    return Box(torch.maximum(lower, box.lower), torch.minimum(upper, box.upper), box.centre)


def _bounds_of_images(steps: Sequence[Step], boxes: Sequence[Box], box: Box, slope: Slope) -> tuple[Tensor, Tensor]:
    """Return lower and upper bounds [B, C, H, W] of the outputs of convolutions.

    An output depends only on its receptive field, so the rows have the size of that field. The samples of this
    computation are all positions of all images.
    """
    (channels, height, width), batch = box.shape, len(box.lower)
    same = torch.eye(channels, dtype=box.lower.dtype, device=box.lower.device)
    # Parallel lines: the linear functions below and above an output differ by a constant, so that one is enough.
    parallel = slope == "parallel"
    rows = (same if parallel else torch.cat([same, -same])).view(1, -1, channels, 1, 1)
    field = Window((1, 1), (1, 1), (0, 0), (1, 1), 1)
    total, gap, inside = rows.new_zeros(()), rows.new_zeros(()), None
    for step, before in zip(reversed(steps), reversed(boxes[: len(steps)]), strict=True):
        if isinstance(step, nn.Conv2d | nn.AvgPool2d):
            rows = _unmasked(rows, inside, batch)
            constant = with_bias(rows, step) if isinstance(step, nn.Conv2d) else None
            total = total if constant is None else total + constant
            window = window_of(step, before.shape[0])
            field = _field_before(field, window)
            rows = _transposed_fields(rows, step, window, (before.shape[0], *field.kernel))
            inside = _patches(torch.ones_like(before.lower[:1, :1]), field) if max(field.padding) else None
        elif isinstance(step, ChannelScale):
            rows = _unmasked(rows, inside, batch)
            inside = None
            total = total + per_channel(rows) @ step.shift
            rows = rows * step.along(2, rows.dim())[0]
        else:
            assert isinstance(step, Activation)
            lines, inside = _lines_of_fields(lines_of(step, before.lower, before.upper, slope), field), None
            if parallel:
                gap = gap + dot(rows.abs(), lines.upper_offset)
            rows, constant = pull_lines(lines, rows)
            total = total + constant
    middle, reach = (_patches(each, field) for each in boxes[0].middle_and_reach)  # 0 outside the images
    spread = dot(rows.abs(), reach)
    lower = dot(rows, middle) - spread + total
    lower, upper = (lower, lower + 2 * spread + gap) if parallel else (lower[:, :channels], -lower[:, channels:])
    sizes = (batch, height, width, channels)
    return lower.reshape(sizes).permute(0, 3, 1, 2), upper.reshape(sizes).permute(0, 3, 1, 2)


def _transposed_fields(
    rows: Tensor, step: nn.Conv2d | nn.AvgPool2d, window: Window, shape: tuple[int, int, int]
) -> Tensor:
    """Pull rows [N, R, C, h, w] of small fields back through a convolution whose inputs have a shape (C, h, w).

    For many small fields, one product with the matrix of the convolution is faster than transposed convolutions.
    """
    weight = averaging(step, rows) if isinstance(step, nn.AvgPool2d) else step.weight
    size = rows[0, 0].numel()
    units = torch.eye(size, dtype=rows.dtype, device=rows.device).view(1, size, *rows.shape[2:])
    matrix = transposed(units, weight, replace(window, padding=(0, 0)), shape)
    return (rows.flatten(2) @ matrix.reshape(size, -1)).unflatten(2, shape)


def _field_before(field: Window, window: Window) -> Window:
    """Return the receptive field before a layer with this window, given the field after it."""
    spans = [d * (k - 1) + 1 for d, k in zip(window.dilation, window.kernel, strict=True)]
    (s, t), (f, g), (p, q) = window.stride, field.kernel, field.padding
    return Window(
        kernel=((f - 1) * s + spans[0], (g - 1) * t + spans[1]),
        stride=(field.stride[0] * s, field.stride[1] * t),
        padding=(p * s + window.padding[0], q * t + window.padding[1]),
        dilation=(1, 1),
        groups=1,
    )


def _patches(images: Tensor, field: Window) -> Tensor:
    """Return the receptive fields [B * positions, C, h, w] of all outputs; values outside the images are 0."""
    columns = F.unfold(images, field.kernel, stride=field.stride, padding=field.padding)
    return columns.transpose(1, 2).reshape(-1, images.shape[1], *field.kernel)


def _unmasked(rows: Tensor, inside: Tensor | None, batch: int) -> Tensor:
    """Set rows to 0 outside the images, where convolutions read zeros."""
    if inside is None:
        return rows
    return rows * inside.repeat(batch, 1, 1, 1).unsqueeze(1)


def _lines_of_fields(lines: Lines, field: Window) -> Lines:
    """Return the lines of all receptive fields. They are 0 outside the images, which has the effect of `_unmasked`."""
    upper_slope = _patches(lines.upper_slope, field)
    parallel = lines.lower_slope is lines.upper_slope
    return Lines(
        lower_slope=upper_slope if parallel else _patches(lines.lower_slope, field),
        lower_offset=None if lines.lower_offset is None else _patches(lines.lower_offset, field),
        upper_slope=upper_slope,
        upper_offset=_patches(lines.upper_offset, field),
    )
