"""Accuracy of a net on a set of images during training: clean, and certified in real arithmetic."""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import torch
from torch import Tensor

from linfnet.certificates.real import margin_radius
from linfnet.data import ImageSet
from linfnet.distributed.group import ALONE, Group
from linfnet.losses import margin_shares
from linfnet.nn import Classifier
from linfnet.nn.margin import margin
from linfnet.results import Accuracies

TEST_BATCH = 1000


def pixel_batches(images: ImageSet, size: int = TEST_BATCH) -> Iterator[Tensor]:
    """The images of a set, in order, as pixels [size, C, H, W]; the last batch may be smaller."""
    for start in range(0, len(images), size):
        yield images.pixels(slice(start, start + size))


@torch.no_grad()
def predict(net: Classifier, images: ImageSet, ranks: Group = ALONE) -> Tensor:
    """Logits [N, K] of a whole set at the net's p and mode; several processes share the work."""
    part = ranks.share(len(images))
    mine = replace(images, images=images.images[part], labels=images.labels[part])
    logits = [net(batch) for batch in pixel_batches(mine)] or [net(images.pixels(slice(0, 0)))]
    return ranks.gather(torch.cat(logits), len(images))


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Share of samples whose true class has the strictly largest logit."""
    return (margin(logits, labels) > 0).double().mean().item()


def accuracies(
    net: Classifier,
    images: ImageSet,
    epsilons: tuple[Fraction, ...],
    ranks: Group = ALONE,
    *,
    threshold: float | None = None,
) -> Accuracies:
    """Clean and certified accuracy at p = inf.

    Args:
        net: at p = inf, in eval mode.
        images: the images and labels.
        epsilons: the perturbations to certify; skipped where certification is expensive.
        ranks: the processes that share the predictions.
        threshold: also compute the shares of margins above it, between 0 and it, and below 0.
    """
    logits, labels = predict(net, images, ranks), images.labels
    if net.lipschitz is not None:
        radius = margin_radius(logits, labels, net.lipschitz)
        certified = {eps: (radius > float(eps)).double().mean().item() for eps in epsilons}
    else:
        certified = _certified_shares(net, images, epsilons) if net.cheap else {}
    shares: list[float] = []
    if threshold is not None:
        shares = (margin_shares(logits, labels, threshold).double() / len(labels)).tolist()
    return Accuracies(accuracy(logits, labels), certified, *shares)


def _certified_shares(net: Classifier, images: ImageSet, epsilons: tuple[Fraction, ...]) -> dict[Fraction, float]:
    shares: dict[Fraction, float] = {}
    for eps in epsilons:
        certified = 0
        for start in range(0, len(images), TEST_BATCH):
            part = slice(start, start + TEST_BATCH)
            certified += int(net.certified(images.pixels(part), images.labels[part], eps).sum())
        shares[eps] = certified / len(images)
    return shares
