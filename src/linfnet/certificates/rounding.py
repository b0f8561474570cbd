"""Directed rounding in float64, the magnitudes that bound rounding errors, and checks of the proofs' assumptions.

docs/certificates.md contains the proofs.
"""

import itertools
import math
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from linfnet.boxes import check_images
from linfnet.errors import ArgumentError, LinfnetError
from linfnet.inputs import check_net
from linfnet.nn import Classifier, ProvenNet

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


def check_program(net: Classifier, images: Tensor) -> ProvenNet:
    """Return the net, or raise an error if an assumption of the proofs does not hold.

    They assume one precision, pixels in [0, 1], a positive std, arithmetic with subnormal numbers, and that `forward`
    runs the operations that were analysed.
    """
    check_net(net)
    if net.arithmetic != "float32" or not isinstance(net, ProvenNet):
        raise ArgumentError(
            f"the net of system {net.system!r} has no certificate for the float32 program; "
            f"it has: {', '.join(net.certificate_names)}"
        )
    for name, part in itertools.chain(net.named_parameters(), net.named_buffers()):
        if part.is_floating_point() and part.dtype != images.dtype:
            raise ArgumentError(
                f"images have dtype {images.dtype}, the net computes in {part.dtype} ({name}); expected the same"
            )
    if not net.normalize.std.item() > 0:
        raise ArgumentError(f"the net divides by {net.normalize.std.item():g}; expected a std above 0")
    for name, module in net.named_modules():
        if module._forward_hooks or module._forward_pre_hooks:  # pyright: ignore[reportPrivateUsage]
            where = f"module {name!r}" if name else "net"
            raise ArgumentError(f"the {where} has a forward hook, which may change its output; remove it to certify")
    check_images(net.check_shape(images))
    check_subnormals(images.dtype, images.device)
    return net


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


@torch.no_grad()
def forward_with_magnitudes(net: ProvenNet, images: Tensor, pixels: tuple[float, float] = (0.0, 1.0)) -> Pass:
    """Run a net, which must be at p = inf in eval mode, on images with pixels in the given range."""
    if net.training or net.p != math.inf:
        raise ArgumentError(f"the net is at p = {net.p:g}, training is {net.training}; expected p = inf in eval mode")
    logits, rounding = net.measure(images)
    # Normalisation is monotone, so the largest magnitude occurs at an end of the range. It rounds twice (difference
    # and quotient), and the magnitude of the quotient bounds both errors.
    ends = images.new_tensor(pixels).view(2, *[1] * len(net.image_shape))
    normalized = net.normalize(ends).abs().amax().double()
    steps, later = rounding.steps + 2, rounding.total()
    total = (torch.zeros_like(logits[:, 0], dtype=torch.float64) if later is None else later) + 2 * normalized
    # A size is a term of at most `steps` float64 sums of non-negative numbers, whose relative error is less than
    # steps * 2^-52.
    return Pass(logits, up(total * (1 + steps * 2.0**-52)), steps, net.normalize.std.item())
