"""The ramp: a ReLU that is bent flat above a learned point (Lyu et al., 2021)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from linfnet.errors import at_least

# The bend stays above the first value, so that the ramp is never flat everywhere. A ramp that is not bent yet has the
# second value as its bend: it is finite because lines are computed from it.
LEAST_BEND, NO_BEND = 1e-4, 1e6
# Weight of a batch in the recorded means.
MOMENTUM = 0.05


class Ramp(nn.Module):
    """Slope 1 from 0 to `bend`, and slope `slope` below and above, for each neuron.

    Below the bend the ramp is a leaky ReLU. Its authors call it ParamRamp; `bend` is their r, `slope` their eta. They
    first train the net without bends, and then start with bends at the mean output of each neuron: while `recording` in
    training, the ramp computes this mean, and `bend_at_means` sets the bends.

    Args:
        shape: the shape of one sample; each neuron has its bend.
        slope: the slope outside [0, bend], from 0 to 1; a training schedule may change it.
        bent: whether the ramp has bends.

    >>> Ramp((1,), slope=0.5)(torch.tensor([[-1.0], [0.5], [3.0]])).flatten().tolist()  # the bend is 1
    [-0.5, 0.5, 2.0]
    """

    slope: Tensor
    bent: Tensor
    mean: Tensor

    def __init__(self, shape: Sequence[int], slope: float = 0.0, bent: bool = True) -> None:
        super().__init__()
        at_least("slope", slope, 0, most=1)
        self.bend = nn.Parameter(torch.ones(*shape))
        self.register_buffer("slope", torch.tensor(slope))
        self.register_buffer("bent", torch.tensor(bent))
        self.register_buffer("mean", torch.zeros(*shape))
        self.recording = False

    def bends(self) -> Tensor:
        """Return the effective bends."""
        return torch.where(self.bent, self.bend.clamp(min=LEAST_BEND), NO_BEND)

    def forward(self, x: Tensor) -> Tensor:
        inside = torch.minimum(x.clamp(min=0), self.bends())
        outputs = inside + self.slope * (x - inside)
        if self.recording and self.training:
            self.mean.lerp_(outputs.detach().mean(0), MOMENTUM)
        return outputs

    @torch.no_grad()
    def bend_at_means(self) -> None:
        """Set each bend to the recorded mean output of the neuron."""
        self.bend.copy_(self.mean)
        self.bent.fill_(True)
