"""What the proofs take for granted about the program, checked before anything is certified."""

from torch import Tensor

from linfnet.certify.arithmetic import check_subnormals
from linfnet.errors import ArgumentError
from linfnet.nn import Classifier, LinfNet
from linfnet.perturbation import check_images


def check_plain(net: Classifier) -> None:
    """Refuse a compiled net: it is another program, whose compiler may take products of reciprocals for quotients."""
    # `torch.compile(net)` wraps the net, `net.compile()` replaces its call.
    if not isinstance(net, Classifier) or net._compiled_call_impl is not None:  # pyright: ignore
        raise ArgumentError("the net is compiled; certificates speak of the plain program: certify the net itself")


def check_program(net: LinfNet, images: Tensor) -> None:
    """Refuse what docs/certificates.md does not speak of: mixed precision, bad pixels, flushed subnormals."""
    check_plain(net)
    computes = next(net.parameters()).dtype
    if images.dtype != computes or net.normalize.std.dtype != computes:
        raise ArgumentError(f"images have dtype {images.dtype}, the net computes in {computes}; wanted the same")
    check_images(images)
    check_subnormals(images.dtype, images.device)
