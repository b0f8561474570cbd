"""A forward pass that also measures how large its numbers get, which bounds how much it rounds."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from linfnet.certify.arithmetic import up
from linfnet.errors import ArgumentError
from linfnet.nn import LinfNet
from linfnet.nn.distance import DistanceModule


@dataclass(frozen=True)
class Pass:
    """One forward pass and what its rounding errors follow from."""

    logits: Tensor
    """[N, K], bit for bit what `net(images)` gives."""
    magnitude: Tensor
    """float64 [N]: the sum over all rounded steps of the largest magnitude of their results."""
    steps: int
    """How many steps round."""
    std: float
    """The standard deviation the program divides by, exactly."""


class _Meter:
    """Adds up magnitudes as the modules of a net report them."""

    def __init__(self, samples: int, device: torch.device) -> None:
        self.total = torch.zeros(samples, dtype=torch.float64, device=device)
        self.steps = 0

    def add(self, values: Tensor, times: int = 1, more: Tensor | None = None) -> None:
        """Count a step whose results are `values` [N, ...], or at most `more` larger."""
        rows = values.flatten(1)
        size = torch.maximum(rows.amin(1).neg(), rows.amax(1)).double()  # `aminmax` takes 20 times as long
        if more is not None:
            size = up(size + more.double())
        self.total = up(self.total + size * times)
        self.steps += times

    def normalized(self, module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        # The mean is subtracted, then the quotient taken: both errors follow from the quotient.
        self.add(output, times=2)

    def shifted(self, module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        self.add(inputs[0])
        self.add(output)

    def layer(self, module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        assert isinstance(module, DistanceModule)
        if module.shift is None:
            # The distance itself is not seen: it is the result less the bias.
            self.add(output, more=None if module.bias is None else module.bias.abs().max())
        if module.bias is not None:
            self.add(output)


@torch.no_grad()
def forward_with_magnitudes(net: LinfNet, images: Tensor) -> Pass:
    """Run a net that stands at p = inf in eval mode, on images [N, C, H, W]."""
    if net.training or net.p != float("inf"):
        raise ArgumentError(f"the net is at p = {net.p:g}, training is {net.training}; wanted p = inf in eval mode")
    meter = _Meter(images.shape[0], images.device)
    handles: list[RemovableHandle] = [net.normalize.register_forward_hook(meter.normalized)]
    for layer in net.layers:
        assert isinstance(layer, DistanceModule), "rounding bounds know distance layers only"
        handles.append(layer.register_forward_hook(meter.layer))
        if layer.shift is not None:
            handles.append(layer.shift.register_forward_hook(meter.shifted))
    try:
        logits = net(images)
    finally:
        for handle in handles:
            handle.remove()
    return Pass(logits, meter.total, meter.steps, net.normalize.std.item())
