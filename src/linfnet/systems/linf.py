"""The paper's system: an l_inf-distance net, trained by the objective in the recipe's [loss]."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from linfnet.data import SetInfo
from linfnet.nn import LinfNet
from linfnet.nn.classifier import Classifier
from linfnet.recipes import Recipe
from linfnet.systems.system import System


@dataclass(frozen=True)
class Linf(System):
    """No keys of its own: [model] says how deep and how wide."""

    net_type: ClassVar[type[Classifier]] = LinfNet

    def build(self, recipe: Recipe, info: SetInfo) -> LinfNet:
        """`model.depth` distance layers, the hidden ones `model.width` wide, at the recipe's first p."""
        return LinfNet(
            info.image_shape,
            len(info.classes),
            (recipe.model.width,) * (recipe.model.depth - 1),
            mean=info.mean,
            std=info.std,
            p=recipe.schedule.p_start,
        )

    def loss(
        self, recipe: Recipe, net: Classifier, pixels: Tensor, labels: Tensor, epoch: float
    ) -> tuple[Tensor, Tensor]:
        """Not here: objectives of logits alone are `linfnet.losses`, and the trainer calls them itself."""
        raise NotImplementedError("the trainer computes the recipe's [loss]")


SYSTEM = Linf
