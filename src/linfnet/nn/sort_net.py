"""SortNet (Zhang, Jiang, He and Wang, NeurIPS 2022): distance layers trained by dropout, sorted distances at test."""

import itertools
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from linfnet.errors import ArgumentError
from linfnet.nn.distance import DistanceModule, LpDistance
from linfnet.nn.input_dropout import dropped_distances
from linfnet.nn.nonexpansive import Rounding
from linfnet.nn.proven import ProvenNet, check_hidden
from linfnet.nn.sorted import SortDistance, check_sums


def sort_layers(
    widths: Sequence[int], keep: float, terms: int, *, identity_init: bool, p: float, logits: bool
) -> list[DistanceModule]:
    """Return layers with these numbers of inputs and outputs; only the first one, on pixels, has no sorted sums.

    Args:
        widths: the number of pixels, then the number of outputs of each layer.
        keep, terms, identity_init, p: as in `SortNet`.
        logits: whether the last layer has a bias instead of a mean shift.
    """
    layers: list[DistanceModule] = []
    for number, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
        last = logits and number == len(widths) - 2
        options: dict[str, Any] = {"bias": last, "mean_shift": not last, "identity_init": identity_init, "p": p}
        if number:
            options |= {"keep": keep, "terms": terms}
        layers.append((SortDistance if number else LpDistance)(inputs, outputs, **options))
    return layers


class SortNet(ProvenNet):
    """A distance layer on normalised pixels, followed by layers of weighted sums of the largest |x - w|.

    In training the inputs of all layers except the first are kept with probability `keep`; the net computes l_p
    distances over the kept inputs. In eval mode at p = inf a neuron computes the expectation of the maximum under this
    dropout (see `SortDistance`); the net is `lipschitz`-Lipschitz in the l_inf norm of the pixels, for all weights.
    Hidden layers subtract the means of their outputs, the last one has a bias, and the logits are negated distances.
    With keep = 1 it is a `LinfNet`.

    Args:
        image_shape, classes, mean, std: as in `Classifier`.
        hidden: width of each hidden layer; () for a single layer.
        keep: the probability, from 0.01 to 1, with which an input is kept in training.
        terms: how many of the largest |x - w| a neuron counts in eval mode, from 1 to 16.
        identity_init: whether each layer that is at least as wide as its input initially copies its inputs.
        p: initial exponent of all layers.

    >>> net = SortNet((1, 8, 8), 10, hidden=(32, 32), keep=0.85, mean=0.3, std=0.4)
    >>> net(torch.rand(5, 1, 8, 8)).shape, net.lipschitz
    (torch.Size([5, 10]), 2.5)
    """

    system: ClassVar[str] = "sortnet"

    def __init__(
        self,
        image_shape: Sequence[int],
        classes: int,
        hidden: Sequence[int] = (),
        *,
        keep: float,
        terms: int = 10,
        mean: float | Sequence[float] = 0.0,
        std: float = 1.0,
        identity_init: bool = True,
        p: float = math.inf,
    ) -> None:
        check_hidden(hidden)
        check_sums(keep, terms)
        super().__init__(image_shape, classes, mean=mean, std=std, learn_scale=True)
        self.hidden, self.keep, self.terms = tuple(hidden), keep, terms
        widths = [math.prod(self.image_shape), *hidden, classes]
        self.layers = nn.Sequential(*sort_layers(widths, keep, terms, identity_init=identity_init, p=p, logits=True))

    @property
    def drops_inputs(self) -> bool:
        return self.keep < 1

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits [B, classes] of images [B, C, H, W] or vectors [B, d] in [0, 1].

        In training mode the masks are drawn with a seed from the random numbers of torch.
        """
        if self.training and self.drops_inputs:
            return self.dropped(images, int(torch.randint(2**62, ())))
        return -self.layers(self.normalize(self.check_shape(images)).flatten(1))

    def dropped(self, images: Tensor, seed: int, *, group: int = 32) -> Tensor:
        """Return the logits [B, classes] under dropout, at any p and with the means of the batch.

        Args:
            images: as in `forward`.
            seed: of the masks.
            group: number of consecutive samples that share a mask; 0 for the whole batch.
        """
        x = self.normalize(self.check_shape(images)).flatten(1)
        return -dropped_distances(self.distance_layers(), x, self.keep, seed, group)

    def _certified_layers(self) -> list[LpDistance | SortDistance]:
        layers = [layer for layer in self.layers if isinstance(layer, LpDistance | SortDistance)]
        if len(layers) != len(self.layers):
            raise ArgumentError("a layer of the net is not a distance layer; use linfnet.Classifier.wrap")
        return layers

    def bounds(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        low, high = (end.flatten(1) for end in self.normalize.bounds(self.check_shape(lower), self.check_shape(upper)))
        for layer in self._certified_layers():
            low, high = layer.bounds(low, high)
        return -high, -low

    def measure(self, images: Tensor) -> tuple[Tensor, Rounding]:
        values, rounding = self.normalize(self.check_shape(images)).flatten(1), Rounding()
        for layer in self._certified_layers():
            values, sizes = layer.measure(values)
            rounding = rounding.then(sizes)
        return -values, rounding

    def settings(self) -> dict[str, Any]:
        return {"hidden": list(self.hidden), "keep": self.keep, "terms": self.terms}

    def describe(self) -> str:
        return (
            f"A SortNet, hidden layers {'×'.join(map(str, self.hidden)) or 'none'}, trained by dropout with keep rate "
            f"{self.keep:g}: a neuron is a weighted sum of its {self.terms} largest distances. It is "
            f"{self.lipschitz:.6g}-Lipschitz in the ℓ∞ norm of the pixels: one forward pass certifies a radius inside "
            "which its class cannot change. Certificates hold for the float32 program itself."
        )
