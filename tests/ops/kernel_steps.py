"""A forward and a backward by the CUDA kernels, at once or from a graph."""

import torch
from torch import Tensor

from linfnet.ops.cuda.implementation import Cuda


def step(kernels: Cuda, x: Tensor, w: Tensor, grad: Tensor, p: float) -> tuple[Tensor, Tensor, Tensor]:
    """(y, grad_x, grad_w)."""
    y, saved = kernels.forward_saving(x, w, p)
    return (y, *kernels.backward(grad, x, w, y, saved, p, True, True))


def replayed_step(kernels: Cuda, x: Tensor, w: Tensor, grad: Tensor, p: float) -> tuple[Tensor, Tensor, Tensor]:
    """The same, captured in a CUDA graph and replayed; the kernels must have run for this p before."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(kernels, x, w, grad, p)
    graph.replay()
    torch.cuda.synchronize()
    return captured
