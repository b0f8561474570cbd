"""The fully connected distance layer: distance, then mean shift, then bias."""

import math

import torch
from torch import Tensor, nn

from linfnet.errors import ArgumentError
from linfnet.nn.mean_shift import MeanShift
from linfnet.ops import check_p, linf_distance_bounds, lp_distance

# The weight that makes an output copy one input (up to a constant) at initialisation.
IDENTITY_WEIGHT = -10.0


class DistanceModule(nn.Module):
    """What distance layers share: weights [out, in] drawn from N(0, 1), p, mean shift and bias."""

    def __init__(self, fan_in: int, features: int, feature_dim: int, p: float, bias: bool, mean_shift: bool) -> None:
        super().__init__()
        self._p = check_p(p)
        self.weight = nn.Parameter(torch.randn(features, fan_in))
        self.shift = MeanShift(features, dim=feature_dim) if mean_shift else None
        self.bias = nn.Parameter(torch.zeros(features)) if bias else None

    @property
    def p(self) -> float:
        """The exponent of the distance; `math.inf` for the layer that certificates speak of."""
        return self._p

    @p.setter
    def p(self, value: float) -> None:
        self._p = check_p(value)

    def _finish(self, distance: Tensor) -> Tensor:
        if self.shift is not None:
            distance = self.shift(distance)
        return distance if self.bias is None else distance + self._bias_like(self.bias)

    def _bias_like(self, bias: Tensor) -> Tensor:
        return bias

    def _finish_bounds(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        if self.training and self.shift is not None:
            raise ArgumentError("bounds need eval mode: in training the mean shift depends on the batch")
        return self._finish(lower), self._finish(upper)

    def _check_infinite(self) -> None:
        if not math.isinf(self.p):
            raise ArgumentError(f"bounds need p = inf; the layer has p = {self.p:g}")


class LpDistance(DistanceModule):
    """u_o(x) = ||x - w_o||_p, shifted by its mean and biased if asked for; 1-Lipschitz in l_inf at p = inf.

    Args:
        in_features: size of the last dimension of the input.
        out_features: number of neurons.
        p: exponent, a number >= 1 or `math.inf`.
        bias: add a learnable bias.
        mean_shift: subtract the mean of each output (before the bias).
        identity_init: let output i copy input i mod in_features at first, where in_features <= out_features.

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
        super().__init__(in_features, out_features, -1, p, bias, mean_shift)
        self.in_features = in_features
        self.out_features = out_features
        if identity_init and in_features <= out_features:
            outputs = torch.arange(out_features)
            with torch.no_grad():
                self.weight[outputs, outputs % in_features] = IDENTITY_WEIGHT

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., in_features] -> [..., out_features]."""
        return self._finish(lp_distance(x, self.weight, self.p))

    def bounds(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Bounds on the output over a box of inputs, at p = inf and in eval mode."""
        self._check_infinite()
        return self._finish_bounds(*linf_distance_bounds(lower, upper, self.weight))

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, p={self.p:g}, bias={self.bias is not None}"
