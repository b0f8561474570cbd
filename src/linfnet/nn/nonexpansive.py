"""Modules that are 1-Lipschitz in the l_inf norm, and the record of what their computations round."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from linfnet.errors import ArgumentError


class Nonexpansive(nn.Module):
    """Base class of modules that are 1-Lipschitz in the l_inf norm at p = inf and in eval mode.

    `Classifier.wrap` accepts every module of this class. A subclass defines three methods; the certificates are correct
    only if these methods are (docs/certificates.md). The first dimension of the input counts the samples: the output of
    a sample must not depend on the others.

    >>> class Sort(Nonexpansive):
    ...     def forward(self, x):
    ...         return x.sort(1).values
    ...     def bounds(self, lower, upper):
    ...         return self(lower), self(upper)  # sorting is monotone
    ...     def measure(self, x):
    ...         return self(x), []  # sorting does not round
    >>> Sort()(torch.tensor([[3.0, 1.0, 2.0]]))
    tensor([[1., 2., 3.]])
    """

    def bounds(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Return bounds on the computed output, including rounding, over the box lower <= input <= upper."""
        raise ArgumentError(f"{type(self).__name__} does not define bounds(lower, upper), which certificates need")

    def measure(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the output and, for each step that rounds its result, a bound [B] on the largest absolute result.

        The output must be the result of `forward` bit for bit. A module that only selects, negates or compares numbers
        does not round and returns an empty list. One rounded step is one sum or difference of two numbers, or a maximum
        of such results.
        """
        raise ArgumentError(f"{type(self).__name__} does not define measure(x), which certificates need")


def modules_of(root: nn.Module) -> list[nn.Module]:
    """Return the modules of `root.modules()` in another order; this is faster, and a module cannot override it.

    >>> [type(module).__name__ for module in modules_of(nn.Sequential(nn.Sequential(nn.ReLU()), nn.Tanh()))]
    ['Sequential', 'Sequential', 'Tanh', 'ReLU']
    """
    found, seen = [root], {id(root)}
    for module in found:
        for child in vars(module)["_modules"].values():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                found.append(child)
    return found


def name_in(root: nn.Module, module: nn.Module) -> str:
    """Return the name of a module of a net."""
    return next(name for name, each in root.named_modules() if each is module)


def largest(x: Tensor) -> Tensor:
    """Return the largest absolute value [B] of each sample of x [B, ...]."""
    rows = x.flatten(1) if x.dim() > 1 else x.unsqueeze(1)
    return torch.maximum(rows.amin(1).neg(), rows.amax(1))  # `aminmax` takes 20 times as long


def sum_in_order(sizes: Tensor) -> Tensor:
    """Return the float64 sums [B] of sizes [steps, B], with the same bits on all devices and for any B.

    `Tensor.sum` adds in an order that depends on the device and on the shape.
    """
    sums = np.add.accumulate(sizes.detach().cpu().numpy(), axis=0, dtype=np.float64)[-1]
    return torch.from_numpy(sums).to(sizes.device)


@dataclass(frozen=True)
class Rounding:
    """The rounded steps on the way from the normalised images to a result."""

    sizes: tuple[Tensor, ...] = ()
    """Bounds [B] on the largest absolute result of each step; their sum matters."""
    steps: int = 0

    def then(self, sizes: Sequence[Tensor]) -> "Rounding":
        """Add further steps."""
        return Rounding((*self.sizes, *sizes), self.steps + len(sizes)) if sizes else self

    def total(self) -> Tensor | None:
        """Return the sum of the sizes in float64 [B], or None without steps."""
        if len(self.sizes) < 2:
            return self.sizes[0].double() if self.sizes else None
        if any(size.dtype == torch.float64 for size in self.sizes):
            return sum_in_order(torch.stack([size.double() for size in self.sizes]))
        return sum_in_order(torch.stack(self.sizes))

    @staticmethod
    def join(branches: Iterable["Rounding"]) -> "Rounding":
        """Return a record for a result that depends on several others: the largest sum and the largest count."""
        distinct: list[Rounding] = []
        for branch in branches:
            if not any(branch is other for other in distinct):
                distinct.append(branch)
        if len(distinct) == 1:
            return distinct[0]
        totals = [total for branch in distinct if (total := branch.total()) is not None]
        largest_total = (torch.stack(totals).amax(0),) if totals else ()
        return Rounding(largest_total, max((branch.steps for branch in distinct), default=0))
