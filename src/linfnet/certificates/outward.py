"""Interval bounds, rounded outwards, of nets with matrix products.

A box is a pair of float64 tensors with the ends of intervals. `bounds` returns a box that contains every number which
`evaluate` can compute in float32 from numbers of a box, whatever the order in which products are summed.
docs/certificates.md contains the proof.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linfnet.certificates.rounding import float_above, unit_and_tiny
from linfnet.errors import ArgumentError

Ends = tuple[Tensor, Tensor]
"""The lower and upper ends of a box."""

# Number by which magnitudes are increased. A relative error of it is larger than the smallest normal number, so the
# error bounds include underflow, whether or not a product flushes subnormal numbers to zero.
TINY = 2.0**-100
# Numbers up to this magnitude are far from overflow; if larger ones are possible, the box is NaN and certifies nothing.
LIMIT = 2.0**126
# The error of tanh in units in the last place; the implementations of torch on CPUs and of CUDA have at most 2.
TANH_ULPS = 4
# The number of elements of the patches of a convolution that are in memory at the same time. On a CPU, patches that
# fit into its caches take half the time.
_PATCHES, _PATCHES_ON_CPU = 2**26, 2**20


@lru_cache
def error_rate(roundings: int) -> float:
    """Return a bound on |(1 + d_1) … (1 + d_k) - 1| for numbers d_i of at most 2^-24, with k = roundings + 2.

    The two additional factors bound the errors of the float64 numbers with which this module computes.
    """
    share = unit_and_tiny(torch.float32)[0] * (roundings + 2)
    if share > Fraction(1, 4):
        raise ArgumentError(f"an output is a sum of about {roundings} products; expected less than {2**22}")
    return float_above(share / (1 - share))


def _magnitude(lower: Tensor, upper: Tensor) -> Tensor:
    return torch.maximum(lower.abs(), upper.abs())


def _if_finite(errors: Tensor, largest: Tensor) -> Tensor:
    """Return the errors, NaN where the program may overflow. NaN remains NaN in all later steps."""
    return torch.where(largest <= LIMIT, errors, torch.nan)


@dataclass(frozen=True)
class Product:
    """A layer that computes weighted sums, in float64."""

    weight: Tensor
    """[out, in], exact or with a relative error of at most 2^-50."""
    bias: Tensor
    """[out]"""
    apply: Callable[[Tensor, Tensor, Tensor], Tensor] = F.linear
    """(x, weight, bias) -> outputs."""
    roundings: int = 0
    """How often the program rounds the weights before it multiplies by them."""

    def reach(self, radius: Tensor | float, magnitude: Tensor) -> Tensor:
        """Return a bound on the distance of a computed output to the exact output at the centre of a box.

        Args:
            radius: half the widths of the box. With a radius of 0, this is a bound on the rounding errors.
            magnitude: bounds on the absolute values of the inputs.
        """
        count = self.weight.shape[1]
        rate = error_rate(count + 1 + self.roundings)
        wide = radius + rate * (magnitude + TINY)
        reach = self.apply(wide, self.weight.abs() + TINY, rate * (self.bias.abs() + 2 * count * TINY))
        return _if_finite(reach, reach / rate)

    def bounds(self, lower: Tensor, upper: Tensor) -> Ends:
        """Return a box that contains all computed outputs for inputs in a box."""
        centre = self.apply((lower + upper) / 2, self.weight, self.bias)
        reach = self.reach((upper - lower) / 2, _magnitude(lower, upper))
        return centre - reach, centre + reach

    def least_margin(self, lower: Tensor, upper: Tensor, labels: Tensor) -> Tensor:
        """Return a lower bound [B] on the computed logit of the label minus any other, if this is the last layer.

        The minimum of the difference of two logits is larger than the difference of their bounds.

        Args:
            lower: [B, d], lower ends of the inputs of the last layer; `upper` has the upper ends.
            labels: [B].
        """
        centre, radius = (lower + upper) / 2, (upper - lower) / 2
        errors = self.reach(0.0, _magnitude(lower, upper))
        own, own_bias = self.weight[labels], self.bias[labels]
        gaps: list[Tensor] = []
        for weight, bias in zip(self.weight, self.bias, strict=True):
            slope = own - weight
            gaps.append((centre * slope - radius * slope.abs()).sum(1) + (own_bias - bias))
        index = labels.unsqueeze(1)
        margins = torch.stack(gaps, 1) - errors - errors.gather(1, index)
        return margins.scatter(1, index, torch.inf).amin(1)


def product_of(layer: nn.Linear | nn.Conv2d) -> Product:
    """Return the weighted sums of a layer."""
    weight = layer.weight.double().flatten(1)
    bias = weight.new_zeros(len(weight)) if layer.bias is None else layer.bias.double()
    if isinstance(layer, nn.Linear):
        return Product(weight, bias)
    return Product(weight, bias, lambda x, weight, bias: _convolve(layer, x, weight, bias))


def _convolve(layer: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute a convolution with weights [out, in * kernel] as a matrix product of weights and patches.

    The algorithms of `torch.nn.functional.conv2d` include Winograd's, TF32 and Fourier transforms, whose errors are not
    those of a sum of products.
    """
    plain = (layer.groups, layer.dilation, layer.padding_mode) == (1, (1, 1), "zeros")
    if not plain or isinstance(layer.padding, str):
        raise ArgumentError(f"a layer is {layer}; expected groups and dilation 1 and padding by a number of zeros")
    (high, wide), (down, right) = layer.kernel_size, layer.stride
    (rows, columns), parts = layer.padding[:2], list[Tensor]()
    padded = F.pad(x, (columns, columns, rows, rows))
    shape = ((padded.shape[2] - high) // down + 1, (padded.shape[3] - wide) // right + 1)
    most = _PATCHES_ON_CPU if x.device.type == "cpu" else _PATCHES
    for part in padded.split(max(most // (weight.shape[1] * math.prod(shape)), 1)):
        patches = part.unfold(2, high, down).unfold(3, wide, right).permute(0, 1, 4, 5, 2, 3)
        parts.append((weight @ patches.reshape(len(part), weight.shape[1], math.prod(shape))).unflatten(2, shape))
    result = parts[0] if len(parts) == 1 else torch.cat(parts)
    return result if bias is None else result + bias.view(-1, 1, 1)


def _run_convolution(layer: nn.Conv2d, x: Tensor) -> Tensor:
    return _convolve(layer, x, layer.weight.flatten(1), layer.bias)


def _product_bounds(layer: nn.Linear | nn.Conv2d, lower: Tensor, upper: Tensor) -> Ends:
    return product_of(layer).bounds(lower, upper)


def _scale_and_shift(layer: nn.BatchNorm1d | nn.BatchNorm2d, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return in float64 what batch norm in eval mode multiplies each channel of x by, and adds to it."""
    mean, variance = layer.running_mean, layer.running_var
    if mean is None or variance is None:
        raise ArgumentError("batch norm has no running statistics; expected track_running_stats=True")
    scale = (variance.double() + layer.eps).sqrt().reciprocal()
    scale = scale if layer.weight is None else layer.weight.double() * scale  # pyright: ignore[reportUnnecessaryComparison]
    shift = -mean.double() * scale
    shift = shift if layer.bias is None else layer.bias.double() + shift  # pyright: ignore[reportUnnecessaryComparison]
    shape = [-1 if dim == 1 else 1 for dim in range(x.dim())]
    return scale.view(shape), shift.view(shape)


def _run_batch_norm(layer: nn.BatchNorm1d | nn.BatchNorm2d, x: Tensor) -> Tensor:
    scale, shift = _scale_and_shift(layer, x)
    return x * scale.to(x.dtype) + shift.to(x.dtype)


def _batch_norm_bounds(layer: nn.BatchNorm1d | nn.BatchNorm2d, lower: Tensor, upper: Tensor) -> Ends:
    scale, shift = _scale_and_shift(layer, lower)
    first, second = lower * scale, upper * scale
    size = _magnitude(lower, upper) * (scale.abs() + TINY) + shift.abs()
    # The program rounds the scale or the shift, the product and the sum.
    error = _if_finite(error_rate(3) * size + TINY, size + scale.abs())
    return torch.minimum(first, second) + shift - error, torch.maximum(first, second) + shift + error


def _run_average(layer: nn.AvgPool2d, x: Tensor) -> Tensor:
    if layer.divisor_override is not None:
        raise ArgumentError(f"divisor_override of a layer is {layer.divisor_override}; expected None")
    return F.avg_pool2d(x, layer.kernel_size, layer.stride, layer.padding, layer.ceil_mode, layer.count_include_pad)


def _average_bounds(layer: nn.AvgPool2d, lower: Tensor, upper: Tensor) -> Ends:
    count, size = math.prod(_pair(layer.kernel_size)), _run_average(layer, _magnitude(lower, upper))
    # The program adds `count` numbers and divides by their number, or multiplies by the rounded reciprocal.
    error = _if_finite(error_rate(count + 1) * size + TINY, count * size)
    return _run_average(layer, lower) - error, _run_average(layer, upper) + error


def _tanh_bounds(layer: nn.Tanh, lower: Tensor, upper: Tensor) -> Ends:
    low, high = lower.tanh(), upper.tanh()
    rate = (TANH_ULPS + 1) * 2.0**-23
    return low - (rate * low.abs() + TINY), high + (rate * high.abs() + TINY)


@dataclass(frozen=True)
class Rule:
    """How layers of one class run, and the bounds of what they compute."""

    run: Callable[[Any, Tensor], Tensor]
    bounds: Callable[[Any, Tensor, Tensor], Ends]


def _exact(run: Callable[[Any, Tensor], Tensor]) -> Rule:
    """Return the rule of an increasing function that does not round."""
    return Rule(run, lambda layer, lower, upper: (run(layer, lower), run(layer, upper)))


def evaluate(layers: Iterable[nn.Module], x: Tensor) -> Tensor:
    """Run layers in eval mode, such as those of an `nn.Sequential`, by the operations that `bounds` analyses."""
    for layer in layers:
        x = _rule(layer, x).run(layer, x)
    return x


def bounds(layers: Iterable[nn.Module], lower: Tensor, upper: Tensor) -> Ends:
    """Return a box that contains the results of `evaluate` for all inputs x with lower <= x <= upper, in float64.

    >>> bounds([nn.ReLU(), nn.Flatten()], torch.tensor([[-1.0]]), torch.tensor([[2.0]]))
    (tensor([[0.]], dtype=torch.float64), tensor([[2.]], dtype=torch.float64))
    """
    lower, upper = lower.double(), upper.double()
    for layer in layers:
        lower, upper = _rule(layer, lower).bounds(layer, lower, upper)
    return lower, upper


RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: Rule(lambda layer, x: F.linear(x, layer.weight, layer.bias), _product_bounds),
    nn.Conv2d: Rule(_run_convolution, _product_bounds),
    nn.BatchNorm1d: Rule(_run_batch_norm, _batch_norm_bounds),
    nn.BatchNorm2d: Rule(_run_batch_norm, _batch_norm_bounds),
    nn.AvgPool2d: Rule(_run_average, _average_bounds),
    nn.Tanh: Rule(lambda layer, x: x.tanh(), _tanh_bounds),
    nn.ReLU: _exact(lambda layer, x: x.relu()),
    nn.Flatten: _exact(lambda layer, x: x.flatten(layer.start_dim, layer.end_dim)),
    nn.Sequential: Rule(evaluate, bounds),
}


def _rule(layer: nn.Module, x: Tensor) -> Rule:
    if type(layer) not in RULES:
        known = ", ".join(kind.__name__ for kind in RULES)
        raise ArgumentError(f"a layer is a {type(layer).__name__}, which has no interval bounds; expected {known}")
    if not _fits(layer, tuple(x.shape)):
        raise ArgumentError(
            f"the layer {layer} does not fit to inputs of shape {tuple(x.shape)}; expected another layer"
        )
    return RULES[type(layer)]


def _fits(layer: nn.Module, shape: tuple[int, ...]) -> bool:
    """Return whether inputs [B, ...] of a shape have the number of features or channels that a layer expects."""
    if isinstance(layer, nn.Linear):
        return len(shape) > 1 and _has_shapes(layer.weight, shape[-1:], layer.bias)
    if isinstance(layer, nn.Conv2d):
        if len(shape) != 4 or not _has_windows(layer, shape):
            return False
        return _has_shapes(layer.weight, (shape[1] // layer.groups, *layer.kernel_size), layer.bias)
    if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
        vectors = (layer.running_mean, layer.running_var, layer.weight, layer.bias)
        return len(shape) > 1 and all(part is None or part.shape == shape[1:2] for part in vectors)
    if isinstance(layer, nn.AvgPool2d):
        return len(shape) == 4 and _has_windows(layer, shape)
    if isinstance(layer, nn.Flatten):  # the samples of a batch are not mixed
        return -len(shape) < layer.start_dim < len(shape) and layer.start_dim != 0
    return True


def _has_shapes(weight: Tensor, inputs: tuple[int, ...], bias: Tensor | None) -> bool:
    return weight.shape[1:] == inputs and (bias is None or bias.shape == weight.shape[:1])


def _has_windows(layer: nn.Conv2d | nn.AvgPool2d, shape: tuple[int, ...]) -> bool:
    """Return whether images [B, C, H, W] with their padding are at least as large as a window."""
    kernel, padding = _pair(layer.kernel_size), (0, 0) if isinstance(layer.padding, str) else _pair(layer.padding)
    return all(size + 2 * zeros >= side for size, zeros, side in zip(shape[2:], padding, kernel, strict=True))


def _pair(size: int | tuple[int, ...]) -> tuple[int, ...]:
    return size if isinstance(size, tuple) else (size, size)
