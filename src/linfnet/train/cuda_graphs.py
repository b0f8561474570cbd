"""The two passes of a training step: as written, or replayed from CUDA graphs while p stays the same.

Where p is large the kernels of a step are many and short, and launching them from Python takes as long as running them.
A graph launches all of them at once, on the same numbers in the same order: not a bit changes.
"""

import contextlib
import gc
import warnings
from collections.abc import Callable, Generator
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call

from linfnet.errors import LinfnetError

# A capture takes the host as long as a step as written: it pays if p stays for this many steps after the present one.
STEPS_THAT_PAY = 3


class Way(Protocol):
    """One way to run the passes."""

    def forward(self, pixels: Tensor) -> Tensor:
        """What comes out of a batch [B, C, H, W]: logits [B, K], or what else an objective sees."""
        ...

    def backward(self, gradient: Tensor) -> None:
        """From the gradient of what came out, those of all parameters that took part, as their `.grad`."""
        ...


class Eager:
    """Operation by operation."""

    def __init__(self, net: nn.Module) -> None:
        self._net = net
        self._output: Tensor | None = None

    def forward(self, pixels: Tensor) -> Tensor:
        output: Tensor = self._net(pixels)
        self._output = output
        return output

    def backward(self, gradient: Tensor) -> None:
        assert self._output is not None
        self._output.backward(gradient)
        self._output = None


class Captured:
    """Both passes as CUDA graphs, for one p and one shape of batches; capturing them changes no number.

    Gradients lie at fixed places and are never copied. `before` is a graph whose memory this one may take over.
    """

    def __init__(self, net: nn.Module, pixels: Tensor, before: torch.cuda.CUDAGraph | None) -> None:
        pool, stream = before.pool() if before else torch.cuda.graph_pool_handle(), _side_stream(pixels.device)
        self._pixels = pixels.clone()
        self._forward, self.graph = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        parameters = {name: each for name, each in net.named_parameters() if each.requires_grad}
        # Leaves of their own, on the same memory: autograd binds a leaf to the stream that used it first.
        leaves = {name: each.detach().requires_grad_() for name, each in parameters.items()}
        with _without_collection():
            with _capture(self._forward, pool, stream):
                output: Tensor = functional_call(net, leaves, (self._pixels,))
            self._output, self._gradient = output.detach(), torch.empty_like(output)
            with _capture(self.graph, pool, stream):
                found = torch.autograd.grad(output, list(leaves.values()), self._gradient, allow_unused=True)
        # None for a parameter of the objective's, such as the temperature: it has no part in the output.
        self._gradients: list[tuple[nn.Parameter, Tensor | None]] = list(zip(parameters.values(), found, strict=True))

    def forward(self, pixels: Tensor) -> Tensor:
        self._pixels.copy_(pixels)
        self._forward.replay()
        return self._output

    def backward(self, gradient: Tensor) -> None:
        self._gradient.copy_(gradient)
        self.graph.replay()
        for parameter, grad in self._gradients:
            if grad is not None:
                parameter.grad = grad


class Passes:
    """The passes of a net in training, with an objective of any kind between them.

    Batches of `batch` images are captured at the second step with the same p if p lasts: the first one has its kernels
    compiled and loaded, which no capture allows. The memory of a graph serves that of the next p.
    """

    def __init__(self, net: nn.Module, batch: int, *, graphs: bool) -> None:
        self._eager, self._net = Eager(net), net
        self._batch, self._graphs = batch, graphs
        self._p: float | None = None
        self._captured: Captured | None = None
        self._last_graph: torch.cuda.CUDAGraph | None = None  # holds the memory while nothing is captured
        self._way: Way = self._eager

    def forward(self, pixels: Tensor, p: float, lasts: Callable[[], bool]) -> Tensor:
        """The output at the net's p, a leaf for an objective; `lasts` tells whether p stays for STEPS_THAT_PAY."""
        self._way = self._choose(pixels, p, lasts)
        return self._way.forward(pixels).detach().requires_grad_()

    def backward(self, output: Tensor) -> None:
        """Go on from the gradient of the output to those of the parameters it came by; these must have none before."""
        assert output.grad is not None
        self._way.backward(output.grad)

    def _choose(self, pixels: Tensor, p: float, lasts: Callable[[], bool]) -> Way:
        if not self._graphs or len(pixels) != self._batch:
            return self._eager
        if p != self._p:
            self._p, self._captured = p, None
        elif self._captured is None and lasts():
            self._captured = self._try_capture(pixels)
        return self._captured or self._eager

    def _try_capture(self, pixels: Tensor) -> Captured | None:
        try:
            captured = Captured(self._net, pixels, self._last_graph)
        except (RuntimeError, LinfnetError) as error:
            self._graphs, self._last_graph = False, None
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            warnings.warn(f"no CUDA graph of the training step; it goes on without: {reason}", stacklevel=4)
            return None
        self._last_graph = captured.graph
        return captured


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """Where captures of a device take place, nothing else: a graph can take over memory of the same stream alone."""
    return torch.cuda.Stream(device)


@contextlib.contextmanager
def _capture(graph: torch.cuda.CUDAGraph, pool: Any, stream: torch.cuda.Stream) -> Generator[None]:
    """Note in a graph what would run inside the block, with memory of a pool.

    `torch.cuda.graph` would also wait for the device and give all cached memory back: dearer than the step itself.
    """
    with torch.cuda.stream(stream):
        try:
            # Threads that compile kernels go on meanwhile.
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            yield
            graph.capture_end()
        except BaseException:
            with contextlib.suppress(RuntimeError):
                graph.capture_end()
            # Where the capture itself was spoiled, torch 2.11 would go on allocating as if it were under way.
            with contextlib.suppress(RuntimeError, AttributeError):
                torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)  # pyright: ignore[reportPrivateUsage]
            raise


@contextlib.contextmanager
def _without_collection() -> Generator[None]:
    """Keep Python from freeing what lies on the device in mid-capture."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
