"""Linear relaxation forwards (LBP, Lyu et al., 2021): each value is bounded by linear functions of the inputs."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linfnet.bounds.boxes import Box
from linfnet.bounds.layers import Activation, BatchNorm, ChannelScale, Layers, channel_scale, layers_of, through
from linfnet.bounds.lines import Slope, check_slope, lines_of


@dataclass(frozen=True)
class LinearFunctions:
    """Functions rows . e + constant of numbers e in [-1, 1], one for each value of a layer: [B, N, ...] and [B, ...].

    There is one number e for each of the N inputs: the input is middle + e * reach.
    """

    rows: Tensor
    constant: Tensor

    def reach(self) -> Tensor:
        """Return the largest value of |rows . e|: [B, ...]."""
        return self.rows.abs().sum(1)

    def scaled(self, scale: Tensor, shift: Tensor | None) -> "LinearFunctions":
        """Multiply by [B, ...] and add [B, ...]."""
        constant = self.constant * scale
        return LinearFunctions(self.rows * scale.unsqueeze(1), constant if shift is None else constant + shift)


Enclosure = tuple[LinearFunctions, LinearFunctions]
"""Lower and upper linear bounds."""


def forward_boxes(net: Layers, box: Box, slope: Slope = "zero") -> list[Box]:
    """Return the box before each layer of a net, and the box of its outputs.

    The boxes before activations are bounded by linear functions of the inputs, propagated forwards, and by intervals
    from the layer before; the tighter bound counts. The memory grows with the number of inputs times that of neurons.
    """
    check_slope(slope)
    layers, boxes = layers_of(net), [box]
    middle, reach = box.middle_and_reach
    start = LinearFunctions(torch.diag_embed(reach.flatten(1)).unflatten(2, reach.shape[1:]), middle)
    known: Enclosure = (start, start)
    for index, layer in enumerate(layers):
        found = through(layer, boxes[-1])
        known = _through(layer, known, boxes[-1], slope)
        if index + 1 < len(layers) and isinstance(layers[index + 1], Activation):
            lower = torch.maximum(known[0].constant - known[0].reach(), found.lower)
            upper = torch.minimum(known[1].constant + known[1].reach(), found.upper)
            found = Box(lower, upper, found.centre)
        boxes.append(found)
    return boxes


def _through(layer: nn.Module, known: Enclosure, box: Box, slope: Slope) -> Enclosure:
    low, high = known
    if isinstance(layer, Activation):
        lines = lines_of(layer, box.lower, box.upper, slope)
        return low.scaled(lines.lower_slope, lines.lower_offset), high.scaled(lines.upper_slope, lines.upper_offset)
    if isinstance(layer, nn.Flatten | nn.AvgPool2d):  # pooling has positive weights
        return _mapped(layer, low), _mapped(layer, high)
    step = channel_scale(layer, box.centre) if isinstance(layer, BatchNorm) else layer
    if low is high:  # before the first activation
        only = _add(_applied(step, low, 0), None, step)
        return only, only
    lower = _add(_applied(step, low, 1), _applied(step, high, -1), step)
    return lower, _add(_applied(step, high, 1), _applied(step, low, -1), step)


def _mapped(layer: nn.Module, functions: LinearFunctions) -> LinearFunctions:
    rows = layer(functions.rows.flatten(0, 1)).unflatten(0, functions.rows.shape[:2])
    return LinearFunctions(rows, layer(functions.constant))


def _applied(step: nn.Module | ChannelScale, functions: LinearFunctions, sign: int) -> LinearFunctions:
    """Multiply by the weights of one sign (by all weights if it is 0), without the bias."""

    def part(weight: Tensor) -> Tensor:
        return weight if sign == 0 else weight.clamp(min=0) if sign > 0 else weight.clamp(max=0)

    def apply(values: Tensor) -> Tensor:
        if isinstance(step, nn.Linear):
            return F.linear(values, part(step.weight))
        if isinstance(step, nn.Conv2d):
            sizes = (step.stride, step.padding, step.dilation, step.groups)
            return F.conv2d(values, part(step.weight), None, *sizes)  # pyright: ignore
        assert isinstance(step, ChannelScale)
        return values * part(step.along(1, values.dim())[0])

    rows = apply(functions.rows.flatten(0, 1)).unflatten(0, functions.rows.shape[:2])
    return LinearFunctions(rows, apply(functions.constant))


def _add(first: LinearFunctions, second: LinearFunctions | None, step: nn.Module | ChannelScale) -> LinearFunctions:
    """Return the sum of two functions and of the bias of a layer."""
    rows, constant = first.rows, first.constant
    if second is not None:
        rows, constant = rows + second.rows, constant + second.constant
    bias = step.shift if isinstance(step, ChannelScale) else step.bias
    if isinstance(bias, Tensor):
        constant = constant + bias.view(-1, *[1] * (constant.dim() - 2))
    return LinearFunctions(rows, constant)
