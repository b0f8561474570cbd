"""The l-infinity distance net: a classifier with a known Lipschitz constant from pixels to logits."""

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from linfnet.errors import ArgumentError, LinfnetError
from linfnet.nn.distance import LpDistance
from linfnet.nn.nonexpansive import Rounding
from linfnet.nn.proven import ProvenNet, check_hidden

# Boolean arguments of the constructor that are saved in config.json.
SWITCHES = ("mean_shift", "hidden_bias", "negate_logits")


class LinfNet(ProvenNet):
    """A stack of distance layers on normalised pixels.

    At p = inf and in eval mode it is `lipschitz`-Lipschitz in the l_inf norm of the pixels, for all weights.

    Args:
        image_shape, classes, mean, std: as in `Classifier`.
        hidden: width of each hidden layer; () for a single layer.
        mean_shift: whether hidden layers subtract the means of their outputs.
        hidden_bias: whether hidden layers have a bias (the last layer always has one).
        negate_logits: whether the class with the *nearest* prototype is predicted. The paper's text and its theorems
            use the distances themselves as logits; its trained nets use the negated distances.
        identity_init: whether each layer that is at least as wide as its input initially copies its inputs.
        p: initial exponent of all layers.

    >>> import torch
    >>> net = LinfNet((1, 8, 8), 10, hidden=(32, 32), mean=0.3, std=0.4)
    >>> net(torch.rand(5, 1, 8, 8)).shape, net.lipschitz
    (torch.Size([5, 10]), 2.5)
    """

    system: ClassVar[str] = "linf"

    def __init__(
        self,
        image_shape: Sequence[int],
        classes: int,
        hidden: Sequence[int] = (),
        *,
        mean: float | Sequence[float] = 0.0,
        std: float = 1.0,
        mean_shift: bool = True,
        hidden_bias: bool = False,
        negate_logits: bool = True,
        identity_init: bool = True,
        p: float = math.inf,
    ) -> None:
        check_hidden(hidden)
        super().__init__(image_shape, classes, mean=mean, std=std, learn_scale=True)
        self.hidden, self.negate_logits = tuple(hidden), negate_logits
        self.mean_shift, self.hidden_bias = mean_shift, hidden_bias
        layer = partial(LpDistance, p=p, identity_init=identity_init)
        widths = [math.prod(self.image_shape), *hidden]
        inner = [layer(a, b, bias=hidden_bias, mean_shift=mean_shift) for a, b in itertools.pairwise(widths)]
        self.layers = nn.Sequential(*inner, layer(widths[-1], classes, bias=True))

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits [B, classes] of images [B, C, H, W] or vectors [B, d] in [0, 1]."""
        logits = self.layers(self.normalize(self.check_shape(images)).flatten(1))
        return -logits if self.negate_logits else logits

    def _distances(self) -> list[LpDistance]:
        layers = [layer for layer in self.layers if isinstance(layer, LpDistance)]
        if len(layers) != len(self.layers):
            raise ArgumentError("a layer of the net is not an LpDistance; use linfnet.Classifier.wrap for other layers")
        return layers

    def bounds(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        low, high = (end.flatten(1) for end in self.normalize.bounds(self.check_shape(lower), self.check_shape(upper)))
        for layer in self._distances():
            low, high = layer.bounds(low, high)
        return (-high, -low) if self.negate_logits else (low, high)

    def measure(self, images: Tensor) -> tuple[Tensor, Rounding]:
        values, rounding = self.normalize(self.check_shape(images)).flatten(1), Rounding()
        for layer in self._distances():
            values, sizes = layer.measure(values)
            rounding = rounding.then(sizes)
        return (-values if self.negate_logits else values), rounding

    def settings(self) -> dict[str, Any]:
        return {"hidden": list(self.hidden), **{key: getattr(self, key) for key in SWITCHES}}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Build a net with new weights from a dictionary that `config` returned."""
        for key in SWITCHES:
            if not isinstance(config.get(key, True), bool):
                raise LinfnetError(f"the config's {key} is {config[key]!r}; expected true or false")
        return super().from_config(config)

    def describe(self) -> str:
        return (
            f"An ℓ∞-distance net, hidden layers {'×'.join(map(str, self.hidden)) or 'none'}. "
            f"It is {self.lipschitz:.6g}-Lipschitz in the ℓ∞ norm of the pixels: one forward pass certifies a radius "
            "inside which its class cannot change. Certificates hold for the float32 program itself."
        )
