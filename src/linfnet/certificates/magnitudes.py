"""A forward pass that also measures how large its numbers get, which bounds how much it rounds."""

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from linfnet.certificates.arithmetic import up
from linfnet.errors import ArgumentError
from linfnet.nn import LinfNet
from linfnet.nn.distance import DistanceModule
from linfnet.nn.mean_shift import MeanShift


@dataclass(frozen=True)
class Pass:
    """One forward pass and what its rounding errors follow from."""

    logits: Tensor
    """[N, K], bit for bit what `net(images)` gives."""
    magnitude: Tensor
    """float64 [N]: the sum over all rounded steps of a bound on the magnitude of their results."""
    steps: int
    """How many steps round."""
    std: float
    """The standard deviation the program divides by, exactly."""


class _Meter:
    """Gathers magnitudes as the layers of a net report them.

    Distances are looked at once. What is added to them is bounded by its largest number: rounding is monotone, so the
    rounded sum of two bounds is a bound on every rounded sum.
    """

    def __init__(self) -> None:
        self.sizes: list[Tensor] = []

    def shifted(self, bias: Tensor | None, shift: MeanShift, inputs: tuple[Tensor], output: Tensor) -> None:
        distance = inputs[0].flatten(1).amax(1)  # no distance is negative
        self.sizes += [distance, distance + shift.running_mean.abs().amax()]
        if bias is not None:
            self.sizes.append(self.sizes[-1] + bias.abs().amax())

    def unshifted(self, bias: Tensor | None, layer: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        rows = output.flatten(1)
        size = torch.maximum(rows.amin(1).neg(), rows.amax(1))  # `aminmax` takes 20 times as long
        # The distance itself is not seen: it is the result less the bias.
        self.sizes += [size] if bias is None else [size, size + bias.abs().amax()]


@torch.no_grad()
def forward_with_magnitudes(net: LinfNet, images: Tensor, pixels: tuple[float, float] = (0.0, 1.0)) -> Pass:
    """Run a net that stands at p = inf in eval mode, on images [N, C, H, W] whose pixels lie in the given range."""
    if net.training or net.p != math.inf:
        raise ArgumentError(f"the net is at p = {net.p:g}, training is {net.training}; wanted p = inf in eval mode")
    meter = _Meter()
    handles: list[RemovableHandle] = []
    for layer in net.layers:
        assert isinstance(layer, DistanceModule), "rounding bounds know distance layers only"
        if layer.shift is None:
            handles.append(layer.register_forward_hook(partial(meter.unshifted, layer.bias)))
        else:
            handles.append(layer.shift.register_forward_hook(partial(meter.shifted, layer.bias)))
    try:
        logits = net(images)
    finally:
        for handle in handles:
            handle.remove()
    # Normalising is monotone: no pixel becomes larger than the ends of the range do. It rounds twice, and both errors
    # follow from the quotient.
    normalized = net.normalize(images.new_tensor(pixels).view(2, 1, 1, 1)).abs().amax().double()
    steps = len(meter.sizes) + 2
    total = torch.stack(meter.sizes).double().sum(0) + 2 * normalized
    # A float64 sum of that many numbers above zero is off by less than this factor.
    return Pass(logits, up(total * (1 + steps * 2.0**-52)), steps, net.normalize.std.item())
