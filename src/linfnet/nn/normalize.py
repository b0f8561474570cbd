"""Input normalisation with one standard deviation for all channels, which maps an l_inf ball to an l_inf ball."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from linfnet.errors import ArgumentError


class Normalize(nn.Module):
    """(x - mean) / std for images [B, C, H, W]: one mean per channel, one std for all.

    Both are tensors on the device of the images: on a GPU, torch divides by a Python number by multiplying with its
    reciprocal, which rounds differently from the CPU.

    >>> Normalize((0.5,), 0.25)(torch.ones(1, 1, 1, 1)).item()
    2.0
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: float) -> None:
        super().__init__()
        values = torch.tensor([float(std), *mean], dtype=torch.float32, device="cpu")
        if not (bool(values.isfinite().all()) and values[0].item() > 0):
            raise ArgumentError(f"std is {std}, mean {tuple(mean)}; wanted finite numbers, std above 0 in float32")
        self.register_buffer("mean", torch.tensor(list(mean), dtype=torch.float32), persistent=False)
        self.register_buffer("std", torch.tensor(float(std), dtype=torch.float32), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean.view(-1, 1, 1)) / self.std

    def bounds(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """The image of a box: both steps are monotone, including rounding."""
        return self(lower), self(upper)

    def extra_repr(self) -> str:
        return f"mean={[round(m, 6) for m in self.mean.tolist()]}, std={self.std.item():.6g}"
