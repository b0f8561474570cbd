"""Evaluate a net on labelled data: clean, attacked and certified accuracy, with the outcome for each sample."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import torch
from torch import Tensor

from linfnet.attacks import NamedAttack, UserAttack, check_sandwich, named_attack, other_class
from linfnet.certificates import certificates_of
from linfnet.certificates.exact.decide import BRANCHES, SECONDS
from linfnet.certificates.real import real_margin_radius
from linfnet.certificates.rounding import float_above
from linfnet.data import ImageSet, as_image_set
from linfnet.distributed.group import ALONE, Group
from linfnet.distributed.sharding import gather, join, own_part
from linfnet.epsilon import Epsilon, parse_epsilons
from linfnet.errors import ArgumentError
from linfnet.evaluation.exact import ExactBatches
from linfnet.evaluation.outcome import AtEpsilon, Broken, Evaluation
from linfnet.inputs import check_count, check_net, net_device
from linfnet.nn import Classifier
from linfnet.nn.label_margin import label_on_top
from linfnet.results import AttackSettings

# Images in one batch, and in one batch of a net whose certificates may take a second per image.
BATCH = 500
EXPENSIVE_BATCH = 50


def own_images(images: ImageSet, group: Group) -> slice:
    """Return the part of a set that this process evaluates."""
    return own_part(len(images), BATCH, group)


def evaluate(
    net: Classifier,
    data: object,
    eps: Epsilon | Sequence[Epsilon],
    *,
    attack: str | UserAttack | None = "pgd",
    steps: int = 100,
    seed: int = 0,
    exact: bool = False,
    branches: int = BRANCHES,
    seconds: float = SECONDS,
    partial: Path | None = None,
    advance: Callable[[int], None] = lambda samples: None,
    group: Group = ALONE,
) -> Evaluation:
    """Evaluate a net at p = inf in eval mode: at each epsilon, apply every certificate of the net and attack it.

    The net computes on its device, regardless of its current p and mode. If the attack breaks a certified sample, which
    would be a bug in linfnet, an error names the sample.

    Args:
        net: a net of any system, or your own module in `Classifier.wrap`.
        data: labelled images: a pair (images, labels), a PyTorch `Dataset` or `DataLoader`, an `ImageSet`, or anything
            else that `linfnet.data.as_image_set` accepts.
        eps: one epsilon or a list of several, in pixel units: `"8/255"`, a number, a `Fraction` or a ratio `(8, 255)`.
        attack: a name in `ATTACKS`, a function `(net, images, labels, eps) -> images` as in `linfnet.attack`, or None;
            without an attack, the attacked accuracy is the clean accuracy. Only correctly classified samples are
            attacked.
        steps: number of steps of gradient attacks.
        seed: the random numbers for batch k of 500 images (50 if certificates are expensive) are drawn with seed + k.
        exact: whether to decide exactly which samples are robust, for an l_inf-distance net (docs/certificates.md).
            Samples that a certificate or the attack decides are not searched.
        branches, seconds: the budget of the exact method for each sample, which is undecided beyond it.
        partial: a folder in which the exact method stores finished batches; a later call with the same net, images,
            epsilon and budget continues after them.
        advance: called with the number of samples that this process has finished, once per batch and epsilon.
        group: the processes that share the work; each process returns the evaluation of all images.

    >>> from linfnet.nn import LinfNet
    >>> net = LinfNet((1, 1, 1), 2, (), identity_init=False)
    >>> _ = net.layers[0].weight.data.copy_(torch.tensor([[0.0], [1.0]]))
    >>> evaluate(net, (torch.tensor([[0.1], [0.4], [0.9]]), [0, 0, 1]), "0.2")
    Evaluation(own-test, 3 images, clean 1.0000, eps 0.2: attacked 0.6667 certified 0.6667)
    """
    checked, sizes = check_net(net), parse_epsilons(eps)
    check_count("steps", steps)
    check_count("seed", seed, 0)
    chosen = NamedAttack("none", 0, _no_attack) if attack is None else named_attack(attack, steps=steps)
    images = images_for(checked, data)
    own = own_images(images, group)
    verifier = ExactBatches(checked, branches=branches, seconds=seconds, partial=partial) if exact else None
    found = gather(_evaluate_part(checked, images, own, sizes, chosen, seed, verifier, advance), group)
    for at in found.at:
        check_sandwich(at.eps, at.certified_by_any, at.survived)
        if at.exact is not None and at.undecided is not None:
            check_sandwich(at.eps, at.exact, at.survived)
            check_sandwich(at.eps, at.certified_by_any, at.exact | at.undecided)
    return replace(found, at=tuple(replace(at, broken=at.broken.best()) for at in found.at))


def images_for(net: Classifier, data: object) -> ImageSet:
    """Return the data as images of the shape of the net, or raise an error if shape or classes differ."""
    shape = net.image_shape
    # The layout is recognised from the number of channels; if it is not 1 or 3, or could be the width, it is NCHW.
    recognised = len(shape) == 3 and shape[0] in (1, 3) and shape[-1] not in (1, 3)
    images = as_image_set(data, classes=net.classes, layout=None if recognised else "NCHW")
    own = tuple(images.images.shape[1:])
    # An `ImageSet` stores vectors [N, d] as images [N, 1, 1, d].
    if own != tuple(shape) and own != (1,) * (3 - len(shape)) + tuple(shape):
        raise ArgumentError(f"data has images of shape {own}; the net expects {tuple(shape)}")
    return images


def _no_attack(net: Classifier, images: Tensor, labels: Tensor, epsilon: Fraction, source: torch.Generator) -> Tensor:
    return images


def _evaluate_part(
    net: Classifier,
    whole: ImageSet,
    own: slice,
    epsilons: tuple[Fraction, ...],
    attack: NamedAttack,
    seed: int,
    verifier: ExactBatches | None,
    advance: Callable[[int], None],
) -> Evaluation:
    """Evaluate the images of this process: the slice `own`, which starts at a multiple of BATCH."""
    net = net.frozen()
    device, certificates = net_device(net), certificates_of(net)
    images = replace(whole, images=whole.images[own], labels=whole.labels[own].to(device))
    size = BATCH if net.cheap else EXPENSIVE_BATCH
    parts = [slice(start, start + size) for start in range(0, len(images), size)] or [slice(0, 0)]
    labels = images.labels

    def pixels_of(part: slice) -> Tensor:
        return images.as_pixels(images.images[part].to(device)).reshape(-1, *net.image_shape)

    with torch.no_grad():
        logits = torch.cat([net(pixels_of(part)) for part in parts])
    correct = label_on_top(logits, labels)
    unknown = torch.full_like(labels, -torch.inf, dtype=torch.float64)
    # Radii in closed form are computed once for all epsilons, with the first one.
    closed_form = [name for name, certificate in certificates.items() if not certificate.resolution]
    radii = {name: unknown.clone() for name in closed_form}
    radii_seconds = dict.fromkeys(certificates, 0.0)
    order = next(iter(radii.values()), unknown)
    results: list[AtEpsilon] = []
    for eps in epsilons:
        start, seconds = time.perf_counter(), dict.fromkeys(certificates, 0.0)
        survived = torch.zeros_like(correct)
        certified = {name: torch.zeros_like(correct) for name in certificates}
        broken = Broken(labels[:0], pixels_of(slice(0, 0)), labels[:0], order[:0])
        witnesses = broken if verifier is not None else None
        exact, undecided = (None, None) if verifier is None else (survived.clone(), survived.clone())
        for number, part in enumerate(parts):
            pixels, truth, right = pixels_of(part), labels[part], correct[part]
            for name in closed_form if not results else ():
                began = _now(device)
                radii[name][part] = certificates[name].radius(pixels, truth)
                radii_seconds[name] += _now(device) - began
            for name, certificate in certificates.items():
                began, closed = _now(device), radii.get(name)
                flags = certificate.at(pixels, truth, eps) if closed is None else closed[part] >= float_above(eps)
                certified[name][part] = flags
                seconds[name] += _now(device) - began
            generator = torch.Generator(device).manual_seed(seed + own.start // size + number)
            moved = attack.perturb(net, pixels[right], truth[right], eps, generator)
            attacked, robust = net.logits_and_kept(moved, truth[right])
            # At epsilon 0 no image changes, so correct samples stay correct, even if the net draws new noise.
            robust |= eps == 0
            survived[part] = right.masked_scatter(right, robust)
            index = right.nonzero().flatten()[~robust] + part.start
            others = other_class(attacked[~robust], labels[index])
            broken = join([broken, Broken(index + own.start, moved[~robust], others, order[index])]).best()
            if verifier is not None and exact is not None and undecided is not None:
                began, attacked_images = _now(device), pixels.clone()
                attacked_images[right] = moved
                verdict = verifier.decide(pixels, truth, eps, attacked_images)
                exact[part], undecided[part] = verdict.robust, verdict.undecided
                index = (right & verdict.broken).nonzero().flatten()
                found = verdict.witness[index]
                others = other_class(net(found).detach(), truth[index])
                broken_by_search = Broken(index + part.start + own.start, found, others, order[part][index])
                witnesses = join([witnesses, broken_by_search])
                seconds["exact"] = seconds.get("exact", 0.0) + _now(device) - began
            advance(len(truth))
        spent = time.perf_counter() - start
        verdicts = (exact, undecided, witnesses)
        seconds = {name: spent_on + radii_seconds.get(name, 0.0) for name, spent_on in seconds.items()}
        results.append(AtEpsilon(eps, certified, survived, broken, spent, seconds, *verdicts))
    return Evaluation(
        data=images.info.name,
        split=images.split,
        limit=len(whole) if len(whole) < whole.info.sizes.get(whole.split, 0) else None,
        attack=AttackSettings(attack.name, attack.steps),
        arithmetic=net.arithmetic,
        confidence=net.confidence,
        logits=logits,
        labels=labels,
        radii=radii,
        real_radii=real_margin_radius(logits, labels, 1 / net.normalize.std.item()) if net.lipschitz else None,
        at=tuple(results),
    )


def _now(device: torch.device) -> float:
    """Wait until the device has finished its work, and return the time in seconds."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
