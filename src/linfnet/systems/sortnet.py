"""SortNet: l_inf-distance nets trained by dropout, with sorted distances at test."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from linfnet.data import SetInfo
from linfnet.errors import number
from linfnet.nn import SortNet
from linfnet.nn.classifier import Classifier
from linfnet.nn.sorted import LEAST_KEEP
from linfnet.ops.sorted import MOST_TERMS
from linfnet.recipes import Recipe
from linfnet.schedules import StepState
from linfnet.systems.system import SYSTEMS, System, step_seed


@SYSTEMS.register("sortnet")
@dataclass(frozen=True)
class Sortnet(System):
    """The objective of [loss] for logits under dropout. Depth and width are in [model].

    Masks differ from step to step in values and in shapes, so training on a GPU uses no CUDA graphs.
    """

    net_type: ClassVar[type[Classifier]] = SortNet
    needs_whole_batch: ClassVar[bool] = True

    keep: float = number(0.85, LEAST_KEEP, most=1)
    """The probability with which an input of a layer other than the first is kept; 1 trains an l_inf-distance net."""
    terms: int = number(10, 1, most=MOST_TERMS)
    """How many of its largest distances a neuron counts at test."""
    group: int = number(32)
    """Number of consecutive samples of a batch that share a mask; 0 for the whole batch, which is faster."""
    identity_init: bool = True
    """Whether each layer that is at least as wide as its input initially copies its inputs."""

    def build(self, recipe: Recipe, info: SetInfo) -> SortNet:
        """Build `model.depth` layers at `schedule.p_start`; hidden layers have `model.width` neurons."""
        hidden, p = (recipe.model.width,) * (recipe.model.depth - 1), recipe.schedule.p_start
        return SortNet(
            info.image_shape, len(info.classes), hidden,
            keep=self.keep, terms=self.terms, mean=info.mean, std=info.std, identity_init=self.identity_init, p=p,
        )  # fmt: skip

    def loss(
        self, recipe: Recipe, net: Classifier, pixels: Tensor, labels: Tensor, state: StepState
    ) -> tuple[Tensor, Tensor]:
        assert isinstance(net, SortNet)
        logits = net.dropped(pixels, step_seed(recipe, state), group=self.group)
        return recipe.loss(logits, labels, state, scale=net.scale, lipschitz=net.lipschitz), logits
