"""Sparse distances: the interface of an implementation, the table of implementations, and the reference in plain torch.

A neuron has a distance to some of its inputs only. At p = infinity it is

    y[b, o] = max over offsets[o] <= c < offsets[o + 1] of |x[b, index[c]] - weight[c]|

The numbers c are called connections. At p = infinity, kernels must agree with the reference bit for bit; at a finite p,
as those of `linfnet.ops.reference`.
"""

import math
from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from linfnet.errors import ArgumentError
from linfnet.ops import implementations
from linfnet.registry import Registry

# Largest number of elements of an intermediate tensor [rows, outs, connections]: 16 MiB in float32.
BLOCK_ELEMENTS = 1 << 22
# Neurons that are computed together. Their rows are padded to the longest.
BLOCK_OUTS = 64


Layer = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]
"""Weight, index, offsets, mean [out] and bias [out] of a layer."""


class SparseImplementation(Protocol):
    """Computes sparse distances and gradients. All tensors are contiguous and on one device.

    x, lower, upper: [n, in]; weight: [connections], of the same dtype; index: int32 [connections]; offsets: int32
    [out + 1]; y and grad: [n, out]. An implementation raises `ArgumentError` for connections that do not fit.
    """

    def supports(self, device_type: str, dtype: torch.dtype) -> bool:
        """Whether this machine can run the implementation on this type of device with this dtype."""
        ...

    def forward(self, x: Tensor, weight: Tensor, index: Tensor, offsets: Tensor) -> Tensor:
        """Return the distances y."""
        ...

    def forward_saving(self, x: Tensor, weight: Tensor, index: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        """Return y and, for each output, the first connection that attains it (int32 [n, out])."""
        ...

    def backward(
        self, grad: Tensor, x: Tensor, weight: Tensor, index: Tensor, decisive: Tensor, need_x: bool, need_w: bool
    ) -> tuple[Tensor, Tensor]:
        """Return (grad_x, grad_weight) for the connections of `forward_saving`; one not needed has shape [0]."""
        ...

    def power(self, x: Tensor, weight: Tensor, index: Tensor, offsets: Tensor, p: float) -> Tensor:
        """Return the l_p distances y at a finite p."""
        ...

    def power_backward(
        self,
        grad: Tensor,
        x: Tensor,
        weight: Tensor,
        index: Tensor,
        offsets: Tensor,
        y: Tensor,
        p: float,
        need_x: bool,
        need_w: bool,
    ) -> tuple[Tensor, Tensor]:
        """Return (grad_x, grad_weight) of `power`; one not needed has shape [0]."""
        ...

    def bounds(
        self, lower: Tensor, upper: Tensor, weight: Tensor, index: Tensor, offsets: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the smallest and the largest distance over the box [lower, upper]."""
        ...

    def bounds_saving(
        self, lower: Tensor, upper: Tensor, weight: Tensor, index: Tensor, offsets: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the results of `bounds` and, for each, the first connection that attains it (int32 [n, out])."""
        ...


# The names are those of `KERNELS`. If several support a tensor, the one that was registered last is preferred.
SPARSE_KERNELS: Registry[Callable[[], SparseImplementation]] = Registry("sparse impl")
_instances: dict[str, SparseImplementation] = {}


def get_sparse(name: str) -> SparseImplementation:
    """Return the implementation with this name."""
    if name not in _instances:
        _instances[name] = SPARSE_KERNELS[name]()
    return _instances[name]


def choose_sparse(device_type: str, dtype: torch.dtype, name: str | None = None) -> str:
    """Return the name of the implementation for such tensors.

    It is the one that `implementations.choose` returns, or else the preferred one that supports the tensors.
    """
    known = tuple(SPARSE_KERNELS)
    if name is not None and name in known and not get_sparse(name).supports(device_type, dtype):
        raise ArgumentError(f"impl={name!r} does not support {dtype} on {device_type} on this machine")
    chosen = implementations.choose(device_type, dtype, name)
    for candidate in (chosen, *reversed(known)):
        if candidate in known and get_sparse(candidate).supports(device_type, dtype):
            return candidate
    raise ArgumentError(f"x has dtype {dtype} on {device_type}; expected float32 or float64")


def check_connections(index: Tensor, offsets: Tensor, features: int) -> None:
    """Raise an error unless every neuron has a connection and every index is from 0 to features - 1."""
    counts = offsets.diff()
    if offsets[0] != 0 or offsets[-1] != index.numel() or bool((counts < 1).any()):
        raise ArgumentError(
            f"offsets do not fit to {index.numel()} connections; expected increasing numbers from 0 to their number"
        )
    if index.numel() and not (index.min() >= 0 and index.max() < features):
        raise ArgumentError(
            f"index has values from {int(index.min())} to {int(index.max())}; expected 0 to {features - 1}"
        )


def gradients_like(x: Tensor, weight: Tensor, need_x: bool, need_w: bool) -> tuple[Tensor, Tensor]:
    """Return uninitialised, contiguous gradients; a gradient that is not needed is empty."""
    return x.new_empty(x.shape if need_x else (0,)), weight.new_empty(weight.shape if need_w else (0,))


def outputs_like(x: Tensor, offsets: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return an uninitialised tensor [n, out] for the distances or, with dtype int32, for connections."""
    return x.new_empty((x.shape[0], offsets.shape[0] - 1), dtype=dtype)


def bounds_like(lower: Tensor, offsets: Tensor, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
    """Return two tensors as `outputs_like` does."""
    return outputs_like(lower, offsets, dtype), outputs_like(lower, offsets, dtype)


def _blocks(n: int, index: Tensor, offsets: Tensor, features: int) -> Iterator[tuple[slice, slice, Tensor]]:
    """Divide [n, out] into blocks; return their rows, outputs and the connections [outs, longest row] of the outputs.

    Shorter rows are padded with their last connection, which changes neither the maximum nor where it is first
    attained.
    """
    check_connections(index, offsets, features)
    starts = offsets.tolist()
    for left in range(0, len(starts) - 1, BLOCK_OUTS):
        right = min(left + BLOCK_OUTS, len(starts) - 1)
        longest = max(b - a for a, b in zip(starts[left:right], starts[left + 1 : right + 1], strict=True))
        first, last = offsets[left:right].long(), offsets[left + 1 : right + 1].long() - 1
        steps = torch.arange(longest, device=offsets.device)
        connections = torch.minimum(first[:, None] + steps, last[:, None])
        rows = max(1, BLOCK_ELEMENTS // connections.numel())
        for top in range(0, n, rows):
            yield slice(top, min(top + rows, n)), slice(left, right), connections


def _row_blocks(y: Tensor, weight: Tensor) -> Iterator[slice]:
    """Divide the rows of y [n, out] into blocks with at most BLOCK_ELEMENTS differences, or of one row."""
    step = max(1, BLOCK_ELEMENTS // max(1, weight.shape[0]))
    for top in range(0, len(y) if y.shape[1] else 0, step):
        yield slice(top, min(top + step, len(y)))


@SPARSE_KERNELS.register("reference")
class SparseReference:
    """Plain torch, on any device; implements `SparseImplementation`."""

    def supports(self, device_type: str, dtype: torch.dtype) -> bool:
        return dtype in (torch.float32, torch.float64)

    def forward(self, x: Tensor, weight: Tensor, index: Tensor, offsets: Tensor) -> Tensor:
        return self.forward_saving(x, weight, index, offsets)[0]

    def forward_saving(self, x: Tensor, weight: Tensor, index: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        y, decisive = outputs_like(x, offsets), outputs_like(x, offsets, torch.int32)
        for rows, outs, connections in _blocks(x.shape[0], index, offsets, x.shape[1]):
            difference = x[rows][:, index[connections].long()] - weight[connections]
            y[rows, outs], step = difference.abs_().max(-1)
            decisive[rows, outs] = offsets[outs.start : outs.stop] + step.int()
        return y, decisive

    def backward(
        self, grad: Tensor, x: Tensor, weight: Tensor, index: Tensor, decisive: Tensor, need_x: bool, need_w: bool
    ) -> tuple[Tensor, Tensor]:
        grad_x, grad_w = (gradient.zero_() for gradient in gradients_like(x, weight, need_x, need_w))
        connections = decisive.long()
        features = index[connections].long()
        flow = grad * (x.gather(1, features) - weight[connections]).sign_()
        if need_x:
            grad_x.scatter_add_(1, features, flow)
        if need_w:
            grad_w.scatter_add_(0, connections.flatten(), flow.neg().flatten())
        return grad_x, grad_w

    def power(self, x: Tensor, weight: Tensor, index: Tensor, offsets: Tensor, p: float) -> Tensor:
        check_connections(index, offsets, x.shape[1])
        y, inputs, ends = outputs_like(x, offsets), index.long(), offsets.long()
        neurons = torch.repeat_interleave(ends.diff())
        for rows in _row_blocks(y, weight):
            size = (x[rows].t()[inputs] - weight[:, None]).abs_()
            largest = torch.segment_reduce(size, "max", offsets=ends, axis=0)
            scale = torch.where((largest > 0) & (largest < math.inf), largest, 1.0)
            powers = size.div_(scale[neurons]).pow_(p)
            y[rows] = (scale * torch.segment_reduce(powers, "sum", offsets=ends, axis=0).pow_(1 / p)).t()
        return y

    def power_backward(
        self,
        grad: Tensor,
        x: Tensor,
        weight: Tensor,
        index: Tensor,
        offsets: Tensor,
        y: Tensor,
        p: float,
        need_x: bool,
        need_w: bool,
    ) -> tuple[Tensor, Tensor]:
        check_connections(index, offsets, x.shape[1])
        grad_x, grad_w = (gradient.zero_() for gradient in gradients_like(x, weight, need_x, need_w))
        inputs, neurons = index.long(), torch.repeat_interleave(offsets.long().diff())
        for rows in _row_blocks(y, weight):
            difference = x[rows].t()[inputs] - weight[:, None]
            scale = torch.where(y[rows] == 0, 1.0, y[rows]).t()[neurons]
            # As in `linfnet.ops.reference`: the sign makes the slope zero where x equals the weight, even at p = 1.
            flow = difference.abs().div_(scale).pow_(p - 1).mul_(difference.sign_()).mul_(grad[rows].t()[neurons])
            if need_x:
                grad_x[rows] = torch.zeros_like(x[rows].t()).index_add_(0, inputs, flow).t()
            if need_w:
                grad_w -= flow.sum(1)
        return grad_x, grad_w

    def bounds(
        self, lower: Tensor, upper: Tensor, weight: Tensor, index: Tensor, offsets: Tensor
    ) -> tuple[Tensor, Tensor]:
        smallest, largest, _, _ = self.bounds_saving(lower, upper, weight, index, offsets)
        return smallest, largest

    def bounds_saving(
        self, lower: Tensor, upper: Tensor, weight: Tensor, index: Tensor, offsets: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        smallest, largest = bounds_like(lower, offsets)
        near, far = bounds_like(lower, offsets, torch.int32)
        for rows, outs, connections in _blocks(lower.shape[0], index, offsets, lower.shape[1]):
            features, anchor = index[connections].long(), weight[connections]
            below, above = lower[rows][:, features] - anchor, upper[rows][:, features] - anchor
            # The absolute value makes a negative zero positive.
            gap = torch.maximum(below, above.neg()).clamp_(min=0).abs_()
            farthest = torch.maximum(below.abs_(), above.abs_())
            first = offsets[outs.start : outs.stop]
            smallest[rows, outs], step = gap.max(-1)
            near[rows, outs] = first + step.int()
            largest[rows, outs], step = farthest.max(-1)
            far[rows, outs] = first + step.int()
        return smallest, largest, near, far
