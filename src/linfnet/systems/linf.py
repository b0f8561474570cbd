"""The paper's system: an l_inf-distance net, trained by the objective in the recipe's [loss]."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from linfnet.data import SetInfo
from linfnet.nn import LinfNet
from linfnet.nn.classifier import Classifier
from linfnet.recipes import Recipe
from linfnet.schedules import StepState
from linfnet.systems.system import SYSTEMS, FeatureSystem


class ObjectiveSystem(FeatureSystem):
    """A system whose loss is the objective of the recipe's [loss]."""

    def loss_from_features(
        self, recipe: Recipe, net: Classifier, features: Tensor, labels: Tensor, state: StepState
    ) -> tuple[Tensor, Tensor]:
        """Return the objective of [loss] and the logits, which are the features."""
        assert net.lipschitz is not None
        return recipe.loss(features, labels, state, scale=net.scale, lipschitz=net.lipschitz), features


@SYSTEMS.register("linf")
@dataclass(frozen=True)
class Linf(ObjectiveSystem):
    """The system of the paper. Depth and width are in [model]; [system] has no further keys."""

    net_type: ClassVar[type[Classifier]] = LinfNet

    def build(self, recipe: Recipe, info: SetInfo) -> LinfNet:
        """Build `model.depth` distance layers at `schedule.p_start`; hidden layers have `model.width` neurons."""
        hidden, p = (recipe.model.width,) * (recipe.model.depth - 1), recipe.schedule.p_start
        return LinfNet(info.image_shape, len(info.classes), hidden, mean=info.mean, std=info.std, p=p)
