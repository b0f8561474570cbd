"""COLT (Balunovic and Vechev, 2020): layer-wise adversarial training within convex relaxations of the first layers."""

import contextlib
from collections.abc import Generator, Sequence
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

    Stage 0 is the first phase of `schedule.epochs`: adversarial training at the inputs. The second phase is divided
    into equal stages. In stage k, the values after the k-th ReLU layer are relaxed, and only the layers after it are
    trained. The last stage continues in the third phase. At the start of a stage, its loss replaces that of the stage
    before gradually; before stage 0, this is the cross-entropy of the images. Regularisers favour neurons of the next
    ReLU layer whose sign is known, and weights with a small l1 norm.

    The authors also reduce the learning rate from stage to stage, and certify by optimised zonotopes and mixed-integer
    programs.
    """

    net_type: ClassVar[type[Classifier]] = ColtNet
    unused: ClassVar[tuple[str, ...]] = (*RELAXATION, *OBJECTIVE)
    needs_whole_batch: ClassVar[bool] = True
    small: ClassVar[tuple[str, ...]] = (
        "system.architecture=small",
        "system.stages=2",
        "system.stability_images=5",
        "data.limit=2000",
        "optimizer.batch=25",
        "schedule.epochs=[8, 6, 4]",
        "schedule.lr_drops=[]",
        "run.test_every=0",
    )

    architecture: str = "small"
    """The convolutional net: small, medium or cnn7."""
    eps_train: Fraction = Fraction(1, 10)
    """The perturbation in the last stage, in pixel units."""
    eps_factor: float = number(1.0, strictly=True)
    """Ratio of the perturbation of a stage to that of the next one."""
    stages: int = number(2, 1)
    """Number of ReLU layers that are relaxed in turn."""
    steps: int = number(8, 1)
    """Number of steps of PGD."""
    step_size: float = number(0.25, strictly=True)
    """Step size of PGD, relative to half the width of the region."""
    mixing: float = number(0.3, most=1)
    """Fraction of a stage in which the loss of the stage before fades."""
    stability: float = number(0.005)
    """Weight in stage 0 of the sum of -lower * upper over the unstable neurons of the next ReLU layer."""
    stability_factor: float = number(1.5)
    """Ratio of this weight in a stage to that in the stage before; in the last stage it is 0."""
    stability_images: int = number(0)
    """Number of images of a batch from which this sum is estimated; 0 for all images."""
    l1: float = number(0.0)
    """Weight of the l1 norm of the weights that are trained."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_architecture(self.architecture)
        at_least("system.eps_train", float(self.eps_train), 0, most=1)

    def build(self, recipe: Recipe, info: SetInfo) -> Classifier:
        """Build the net of `system.architecture`, without batch norm; the section [model] of the recipe is ignored."""
        net = ColtNet(info.image_shape, len(info.classes), self.architecture, False, mean=info.mean, std=info.std)
        at_least("system.stages", self.stages, 1, most=len(ends_of_relus(net.body)))
        return net

    def stage(self, state: StepState) -> tuple[int, float]:
        """Return the stage of a step (0 in the first phase), and the weight of its loss beside that of the last one."""
        if state.started < 1 or state.relaxed == 0:
            stage, done = 0, state.started
        else:
            stage = min(int(state.relaxed * self.stages), self.stages - 1) + 1
            done = state.relaxed * self.stages - stage + 1
        return stage, min(done / self.mixing, 1.0) if self.mixing else 1.0

    def loss(
        self, recipe: Recipe, net: Classifier, pixels: Tensor, labels: Tensor, state: StepState
    ) -> tuple[Tensor, Tensor]:
        """Return the loss, and the logits at the adversarial points; only layers after the region get gradients."""
        assert isinstance(net, ColtNet)
        stage, share = self.stage(state)
        body, ends = net.body, [0, *ends_of_relus(net.body)]
        box = net.box_around(pixels, float(self.eps_train) * self.eps_factor ** (self.stages - stage), centre=False)
        source = step_source(recipe, state, pixels.device)
        with frozen(body[: ends[stage]]):
            with torch.no_grad():
                boxes = backward_boxes(body[: ends[stage]], box, "parallel")
            logits = self.adversarial_logits(body, boxes, labels, ends[stage], source)
            loss = F.cross_entropy(logits, labels)
            if share < 1:
                last = self.adversarial_logits(body, boxes, labels, ends[stage - 1], source) if stage else net(pixels)
                loss = share * loss + (1 - share) * F.cross_entropy(last, labels)
            weight = self.stability * self.stability_factor**stage * share
            if weight and stage < self.stages:
                part = slice(self.stability_images or None)
                loss = loss + weight * instability(body[: ends[stage + 1]], Box(box.lower[part], box.upper[part]))
            if self.l1:
                weights = (each for layer in body[ends[stage] :] for each in layer.parameters() if each.dim() > 1)
                loss = loss + self.l1 * sum(each.abs().sum() for each in weights)
        return loss, logits

    def adversarial_logits(
        self, body: Sequence[nn.Module], boxes: Sequence[Box], labels: Tensor, end: int, source: torch.Generator
    ) -> Tensor:
        """Return the logits at adversarial points of the region after the first `end` layers of a net."""
        region, rest = Region.after(body[:end], boxes), nn.Sequential(*body[end:])
        return rest(attacked(region, rest, labels, self.steps, self.step_size, source))


def ends_of_relus(body: Sequence[nn.Module]) -> list[int]:
    """Return for each ReLU layer the number of layers up to it."""
    return [index + 1 for index, layer in enumerate(body) if isinstance(layer, nn.ReLU)]


@contextlib.contextmanager
def frozen(layers: Sequence[nn.Module]) -> Generator[None]:
    """Context in which the parameters of layers get no gradients."""
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)


def instability(layers: Sequence[nn.Module], box: Box) -> Tensor:
    """Return the sum of -lower * upper over the unstable neurons of the last layer, a ReLU; the mean over images."""
    lower, upper = backward_boxes(layers, box, "parallel")[len(layers) - 1].ends
    return ((-lower).clamp(min=0) * upper.clamp(min=0)).flatten(1).sum(1).mean()
