"""Directed rounding in float64, the magnitudes that bound rounding errors, and checks of the proofs' assumptions.

docs/certificates.md contains the proofs.
"""

import itertools
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import cast

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from linfnet.boxes import check_images
from linfnet.errors import ArgumentError, LinfnetError
from linfnet.inputs import check_net
from linfnet.nn import Classifier, LinfNet
from linfnet.nn.distance import DistanceModule
from linfnet.nn.normalization import MeanShift

# Smallest number of elements that torch assigns to a thread in an elementwise operation.
_GRAIN = 32768


def down(value: Tensor) -> Tensor:
    """Return a number strictly below the exact result of the single float64 operation that computed `value`."""
    return torch.nextafter(value, value.new_tensor(-math.inf))


def up(value: Tensor) -> Tensor:
    """Return a number strictly above the exact result of the single float64 operation that computed `value`."""
    return torch.nextafter(value, value.new_tensor(math.inf))


def float_below(value: Fraction) -> float:
    """Return the largest float64 number that is not above a fraction.

    >>> Fraction(float_below(Fraction(1, 10))) <= Fraction(1, 10) < Fraction(float_above(Fraction(1, 10)))
    True
    """
    nearest = float(value)
    return math.nextafter(nearest, -math.inf) if Fraction(nearest) > value else nearest


def float_above(value: Fraction) -> float:
    """Return the smallest float64 number that is not below a fraction."""
    return -float_below(-value)


def unit_and_tiny(dtype: torch.dtype) -> tuple[Fraction, Fraction]:
    """Return (unit, tiny): the rounding error of a result r is at most unit * |r|, of a quotient unit * |r| + tiny."""
    info = torch.finfo(dtype)
    unit = Fraction(info.eps) / 2
    return unit, Fraction(info.tiny) * unit


def check_program(net: Classifier, images: Tensor) -> LinfNet:
    """Return the net, or raise an error if an assumption of the proofs does not hold.

    They assume one precision, pixels in [0, 1], a positive std, and arithmetic with subnormal numbers.
    """
    check_net(net)
    if net.arithmetic != "float32":
        raise ArgumentError(
            f"the net of system {net.system!r} has no certificate for the float32 program; "
            f"it has: {', '.join(net.certificate_names)}"
        )
    for name, part in itertools.chain(net.named_parameters(), net.named_buffers()):
        if part.dtype != images.dtype:
            raise ArgumentError(
                f"images have dtype {images.dtype}, the net computes in {part.dtype} ({name}); expected the same"
            )
    if not net.normalize.std.item() > 0:
        raise ArgumentError(f"the net divides by {net.normalize.std.item():g}; expected a std above 0")
    check_images(images)
    check_subnormals(images.dtype, images.device)
    return cast(LinfNet, net)


def check_subnormals(dtype: torch.dtype, device: torch.device) -> None:
    """Raise an error if the device flushes subnormal numbers to zero, since the proofs assume exact differences there.

    On a CPU each thread has a separate setting, inherited from the thread that started it, so all threads are tested.
    """
    count = _GRAIN * torch.get_num_threads() if device.type == "cpu" else 1
    smallest = torch.full((count,), torch.finfo(dtype).tiny, dtype=dtype, device=device)
    if not bool((smallest * 1.5 - smallest).all()):
        raise LinfnetError("subnormal numbers are flushed to zero; call torch.set_flush_denormal(False) to certify")


@dataclass(frozen=True)
class Pass:
    """One forward pass and the quantities that bound its rounding errors."""

    logits: Tensor
    """[N, K], equal to `net(images)` bit for bit."""
    magnitude: Tensor
    """float64 [N]: the sum of bounds on the magnitudes of the results of all rounded steps."""
    steps: int
    """The number of steps that round their results."""
    std: float
    """The standard deviation that the program divides by, exactly."""


def _measure(layer: DistanceModule, sizes: list[Tensor]) -> RemovableHandle:
    """Add a hook to a layer that appends a bound [N] on the magnitude of each of its rounded steps to `sizes`.

    The largest distance is measured; the mean and the bias are bounded by their largest absolute entry. Rounding is
    monotone, so the rounded sum of two bounds is a bound on every rounded sum.
    """

    def add(distance: Tensor, *terms: Tensor | None) -> None:
        sizes.append(distance)
        for term in terms:
            if term is not None:
                sizes.append(sizes[-1] + term.abs().amax())

    def shifted(shift: MeanShift, inputs: tuple[Tensor], output: Tensor) -> None:
        add(inputs[0].flatten(1).amax(1), shift.running_mean, layer.bias)  # distances are not negative

    def unshifted(layer: DistanceModule, inputs: tuple[Tensor], output: Tensor) -> None:
        rows = output.flatten(1)
        # This hook receives only the output: the distance is the output minus the bias.
        add(torch.maximum(rows.amin(1).neg(), rows.amax(1)), layer.bias)  # `aminmax` takes 20 times as long

    return layer.register_forward_hook(unshifted) if layer.shift is None else layer.shift.register_forward_hook(shifted)


@torch.no_grad()
def forward_with_magnitudes(net: LinfNet, images: Tensor, pixels: tuple[float, float] = (0.0, 1.0)) -> Pass:
    """Run a net, which must be at p = inf in eval mode, on images [N, C, H, W] with pixels in the given range."""
    if net.training or net.p != math.inf:
        raise ArgumentError(f"the net is at p = {net.p:g}, training is {net.training}; expected p = inf in eval mode")
    sizes: list[Tensor] = []
    assert len(net.layers) == len(net.distance_layers()), "rounding bounds exist for distance layers only"
    handles = [_measure(layer, sizes) for layer in net.distance_layers()]
    try:
        logits = net(images)
    finally:
        for handle in handles:
            handle.remove()
    # Normalisation is monotone, so the largest magnitude occurs at an end of the range. It rounds twice (difference
    # and quotient), and the magnitude of the quotient bounds both errors.
    normalized = net.normalize(images.new_tensor(pixels).view(2, 1, 1, 1)).abs().amax().double()
    steps = len(sizes) + 2
    total = torch.stack(sizes).double().sum(0) + 2 * normalized
    # The relative error of a float64 sum of `steps` non-negative numbers is less than steps * 2^-52.
    return Pass(logits, up(total * (1 + steps * 2.0**-52)), steps, net.normalize.std.item())
