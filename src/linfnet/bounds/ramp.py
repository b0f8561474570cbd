"""The ramp: a ReLU that is bent flat above a learned point (Lyu et al., 2021)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

# The bend stays above this value, so that the ramp is never flat everywhere.
LEAST_BEND = 1e-4


class Ramp(nn.Module):
    """Slope 1 from 0 to `bend`, and slope `slope` below and above, for each neuron.

    Below the bend the ramp is a leaky ReLU. Its authors call it ParamRamp; `bend` is their r, `slope` their eta.

    Args:
        shape: the shape of one sample; each neuron has its bend.
        slope: the slope outside [0, bend], from 0 to 1; a training schedule may change it.

    >>> Ramp((1,), slope=0.1)(torch.tensor([[-1.0], [0.5], [3.0]])).flatten().tolist()  # the bend is 1
    [-0.10000000149011612, 0.5, 1.2000000476837158]
    """

    slope: Tensor

    def __init__(self, shape: Sequence[int], slope: float = 0.0) -> None:
        super().__init__()
        self.bend = nn.Parameter(torch.ones(*shape))
        self.register_buffer("slope", torch.tensor(slope))

    def bends(self) -> Tensor:
        """Return the effective bends."""
        return self.bend.clamp(min=LEAST_BEND)

    def forward(self, x: Tensor) -> Tensor:
        inside = torch.minimum(x.clamp(min=0), self.bends())
        return inside + self.slope * (x - inside)
