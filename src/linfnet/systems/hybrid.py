"""The l_inf-distance net + MLP of 2021: distance layers compute features, and an MLP classifies them."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linfnet.certificates.outward import Product, bounds
from linfnet.certificates.product_net import ProductNet
from linfnet.data import SetInfo
from linfnet.errors import ArgumentError, at_least, number
from linfnet.nn import DistanceModule, LpDistance
from linfnet.nn.classifier import Classifier
from linfnet.recipes import Recipe
from linfnet.schedules import StepState
from linfnet.systems.layers import linear_bounds, worst_margins
from linfnet.systems.system import OBJECTIVE, SYSTEMS, FeatureSystem


class ScaledLinear(nn.Module):
    """Computes x W^T / sqrt(in) + b with W from N(0, 1), so that the same learning rate suits all widths."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(out_features, in_features))
        self.bias = nn.Parameter(torch.zeros(out_features))

    def scaled(self) -> Tensor:
        """Return the effective weight W / sqrt(in), [out, in]."""
        return self.weight / math.sqrt(self.weight.shape[1])

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.scaled(), self.bias)

    def product(self) -> Product:
        """Return the weighted sums in float64. The program rounds the root, perhaps its reciprocal, and the weight."""
        root = math.sqrt(self.weight.shape[1])
        return Product(self.weight.double() / root, self.bias.double(), roundings=3)


class MlpNet(ProductNet):
    """Base class of nets of distance layers (mean shift, no bias), then Linear - Tanh - Linear.

    Args:
        image_shape, classes, mean, std, learn_scale: as in `Classifier`.
        hidden: the widths of the distance layers.
        mlp_hidden: the number of hidden neurons of the MLP.
        make_layers: returns the distance layers for the number of pixels followed by the widths.
    """

    other_layers: ClassVar[frozenset[type[nn.Module]]] = frozenset({ScaledLinear})

    def __init__(
        self,
        image_shape: Sequence[int],
        classes: int,
        hidden: Sequence[int],
        mlp_hidden: int,
        make_layers: Callable[[Sequence[int]], Sequence[DistanceModule]],
        *,
        mean: float | Sequence[float] = 0.0,
        std: float = 1.0,
        learn_scale: bool = False,
    ) -> None:
        if not hidden or min(*hidden, mlp_hidden) < 1:
            raise ArgumentError(f"hidden is {tuple(hidden)}, mlp_hidden {mlp_hidden}; expected widths above 0")
        super().__init__(image_shape, classes, mean=mean, std=std, learn_scale=learn_scale)
        self.hidden, self.mlp_hidden = tuple(hidden), mlp_hidden
        self.layers = nn.Sequential(*make_layers((math.prod(self.image_shape), *hidden)))
        self.first = ScaledLinear(self.hidden[-1], mlp_hidden)
        self.last = ScaledLinear(mlp_hidden, classes)

    @staticmethod
    def layer_type(number: int) -> type[DistanceModule]:
        """Return the class of a distance layer; layers are counted from 0."""
        return LpDistance

    def features(self, images: Tensor) -> Tensor:
        """Map images [B, C, H, W] to features [B, width]; (1 / std)-Lipschitz in l_inf at p = inf in eval mode."""
        return self.layers(self.normalize(self.check_shape(images)).flatten(1))

    def head(self, features: Tensor) -> Tensor:
        """Map features [B, width] to logits [B, classes]."""
        return self.last(torch.tanh(self.first(features)))

    def forward(self, images: Tensor) -> Tensor:
        """Map images [B, C, H, W] in [0, 1] to logits [B, classes]."""
        return self.head(self.features(images))

    def head_margins(self, lower: Tensor, upper: Tensor, labels: Tensor) -> Tensor:
        """Return lower bounds [B, classes] on the margins of the labels over a box of features, for the loss.

        They ignore rounding; `least_margin` does not.
        """
        low, high = linear_bounds(lower, upper, self.first.scaled(), self.first.bias)
        return worst_margins(torch.tanh(low), torch.tanh(high), self.last.scaled(), self.last.bias, labels)

    def least_margin(self, lower: Tensor, upper: Tensor, labels: Tensor) -> Tensor:
        low, high = (end.flatten(1) for end in self.normalize.bounds(self.check_shape(lower), self.check_shape(upper)))
        for layer in self.layers:
            low, high = cast(DistanceModule, layer).bounds(low, high)
        ends = bounds([nn.Tanh()], *self.first.product().bounds(low.double(), high.double()))
        return self.last.product().least_margin(*ends, labels)

    def check_layers(self) -> None:
        self.check_part("layers", nn.Sequential)
        inputs = math.prod(self.image_shape)
        for index, layer in enumerate(self.layers):
            self.check_part(f"layers.{index}", self.layer_type(index))
            inputs = cast(DistanceModule, layer).features
        for name in ("first", "last"):
            self.check_part(name, ScaledLinear)
            shapes = [tuple(part.shape) for part in self.get_submodule(name).parameters()]
            outputs = self.classes if name == "last" else next((size for shape in shapes for size in shape), 0)
            if shapes != [(outputs, inputs), (outputs,)]:
                expected = f"a weight of shape {(outputs, inputs)} and a bias of shape {(outputs,)}"
                raise ArgumentError(f"{name} of the net has parameters of shapes {shapes}; expected {expected}")
            inputs = outputs

    def settings(self) -> dict[str, Any]:
        return {"hidden": list(self.hidden), "mlp_hidden": self.mlp_hidden}


