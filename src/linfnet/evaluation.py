"""Evaluation of a net on a labelled set: clean, attacked and certified, sample by sample."""

import csv
import time
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import torch
from torch import Tensor

from linfnet.attacks import pgd
from linfnet.certificates import MarginCertificate, certified_by_interval, certify_by_margin
from linfnet.certificates.rounding import float_above
from linfnet.data import ImageSet
from linfnet.epsilon import format_epsilon
from linfnet.errors import LinfnetError
from linfnet.files import replacing, write_tensors
from linfnet.nn import Classifier, LinfNet
from linfnet.nn.margin import margin

BATCH = 500
# So many broken samples of each epsilon are kept with the image that breaks them.
EXAMPLES = 12


@dataclass(frozen=True)
class Broken:
    """Samples that the attack broke, those of the largest proven radius first."""

    index: Tensor  # [n]
    images: Tensor  # [n, C, H, W]: within epsilon of the samples
    predictions: Tensor  # [n]: what the net takes them for

    def best(self, radii: Tensor) -> "Broken":
        """The few that came nearest to being proven, by radii [N] of all samples."""
        order = radii[self.index].argsort(descending=True, stable=True)[:EXAMPLES]
        return Broken(self.index[order], self.images[order], self.predictions[order])

    def __add__(self, other: "Broken") -> "Broken":
        pairs = ((self.index, other.index), (self.images, other.images), (self.predictions, other.predictions))
        return Broken(*(torch.cat(pair) for pair in pairs))


@dataclass(frozen=True)
class AtEpsilon:
    """What holds for each sample [N] at one epsilon."""

    epsilon: Fraction
    by_margin: Tensor
    by_interval: Tensor
    survived: Tensor  # classified rightly, and still so after the attack
    broken: Broken  # a few examples
    seconds: float
    # Both certificates of an l_inf-distance net, or the one of another system, kept as the interval one.
    certificates: tuple[str, ...] = ("margin", "interval")
    certify_seconds: tuple[float, ...] = ()  # of each certificate, for all samples

    def held(self) -> dict[str, Tensor]:
        """Which samples [N] are certified, by the name of each certificate."""
        flags = (self.by_margin, self.by_interval)
        return dict(zip(self.certificates, flags[-len(self.certificates) :], strict=True))

    def summary(self) -> dict[str, float]:
        """Accuracies in [0, 1]."""
        shares = {"pgd": self.survived, **{f"certified_{name}": held for name, held in self.held().items()}}
        return {name: flags.double().mean().item() for name, flags in shares.items()}

    def violations(self) -> list[int]:
        """The samples that are certified and yet did not survive; there must be none."""
        return ((self.by_margin | self.by_interval) & ~self.survived).nonzero().flatten().tolist()

    def cost(self) -> dict[str, float]:
        """Seconds for each image, by the name of each certificate."""
        spent = zip(self.certificates, self.certify_seconds, strict=True)
        return {name: float(f"{seconds / max(len(self.survived), 1):.3g}") for name, seconds in spent}


@dataclass(frozen=True)
class Evaluation:
    """A set evaluated at p = inf."""

    logits: Tensor  # [N, K]
    labels: Tensor  # [N]
    margins: Tensor  # [N], in the units of the logits
    radii: Tensor  # [N], in pixels: the margin radius proven of the program; -inf where wrong
    real_radii: Tensor  # [N], in pixels: the margin radius in real arithmetic
    steps: int
    at: tuple[AtEpsilon, ...]
    arithmetic: str = "float32"  # what the certificates speak of: the program, or real numbers
    confidence: float = 1.0  # the probability with which each of them is right

    @property
    def clean(self) -> float:
        """Share of samples whose true class is strictly on top."""
        return (self.margins > 0).double().mean().item()


def evaluate(
    net: Classifier,
    images: ImageSet,
    epsilons: tuple[Fraction, ...],
    *,
    steps: int = 100,
    seed: int = 0,
    advance: Callable[[int], None] = lambda samples: None,
) -> Evaluation:
    """Evaluate a net at p = inf: margins, certificates and PGD for each epsilon.

    Only samples that are classified rightly are attacked. `advance` is told how many samples are done.
    Raises an error that names the samples if a certified one is broken: that would be a bug in this library.
    """
    evaluation = measure(net, images, epsilons, steps=steps, seed=seed, advance=advance)
    check_sandwich(evaluation)
    return evaluation


