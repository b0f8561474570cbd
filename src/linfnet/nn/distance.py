"""Distance layers, fully connected and convolutional. They compute distances, shift the means and add a bias."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linfnet.errors import ArgumentError
from linfnet.nn.nonexpansive import Nonexpansive, largest
from linfnet.nn.normalization import MeanShift, along
from linfnet.ops import check_p, linf_distance_bounds, lp_distance

# The initial weight with which an output copies one input, up to a constant.
IDENTITY_WEIGHT = -10.0


class _StraightThrough(torch.autograd.Function):
    """Returns `values`; the gradient of the result is passed to `slopes`, a tensor of the same shape."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, slopes: Tensor) -> Tensor:
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        return None, gradients[0]


class DistanceModule(Nonexpansive):
    """Base class of distance layers: the initial weights, the number of outputs, p, mean shift and bias."""

    def __init__(self, weight: Tensor, features: int, dim: int, p: float, bias: bool, mean_shift: bool) -> None:
        super().__init__()
        self._p = check_p(p)
        self._slopes_p = math.inf
        self.dim = dim  # the dimension of the features in the output
        self.weight = nn.Parameter(weight)
        self.shift = MeanShift(features, dim=dim) if mean_shift else None
        self.bias = nn.Parameter(torch.zeros(features)) if bias else None

    @property
    def p(self) -> float:
        """The exponent of the distance; certificates hold for `math.inf`."""
        return self._p

    @p.setter
    def p(self, value: float) -> None:
        self._p = check_p(value)

    @property
    def slopes_p(self) -> float:
        """In training mode, the gradients are those of the distances at min(p, slopes_p); infinity by default."""
        return self._slopes_p

    @slopes_p.setter
    def slopes_p(self, value: float) -> None:
        self._slopes_p = check_p(value, "slopes_p")

    @property
    def features(self) -> int:
        """The number of outputs, or of channels of the output."""
        return len(self.weight)

    def bounds(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Return bounds on the output over the box lower <= input <= upper, at p = inf and in eval mode."""
        self._check_certifiable("bounds", lower)
        nearest, farthest = self._distance_bounds(lower, upper)
        return self._finish(nearest), self._finish(farthest)

    def measure(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the output and a bound [B] on the magnitude of each rounded step, at p = inf and in eval mode.

        The largest distance is measured; the mean and the bias are bounded by their largest absolute entry. Rounding is
        monotone, so the rounded sum of two bounds is a bound on every rounded sum.
        """
        self._check_certifiable("magnitudes", x)
        distance = self._distance(x)
        output = self._finish(distance)
        if self.shift is None:
            terms, sizes = (self.bias,), [largest(output)]  # the distance is the output minus the bias
        else:
            terms, sizes = (self.shift.running_mean, self.bias), [distance.flatten(1).amax(1)]
        for term in terms:
            if term is not None:
                sizes.append(sizes[-1] + term.abs().amax())
        return output, sizes

    def _check_certifiable(self, what: str, x: Tensor) -> None:
        shift = self.shift
        if self.dim % x.dim() == 0 or (shift is not None and shift.dim != self.dim):
            raise ArgumentError(f"{what} need the dimension of the features; the layer has dim = {self.dim}")
        if not math.isinf(self.p):
            raise ArgumentError(f"{what} need p = inf; the layer has p = {self.p:g}")
        if self.training and shift is not None:
            raise ArgumentError(f"{what} need eval mode: in training the mean shift depends on the batch")

    def check_vectors(self) -> None:
        """Raise an error unless the mean and the bias have one number for each feature."""
        mean: Tensor | None = getattr(self.shift, "running_mean", None)  # certificates refuse other kinds of shift
        for name, vector in (("mean", mean), ("bias", self.bias)):
            if vector is not None and vector.shape != (self.features,):
                shape = tuple(vector.shape)
                raise ArgumentError(f"{name} of a distance layer has shape {shape}; expected [{self.features}]")

    def with_slopes(self, distance: Callable[[float], Tensor]) -> Tensor:
        """Return distance(p); in training mode, the gradients are those of distance(slopes_p) if that is smaller."""
        if self._slopes_p >= self._p or not (self.training and torch.is_grad_enabled()):
            return distance(self._p)
        with torch.no_grad():
            values = distance(self._p)
        return _StraightThrough.apply(values, distance(self._slopes_p))

    def _distance(self, x: Tensor) -> Tensor:
        return self.with_slopes(partial(self._distance_at, x))

    def _distance_at(self, x: Tensor, p: float) -> Tensor:
        raise NotImplementedError

    def _distance_bounds(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def _finish(self, distance: Tensor) -> Tensor:
        self.check_vectors()
        if self.shift is not None:
            distance = self.shift(distance)
        return distance if self.bias is None else distance + along(self.bias, self.dim, distance)


@torch.no_grad()
def copy_inputs(weight: Tensor) -> None:
    """Change weights [out, in] so that output i is a copy of input i mod in, if in <= out."""
    out_features, in_features = weight.shape
    if in_features <= out_features:
        outputs = torch.arange(out_features)
        weight[outputs, outputs % in_features] = IDENTITY_WEIGHT


class LpDistance(DistanceModule):
    """Compute u_o(x) = ||x - w_o||_p, optionally with mean shift and bias; 1-Lipschitz in l_inf at p = inf.

    Args:
        in_features: size of the last dimension of the input.
        out_features: number of neurons.
        p: exponent, a number >= 1 or `math.inf`.
        bias: whether to add a learnable bias.
        mean_shift: whether to subtract the mean of each output, before the bias is added.
        identity_init: whether output i is initially a copy of input i mod in_features, if in_features <= out_features.

    >>> layer = LpDistance(64, 128, p=8.0, mean_shift=True)
    >>> layer(torch.rand(5, 64)).shape
    torch.Size([5, 128])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        p: float = math.inf,
        bias: bool = False,
        mean_shift: bool = False,
        identity_init: bool = False,
    ) -> None:
        super().__init__(torch.randn(out_features, in_features), out_features, -1, p, bias, mean_shift)
        self.in_features, self.out_features = in_features, out_features
        if identity_init:
            copy_inputs(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs [..., out_features] for x [..., in_features]."""
        return self._finish(self._distance(x))

    def _distance_at(self, x: Tensor, p: float) -> Tensor:
        return lp_distance(x, self.weight, p)

    def _distance_bounds(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        return linf_distance_bounds(lower, upper, self.weight)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, p={self.p:g}, bias={self.bias is not None}"


class LpDistanceConv2d(DistanceModule):
    """Compute l_p distances of the patches of an image to learned patches; 1-Lipschitz in l_inf at p = inf.

    Args:
        in_channels: number of channels of the input [B, in_channels, H, W]; a multiple of `groups`.
        out_channels: number of channels of the output; a multiple of `groups`.
        kernel_size: height and width of a patch.
        stride: step between patches.
        padding: number of rows and columns of zeros on each side of the image.
        groups: output group g depends on input group g only.
        p, bias, mean_shift: as in `LpDistance`, with one mean and one bias per channel.
        identity_init: whether each output channel initially copies one pixel of its patch, if out_channels >=
            in_channels: the centre, or with at least in_channels * stride**2 channels one of the stride x stride pixels
            at the centre. With padding = (kernel_size - stride + 1) // 2 and sizes that stride divides, these are all
            pixels.

    >>> LpDistanceConv2d(3, 8, 3, stride=2, padding=1, p=8.0)(torch.rand(2, 3, 9, 9)).shape
    torch.Size([2, 8, 5, 5])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        stride: int = 1,
        padding: int = 0,
        groups: int = 1,
        p: float = math.inf,
        bias: bool = False,
        mean_shift: bool = False,
        identity_init: bool = False,
    ) -> None:
        if min(kernel_size, stride, groups) < 1 or padding < 0:
            raise ArgumentError(f"{kernel_size=}, {stride=}, {groups=} must be at least 1 and {padding=} at least 0")
        if in_channels % groups or out_channels % groups:
            raise ArgumentError(f"groups is {groups}; expected a divisor of {in_channels} and {out_channels} channels")
        fan_in = in_channels // groups * kernel_size**2
        super().__init__(torch.randn(out_channels, fan_in), out_channels, 1, p, bias, mean_shift)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size, self.stride, self.padding, self.groups = kernel_size, stride, padding, groups
        if identity_init and in_channels <= out_channels:
            size = stride if stride <= kernel_size and in_channels * stride**2 <= out_channels else 1
            first, inputs = (kernel_size - size + 1) // 2, in_channels // groups
            outputs = torch.arange(out_channels)
            pixel, channel = outputs // inputs % size**2, outputs % inputs
            row, column = first + pixel // size, first + pixel % size
            with torch.no_grad():
                self.weight[outputs, (channel * kernel_size + row) * kernel_size + column] = IDENTITY_WEIGHT

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs [B, out_channels, H', W'] for x [B, in_channels, H, W]."""
        return self._finish(self._distance(x))

    def _distance_at(self, x: Tensor, p: float) -> Tensor:
        groups = zip(self._patches(x), self.weight.chunk(self.groups), strict=True)
        return self._image([lp_distance(patches, weight, p) for patches, weight in groups], x)

    def _distance_bounds(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        groups = zip(self._patches(lower), self._patches(upper), self.weight.chunk(self.groups), strict=True)
        smallest, largest = zip(*(linf_distance_bounds(*group) for group in groups), strict=True)
        return self._image(smallest, lower), self._image(largest, lower)

    def _patches(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the patches [B, positions, fan_in] of each group, from x [B, in_channels, H, W]."""
        if x.dim() != 4 or x.shape[1] != self.in_channels:
            raise ArgumentError(f"x has shape {tuple(x.shape)}; expected [B, {self.in_channels}, H, W]")
        columns = F.unfold(x, self.kernel_size, padding=self.padding, stride=self.stride)
        return columns.transpose(1, 2).unflatten(2, (self.groups, -1)).unbind(2)

    def _image(self, distances: list[Tensor] | tuple[Tensor, ...], x: Tensor) -> Tensor:
        """Join the distances [B, positions, out_channels / groups] of all groups to [B, out_channels, H', W']."""
        rows, columns = ((s + 2 * self.padding - self.kernel_size) // self.stride + 1 for s in x.shape[2:])
        return torch.cat(distances, -1).transpose(1, 2).unflatten(2, (rows, columns))

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"padding={self.padding}, groups={self.groups}, p={self.p:g}, bias={self.bias is not None}"
        )