class HybridNet(MlpNet):
    """l_inf-distance layers of widths `hidden`, then Linear - Tanh - Linear of width `mlp_hidden`.

    For the other arguments, see `Classifier` and `LpDistance`.
    """

    system: ClassVar[str] = "hybrid"

    def __init__(
        self,
        image_shape: Sequence[int],
        classes: int,
        hidden: Sequence[int],
        mlp_hidden: int,
        *,
        mean: float | Sequence[float] = 0.0,
        std: float = 1.0,
        p: float = math.inf,
    ) -> None:
        def make_layers(widths: Sequence[int]) -> list[LpDistance]:
            return [LpDistance(*pair, p=p, mean_shift=True, identity_init=True) for pair in itertools.pairwise(widths)]

        super().__init__(image_shape, classes, hidden, mlp_hidden, make_layers, mean=mean, std=std)

    def describe(self) -> str:
        return (
            f"An ℓ∞-distance net + MLP: distance layers {'×'.join(map(str, self.hidden))} as features, then "
            f"Linear({self.mlp_hidden})–Tanh–Linear. Certificates are interval bounds and hold for the float32 program "
            "itself, in any order of its sums."
        )


@SYSTEMS.register("hybrid")
@dataclass(frozen=True)
class Hybrid(FeatureSystem):
    """The loss mixes the cross-entropy of worst-case margins over features within eps_train with that of the logits.

    At p = inf a perturbation of eps changes the features by at most eps; training assumes the same at finite p. The
    radius grows from 0 to eps_train during the first phase.
    """

    net_type: ClassVar[type[Classifier]] = HybridNet
    unused: ClassVar[tuple[str, ...]] = OBJECTIVE
    small: ClassVar[tuple[str, ...]] = (
        "model.depth=3",
        "model.width=128",
        "data.limit=5000",
        "optimizer.batch=128",
        "schedule.epochs=[10, 12, 2]",
        "run.test_every=0",
    )

    hidden: int = number(512, 1)
    """Number of hidden neurons of the MLP."""
    eps_train: Fraction = Fraction(88, 2550)
    """The perturbation of the worst case in the loss, in pixel units."""
    worst_share: float = number(1.0, most=1)
    """Weight of the worst case; the cross-entropy of the logits has weight 1 - worst_share."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("system.eps_train", float(self.eps_train), 0, most=1)

    def build(self, recipe: Recipe, info: SetInfo) -> HybridNet:
        """Build `model.depth` distance layers with `model.width` neurons each, and the MLP."""
        widths, p = (recipe.model.width,) * recipe.model.depth, recipe.schedule.p_start
        return HybridNet(info.image_shape, len(info.classes), widths, self.hidden, mean=info.mean, std=info.std, p=p)

    def features(self, net: Classifier, pixels: Tensor) -> Tensor:
        """Return the outputs [B, width] of the distance layers, from which both terms of the loss are computed."""
        assert isinstance(net, HybridNet)
        return net.features(pixels)

    def loss_from_features(
        self, recipe: Recipe, net: Classifier, features: Tensor, labels: Tensor, state: StepState
    ) -> tuple[Tensor, Tensor]:
        assert isinstance(net, HybridNet)
        radius = float(self.eps_train) / net.std * state.started
        logits = net.head(features)
        margins = net.head_margins(features - radius, features + radius, labels)
        worst = F.cross_entropy(-margins, labels)
        return self.worst_share * worst + (1 - self.worst_share) * F.cross_entropy(logits, labels), logits
