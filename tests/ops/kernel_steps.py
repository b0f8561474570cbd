"""Forward and backward passes by the CUDA kernels, directly or from a graph, and small layers for every kernel."""

import math
from unittest.mock import patch

import torch
from torch import Tensor

from linfnet.ops.cuda import Cuda, half, tensor_core


def step(kernels: Cuda, x: Tensor, w: Tensor, grad: Tensor, p: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return (y, grad_x, grad_w)."""
    y, saved = kernels.forward_saving(x, w, p)
    return (y, *kernels.backward(grad, x, w, y, saved, p, True, True))


def replayed_step(kernels: Cuda, x: Tensor, w: Tensor, grad: Tensor, p: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the same from a CUDA graph; the kernels must have run for this p before."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(kernels, x, w, grad, p)
    graph.replay()
    torch.cuda.synchronize()
    return captured


def unaligned(a: Tensor) -> Tensor:
    """Return a copy that cannot be read as float4."""
    return torch.empty(a.numel() + 1)[1:].view_as(a).copy_(a)


# Values of p for dense kernels (multiplication, special functions, infinity), for pruned kernels, for matrix products.
SHAPES = [(3, 5, 7), (40, 10, 70), (20, 140, 68), (33, 34, 259)]
PATHS = [*((shape, p) for p in (28.0, 200.5, math.inf) for shape in SHAPES), ((64, 264, 8), 8.0)]
# The same for training in float16: all features, gradients from lists, lists that are shortened.
HALF_PATHS = [((130, 72, 264), p) for p in (12.0, 28.0, 100.0, 200.5)]


def every_path(kernels: Cuda) -> list[Tensor]:
    """Return results of every kernel for small layers, with some pairs out of range or equal, as CPU tensors."""
    results: list[Tensor] = []
    with patch.object(tensor_core, "SMALLEST", 0):
        for (n, out, features), p in PATHS:
            torch.manual_seed(0)
            x, w, grad = torch.randn(n, features), torch.randn(out, features), torch.randn(n, out)
            w[:, 3] -= 9  # this feature determines the maximum, so the lists are short
            w[1], w[2], w[-1] = x[0], x[2] * (1 + 1e-4), x[2] * (1 - 1e-4)
            results += [kernels.forward(x, w, p), *step(kernels, x, w, grad, p)]
            if features % 4 == 0:
                results += step(kernels, unaligned(x), unaligned(w), unaligned(grad), p)
            if math.isinf(p):
                results += [*kernels.bounds(x - 0.1, x, w), *kernels.bounds_saving(x - 0.1, x, w)]
    with patch.object(half, "SMALLEST", 0), half.training_in_float16():
        for (n, out, features), p in HALF_PATHS:
            torch.manual_seed(0)
            x, w, grad = torch.randn(n, features), torch.randn(out, features), torch.randn(n, out)
            w[:, 3:5] -= 9
            results += step(kernels, x, w, grad, p)
    return results
