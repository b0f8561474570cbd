"""Normalisation with a known Lipschitz constant: pixels are divided by one std, features only shifted by their mean."""

import math
from collections.abc import Sequence
from numbers import Real

import numpy as np
import torch
from torch import Tensor, nn

from linfnet.distributed.group import ALONE
from linfnet.errors import ArgumentError
from linfnet.nn.nonexpansive import Nonexpansive, largest


class Normalize(nn.Module):
    """Compute (x - mean) / std for images [B, C, H, W], with one mean per channel and one std for all channels.

    `dims` is the number of dimensions of an image, 3 by default. The means belong to the first of them: with `dims` 1,
    x is [B, d] with one mean per feature.

    With a single std, l_inf balls are mapped to l_inf balls. Mean and std are tensors on the device of the images
    because torch on a GPU replaces a division by a Python number by a product with its reciprocal, which rounds
    differently from the CPU.

    >>> Normalize((0.5,), 0.25)(torch.ones(1, 1, 1, 1)).item()
    2.0
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: float, dims: int = 3) -> None:
        super().__init__()
        # Numbers of NumPy are allowed; True is not.
        if not isinstance(std, Real) or isinstance(std, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentError(f"std is {std}; expected one number: l_inf balls must stay l_inf balls")
        values = torch.tensor([float(std), *mean], dtype=torch.float32, device="cpu")
        if not (bool(values.isfinite().all()) and values[0].item() > 0):
            raise ArgumentError(f"std is {std}, mean {tuple(mean)}; expected finite numbers, std above 0 in float32")
        self.dims = dims
        self.register_buffer("mean", torch.tensor(list(mean), dtype=torch.float32), persistent=False)
        self.register_buffer("std", torch.tensor(float(std), dtype=torch.float32), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean.view(-1, *[1] * (self.dims - 1))) / self.std

    def bounds(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Return exact bounds on the output over a box; both steps are monotone, including rounding."""
        return self(lower), self(upper)

    def largest(self, pixels: tuple[float, float]) -> float:
        """Return the largest absolute output for a range of pixels: both steps are monotone, so it is at an end."""
        kind = np.float64 if self.std.dtype == torch.float64 else np.float32
        std = kind(self.std.item())
        outputs = [(kind(end) - kind(mean)) / std for mean in self.mean.tolist() for end in pixels]
        return math.nan if any(map(math.isnan, outputs)) else float(max(map(abs, outputs)))

    def extra_repr(self) -> str:
        return f"mean={[round(m, 6) for m in self.mean.tolist()]}, std={self.std.item():.6g}"


def along(vector: Tensor, dim: int, x: Tensor) -> Tensor:
    """Return a view of a vector that broadcasts along one dimension of x."""
    return vector.reshape([-1 if d == dim % x.dim() else 1 for d in range(x.dim())])


class MeanShift(Nonexpansive):
    """Subtract the mean of each feature: the batch mean in training (with gradients), the running mean in eval mode.

    Args:
        features: number of features (channels).
        dim: the dimension of the features: -1 for [..., features], 1 for [B, features, H, W].
        momentum: weight of a new batch in the running mean; with None, all batches since `reset` have equal weight.

    >>> shift = MeanShift(2)
    >>> shift(torch.tensor([[1.0, 2.0], [3.0, 6.0]]))
    tensor([[-1., -2.],
            [ 1.,  2.]])
    >>> shift.running_mean
    tensor([0.2000, 0.4000])
    """

    running_mean: Tensor

    def __init__(self, features: int, *, dim: int = -1, momentum: float | None = 0.1) -> None:
        super().__init__()
        self.features, self.dim, self.momentum = features, dim, momentum
        self.batches = 0
        self.group = ALONE  # the mean of a batch is over the samples of all processes in this group
        self.register_buffer("running_mean", torch.zeros(features))

    def reset(self) -> None:
        """Reset the running mean to 0 and the number of batches to 0."""
        self.running_mean.zero_()
        self.batches = 0

    def forward(self, x: Tensor) -> Tensor:
        """Return x with shifted means; x has any shape with `features` at dimension `dim`."""
        if not self.training:
            return x - along(self.running_mean, self.dim, x)
        others = [d for d in range(x.dim()) if d != self.dim % x.dim()]
        mean = x.mean(others) if self.group.size == 1 else self._shared_mean(x, others)
        with torch.no_grad():
            if self.momentum is None:
                self.batches += 1
            self.running_mean.lerp_(mean, 1 / self.batches if self.momentum is None else self.momentum)
        return x - along(mean, self.dim, x)

    def bounds(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Return bounds on the output over a box in eval mode; a rounded difference is monotone."""
        self._check_eval(lower)
        return self(lower), self(upper)

    def measure(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the output in eval mode and its largest absolute value [B]."""
        self._check_eval(x)
        output = self(x)
        return output, [largest(output)]

    def _check_eval(self, x: Tensor) -> None:
        if self.training:
            raise ArgumentError("certificates need eval mode: in training the mean shift depends on the batch")
        if self.dim % x.dim() == 0:
            raise ArgumentError(f"dim is {self.dim} for x of shape {tuple(x.shape)}; expected a dimension of features")

    def _shared_mean(self, x: Tensor, others: list[int]) -> Tensor:
        """Return the mean over the samples of all processes, which may have different numbers of samples."""
        count = x.new_full((1,), x.numel() / self.features)
        total = self.group.sum(torch.cat([x.sum(others), count]))
        return total[:-1] / total[-1]

    def extra_repr(self) -> str:
        return f"{self.features}, dim={self.dim}, momentum={self.momentum}"
