"""Nets whose certificates hold for the floating-point program."""

from typing import ClassVar, Literal

from torch import Tensor

from linfnet.nn.classifier import Classifier
from linfnet.nn.nonexpansive import Rounding


class ProvenNet(Classifier):
    """A net that normalises its images and is otherwise 1-Lipschitz, and whose rounding errors have known bounds.

    Its certificates hold for the floating-point program (docs/certificates.md).
    """

    certificate_names: ClassVar[tuple[str, ...]] = ("margin", "interval")
    arithmetic: ClassVar[Literal["float32", "real"]] = "float32"

    @property
    def lipschitz(self) -> float:
        """The Lipschitz constant in l_inf from pixels to logits, at p = inf and in eval mode: 1 / std."""
        return 1 / self.std

    def bounds(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Return bounds on the logits over the box lower <= image <= upper, at p = inf and in eval mode.

        The bounds hold for the floating-point results of `forward`, including rounding.
        """
        raise NotImplementedError

    def measure(self, images: Tensor) -> tuple[Tensor, Rounding]:
        """Return the logits of `forward` and the rounded steps after the normalisation, at p = inf in eval mode."""
        raise NotImplementedError
