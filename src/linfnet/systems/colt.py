"""COLT (Balunovic and Vechev, 2020): layer-wise adversarial training within convex relaxations of the first layers."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linfnet.bounds import Box, backward_boxes, linear_margins, smallest_margin
from linfnet.bounds.lines import relu_lines
from linfnet.data import SetInfo
from linfnet.errors import at_least, number
from linfnet.nn.classifier import Classifier
from linfnet.recipes import Recipe
from linfnet.schedules import StepState
from linfnet.systems.convolutional import ConvNet
from linfnet.systems.layers import check_architecture
from linfnet.systems.system import OBJECTIVE, RELAXATION, SYSTEMS, System, step_source


class ColtNet(ConvNet):
    """A convolutional net certified by linear relaxation backwards of all layers, with parallel or adaptive lines."""

    system: ClassVar[str] = "colt"
    certificate_names: ClassVar[tuple[str, ...]] = ("linear",)
    cheap: ClassVar[bool] = False
    part: ClassVar[int] = 20

    def margins(self, box: Box, labels: Tensor) -> Tensor:
        """Return the bounds of Fast-Lin, and for samples that they do not certify also those of CROWN."""
        found = linear_margins(self.body, backward_boxes(self.body, box, "parallel"), labels, "parallel")
        rest = (smallest_margin(found, labels) <= 0).nonzero().squeeze(1)
        if len(rest) == 0:
            return found
        part = Box(box.lower[rest], box.upper[rest])
        other = linear_margins(self.body, backward_boxes(self.body, part, "adaptive"), labels[rest], "adaptive")
        return found.index_copy(0, rest, torch.maximum(found[rest], other))


@dataclass(frozen=True)
class Region:
    """The convex set of values after the first ReLU layers of a net, given by numbers in [-1, 1].

    There is a number for each pixel, and one for each ReLU, which moves its output between two parallel lines. The set
    is the zonotope of DeepZ.
    """

    layers: Sequence[nn.Module]
    """All layers after the normalisation except those after the region."""
    box: Box
    slopes: list[Tensor]
    """The slope of both lines of each ReLU layer, [B, ...]."""
    offsets: list[Tensor]
    """The offset of the upper line; that of the lower line is 0."""

    @classmethod
    def after(cls, layers: Sequence[nn.Module], boxes: Sequence[Box]) -> "Region":
        """Return the region after layers whose inputs have these bounds."""
        found = zip(layers, boxes, strict=False)
        lines = [relu_lines(box.lower, box.upper, "parallel") for layer, box in found if isinstance(layer, nn.ReLU)]
        return cls(layers, boxes[0], [each.upper_slope for each in lines], [each.upper_offset for each in lines])

    def numbers(self, source: torch.Generator) -> list[Tensor]:
        """Return random numbers in [-1, 1] that give a point of the region."""
        sizes = (each.shape for each in (self.box.lower, *self.offsets))
        return [2 * torch.rand(size, generator=source, device=source.device) - 1 for size in sizes]

    def point(self, numbers: Sequence[Tensor]) -> Tensor:
        """Return the values [B, ...] that numbers in [-1, 1] give."""
        middle, reach = self.box.middle_and_reach
        values, index = middle + reach * numbers[0], 0
        for layer in self.layers:
            if isinstance(layer, nn.ReLU):
                slope, offset = self.slopes[index], self.offsets[index]
                index += 1
                values = slope * values + offset * (1 + numbers[index]) / 2
            else:
                values = layer(values)
        return values


def attacked(
    region: Region, rest: nn.Module, labels: Tensor, steps: int, step_size: float, source: torch.Generator
) -> Tensor:
    """Return a point [B, ...] of a region with a large cross-entropy of the remaining layers, found by PGD.

    Args:
        region: the region.
        rest: the layers after it.
        labels: [B].
        steps: number of steps.
        step_size: size of a step of numbers in [-1, 1].
        source: determines the random start.
    """
    numbers = region.numbers(source)
    for _ in range(steps):
        numbers = [each.requires_grad_() for each in numbers]
        loss = F.cross_entropy(rest(region.point(numbers)), labels, reduction="sum")
        gradients = torch.autograd.grad(loss, numbers)
        pairs = zip(numbers, gradients, strict=True)
        numbers = [(each.detach() + step_size * gradient.sign()).clamp(-1, 1) for each, gradient in pairs]
    with torch.no_grad():
        return region.point(numbers)


@SYSTEMS.register("colt")
@dataclass(frozen=True)
class Colt(System):
    """The loss is the cross-entropy at adversarial points of a convex relaxation of the first layers.

    The first phase of `schedule.epochs` is adversarial training at the inputs, with eps rising to eps_train. The second
    is divided into equal stages. In stage k, the values after the k-th ReLU layer are relaxed, and only the layers
    after it are trained. The last stage continues in the third phase. At the start of a stage, its loss replaces that
    of the stage before gradually. A regulariser favours neurons of the next ReLU layer whose sign is known.

    The authors also penalise the l1 norm of the weights, reduce eps and the learning rate from stage to stage, and
    certify by optimised zonotopes and mixed-integer programs.
    """

    net_type: ClassVar[type[Classifier]] = ColtNet
    unused: ClassVar[tuple[str, ...]] = (*RELAXATION, *OBJECTIVE)
    needs_whole_batch: ClassVar[bool] = True
    small: ClassVar[tuple[str, ...]] = (
        "system.architecture=small",
        "system.stages=2",
        "data.limit=2000",
        "optimizer.batch=25",
        "schedule.epochs=[8, 6, 4]",
        "schedule.lr_drops=[]",
        "run.test_every=0",
    )

    architecture: str = "small"
    """The convolutional net: small, medium or cnn7."""
    eps_train: Fraction = Fraction(1, 10)
    """The perturbation in training, in pixel units."""
    stages: int = number(2, 1)
    """Number of ReLU layers that are relaxed in turn."""
    steps: int = number(8, 1)
    """Number of steps of PGD."""
    step_size: float = number(0.25, strictly=True)
    """Step size of PGD, relative to half the width of the region."""
    mixing: float = number(0.3, most=1)
    """Fraction of a stage in which the loss of the stage before fades."""
    stability: float = number(0.01)
    """Weight of the regulariser of the next ReLU layer: the mean of -lower * upper over its unstable neurons."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_architecture(self.architecture)
        at_least("system.eps_train", float(self.eps_train), 0, most=1)

    def build(self, recipe: Recipe, info: SetInfo) -> Classifier:
        """Build the net of `system.architecture`, without batch norm; the section [model] of the recipe is ignored."""
        net = ColtNet(info.image_shape, len(info.classes), self.architecture, False, mean=info.mean, std=info.std)
        at_least("system.stages", self.stages, 1, most=sum(isinstance(layer, nn.ReLU) for layer in net.body))
        return net

    def stage(self, state: StepState) -> tuple[int, float]:
        """Return the stage of a step (0 in the first phase), and the weight of its loss beside that of the last one."""
        if state.started < 1 or state.relaxed == 0:
            return 0, 1.0
        stage = min(int(state.relaxed * self.stages), self.stages - 1)
        done = state.relaxed * self.stages - stage
        return stage + 1, min(done / self.mixing, 1.0) if self.mixing else 1.0

    def loss(
        self, recipe: Recipe, net: Classifier, pixels: Tensor, labels: Tensor, state: StepState
    ) -> tuple[Tensor, Tensor]:
        """Return the loss, and the logits at the adversarial points."""
        assert isinstance(net, ColtNet)
        box = net.box_around(pixels, float(self.eps_train) * state.started, centre=False)
        source = step_source(recipe, state, pixels.device)
        stage, share = self.stage(state)
        loss, logits = self.stage_loss(net, box, labels, stage, source)
        if share < 1:
            loss = share * loss + (1 - share) * self.stage_loss(net, box, labels, stage - 1, source)[0]
        return loss, logits

    def stage_loss(
        self, net: ColtNet, box: Box, labels: Tensor, stage: int, source: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of a stage, and the logits at the adversarial points; only layers after it get gradients."""
        body = net.body
        relus = [index for index, layer in enumerate(body) if isinstance(layer, nn.ReLU)]
        end = relus[stage - 1] + 1 if stage else 0
        with torch.no_grad():
            boxes = backward_boxes(body[:end], box, "parallel")
        region, rest = Region.after(body[:end], boxes), nn.Sequential(*body[end:])
        logits = rest(attacked(region, rest, labels, self.steps, self.step_size, source))
        loss = F.cross_entropy(logits, labels)
        following = [index for index in relus if index >= end]
        if stage and following and self.stability:
            frozen = [parameter for layer in body[:end] for parameter in layer.parameters()]
            for parameter in frozen:
                parameter.requires_grad_(False)
            lower, upper = backward_boxes(body[: following[0] + 1], box, "parallel")[following[0]].ends
            for parameter in frozen:
                parameter.requires_grad_(True)
            loss = loss + self.stability * ((-lower).clamp(min=0) * upper.clamp(min=0)).mean()
        return loss, logits
