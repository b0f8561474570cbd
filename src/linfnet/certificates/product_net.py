"""Nets with matrix products, and checks that their products have the precision that the proof assumes."""

import os
from fractions import Fraction
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from linfnet.certificates.rounding import check_assumptions
from linfnet.errors import ArgumentError
from linfnet.nn import CheckedNet, Classifier

# Variables with which libraries below torch compute products of float32 numbers from bfloat16 numbers.
_VARIABLES = ("ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE", "CUBLAS_EMULATE_SINGLE_PRECISION")


class ProductNet(CheckedNet):
    """A net with matrix products, certified by interval bounds that are rounded outwards.

    Its certificates hold for the floating-point program, whatever the order in which products are summed. A subclass
    defines `forward` and `least_margin`; `linfnet.certificates.outward` has the bounds of the layers of torch.
    """

    certificate_names: ClassVar[tuple[str, ...]] = ("interval",)

    def certified(self, images: Tensor, labels: Tensor, epsilon: Fraction | Tensor) -> Tensor:
        net = self.frozen()
        net.check(images)
        return Classifier.certified(net, images, labels, epsilon)

    def certified_in_training(self, images: Tensor, labels: Tensor, epsilon: Fraction | Tensor) -> Tensor:
        return Classifier.certified(self, images, labels, epsilon)

    def check(self, images: Tensor) -> None:
        """Raise an error if an assumption of the certificates does not hold."""
        check_assumptions(self, images)
        check_products(images)
        self.check_layers()

    def check_layers(self) -> None:
        """Raise an error if a layer was replaced by one that does not fit; by default, nothing is checked."""

    def check_part(self, name: str, kind: type[nn.Module]) -> None:
        """Raise an error unless a part of the net has this class."""
        if type(part := self.get_submodule(name)) is not kind:
            raise ArgumentError(f"{name} of the net is a {type(part).__name__}; expected a {kind.__name__}")


def logits_of(net: Classifier, images: Tensor) -> Tensor:
    """Return the logits at p = inf in eval mode; a net with matrix products is checked first."""
    frozen = net.frozen()
    if isinstance(frozen, ProductNet):
        frozen.check(images)
    return frozen(images)


def check_products(images: Tensor) -> None:
    """Raise an error if products of float32 numbers may have a lower precision on the device of the images."""
    check_settings(images)
    if torch.is_autocast_enabled(images.device.type):
        raise ArgumentError("autocast is enabled, so products have a lower precision; leave its context to certify")


def check_settings(images: Tensor) -> None:
    """Raise an error if the dtype of the images or a setting of torch reduces the precision of all products."""
    if images.dtype not in (torch.float32, torch.float64):
        raise ArgumentError(f"images have dtype {images.dtype}; expected float32 or float64")
    for name, value in _precisions().items():
        if value not in ("highest", "none", "ieee"):
            raise ArgumentError(
                f"{name} is {value!r}, so products of float32 numbers may have a lower precision; "
                "call torch.set_float32_matmul_precision('highest') to certify"
            )
    for name in _VARIABLES:
        if (value := os.environ.get(name, "")).upper() not in ("", "0", "STRICT"):
            raise ArgumentError(
                f"the environment variable {name} is {value!r}, so products of float32 numbers may have a lower "
                "precision; unset it to certify"
            )


def _precisions() -> dict[str, str]:
    """Return the settings of torch for the precision of products of float32 numbers, by name."""
    backends: dict[str, Any] = {"cuda": torch.backends.cuda, "mkldnn": torch.backends.mkldnn}
    try:
        return {f"torch.backends.{name}.matmul.fp32_precision": b.matmul.fp32_precision for name, b in backends.items()}
    except AttributeError:  # torch before 2.9
        return {"torch.get_float32_matmul_precision()": torch.get_float32_matmul_precision()}
