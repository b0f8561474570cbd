"""CUDA graphs of training steps, used on GPUs while the exponents of the net, or the terms of its loss, stay the same.

For large p, and with bounds of conventional nets, a training step consists of many short kernels, and launching them
from Python takes longer than running them. A graph launches all of them at once, in the same order and with the same
inputs.
"""

import contextlib
import gc
import warnings
from collections.abc import Callable, Generator, Mapping
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from linfnet.errors import LinfnetError

# A capture takes as much CPU time as an eager step. It pays off if the exponents stay constant for this many steps.
STEPS_TO_PAY_OFF = 3


class GraphedModule:
    """Calls a module during training and replays CUDA graphs where they pay off; gradients are bitwise the same.

    Batches of `batch` images are captured at the second step with the same exponents: during the first step, kernels
    are compiled and loaded, which a capture does not allow. The next graph reuses the memory of the last graph.

    `zero_grad` must set the gradients of the module to None before each backward pass: a replay assigns them.

    Args:
        module: maps [B, C, H, W] to [B, ...]; its output depends only on its input, its tensors and its exponents.
        batch: the number of images in the batches to capture; smaller batches run eagerly.
        exponents: returns the current exponents of the module, to compare them.
        unchanged: returns whether the exponents stay the same for the next STEPS_TO_PAY_OFF steps.
    """

    def __init__(
        self,
        module: nn.Module,
        batch: int,
        exponents: Callable[[], object],
        unchanged: Callable[[], bool],
    ) -> None:
        self._module, self._batch, self._exponents, self._unchanged = module, batch, exponents, unchanged
        self._captured: object = None
        self._graphs: CapturedGraphs | None = None
        self._last: torch.cuda.CUDAGraph | None = None  # keeps the memory pool alive between two captures
        self._failed = False
        # The output of an autograd function requires a gradient only if some input does; the pixels do not.
        self._requires_grad = torch.empty(0, device=next(module.parameters()).device, requires_grad=True)

    def __call__(self, pixels: Tensor) -> Tensor:
        graphs = self._choose(pixels)
        return self._module(pixels) if graphs is None else _Replay.apply(self._requires_grad, pixels, graphs)

    def _choose(self, pixels: Tensor) -> "CapturedGraphs | None":
        """Return the graphs for this step, captured if necessary, or None for an eager step."""
        if self._failed or len(pixels) != self._batch:
            return None
        exponents = self._exponents()
        if exponents != self._captured:
            self._captured, self._graphs = exponents, None
        elif self._graphs is None and self._unchanged():
            try:
                self._graphs = CapturedGraphs(self._module, pixels, self._last)
                self._last = self._graphs.backward_graph
            except (RuntimeError, LinfnetError) as error:
                self._failed, self._last = True, None
                _warn(error)
        return self._graphs