def measure(
    net: Classifier,
    images: ImageSet,
    epsilons: tuple[Fraction, ...],
    *,
    steps: int,
    seed: int,
    advance: Callable[[int], None],
) -> Evaluation:
    """What `evaluate` gives, before it is checked. Batch k of the images is attacked from noise of the seed + k."""
    with net.at_infinity():
        parts = [slice(start, start + BATCH) for start in range(0, len(images), BATCH)]
        labels = images.labels
        clock = _Clock(labels.device)
        proven = _certify_all(net, images, parts)
        margin_seconds = clock.lap()
        # Systems with radii in closed form prove every epsilon at once, and pay for it at each.
        reach = [net.certified_radius(images.pixels(part), labels[part]) for part in parts]
        radii_seconds = clock.lap()
        logits = proven.logits
        margins = margin(logits, labels)
        results: list[AtEpsilon] = []
        for epsilon in epsilons:
            start, interval_seconds = time.perf_counter(), 0.0
            survived, by_interval = (
                torch.zeros_like(labels, dtype=torch.bool),
                torch.zeros_like(labels, dtype=torch.bool),
            )
            broken = Broken(labels[:0], images.pixels(slice(0, 0)), labels[:0])
            for number, (part, radii) in enumerate(zip(parts, reach, strict=True)):
                generator = torch.Generator(labels.device).manual_seed(seed + number)
                pixels, truth = images.pixels(part), labels[part]
                clock.lap()
                if radii is None:
                    by_interval[part] = certified_by_interval(net, pixels, truth, epsilon)
                else:
                    by_interval[part] = radii >= float_above(epsilon)
                interval_seconds += clock.lap()
                right = margins[part] > 0
                moved = pgd(net, pixels[right], truth[right], epsilon, steps=steps, generator=generator)
                with torch.no_grad():
                    attacked = net(moved)
                # Nothing moves at 0: what is right stays so, also for a net that is judged by fresh noise.
                held = net.keeps_class(moved, truth[right]) | (epsilon == 0)
                survived[part] = right.masked_scatter(right, held)
                index = right.nonzero().flatten()[~held] + part.start
                found = Broken(index, moved[~held], _most_likely_other(attacked[~held], labels[index]))
                broken = (broken + found).best(proven.radii)
                advance(len(truth))
            seconds = time.perf_counter() - start
            at = (epsilon, proven.at(epsilon), by_interval, survived, broken, seconds)
            if isinstance(net, LinfNet):
                results.append(AtEpsilon(*at, certify_seconds=(margin_seconds, interval_seconds)))
            else:
                results.append(AtEpsilon(*at, net.certificate_names, (radii_seconds + interval_seconds,)))
    radii = (proven.radii, proven.real_radii)
    return Evaluation(logits, labels, margins, *radii, steps, tuple(results), net.arithmetic, net.confidence)


class _Clock:
    """Seconds between laps, work that a GPU still has to do included."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.last = time.perf_counter()

    def lap(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.last, before = time.perf_counter(), self.last
        return self.last - before


def _certify_all(net: Classifier, images: ImageSet, parts: list[slice]) -> MarginCertificate:
    """One forward pass over a whole set, with the margin certificate of every sample; other systems have none."""
    if not isinstance(net, LinfNet):
        with torch.no_grad():
            logits = torch.cat([net(images.pixels(part)) for part in parts or [slice(0, 0)]])
        labels = images.labels
        return MarginCertificate(logits, labels, *(torch.full_like(labels, -torch.inf, dtype=torch.float64),) * 2)
    found = [certify_by_margin(net, images.pixels(part), images.labels[part]) for part in parts or [slice(0, 0)]]
    names = ("logits", "labels", "radii", "real_radii")
    return MarginCertificate(**{name: torch.cat([getattr(part, name) for part in found]) for name in names})


def _most_likely_other(logits: Tensor, labels: Tensor) -> Tensor:
    """The class [n] of the largest logit but the label's."""
    return logits.scatter(1, labels.unsqueeze(1), -torch.inf).argmax(1)


def check_sandwich(evaluation: Evaluation) -> None:
    """A sample that is certified and yet broken is a bug: name it, never average it away."""
    for at in evaluation.at:
        if broken := at.violations():
            raise LinfnetError(
                f"samples {broken[:20]} are certified at eps = {format_epsilon(at.epsilon)} and yet broken by PGD: "
                "this is a bug, please report it"
            )


def result_key(what: str, epsilon: Fraction, *, limit: int | None = None, steps: int = 100) -> str:
    """The name of an evaluation in results.json: which images, attacked in so many steps, at which epsilon.

    >>> result_key("mnist-test", Fraction(3, 10), limit=500)
    'mnist-test-first-500 eps=0.3'
    """
    first = "" if limit is None else f"-first-{limit}"
    attack = "" if steps == 100 else f"-pgd-{steps}"
    return f"{what}{first}{attack} eps={format_epsilon(epsilon)}"


def write_samples(evaluation: Evaluation, path: Path) -> None:
    """Write a CSV with a row for each sample: label, prediction, margin, radius, and what holds at each epsilon."""
    header = ["index", "label", "prediction", "runner_up", "margin"]
    first = evaluation.logits.argmax(1)
    columns: list[list[object]] = [
        list(range(len(evaluation.labels))),
        evaluation.labels.tolist(),
        first.tolist(),
        _most_likely_other(evaluation.logits, first).tolist(),
        [f"{value:.9g}" for value in evaluation.margins.tolist()],
    ]
    if any("margin" in at.certificates for at in evaluation.at):
        header += ["margin_radius", "real_margin_radius"]
        # In full: a rounded radius might be one that was not proven.
        columns.append(evaluation.radii.tolist())
        columns.append([f"{value:.9g}" for value in evaluation.real_radii.tolist()])
    for at in evaluation.at:
        name = format_epsilon(at.epsilon)
        held = {f"certified_{kind}@{name}": flags for kind, flags in at.held().items()}
        held[f"pgd{evaluation.steps}@{name}"] = at.survived
        header += list(held)
        columns += [flags.int().tolist() for flags in held.values()]
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(zip(*columns, strict=True))


def write_broken(evaluation: Evaluation, path: Path) -> None:
    """Write the examples of broken samples as safetensors: `index@EPS`, `images@EPS` and `predictions@EPS`."""
    tensors: dict[str, Tensor] = {}
    for at in evaluation.at:
        name = format_epsilon(at.epsilon)
        parts = {"index": at.broken.index, "images": at.broken.images, "predictions": at.broken.predictions}
        tensors |= {f"{part}@{name}": tensor for part, tensor in parts.items()}
    write_tensors(path, tensors, {"linfnet": "broken-samples-1", "attack": f"pgd-{evaluation.steps}"})
