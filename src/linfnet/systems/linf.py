"""The paper's system: an l_inf-distance net, trained by the objective in the recipe's [loss]."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from linfnet.data import SetInfo
from linfnet.losses import Moment
from linfnet.nn import LinfNet
from linfnet.nn.classifier import Classifier
from linfnet.recipes import Recipe
from linfnet.systems.system import SeenSystem


@dataclass(frozen=True)
class Linf(SeenSystem):
    """No keys of its own: [model] says how deep and how wide."""

    net_type: ClassVar[type[Classifier]] = LinfNet
    replayable: ClassVar[bool] = True

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

    def loss_of_seen(
        self, recipe: Recipe, net: Classifier, seen: Tensor, labels: Tensor, epoch: float
    ) -> tuple[Tensor, Tensor]:
        """The objective of [loss], at this moment of the schedule."""
        assert isinstance(net, LinfNet)
        phases = recipe.schedule.phases()
        progress = (phases.start_progress(epoch), phases.relaxation_progress(epoch))
        return recipe.loss(seen, labels, Moment(*progress, net.scale, net.lipschitz)), seen


SYSTEM = Linf
