"""Nets that are certified only if their modules run the code that was analysed."""

import itertools
from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from linfnet.errors import LARGEST, ArgumentError, LinfnetError
from linfnet.nn.classifier import Classifier
from linfnet.nn.nonexpansive import Nonexpansive, Rounding, modules_of, name_in
from linfnet.nn.normalization import Normalize
from linfnet.nn.unchanged import (
    LABELS,
    RefusedError,
    check_hooks,
    check_layer,
    check_tensors,
    library_class,
    overridden,
)


class CheckedNet(Classifier):
    """A net whose certificates hold only if its modules run the code that was analysed.

    Certificates therefore call `check_unchanged` first. They hold for the floating-point program (docs/certificates.md)
    unless a subclass says otherwise.
    """

    arithmetic: ClassVar[Literal["float32", "real"]] = "float32"
    traced: ClassVar[bool] = False
    """Whether the operations of the net are found by tracing, and checked one by one."""
    other_layers: ClassVar[frozenset[type[nn.Module]]] = frozenset()
    """Classes of layers that the net may contain besides `Nonexpansive` layers; subclasses are refused."""

    def used_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the names and tensors of all parameters and buffers that the forward pass in eval mode uses."""
        return itertools.chain(self.named_parameters(), self.named_buffers())


class ProvenNet(CheckedNet):
    """A net that normalises its images and is otherwise 1-Lipschitz, and whose rounding errors have known bounds.

    A subclass defines `forward`, `bounds` and `measure`, and consists of layers of this library.
    """

    certificate_names: ClassVar[tuple[str, ...]] = ("margin", "interval")

    @property
    def lipschitz(self) -> float:
        """The Lipschitz constant in l_inf from pixels to logits, at p = inf and in eval mode: 1 / std."""
        return 1 / self.std

    def bounds(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Return bounds on the logits over the box lower <= image <= upper, at p = inf and in eval mode.

        The bounds hold for the floating-point results of `forward`, including rounding.
        """
        raise NotImplementedError

    def least_margin(self, lower: Tensor, upper: Tensor, labels: Tensor) -> Tensor:
        """Raise an error: functions certify these nets, by the Lipschitz constant and by `bounds`."""
        raise LinfnetError(f"a {type(self).__name__} is certified by a function: linfnet.certify(net, images, labels)")

    def measure(self, images: Tensor) -> tuple[Tensor, Rounding]:
        """Return the logits of `forward` and the rounded steps after the normalisation, at p = inf in eval mode."""
        raise NotImplementedError


def check_hidden(hidden: Sequence[int]) -> None:
    """Raise an error unless `hidden` is a sequence of widths above 0."""
    if not isinstance(hidden, Sequence) or any(width < 1 for width in hidden):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ArgumentError(f"hidden is {hidden}; expected a sequence of widths above 0, such as (128, 128)")


def check_std(std: float) -> None:
    """Raise an error if the std is not above 0, or too small or too large for the proofs."""
    if not std > 0:
        raise ArgumentError(f"the net divides by {std:g}; expected a std above 0")
    largest = torch.finfo(torch.float32).max
    if not 1 / LARGEST <= std <= largest:
        limits = f"{1 / LARGEST:.2g} to {largest:.2g}"
        raise ArgumentError(f"std is {std:g}; expected a number from {limits} for certificates")


def check_unchanged(net: CheckedNet) -> None:
    """Raise an error if the net may compute something else than its class in this library."""
    modules = modules_of(net)
    check_hooks(net, modules)
    check_tensors(net, modules)
    if type(net.normalize) is not Normalize:
        kind = type(net.normalize).__name__
        raise ArgumentError(f"normalize of the net is a {kind}; expected linfnet.nn.Normalize itself")
    base = library_class(type(net)) or CheckedNet
    # A class without a forward pass is abstract: a subclass of it declares that its methods are correct.
    if base.forward is not nn.Module.forward and (changed := overridden(type(net), base, LABELS)):
        raise ArgumentError(
            f"net is a {type(net).__name__} that overrides {changed}, but certificates hold for {base.__name__}; "
            "for an own forward pass use linfnet.Classifier.wrap"
        )
    known = {nn.Sequential, Normalize, *net.other_layers}
    for module in modules:
        if net.traced or module is net or type(module) in known:
            continue
        try:
            if not isinstance(module, Nonexpansive):
                raise RefusedError("expected layers of linfnet; use linfnet.Classifier.wrap for others")
            check_layer(module, parts=False)  # its parts are among the modules
        except RefusedError as reason:
            kind, name = type(module).__name__, name_in(net, module)
            raise ArgumentError(f"net contains {kind} ({name!r}), which cannot be certified: {reason}") from None


def check_precision(net: CheckedNet, dtype: torch.dtype) -> None:
    """Raise an error if the forward pass in eval mode uses floating-point tensors of another dtype."""
    if not net.traced:  # this takes a fraction of the time of `used_tensors`
        own = [vars(module) for module in modules_of(net)]
        tensors = [part for parts in own for kind in ("_parameters", "_buffers") for part in parts[kind].values()]
        if not any(part is not None and part.dtype is not dtype and part.is_floating_point() for part in tensors):
            return
    for name, part in net.used_tensors():
        if part.is_floating_point() and part.dtype != dtype:
            raise ArgumentError(
                f"images have dtype {dtype}, the net computes in {part.dtype} ({name}); expected the same"
            )
