"""Evaluation by several processes: each takes whole batches, and together they find what one would."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

import torch

from linfnet import evaluation
from linfnet.data import ImageSet
from linfnet.distributed.group import ALONE, Ranks
from linfnet.evaluation import AtEpsilon, Broken, Evaluation, check_sandwich, measure
from linfnet.nn import Classifier


def own_images(images: ImageSet, ranks: Ranks) -> ImageSet:
    """The batches of images that are this process's to evaluate."""
    part = _own_part(images, ranks)
    return replace(images, images=images.images[part], labels=images.labels[part])


def _own_part(images: ImageSet, ranks: Ranks) -> slice:
    batches = ranks.share(math.ceil(len(images) / evaluation.BATCH))
    return slice(batches.start * evaluation.BATCH, batches.stop * evaluation.BATCH)


def evaluate_together(
    net: Classifier,
    images: ImageSet,
    epsilons: tuple[Fraction, ...],
    ranks: Ranks = ALONE,
    *,
    steps: int = 100,
    seed: int = 0,
    advance: Callable[[int], None] = lambda samples: None,
) -> Evaluation:
    """What `evaluate` finds, on every process; each has done its share. `advance` counts this process's samples."""
    first = _own_part(images, ranks).start // evaluation.BATCH
    mine = measure(net, own_images(images, ranks), epsilons, steps=steps, seed=seed + first, advance=advance)
    found = mine if ranks.size == 1 else join(ranks.all(_on_cpu(mine)))
    check_sandwich(found)
    return found


def _on_cpu(part: Evaluation) -> Evaluation:
    names = ("logits", "labels", "margins", "radii", "real_radii")
    return replace(
        part,
        **{name: getattr(part, name).cpu() for name in names},
        at=tuple(
            replace(
                at,
                **{name: getattr(at, name).cpu() for name in ("by_margin", "by_interval", "survived")},
                broken=Broken(at.broken.index.cpu(), at.broken.images.cpu(), at.broken.predictions.cpu()),
            )
            for at in part.at
        ),
    )


def join(parts: Sequence[Evaluation]) -> Evaluation:
    """Evaluations of consecutive parts of a set as that of the whole; it took as long as the slowest part."""
    names = ("logits", "labels", "margins", "radii", "real_radii")
    whole = replace(parts[0], **{name: torch.cat([getattr(part, name) for part in parts]) for name in names})
    at: list[AtEpsilon] = []
    for number, first in enumerate(parts[0].at):
        same = [part.at[number] for part in parts]
        broken, start = first.broken, len(parts[0].labels)
        for part, other in zip(parts[1:], same[1:], strict=True):
            broken += replace(other.broken, index=other.broken.index + start)
            start += len(part.labels)
        flags = {
            name: torch.cat([getattr(one, name) for one in same]) for name in ("by_margin", "by_interval", "survived")
        }
        spent = tuple(map(sum, zip(*(one.certify_seconds for one in same), strict=True)))
        seconds = max(one.seconds for one in same)
        at.append(replace(first, **flags, broken=broken.best(whole.radii), seconds=seconds, certify_seconds=spent))
    return replace(whole, at=tuple(at))
