"""What the proofs take for granted about the program, checked before anything is certified."""

import itertools

from torch import Tensor, nn

from linfnet.boxes import check_images
from linfnet.certificates.arithmetic import check_subnormals
from linfnet.errors import ArgumentError
from linfnet.nn import Classifier, LinfNet


def check_plain(net: Classifier) -> None:
    """Refuse a compiled net: it is another program, whose compiler may take products of reciprocals for quotients."""
    # `torch.compile(net)` wraps the net, `net.compile()` replaces its call; either may be done to a part of it.
    if not isinstance(net, Classifier) or any(map(_compiled, net.modules())):  # pyright: ignore
        raise ArgumentError("the net is compiled; certificates speak of the plain program: certify the net itself")


def _compiled(module: nn.Module) -> bool:
    # The wrapper is known by what it wraps: importing its class takes a second.
    return hasattr(module, "_orig_mod") or module._compiled_call_impl is not None  # pyright: ignore


def check_program(net: LinfNet, images: Tensor) -> None:
    """Refuse what docs/certificates.md does not speak of: mixed precision, bad pixels, flushed subnormals."""
    check_plain(net)
    for name, part in itertools.chain(net.named_parameters(), net.named_buffers()):
        if part.dtype != images.dtype:
            raise ArgumentError(
                f"images have dtype {images.dtype}, the net computes in {part.dtype} ({name}); wanted the same"
            )
    if not net.normalize.std.item() > 0:
        raise ArgumentError(f"the net divides by {net.normalize.std.item():g}; wanted a std above 0")
    check_images(images)
    check_subnormals(images.dtype, images.device)
