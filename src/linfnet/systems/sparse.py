"""Compressed l_inf-distance nets as a system, so that every command loads them."""

from dataclasses import dataclass
from typing import ClassVar

from linfnet.data import SetInfo
from linfnet.errors import ArgumentError
from linfnet.nn import LinfNet, SparseNet
from linfnet.nn.classifier import Classifier
from linfnet.recipes import Recipe
from linfnet.systems.linf import Linf
from linfnet.systems.system import SYSTEMS


@SYSTEMS.register("sparse")
@dataclass(frozen=True)
class Sparse(Linf):
    """A compressed net; a recipe cannot build it. [model] has no effect, and [system] has no further keys."""

    net_type: ClassVar[type[Classifier]] = SparseNet
    unused: ClassVar[tuple[str, ...]] = ("model",)

    def build(self, recipe: Recipe, info: SetInfo) -> LinfNet:
        """Raise an error: a compressed net is made of a trained net."""
        raise ArgumentError(
            "system.name is 'sparse'; such nets are made of trained nets: train a net of system 'linf', then run "
            "linfnet compress"
        )
