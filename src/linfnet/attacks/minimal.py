"""Attacks on one image: the closest misclassified image over all epsilons, and the smallest margin within one."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from linfnet.attacks.pgd import best_pgd
from linfnet.data.arrays import as_tensor
from linfnet.epsilon import Epsilon
from linfnet.errors import ArgumentError
from linfnet.inputs import Images, check_count, check_net, is_same_row, prepare_epsilon, prepare_images, prepare_labels
from linfnet.nn import Classifier
from linfnet.nn.label_margin import margin

# Exponents of the gradients and runner-up classes of `strongest_within`, in the order in which they are tried.
_TRIES = [(16.0, 0), (64.0, 0), (math.inf, 0), (4.0, 0), *((p, rival) for rival in (1, 2, 3) for p in (16.0, 64.0))]
_UNTARGETED = 4
# Number of epsilons attacked in one call: few, so that a step is short even for nets as large as the paper's.
BATCH = 8


@dataclass(frozen=True)
class Trial:
    """The result of an attack within one epsilon."""

    epsilon: float
    margin: float
    """The smallest margin that the attack found."""
    broken: bool
    """Whether the attack found a misclassified image, according to `Classifier.keeps_class`."""


@dataclass(frozen=True)
class Closest:
    """The result of a search around one image."""

    trials: tuple[Trial, ...]
    """One trial for each attacked epsilon, in increasing order of epsilon."""
    image: Tensor | None
    """[C, H, W]: the closest misclassified image; None if no attack succeeded."""
    distance: float
    """The largest change of a pixel in `image`, exact in float64; infinity if no attack succeeded."""
    complete: bool
    """Whether the search finished; false if `stop` ended it."""


@dataclass(frozen=True)
class Strongest:
    """The result of all attacks on one image within one epsilon."""

    image: Tensor
    """[C, H, W]: the misclassified image that was found, otherwise the image with the smallest margin."""
    margin: float
    broken: bool
    """Whether `image` is misclassified, according to `Classifier.keeps_class`."""
    complete: bool
    """Whether all attacks ran or one succeeded; false if `stop` ended them."""


def closest_break(
    net: Classifier,
    image: Images,
    label: int,
    *,
    radius: float = 0.0,
    steps: int = 40,
    exponents: Sequence[float] = (16.0, 4.0, math.inf),
    points: int = 16,
    rounds: int = 3,
    stop: Callable[[], bool] = lambda: False,
) -> Closest:
    """Attack one image at many epsilons, then between the smallest epsilon that succeeded and the one below it.

    Args:
        net: attacked at p = inf in eval mode, regardless of its current p and mode.
        image: [C, H, W] in [0, 1].
        label: the class of the image.
        radius: the certified radius, which may be above 1; four epsilons are tried within it, all others outside it.
        steps: PGD steps for each epsilon and exponent.
        exponents: values of p; at each epsilon, `best_pgd` is run once with the slopes of each p.
        points: number of epsilons in each round.
        rounds: number of rounds; each round divides the remaining interval into `points` parts.
        stop: called before each step; if it returns true, the search ends with the result so far.

    >>> from linfnet.nn import LinfNet
    >>> net = LinfNet((1, 1, 1), 2, (), identity_init=False)
    >>> _ = net.layers[0].weight.data.copy_(torch.tensor([[0.0], [1.0]]))
    >>> found = closest_break(net, torch.tensor([[[0.25]]]), 0, radius=0.24)
    >>> 0.25 <= found.distance < 0.251 and found.complete
    True
    """
    original, truth, shape = _one_image(net, image, label)
    check_count("points", points)
    check_count("rounds", rounds)
    trials: dict[float, Trial] = {}
    best, distance = None, math.inf

    def result(complete: bool) -> Closest:
        return Closest(tuple(trials[epsilon] for epsilon in sorted(trials)), best, distance, complete)

    for epsilons in _rounds(trials, min(max(0.0, radius), 1.0), points, rounds):
        for part in torch.tensor(epsilons, dtype=torch.float64, device=original.device).split(BATCH):
            images = original.expand(len(part), *net.image_shape).contiguous()
            labels = truth.expand(len(part))
            for p in exponents:
                if stop():
                    return result(complete=False)
                found = best_pgd(net, images, labels, part, steps=steps, p=p, stop=stop)
                with torch.no_grad():
                    logits, kept = net.frozen().logits_and_kept(found, labels)
                moved = (found.double() - images.double()).abs().flatten(1).amax(1)
                columns = (column.tolist() for column in (part, margin(logits, labels), ~kept, moved))
                for candidate, epsilon, gap, lost, size in zip(found, *columns, strict=True):
                    known = trials.get(epsilon, Trial(epsilon, gap, lost))
                    trials[epsilon] = Trial(epsilon, min(known.margin, gap), known.broken or lost)
                    if lost and size < distance:
                        best, distance = candidate.view(shape), size
        if best is None:
            break
    return result(complete=not stop())


def strongest_within(
    net: Classifier,
    image: Images,
    label: int,
    epsilon: Epsilon,
    *,
    certified: bool = False,
    steps: int = 40,
    restarts: int = 2,
    stop: Callable[[], bool] = lambda: False,
) -> Strongest:
    """Attack one image within one epsilon by `best_pgd` with several gradients and targets, until one succeeds.

    Args:
        net, image, label, stop: as in `closest_break`.
        epsilon: in pixel units.
        certified: whether a certificate holds at epsilon. No attack can succeed then, and only a few attacks from one
            start are run, for the smallest margin.
        steps: PGD steps from each start.
        restarts: number of starts of each attack; the random starts are the same in every call.

    >>> from linfnet.nn import LinfNet
    >>> net = LinfNet((1, 1, 1), 2, (), identity_init=False)
    >>> _ = net.layers[0].weight.data.copy_(torch.tensor([[0.0], [1.0]]))
    >>> [strongest_within(net, torch.tensor([[[0.25]]]), 0, epsilon).broken for epsilon in (0.24, 0.26)]
    [False, True]
    """
    original, truth, shape = _one_image(net, image, label)
    exact = prepare_epsilon(epsilon, original)
    generator = torch.Generator(original.device).manual_seed(0)

    def measure(pixels: Tensor) -> Strongest:
        with torch.no_grad():
            logits, kept = net.frozen().logits_and_kept(pixels, truth)
        return Strongest(pixels[0].view(shape), margin(logits, truth).item(), not bool(kept), complete=False)

    best = measure(original)
    restarts = 1 if certified else restarts
    for p, rival in _TRIES[:_UNTARGETED] if certified else _TRIES:
        if best.broken or stop():
            break
        if rival < net.classes:
            options: dict[str, Any] = {"steps": steps, "restarts": restarts, "p": p, "rival": rival, "stop": stop}
            moved = best_pgd(net, original, truth, exact, generator, **options)
            found = measure(moved)
            best = min(best, found, key=lambda result: (not result.broken, result.margin))
    return replace(best, complete=best.broken or not stop())


def _one_image(net: Classifier, image: Images, label: int) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """Check the net and one image; return it as a batch, its label as a tensor, and its shape."""
    check_net(net)
    pixels = as_tensor(image)
    shape = tuple(pixels.shape)
    if shape != net.image_shape and not is_same_row(shape, net.image_shape):
        raise ArgumentError(f"image has shape {shape}; expected one image of shape {net.image_shape}")
    original = prepare_images(net, pixels.unsqueeze(0))
    return original, prepare_labels([label], original, net.classes), shape


def _rounds(trials: dict[float, Trial], radius: float, points: int, rounds: int) -> Iterator[list[float]]:
    """Yield the epsilons of each round, which depend on the `trials` of earlier rounds."""
    inside = [radius * k / 4 for k in (1, 2, 3, 4)] if radius else []
    yield inside + [radius + (1 - radius) * k / points for k in range(1, points + 1)]
    for _ in range(rounds - 1):
        failed, broken = next((a, b) for a, b in pairwise([0.0, *sorted(trials)]) if trials[b].broken)
        yield [failed + (broken - failed) * k / points for k in range(1, points)]
