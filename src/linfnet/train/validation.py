"""What a net makes of a labelled set: logits in batches, and the few numbers that training watches."""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import torch
from torch import Tensor

from linfnet.data import ImageSet
from linfnet.distributed.group import ALONE, Ranks
from linfnet.epsilon import format_epsilon
from linfnet.losses import margin_shares
from linfnet.nn import Classifier
from linfnet.nn.margin import margin

TEST_BATCH = 1000


def pixel_batches(images: ImageSet, size: int = TEST_BATCH) -> Iterator[Tensor]:
    """The images of a set, in order, as pixels [size, C, H, W]; the last batch may be smaller."""
    for start in range(0, len(images), size):
        yield images.pixels(slice(start, start + size))


@torch.no_grad()
def predict(net: Classifier, images: ImageSet, ranks: Ranks = ALONE) -> Tensor:
    """Logits [N, K] of a whole set, with the net as it stands; several processes share the work."""
    part = ranks.share(len(images))
    mine = replace(images, images=images.images[part], labels=images.labels[part])
    logits = [net(batch) for batch in pixel_batches(mine)] or [net(images.pixels(slice(0, 0)))]
    return ranks.gather(torch.cat(logits), len(images))


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Share of samples whose true class has the strictly largest logit."""
    return (margin(logits, labels) > 0).double().mean().item()


def margin_certified(
    logits: Tensor, labels: Tensor, lipschitz: float, epsilons: tuple[Fraction, ...]
) -> dict[str, float]:
    """Share of samples with margin / 2 > lipschitz * eps, for each eps: the figure that training watches.

    Real arithmetic; `linfnet.certificates` gives the certificates one may rely on.
    """
    gap = margin(logits, labels).double() / (2 * lipschitz)
    return {format_epsilon(eps): (gap > float(eps)).double().mean().item() for eps in epsilons}


def margin_statistics(logits: Tensor, labels: Tensor, threshold: float) -> dict[str, float]:
    """Shares of samples with a margin above the threshold, in [0, threshold] and below 0: how far a hinge has come."""
    shares = margin_shares(logits, labels, threshold).double() / len(labels)
    return dict(zip(("above", "between", "below"), shares.tolist(), strict=True))


def certified_shares(net: Classifier, images: ImageSet, epsilons: tuple[Fraction, ...]) -> dict[str, float]:
    """Share of samples that a system's own certificate proves, for each eps; nothing where proofs are dear."""
    if not net.cheap:
        return {}
    shares: dict[str, float] = {}
    for eps in epsilons:
        held = 0
        for start in range(0, len(images), TEST_BATCH):
            part = slice(start, start + TEST_BATCH)
            held += int(net.certified(images.pixels(part), images.labels[part], eps).sum())
        shares[format_epsilon(eps)] = held / len(images)
    return shares
