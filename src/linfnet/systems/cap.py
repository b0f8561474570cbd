"""CAP (Wong and Kolter, 2018): training by the convex outer approximation of all layers, with parallel lines."""

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from linfnet.bounds import Box, backward_boxes, linear_margins
from linfnet.data import SetInfo
from linfnet.errors import at_least
from linfnet.nn.classifier import Classifier
from linfnet.recipes import Recipe
from linfnet.schedules import StepState
from linfnet.systems.convolutional import ConvNet
from linfnet.systems.layers import check_architecture
from linfnet.systems.system import OBJECTIVE, RELAXATION, SYSTEMS, System


class CapNet(ConvNet):
    """A convolutional net certified by linear relaxation backwards of all layers, with parallel lines (Fast-Lin)."""

    system: ClassVar[str] = "cap"
    certificate_names: ClassVar[tuple[str, ...]] = ("fast-lin",)
    cheap: ClassVar[bool] = False
    part: ClassVar[int] = 20

    def margins(self, box: Box, labels: Tensor) -> Tensor:
        return linear_margins(self.body, backward_boxes(self.body, box, "parallel"), labels, "parallel")


@SYSTEMS.register("cap")
@dataclass(frozen=True)
class Cap(System):
    """The loss is the cross-entropy of the worst-case margins by linear relaxation of all layers.

    In the first phase of `schedule.epochs`, eps is 0. In the second it rises to eps_train, in the third it stays there.
    The authors estimate the bounds of large nets by random projections; here all bounds are exact, so a step takes time
    and memory for each neuron.
    """

    net_type: ClassVar[type[Classifier]] = CapNet
    unused: ClassVar[tuple[str, ...]] = (*RELAXATION, *OBJECTIVE)
    needs_whole_batch: ClassVar[bool] = True
    small: ClassVar[tuple[str, ...]] = (
        "system.architecture=small",
        "data.limit=1000",
        "optimizer.batch=10",
        "schedule.epochs=[4, 2, 3]",
        "schedule.lr_drops=[]",
        "run.test_every=0",
    )

    architecture: str = "small"
    """The convolutional net: small, medium or cnn7."""
    eps_train: Fraction = Fraction(1, 10)
    """The perturbation of the worst case in the last phase, in pixel units."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_architecture(self.architecture)
        at_least("system.eps_train", float(self.eps_train), 0, most=1)

    def build(self, recipe: Recipe, info: SetInfo) -> Classifier:
        """Build the net of `system.architecture`, without batch norm; the section [model] of the recipe is ignored."""
        own = (self.architecture, False)
        return CapNet(info.image_shape, len(info.classes), *own, mean=info.mean, std=info.std)

    def loss(
        self, recipe: Recipe, net: Classifier, pixels: Tensor, labels: Tensor, state: StepState
    ) -> tuple[Tensor, Tensor]:
        """Return the loss, and the worst-case logits while eps is above 0."""
        assert isinstance(net, CapNet)
        if state.relaxed == 0:
            logits = net(pixels)
            return F.cross_entropy(logits, labels), logits
        box = net.box_around(pixels, float(self.eps_train) * state.relaxed, centre=False)
        margins = net.margins(box, labels)
        return F.cross_entropy(-margins, labels), -margins
