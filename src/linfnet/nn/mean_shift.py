"""Mean shift: the normalisation without a scale that keeps a distance layer 1-Lipschitz."""

import torch
from torch import Tensor, nn

from linfnet.distributed.group import ALONE
from linfnet.errors import ArgumentError


class MeanShift(nn.Module):
    """Subtract the mean of each feature: the batch's in training (gradients flow through it), the running one in eval.

    Args:
        features: number of features (channels).
        dim: the dimension of the features: -1 for [..., features], 1 for [B, features, H, W].
        momentum: weight of a new batch in the running mean; None averages all batches since `reset` evenly.

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
        self.features = features
        self.dim = dim
        self.momentum = momentum
        self.batches = 0
        self.ranks = ALONE  # processes that share each batch: the mean is that of all their samples
        self.register_buffer("running_mean", torch.zeros(features))

    def reset(self) -> None:
        """Forget all batches."""
        self.running_mean.zero_()
        self.batches = 0

    def forward(self, x: Tensor) -> Tensor:
        """x: any shape with `features` at `dim`; the same shape comes back."""
        if not self.training:
            return x - self._spread(self.running_mean, x)
        others = [d for d in range(x.dim()) if d != self.dim % x.dim()]
        mean = x.mean(others) if self.ranks.size == 1 else self._shared_mean(x, others)
        with torch.no_grad():
            if self.momentum is None:
                self.batches += 1
            self.running_mean.lerp_(mean, 1 / self.batches if self.momentum is None else self.momentum)
        return x - self._spread(mean, x)

    def _shared_mean(self, x: Tensor, others: list[int]) -> Tensor:
        """The mean over the samples of all processes, which may hold different numbers of them."""
        count = x.new_full((1,), x.numel() / self.features)
        total = self.ranks.sum(torch.cat([x.sum(others), count]))
        return total[:-1] / total[-1]

    def bounds(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """The image of a box; defined in eval only, where the shift does not depend on the batch."""
        if self.training:
            raise ArgumentError(
                "bounds through a mean shift need eval mode: in training the shift depends on the batch"
            )
        return self(lower), self(upper)

    def _spread(self, mean: Tensor, x: Tensor) -> Tensor:
        return mean.reshape([-1 if d == self.dim % x.dim() else 1 for d in range(x.dim())])

    def extra_repr(self) -> str:
        return f"{self.features}, dim={self.dim}, momentum={self.momentum}"
