"""Evaluate a net on a labelled data set: clean, attacked and certified accuracy, with the outcome for each sample."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path

import torch
from torch import Tensor

from linfnet.attacks import check_sandwich, pgd
from linfnet.certificates import certificates_of
from linfnet.certificates.real import real_margin_radius
from linfnet.certificates.rounding import float_above
from linfnet.data import ImageSet
from linfnet.distributed.group import ALONE, Group
from linfnet.distributed.sharding import LONGEST, SUMMED, gather, join, own_part
from linfnet.epsilon import parse_epsilon
from linfnet.errors import at_least
from linfnet.files import write_tensors
from linfnet.nn import Classifier
from linfnet.nn.label_margin import label_on_top, margin
from linfnet.results import AttackSettings, Result, add_evaluations, storage

BATCH = 500
# Largest number of broken samples that are saved for each epsilon.
EXAMPLES = 12


@dataclass(frozen=True)
class Broken:
    """Samples that are misclassified after the attack."""

    index: Tensor  # [n]
    images: Tensor  # [n, C, H, W]: the attacked images
    predictions: Tensor  # [n]: the classes that the net predicts for the attacked images
    radii: Tensor  # [n]: the certified radii of the samples

    def best(self) -> "Broken":
        """Return up to EXAMPLES samples with the largest certified radii."""
        order = self.radii.argsort(descending=True, stable=True)[:EXAMPLES]
        return Broken(self.index[order], self.images[order], self.predictions[order], self.radii[order])


@dataclass(frozen=True)
class AtEpsilon:
    """The outcome for each sample [N] at one epsilon."""

    eps: Fraction
    certified: dict[str, Tensor]  # bool [N] for each certificate name
    survived: Tensor  # bool [N]: classified correctly even after the attack
    broken: Broken  # a few examples
    seconds: float = field(metadata=LONGEST)
    certify_seconds: dict[str, float] = field(metadata=SUMMED)  # for all samples together, for each certificate name


@dataclass(frozen=True)
class Evaluation:
    """The outcome of an evaluation at p = inf for each sample; the property `results` contains the accuracies."""

    data: str
    split: str
    limit: int | None
    attack: AttackSettings
    arithmetic: str
    confidence: float
    logits: Tensor  # [N, K]
    labels: Tensor  # [N]
    radii: dict[str, Tensor]  # float64 [N] in pixel units, for certificates in closed form; -inf if misclassified
    real_radii: Tensor | None  # float64 [N] in pixel units: `real_margin_radius`, for Lipschitz nets
    at: tuple[AtEpsilon, ...]

    @property
    def margins(self) -> Tensor:
        """The margins [N] in the units of the logits."""
        return margin(self.logits, self.labels)

    @property
    def clean(self) -> float:
        """The share of samples for which the logit of the true class is strictly the largest."""
        return _share(label_on_top(self.logits, self.labels))

    @property
    def results(self) -> tuple[Result, ...]:
        """One result for each epsilon."""
        return tuple(map(self._result, self.at))

    def _result(self, at: AtEpsilon) -> Result:
        count = len(self.labels)
        return Result(
            data=self.data,
            split=self.split,
            count=count,
            eps=at.eps,
            clean=self.clean,
            attacked=_share(at.survived),
            certified={name: _share(flags) for name, flags in at.certified.items()},
            attack=self.attack,
            limit=self.limit,
            arithmetic=self.arithmetic,
            confidence=self.confidence,
            certify_seconds={name: float(f"{spent / max(count, 1):.3g}") for name, spent in at.certify_seconds.items()},
            seconds=round(at.seconds, 2),
        )


def own_images(images: ImageSet, group: Group) -> slice:
    """Return the part of a set that this process evaluates."""
    return own_part(len(images), BATCH, group)


def evaluate(
    net: Classifier,
    images: ImageSet,
    epsilons: Sequence[Fraction | float | str],
    *,
    steps: int = 100,
    seed: int = 0,
    advance: Callable[[int], None] = lambda samples: None,
    group: Group = ALONE,
) -> Evaluation:
    """Evaluate a net at p = inf in eval mode: at each epsilon, apply every certificate of the net and attack by PGD.

    If the attack breaks a certified sample, which would be a bug in linfnet, an error names the sample.

    Args:
        net: a net of any system.
        images: the labelled data set; only correctly classified samples are attacked.
        epsilons: in pixel units, as text such as `8/255`, numbers or fractions.
        steps: number of steps of the PGD attack.
        seed: the noise for batch k is drawn with seed + k.
        advance: called with the number of samples that this process has finished, once per batch and epsilon.
        group: the processes that share the work; each process returns the evaluation of all images.
    """
    at_least("steps", steps, 1)
    sizes = tuple(parse_epsilon(epsilon) for epsilon in epsilons)
    own = own_images(images, group)
    found = gather(_evaluate_part(net, images, own, sizes, steps, seed, advance), group)
    for at in found.at:
        check_sandwich(at.eps, torch.stack(list(at.certified.values())).any(0), at.survived)
    return replace(found, at=tuple(replace(at, broken=at.broken.best()) for at in found.at))


def _evaluate_part(
    net: Classifier,
    whole: ImageSet,
    own: slice,
    epsilons: tuple[Fraction, ...],
    steps: int,
    seed: int,
    advance: Callable[[int], None],
) -> Evaluation:
    """Evaluate the images of this process: the slice `own`, which starts at a multiple of BATCH."""
    images = replace(whole, images=whole.images[own], labels=whole.labels[own])
    parts = [slice(start, start + BATCH) for start in range(0, len(images), BATCH)] or [slice(0, 0)]
    labels, device, certificates = images.labels, images.labels.device, certificates_of(net)
    with net.at_infinity():
        with torch.no_grad():
            logits = torch.cat([net(images.pixels(part)) for part in parts])
        correct = label_on_top(logits, labels)
        radii: dict[str, Tensor] = {}
        radii_seconds = dict.fromkeys(certificates, 0.0)
        for name, certificate in certificates.items():
            if not certificate.resolution:  # radii in closed form are computed once for all epsilons
                start = _now(device)
                radii[name] = torch.cat([certificate.radius(images.pixels(part), labels[part]) for part in parts])
                radii_seconds[name] = _now(device) - start
        order = next(iter(radii.values()), torch.full_like(labels, -torch.inf, dtype=torch.float64))
        results: list[AtEpsilon] = []
        for eps in epsilons:
            start, seconds = time.perf_counter(), dict(radii_seconds)
            survived = torch.zeros_like(correct)
            certified = {name: torch.zeros_like(correct) for name in certificates}
            broken = Broken(labels[:0], images.pixels(slice(0, 0)), labels[:0], order[:0])
            for number, part in enumerate(parts):
                pixels, truth, right = images.pixels(part), labels[part], correct[part]
                for name, certificate in certificates.items():
                    began, closed = _now(device), radii.get(name)
                    flags = certificate.at(pixels, truth, eps) if closed is None else closed[part] >= float_above(eps)
                    certified[name][part] = flags
                    seconds[name] += _now(device) - began
                generator = torch.Generator(device).manual_seed(seed + own.start // BATCH + number)
                moved = pgd(net, pixels[right], truth[right], eps, steps=steps, generator=generator)
                attacked, robust = net.logits_and_kept(moved, truth[right])
                # At epsilon 0 no image changes, so correct samples stay correct, even if the net draws new noise.
                robust |= eps == 0
                survived[part] = right.masked_scatter(right, robust)
                index = right.nonzero().flatten()[~robust] + part.start
                others = _most_likely_other(attacked[~robust], labels[index])
                broken = join([broken, Broken(index + own.start, moved[~robust], others, order[index])]).best()
                advance(len(truth))
            results.append(AtEpsilon(eps, certified, survived, broken, time.perf_counter() - start, seconds))
    return Evaluation(
        data=images.info.name,
        split=images.split,
        limit=len(whole) if len(whole) < whole.info.sizes.get(whole.split, 0) else None,
        attack=AttackSettings("pgd", steps),
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


def _share(flags: Tensor) -> float:
    return flags.double().mean().item()


def _most_likely_other(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the class [n] with the largest logit other than the label."""
    return logits.scatter(1, labels.unsqueeze(1), -torch.inf).argmax(1)


