"""C++ kernels of sparse distances for float32 on the CPU; float64 is computed by the reference.

At p = infinity the results have the same bits as the reference, and agree with it at a finite p. They are the same for
any number of threads, and those of a sample for any batch. The sources are the files `csrc/sparse*`.
"""

import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from linfnet.errors import ArgumentError
from linfnet.ops.cpu import is_accurate
from linfnet.ops.sparse_reference import (
    SPARSE_KERNELS,
    Layer,
    SparseReference,
    bounds_like,
    gradients_like,
    outputs_like,
)

_kernels: Any
try:
    _kernels = importlib.import_module("linfnet.ops._cpu")
except ImportError:
    _kernels = None


def threads_for(n: int, connections: int) -> int:
    """Return the number of threads for a layer: as many as torch uses, but fewer for a small layer."""
    blocks = -(-n // _kernels.SPARSE_BLOCK)
    return min(torch.get_num_threads(), max(1, blocks * connections // _kernels.CONNECTIONS_PER_THREAD))


def _call(kernel: Any, tensors: Sequence[Tensor | None], x: Tensor, weight: Tensor, outs: int, *more: float) -> None:
    """Call a kernel with the addresses of tensors (0 for None), more numbers, and the sizes of the layer."""
    (n, features), connections = x.shape, weight.shape[0]
    # Assigned to a variable, so that copies of strided tensors live until the call returns.
    held = [tensor if tensor is None else tensor.contiguous() for tensor in tensors]
    addresses = [0 if tensor is None else tensor.data_ptr() for tensor in held]
    try:
        kernel(*addresses, *more, n, outs, features, connections, threads_for(n, connections))
    except ValueError as error:
        raise ArgumentError(str(error)) from None


@SPARSE_KERNELS.register("cpu")
class SparseCpu:
    """C++ kernels; implements `linfnet.ops.sparse_reference.SparseImplementation`."""

    def __init__(self) -> None:
        self._reference = SparseReference()

    def supports(self, device_type: str, dtype: torch.dtype) -> bool:
        return device_type == "cpu" and dtype is torch.float32 and hasattr(_kernels, "sparse_power")

    def forward(self, x: Tensor, weight: Tensor, index: Tensor, offsets: Tensor) -> Tensor:
        y = outputs_like(x, offsets)
        _call(_kernels.sparse_forward, (x, weight, index, offsets, y, None), x, weight, y.shape[1])
        return y

    def forward_saving(self, x: Tensor, weight: Tensor, index: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        y, decisive = outputs_like(x, offsets), outputs_like(x, offsets, torch.int32)
        _call(_kernels.sparse_forward, (x, weight, index, offsets, y, decisive), x, weight, y.shape[1])
        return y, decisive

    @property
    def measures(self) -> bool:
        """Whether the extension has the kernel of `measured`."""
        return hasattr(_kernels, "sparse_measured")

    def measured(self, x: Tensor, layers: Sequence[Layer]) -> tuple[Tensor, Tensor]:
        """Return the outputs of a stack of layers and bounds on magnitudes: `linfnet.ops.sparse_linf_measured`."""
        (n, features), steps = x.shape, 0
        x, numbers, held = x.contiguous(), list[int](), list[Tensor]()
        for weight, index, offsets, mean, bias in layers:
            for tensor in (weight, index, offsets, mean, bias):
                if tensor is None:
                    numbers.append(0)
                else:
                    held.append(tensor.contiguous())  # copies of strided tensors live until the call returns
                    numbers.append(held[-1].data_ptr())
            connections = weight.shape[0]
            numbers += (offsets.shape[0] - 1, connections, threads_for(n, connections))
            steps += 1 + (mean is not None) + (bias is not None)
        y, sizes = outputs_like(x, layers[-1][2]), x.new_empty((steps, n))
        try:
            _kernels.sparse_measured(x.data_ptr(), numbers, y.data_ptr(), sizes.data_ptr(), n, features)
        except ValueError as error:
            raise ArgumentError(str(error)) from None
        return y, sizes

    def backward(
        self, grad: Tensor, x: Tensor, weight: Tensor, index: Tensor, decisive: Tensor, need_x: bool, need_w: bool
    ) -> tuple[Tensor, Tensor]:
        grad_x, grad_w = gradients_like(x, weight, need_x, need_w)
        # `data_ptr()` of an empty tensor is 0, which tells the kernel to skip that gradient.
        tensors = (grad, x, weight, index, decisive, grad_x, grad_w)
        _call(_kernels.sparse_backward, tensors, x, weight, grad.shape[1])
        return grad_x, grad_w

    def power(self, x: Tensor, weight: Tensor, index: Tensor, offsets: Tensor, p: float) -> Tensor:
        if not is_accurate(p):
            return self._reference.power(x, weight, index, offsets, p)
        y = outputs_like(x, offsets)
        _call(_kernels.sparse_power, (x, weight, index, offsets, y), x, weight, y.shape[1], p)
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
        if not is_accurate(p):
            return self._reference.power_backward(grad, x, weight, index, offsets, y, p, need_x, need_w)
        grad_x, grad_w = gradients_like(x, weight, need_x, need_w)
        tensors = (grad, x, weight, index, offsets, y, grad_x, grad_w)
        _call(_kernels.sparse_power_backward, tensors, x, weight, grad.shape[1], p)
        return grad_x, grad_w

    def bounds(
        self, lower: Tensor, upper: Tensor, weight: Tensor, index: Tensor, offsets: Tensor
    ) -> tuple[Tensor, Tensor]:
        results = bounds_like(lower, offsets)
        tensors = (lower, upper, weight, index, offsets, *results, None, None)
        _call(_kernels.sparse_bounds, tensors, lower, weight, offsets.shape[0] - 1)
        return results

    def bounds_saving(
        self, lower: Tensor, upper: Tensor, weight: Tensor, index: Tensor, offsets: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        results = (*bounds_like(lower, offsets), *bounds_like(lower, offsets, torch.int32))
        tensors = (lower, upper, weight, index, offsets, *results)
        _call(_kernels.sparse_bounds, tensors, lower, weight, offsets.shape[0] - 1)
        return results
