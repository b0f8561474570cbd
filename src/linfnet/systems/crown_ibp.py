"""CROWN-IBP: training by interval bounds mixed with linear relaxation backwards from the margins."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from linfnet.bounds import Box, fused_cross_entropy, interval_boxes, interval_margins, linear_margins
from linfnet.data import SetInfo
from linfnet.errors import number
from linfnet.nn.classifier import Classifier
from linfnet.recipes import Recipe
from linfnet.schedules import StepState
from linfnet.systems.convolutional import ConvNet
from linfnet.systems.ibp import Ibp
from linfnet.systems.layers import preserve_widths
from linfnet.systems.system import SYSTEMS, is_zero


class CrownIbpNet(ConvNet):
    """A convolutional net certified by linear relaxation backwards, with interval bounds of the inputs of each ReLU.

    For each class, the better of two choices of lines counts. One of them is never looser than interval bounds.
    """

    system: ClassVar[str] = "crown-ibp"
    certificate_names: ClassVar[tuple[str, ...]] = ("crown-ibp",)

    def margins(self, box: Box, labels: Tensor) -> Tensor:
        boxes = interval_boxes(self.body, box)
        return torch.maximum(
            linear_margins(self.body, boxes, labels, "zero"), linear_margins(self.body, boxes, labels, "adaptive")
        )


@SYSTEMS.register("crown-ibp")
@dataclass(frozen=True)
class CrownIbp(Ibp):
    """The loss is that of `ibp`, but the worst case is beta * (linear relaxation) + (1 - beta) * (interval bounds).

    beta falls from 1 to beta_end while eps rises. In the form of 2020 (Zhang et al.), the margins are mixed. With
    `fusion` (Xu et al., 2020), the bounds on the sum in the cross-entropy are mixed: this takes one linear function per
    image instead of one per class.
    """

    net_type: ClassVar[type[Classifier]] = CrownIbpNet

    beta_end: float = number(0.0, most=1)
    """Weight of the linear relaxation in the last phase; 1 for small eps_train such as 2.2/255."""
    fusion: bool = True
    """Whether the cross-entropy is bounded by one linear function per image, instead of the margin of each class."""

    def build(self, recipe: Recipe, info: SetInfo) -> Classifier:
        """Build the net of `system.architecture`; the section [model] of the recipe is ignored."""
        own = (self.architecture, self.batch_norm)
        net = CrownIbpNet(info.image_shape, len(info.classes), *own, mean=info.mean, std=info.std)
        if self.initialisation == "ibp":
            preserve_widths(net)
        return net

    def weights(self, state: StepState) -> dict[str, float]:
        """Return the numbers of `ibp`, and the weight of the linear relaxation."""
        return {**super().weights(state), "linear": 1 - (1 - self.beta_end) * self.progress(state)}

    def weighted_loss(
        self, net: Classifier, pixels: Tensor, labels: Tensor, weights: Mapping[str, float | Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return the loss and the logits of the unperturbed images."""
        assert isinstance(net, ConvNet)
        if is_zero(weights["eps"]):
            logits = net(pixels)
            return F.cross_entropy(logits, labels), logits
        body, boxes = net.body, interval_boxes(net.body, net.box_around(pixels, weights["eps"]))
        logits = boxes[-1].centre
        assert logits is not None
        loss = weights["worst"] * self.worst_case(net, boxes, labels, weights["linear"])
        if not is_zero(weights["plain"]):
            loss = loss + weights["plain"] * F.cross_entropy(logits, labels)
        if not is_zero(weights["regularisers"]):
            loss = loss + weights["regularisers"] * self.regularisers(body, boxes)
        return loss, logits

    def worst_case(self, net: ConvNet, boxes: list[Box], labels: Tensor, linear: float | Tensor) -> Tensor:
        """Return the mean over the batch of the cross-entropy of the worst case."""
        if self.fusion:
            return fused_cross_entropy(net.body, boxes, labels, linear).mean()
        margins = interval_margins(net.body, boxes, labels)
        if not is_zero(linear):
            margins = torch.lerp(margins, linear_margins(net.body, boxes, labels), linear)
        return F.cross_entropy(-margins, labels)
