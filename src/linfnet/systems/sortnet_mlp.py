"""SortNet + MLP (2022): sorted distance layers trained by dropout compute features, and an MLP classifies them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from linfnet.data import SetInfo
from linfnet.errors import at_least, number
from linfnet.nn import DistanceModule, LpDistance, SortDistance
from linfnet.nn.classifier import Classifier
from linfnet.nn.input_dropout import dropped_distances
from linfnet.nn.sort_net import sort_layers
from linfnet.nn.sorted import LEAST_KEEP, check_sums
from linfnet.ops.sorted import MOST_TERMS
from linfnet.recipes import Recipe
from linfnet.schedules import StepState, mixing_coefficient
from linfnet.systems.hybrid import MlpNet
from linfnet.systems.ibp import smooth_ramp
from linfnet.systems.layers import smallest_margin
from linfnet.systems.system import SYSTEMS, System, step_seed

# The share of the ramp in which the perturbation rises slowly.
BEND = 0.4


class SortMlpNet(MlpNet):
    """The hidden layers of a `SortNet`, of widths `hidden`, then Linear - Tanh - Linear of width `mlp_hidden`.

    The inputs of the MLP are not dropped. For the other arguments, see `SortNet`.
    """

    system: ClassVar[str] = "sortnet-mlp"

    def __init__(
        self,
        image_shape: Sequence[int],
        classes: int,
        hidden: Sequence[int],
        mlp_hidden: int,
        *,
        keep: float,
        terms: int = 10,
        mean: float | Sequence[float] = 0.0,
        std: float = 1.0,
        identity_init: bool = False,
        p: float = math.inf,
    ) -> None:
        check_sums(keep, terms)
        make_layers = partial(sort_layers, keep=keep, terms=terms, identity_init=identity_init, p=p, logits=False)
        super().__init__(image_shape, classes, hidden, mlp_hidden, make_layers, mean=mean, std=std, learn_scale=True)
        self.keep, self.terms = keep, terms

    @staticmethod
    def layer_type(number: int) -> type[DistanceModule]:
        return SortDistance if number else LpDistance

    @property
    def drops_inputs(self) -> bool:
        return self.keep < 1

    def features(self, images: Tensor) -> Tensor:
        """Map images [B, C, H, W] to features [B, width]; (1 / std)-Lipschitz in l_inf at p = inf in eval mode.

        In training mode the masks are drawn with a seed from the random numbers of torch.
        """
        if self.training and self.drops_inputs:
            return self.dropped(images, int(torch.randint(2**62, ())))
        return super().features(images)

    def dropped(self, images: Tensor, seed: int, *, group: int = 32) -> Tensor:
        """Return the features [B, width] under dropout; for the arguments, see `SortNet.dropped`."""
        x = self.normalize(self.check_shape(images)).flatten(1)
        return dropped_distances(self.distance_layers(), x, self.keep, seed, group)

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "keep": self.keep, "terms": self.terms}

    def describe(self) -> str:
        return (
            f"A SortNet + MLP: sorted distance layers {'×'.join(map(str, self.hidden))}, trained by dropout with keep "
            f"rate {self.keep:g}, as features, then Linear({self.mlp_hidden})–Tanh–Linear. Certificates are interval "
            "bounds and hold for the float32 program itself, in any order of the sums of its matrix products."
        )


@SYSTEMS.register("sortnet-mlp")
@dataclass(frozen=True)
class SortnetMlp(System):
    """The loss is the hinge of worst-case margins of correctly classified samples + lambda * CE(s * logits, y).

    The worst case is over features within eps_train; the hinge is max(1 - margin, 0). lambda falls from mixing_start to
    mixing_end while p rises. As for `sortnet`, training on a GPU uses no CUDA graphs.
    """

    net_type: ClassVar[type[Classifier]] = SortMlpNet
    unused: ClassVar[tuple[str, ...]] = ("loss",)
    needs_whole_batch: ClassVar[bool] = True

    keep: float = number(0.6, LEAST_KEEP, most=1)
    """The probability with which an input of a distance layer other than the first is kept."""
    terms: int = number(10, 1, most=MOST_TERMS)
    """How many of its largest distances a neuron counts at test."""
    group: int = number(32)
    """Number of consecutive samples of a batch that share a mask; 0 for the whole batch, which is faster."""
    identity_init: bool = False
    """Whether each distance layer that is at least as wide as its input initially copies its inputs."""
    hidden: int = number(512, 1)
    """Number of hidden neurons of the MLP."""
    eps_train: Fraction = Fraction(88, 2550)
    """The perturbation of the worst case in the loss, in pixel units."""
    ramp: float = number(2.5)
    """The perturbation rises from 0 to `eps_train` in this many times the epochs of the first phase, slowly at
    first."""
    mixing_start: float = number(1.0)
    """lambda, the weight of the cross-entropy, in the first phase."""
    mixing_end: float = number(1e-2)
    """lambda at the end of the second phase."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("system.eps_train", float(self.eps_train), 0, most=1)

    def build(self, recipe: Recipe, info: SetInfo) -> SortMlpNet:
        """Build `model.depth` distance layers with `model.width` neurons each, and the MLP."""
        widths, p = (recipe.model.width,) * recipe.model.depth, recipe.schedule.p_start
        return SortMlpNet(
            info.image_shape, len(info.classes), widths, self.hidden,
            keep=self.keep, terms=self.terms, mean=info.mean, std=info.std, identity_init=self.identity_init, p=p,
        )  # fmt: skip

    def eps(self, recipe: Recipe, state: StepState) -> float:
        """Return the perturbation of the worst case at a step, in pixel units."""
        epochs = self.ramp * recipe.schedule.epochs[0]
        return float(self.eps_train) * (smooth_ramp(state.epoch / epochs, BEND) if state.epoch < epochs else 1.0)

    def loss(
        self, recipe: Recipe, net: Classifier, pixels: Tensor, labels: Tensor, state: StepState
    ) -> tuple[Tensor, Tensor]:
        assert isinstance(net, SortMlpNet)
        features = net.dropped(pixels, step_seed(recipe, state), group=self.group)
        logits, radius = net.head(features), self.eps(recipe, state) / net.std
        margins = net.head_margins(features - radius, features + radius, labels)
        worst = (1 - smallest_margin(margins, labels)).clamp(min=0)
        mixing = mixing_coefficient(state.relaxed, start=self.mixing_start, end=self.mixing_end)
        # The hinge of misclassified samples has no gradients, as if it were clipped.
        right = logits.argmax(1) == labels
        return (right * worst).mean() + mixing * F.cross_entropy(net.scale * logits, labels), logits