def save_evaluation(evaluation: Evaluation, folder: Path | str) -> None:
    """Add the results to results.json in a folder, and write files with all samples and with the broken images."""
    folder = Path(folder)
    add_evaluations(folder, evaluation.results)
    if evaluation.results:
        path = storage.samples_path(folder, evaluation.results)
        storage.write_columns(path, _sample_columns(evaluation))
        tensors: dict[str, Tensor] = {}
        for at in evaluation.at:
            tensors[storage.at_epsilon(storage.INDEX, at.eps)] = at.broken.index
            tensors[storage.at_epsilon(storage.IMAGES, at.eps)] = at.broken.images
            tensors[storage.at_epsilon(storage.PREDICTIONS, at.eps)] = at.broken.predictions
        attack = f"{evaluation.attack.name}-{evaluation.attack.steps}"
        write_tensors(storage.broken_path(path), tensors, {"linfnet": "broken-samples-1", "attack": attack})


def _sample_columns(evaluation: Evaluation) -> dict[str, Sequence[object]]:
    """Return the columns of the CSV file: label, prediction, margin, radii, and the outcome at each epsilon."""
    prediction, attack = evaluation.logits.argmax(1), evaluation.attack
    columns: dict[str, Sequence[object]] = {
        storage.INDEX: range(len(evaluation.labels)),
        storage.LABEL: evaluation.labels.tolist(),
        storage.PREDICTION: prediction.tolist(),
        storage.RUNNER_UP: _most_likely_other(evaluation.logits, prediction).tolist(),
        storage.MARGIN: [f"{value:.9g}" for value in evaluation.margins.tolist()],
    }
    for name, radii in evaluation.radii.items():
        columns[storage.radius_column(name)] = radii.tolist()  # all digits: a rounded radius might not be certified
    if evaluation.real_radii is not None:
        columns[storage.REAL_MARGIN_RADIUS] = [f"{value:.9g}" for value in evaluation.real_radii.tolist()]
    for at in evaluation.at:
        for name, flags in at.certified.items():
            columns[storage.at_epsilon(f"certified_{name}", at.eps)] = flags.int().tolist()
        columns[storage.at_epsilon(f"{attack.name}{attack.steps}", at.eps)] = at.survived.int().tolist()
    return columns