class CapturedGraphs:
    """The forward and backward pass of a module as CUDA graphs, for one pair of exponents and one shape of batches.

    Capturing changes no values. The output and the gradients have fixed addresses and are never copied. `previous` is
    a graph that is no longer replayed, so its memory can be reused.
    """

    def __init__(self, module: nn.Module, pixels: Tensor, previous: torch.cuda.CUDAGraph | None) -> None:
        pool, stream = previous.pool() if previous else torch.cuda.graph_pool_handle(), _side_stream(pixels.device)
        self._pixels = pixels.clone()
        self.forward_graph, self.backward_graph = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        parameters = {name: each for name, each in module.named_parameters() if each.requires_grad}
        # Separate leaves on the same memory: autograd binds a leaf to the stream on which it was used first.
        leaves = {name: each.detach().requires_grad_() for name, each in parameters.items()}
        with _capture(self.forward_graph, pool, stream):
            output: Tensor = functional_call(module, leaves, (self._pixels,))
        self._output, self._gradient = output.detach(), torch.empty_like(output)
        with _capture(self.backward_graph, pool, stream):
            gradients = torch.autograd.grad(output, list(leaves.values()), self._gradient, allow_unused=True)
        # The gradient is None for a parameter that only the objective uses, such as the temperature.
        self._gradients: list[tuple[nn.Parameter, Tensor | None]] = [*zip(parameters.values(), gradients, strict=True)]

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the output for a batch; the next call overwrites it."""
        self._pixels.copy_(pixels)
        self.forward_graph.replay()
        return self._output.detach()

    def backward(self, gradient: Tensor) -> None:
        """Compute the gradients of the parameters from the gradient of the output, and assign them to `.grad`."""
        self._gradient.copy_(gradient)
        self.backward_graph.replay()
        for parameter, grad in self._gradients:
            if grad is not None:
                parameter.grad = grad if parameter.grad is None else parameter.grad + grad


class _Replay(torch.autograd.Function):
    """Replays captured graphs inside autograd.

    Parameters are not inputs of the function: autograd would copy their gradients, which have fixed addresses.
    """

    @staticmethod
    def forward(ctx: Any, requires_grad: Tensor, pixels: Tensor, graphs: CapturedGraphs) -> Tensor:
        ctx.graphs = graphs
        return graphs.forward(pixels)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None]:
        # Autograd runs this on the stream of the forward call, in a thread for the device.
        ctx.graphs.backward(gradients[0])
        return None, None, None


class GraphedLoss:
    """Computes the loss of a batch and its gradients, replayed from a CUDA graph while the same weights are not 0.

    Args:
        module: maps pixels [B, C, H, W], labels [B] and weights by name to the loss and the logits (`LossModule`).
        batch: the number of images in the batches to capture; smaller batches run eagerly.
    """

    def __init__(self, module: nn.Module, batch: int) -> None:
        self._module, self._batch = module, batch
        self._used: tuple[str, ...] | None = None
        self._graph: CapturedLoss | None = None
        self._failed = False

    def __call__(self, pixels: Tensor, labels: Tensor, weights: Mapping[str, float]) -> tuple[Tensor, Tensor]:
        """Return the loss and the logits, and assign the gradients; `zero_grad` must have set them to None."""
        used = tuple(name for name, weight in weights.items() if weight != 0)
        if self._failed or len(pixels) != self._batch or used != self._used:
            if len(pixels) == self._batch:
                self._used, self._graph = used, None  # the next step is captured; this one loads the kernels
            return self._eager(pixels, labels, weights)
        if self._graph is None:
            try:
                self._graph = CapturedLoss(self._module, pixels, labels, weights)
            except (RuntimeError, LinfnetError) as error:
                self._failed = True
                _warn(error)
                return self._eager(pixels, labels, weights)
        return self._graph(pixels, labels, weights)

    def _eager(self, pixels: Tensor, labels: Tensor, weights: Mapping[str, float]) -> tuple[Tensor, Tensor]:
        numbers, named = _numbers(weights, pixels.device)
        numbers.copy_(torch.tensor([*weights.values()]))
        loss, logits = self._module(pixels, labels, named)
        loss.backward()
        return loss, logits


class CapturedLoss:
    """The loss of a batch and its gradients as a CUDA graph. Loss, logits and gradients have fixed addresses."""

    def __init__(self, module: nn.Module, pixels: Tensor, labels: Tensor, weights: Mapping[str, float]) -> None:
        self._pixels, self._labels, self._graph = pixels.clone(), labels.clone(), torch.cuda.CUDAGraph()
        self._numbers, named = _numbers(weights, pixels.device)
        parameters = {name: each for name, each in module.named_parameters() if each.requires_grad}
        leaves = {name: each.detach().requires_grad_() for name, each in parameters.items()}
        with _capture(self._graph, torch.cuda.graph_pool_handle(), _side_stream(pixels.device)):
            loss, logits = functional_call(module, leaves, (self._pixels, self._labels, named))
            gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
            # The fused Adam needs gradients in the layout of the parameters; those of convolutions may have another.
            self._gradients = [
                (each, torch.empty_like(each).copy_(gradient))
                for each, gradient in zip(parameters.values(), cast(tuple[Tensor | None, ...], gradients), strict=True)
                if gradient is not None
            ]
        self._loss, self._logits = loss.detach(), logits.detach()

    def __call__(self, pixels: Tensor, labels: Tensor, weights: Mapping[str, float]) -> tuple[Tensor, Tensor]:
        """Return the loss and the logits, and assign the gradients; the next call overwrites all of them."""
        self._pixels.copy_(pixels)
        self._labels.copy_(labels)
        self._numbers.copy_(torch.tensor([*weights.values()]))
        self._graph.replay()
        for parameter, gradient in self._gradients:
            parameter.grad = gradient
        return self._loss, self._logits


def _numbers(weights: Mapping[str, float], device: torch.device) -> tuple[Tensor, dict[str, float | Tensor]]:
    """Return a tensor for the weights, and the weights by name: parts of this tensor, or 0.0 for those that are 0."""
    numbers = torch.empty(len(weights), device=device)
    parts = zip(weights.items(), numbers.unbind(), strict=True)
    return numbers, {name: 0.0 if weight == 0 else number for (name, weight), number in parts}


def _warn(error: Exception) -> None:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    warnings.warn(f"training continues without CUDA graphs because the capture failed: {reason}", stacklevel=4)


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream for all captures on a device: a graph can reuse only memory of the same stream."""
    return torch.cuda.Stream(device)


@contextlib.contextmanager
def _capture(graph: torch.cuda.CUDAGraph, pool: Any, stream: torch.cuda.Stream) -> Generator[None]:
    """Capture the kernels of the `with` block in a graph that allocates its memory from a pool.

    `torch.cuda.graph` would also synchronise the device and release all cached memory, which takes longer than a step.
    """
    collecting = gc.isenabled()
    with torch.cuda.stream(stream):
        try:
            gc.disable()  # freeing device memory would invalidate the capture
            # Other threads may compile kernels at the same time.
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            yield
            graph.capture_end()
        except BaseException:
            with contextlib.suppress(RuntimeError):
                graph.capture_end()
            # After an invalidated capture, torch 2.11 would continue to allocate from the pool.
            with contextlib.suppress(RuntimeError, AttributeError):
                torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)  # pyright: ignore[reportPrivateUsage]
            raise
        finally:
            if collecting:
                gc.enable()
