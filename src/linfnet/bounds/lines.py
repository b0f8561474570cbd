"""Linear lower and upper bounds of activations over an interval."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from linfnet.bounds.layers import Activation
from linfnet.bounds.ramp import Ramp
from linfnet.errors import ArgumentError

# Widths of intervals below this are too small to divide by.
SHORTEST_RUN = 1e-12

Slope = Literal["adaptive", "parallel", "zero"]
"""How the lower line of a ReLU is chosen if its sign is not known.

- `adaptive`: slope 0 or 1, whichever leaves the smaller area (CROWN).
- `parallel`: the slope of the upper line (Fast-Lin, CAP, and the zonotopes of DeepZ).
- `zero`: slope 0. The bounds are then never looser than interval bounds (Lyu et al., 2021, who call it tight).
"""


@dataclass(frozen=True)
class Lines:
    """lower_slope * z + lower_offset <= activation(z) <= upper_slope * z + upper_offset on an interval.

    Each is [B, ...]; an offset of None is 0. Slopes are not negative.
    """

    lower_slope: Tensor
    lower_offset: Tensor | None
    upper_slope: Tensor
    upper_offset: Tensor


def check_slope(slope: str) -> None:
    """Raise an error unless `slope` is one of `Slope`."""
    if slope not in get_args(Slope):
        raise ArgumentError(f"slope is {slope!r}; expected one of {', '.join(get_args(Slope))}")


def lines_of(layer: Activation, lower: Tensor, upper: Tensor, slope: Slope) -> Lines:
    """Return the lines of an activation for inputs in lower <= z <= upper, each [B, ...]."""
    if isinstance(layer, nn.ReLU):
        return relu_lines(lower, upper, slope)
    return ramp_lines(layer, lower, upper, slope)


def ratio(rise: Tensor, run: Tensor, instead: Tensor | float) -> Tensor:
    """Return rise / run, or `instead` for a run that is too short for its square in the gradients."""
    return torch.where(run > SHORTEST_RUN, rise / run.clamp(min=SHORTEST_RUN), instead)


def relu_lines(lower: Tensor, upper: Tensor, slope: Slope) -> Lines:
    """Return the lines of a ReLU.

    >>> relu_lines(torch.tensor([-1.0]), torch.tensor([3.0]), "adaptive")
    Lines(lower_slope=tensor([1.]), lower_offset=None, upper_slope=tensor([0.7500]), upper_offset=tensor([0.7500]))
    """
    low, high = lower.clamp(max=0), upper.clamp(min=0)
    # The line through (low, 0) and (high, high): slope 0 if low < 0 = high, and 1 if low = 0 < high. Above an interval
    # that is too short, the line through (low, 0) with slope 1 is also a bound.
    chord = ratio(high, high - low, 1.0)
    if slope == "parallel":
        return Lines(chord, None, chord, -chord * low)
    steep = high > -low if slope == "adaptive" else lower >= 0
    return Lines(steep.to(low.dtype), None, chord, -chord * low)


def ramp_lines(layer: Ramp, lower: Tensor, upper: Tensor, slope: Slope) -> Lines:
    """Return the lines of a ramp; `parallel` is not implemented.

    With `zero`, the lower line has the slope of the ramp below 0, and the upper line that above the bend, wherever the
    interval contains the corner. Both are then tighter than the constants of interval bounds.
    """
    if slope == "parallel":
        raise ArgumentError("slope is 'parallel'; expected 'adaptive' or 'zero' for a net with ramps")
    bend, flat = layer.bends(), layer.slope
    at_lower, at_upper = layer(lower), layer(upper)
    chord = ratio(at_upper - at_lower, upper - lower, flat)
    left, right = lower < 0, upper > bend
    constant_slope = (upper <= 0) | (lower >= bend)
    # The lower line starts at the corner 0 if the interval contains it. If it only contains the bend, the line is the
    # chord. A line from 0 with a slope above `flat` must stay below the upper end of the ramp.
    from_zero = torch.where(right, ratio(at_upper, upper, flat), 1.0)
    corner = torch.where(upper > -lower, from_zero, flat) if slope == "adaptive" else flat
    lower_slope = torch.where(left, corner, torch.where(right, chord, 1.0))
    lower_slope = torch.where(constant_slope, flat, lower_slope)
    start = torch.where(left, 0.0, lower)
    # The upper line is the mirror image: it ends at the bend if the interval contains the bend.
    to_bend = torch.where(left, ratio(bend - at_lower, bend - lower, flat), 1.0)
    corner = torch.where(upper - bend > bend - lower, flat, to_bend) if slope == "adaptive" else flat
    upper_slope = torch.where(right, corner, torch.where(left, chord, 1.0))
    upper_slope = torch.where(constant_slope, flat, upper_slope)
    end = torch.where(right, bend, upper)
    lower_offset, upper_offset = layer(start) - lower_slope * start, layer(end) - upper_slope * end
    return Lines(lower_slope, lower_offset, upper_slope, upper_offset)
