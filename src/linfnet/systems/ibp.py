"""Interval bound propagation (IBP) on convolutional nets, a baseline in the paper's tables."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linfnet.bounds.layers import Activation
from linfnet.certificates.outward import RULES, bounds, evaluate, product_of
from linfnet.certificates.product_net import ProductNet
from linfnet.data import SetInfo
from linfnet.errors import ArgumentError, at_least, number
from linfnet.nn.classifier import Classifier
from linfnet.recipes import Recipe
from linfnet.schedules import StepState
from linfnet.systems.layers import (
    Box,
    StandardNet,
    channels_last,
    check_architecture,
    default_weights,
    preserve_widths,
    through,
    worst_margins,
)
from linfnet.systems.system import OBJECTIVE, RELAXATION, SYSTEMS, WeightedSystem, is_zero

# The regularisers are 0 if bounds grow by less than a factor of 1 / TOLERANCE, and if active and inactive neurons
# differ by less than that factor.
TOLERANCE = 0.5
# The number of images whose bounds are computed at the same time.
PART = 100


class IbpNet(StandardNet, ProductNet):
    """A convolutional net with ReLU, certified by interval bounds on the margin.

    In eval mode, convolutions are matrix products and batch norm is a product and a sum, whose rounding errors have
    known bounds on all devices. For the arguments, see `StandardNet`.
    """

    system: ClassVar[str] = "ibp"
    other_layers: ClassVar[frozenset[type[nn.Module]]] = frozenset(RULES)

    def __init__(
        self,
        image_shape: Sequence[int],
        classes: int,
        architecture: str,
        batch_norm: bool,
        *,
        mean: float | Sequence[float] = 0.0,
        std: float = 1.0,
    ) -> None:
        super().__init__(image_shape, classes, architecture, batch_norm, mean=mean, std=std)
        preserve_widths(self)

    def forward(self, images: Tensor) -> Tensor:
        """Map images [B, C, H, W] in [0, 1] to logits [B, classes]."""
        x = self.normalize(self.check_shape(images))
        return self.last(self.layers(x)) if self.training else evaluate((*self.layers, self.last), x)

    def boxes(self, box: Box) -> list[Box]:
        """Return the normalised input box and the box after each layer except the last, for the loss.

        They ignore rounding; `least_margin` does not.
        """
        plain = None if box.centre is None else self.normalize(box.centre)
        boxes = [Box(*self.normalize.bounds(box.lower, box.upper), plain)]
        for layer in self.layers:
            boxes.append(through(layer, boxes[-1]))
        return boxes

    def least_margin(self, lower: Tensor, upper: Tensor, labels: Tensor) -> Tensor:
        ends = self.normalize.bounds(self.check_shape(lower), self.check_shape(upper))
        # A few images at a time take less memory, and less time on a CPU.
        parts, last = zip(*(values.split(PART) for values in (*ends, labels)), strict=True), product_of(self.last)
        return torch.cat([last.least_margin(*bounds(self.layers, *box), own) for *box, own in parts])

    def check_layers(self) -> None:
        # What the layers compute is checked with their inputs, in `outward`.
        self.check_part("layers", nn.Sequential)
        self.check_part("last", nn.Linear)
        if len(self.last.weight) != self.classes:
            raise ArgumentError(f"last of the net has {len(self.last.weight)} outputs; expected {self.classes}")

    def describe(self) -> str:
        return (
            f"A convolutional net ({self.architecture}{', batch norm' if self.batch_norm else ''}) trained by interval "
            "bound propagation. Certificates are interval bounds and hold for the float32 program itself, in any order "
            "of its sums."
        )


def tightness(boxes: Sequence[Box]) -> Tensor:
    """Return a penalty in [0, 1] for boxes before each ReLU that are wider than the input box beyond the tolerance."""
    start, *widths = (box.middle_and_reach[1].mean().clamp(min=1e-12) for box in boxes)
    return torch.stack([F.relu(TOLERANCE - start / width) / TOLERANCE for width in widths]).mean()


def balance(boxes: Sequence[Box]) -> Tensor:
    """Return the imbalance between certainly active and certainly inactive neurons before each ReLU.

    The means and the variances of both groups are compared. Interval training tends to deactivate neurons permanently,
    after which they have no gradients.
    """
    terms: list[Tensor] = []
    for box in boxes:
        middle = box.middle_and_reach[0]
        active, inactive = box.lower > 0, box.upper < 0
        spread = (middle - middle.mean()).square()
        for on, off in (
            ((middle * active).mean(), -(middle * inactive).mean()),
            ((spread * active).mean(), (spread * inactive).mean()),
        ):
            most = torch.maximum(on, off)
            term = F.relu(TOLERANCE - torch.minimum(on, off) / most.clamp(min=1e-12)) / TOLERANCE
            # If no neuron is certainly active or inactive, there is nothing to balance.
            terms.append(torch.where(most > 0, term, 0.0))
    return torch.stack(terms).sum() / len(boxes)


def smooth_ramp(progress: float, bend: float = 0.25) -> float:
    """Return a ramp from 0 to 1: t^4 at first, then linear, so that perturbations are small early in training."""
    factor = 1 / (bend**4 + 4 * bend**3 * (1 - bend))
    return factor * (progress**4 if progress < bend else bend**4 + 4 * bend**3 * (progress - bend))


@SYSTEMS.register("ibp")
@dataclass(frozen=True)
class Ibp(WeightedSystem):
    """The loss is kappa * cross-entropy + (1 - kappa) * worst-case cross-entropy + the regularisers of fast IBP.

    The defaults are the form of 2021 (Shi et al.). The form of 2018 (Gowal et al.) has no batch norm, no regularisers,
    the default initialisation, a linear rise of eps, and kappa falls from 1 to 0.5.

    In the first phase of `schedule.epochs`, eps is 0. In the second, eps rises to eps_train and kappa changes to
    kappa_end. In the third, eps stays at eps_train. The weight of the regularisers falls as eps rises. With kappa = 0
    and no batch norm, training reports the accuracy of the worst-case logits.
    """

    net_type: ClassVar[type[Classifier]] = IbpNet
    unused: ClassVar[tuple[str, ...]] = (*RELAXATION, *OBJECTIVE)
    needs_whole_batch: ClassVar[bool] = True
    small: ClassVar[tuple[str, ...]] = (
        "system.architecture=small",
        "data.limit=10000",
        "optimizer.batch=128",
        "optimizer.lr=1e-3",
        "schedule.epochs=[2, 10, 8]",
        "schedule.lr_drops=[]",
        "run.test_every=0",
    )

    architecture: str = "cnn7"
    """The convolutional net: small, medium or cnn7."""
    batch_norm: bool = True
    """Whether the net has batch norm."""
    eps_train: Fraction = Fraction(2, 5)
    """The perturbation of the worst case in the last phase, in pixel units."""
    kappa_start: float = number(0.0, most=1)
    """Weight of the cross-entropy of the unperturbed images in the first phase."""
    kappa_end: float = number(0.0, most=1)
    """Weight of the cross-entropy of the unperturbed images in the last phase."""
    regularisation: float = number(0.5)
    """Weight of the regularisers of fast IBP at eps = 0."""
    initialisation: Literal["ibp", "default"] = "ibp"
    """The initial weights: `ibp` preserves the widths of interval bounds (2021), `default` is that of torch."""
    ramp: Literal["smooth", "linear"] = "smooth"
    """How eps rises in the second phase: `smooth` rises slowly at first (2021), `linear` evenly (2018)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_architecture(self.architecture)
        at_least("system.eps_train", float(self.eps_train), 0, most=1)

    def build(self, recipe: Recipe, info: SetInfo) -> Classifier:
        """Build the net of `system.architecture`; the section [model] of the recipe is ignored."""
        own = (self.architecture, self.batch_norm)
        net = IbpNet(info.image_shape, len(info.classes), *own, mean=info.mean, std=info.std)
        return net if self.initialisation == "ibp" else default_weights(net)

    def progress(self, state: StepState) -> float:
        """Return how much of the rise of eps is complete at a step, from 0 to 1."""
        return smooth_ramp(state.relaxed) if self.ramp == "smooth" else state.relaxed

    def weights(self, state: StepState) -> dict[str, float]:
        """Return eps, and the weights of worst case, unperturbed images and regularisers."""
        done = self.progress(state)
        kappa = self.kappa_start + (self.kappa_end - self.kappa_start) * done
        fading = self.regularisation * (1 - done) if done > 0 else 0.0
        return {"eps": float(self.eps_train) * done, "worst": 1 - kappa, "plain": kappa, "regularisers": fading}

    def regularisers(self, layers: Iterable[nn.Module], boxes: Sequence[Box]) -> Tensor:
        """Return the sum of the regularisers; `boxes` are those before each layer."""
        before = [box for box, layer in zip(boxes, layers, strict=False) if isinstance(layer, Activation)]
        return tightness([boxes[0], *before]) + balance(before)

    def weighted_loss(
        self, net: Classifier, pixels: Tensor, labels: Tensor, weights: Mapping[str, float | Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return the loss and the logits; unperturbed values are computed only if a term or batch norm needs them."""
        assert isinstance(net, IbpNet)
        eps, plain = weights["eps"], weights["plain"]
        pixels = channels_last(pixels)
        centre = pixels if self.batch_norm or not is_zero(plain) else None
        boxes = net.boxes(Box((pixels - eps).clamp(min=0), (pixels + eps).clamp(max=1), centre))
        end = boxes[-1]
        margins = worst_margins(end.lower, end.upper, net.last.weight, net.last.bias, labels)
        loss = weights["worst"] * F.cross_entropy(-margins, labels)
        logits = -margins if end.centre is None else net.last(end.centre)
        if not is_zero(plain):
            loss = loss + plain * F.cross_entropy(logits, labels)
        if not is_zero(weights["regularisers"]):
            loss = loss + weights["regularisers"] * self.regularisers(net.layers, boxes)
        return loss, logits
