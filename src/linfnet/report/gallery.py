"""The gallery: which test images to look at, and what to say of each."""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from linfnet.certificates.rounding import float_above
from linfnet.data import ImageSet
from linfnet.epsilon import format_epsilon
from linfnet.report.png import difference, picture
from linfnet.report.run_summary import Measured, RunRecord
from linfnet.report.samples import BrokenSamples, Samples

# Samples of a group; broken ones take three pictures each.
SHOWN, SHOWN_BROKEN = 8, 6


@dataclass(frozen=True)
class Picture:
    """One image with the words that stand in for it where it cannot be seen."""

    uri: str
    alt: str
    label: str = ""


@dataclass(frozen=True)
class Card:
    """A sample: its pictures, its class, and lines about it."""

    pictures: tuple[Picture, ...]
    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Group:
    """Samples of one kind, sorted by radius."""

    title: str
    about: str
    cards: tuple[Card, ...]


def format_length(value: float, levels: bool) -> str:
    """A length in pixel units, in 255ths where perturbations are given in them; rounded down, as radii are proven.

    >>> format_length(8.2559 / 255, True), format_length(0.12349, False)
    ('8.25/255', '0.1234')
    """
    if levels:
        return f"{np.floor(value * 25500) / 100:.2f}/255"
    return f"{np.floor(value * 10000) / 10000:.4f}"


def gallery(run: RunRecord, levels: bool) -> tuple[Group, ...]:
    """The groups of a run that have images; none without samples or images."""
    if run.samples is None or run.images is None or run.epsilon is None:
        return ()
    painter = _Painter(run, run.samples, run.images, levels)
    groups = (*_by_radius(painter, run.samples, run.epsilon), _broken(painter, run.broken))
    order = ("Most", "Wrong-proof", "Broken", "Least", "Proven")
    present = [group for group in groups if group.cards]
    return tuple(sorted(present, key=lambda group: order.index(group.title.split()[0])))


def _by_radius(painter: "_Painter", samples: Samples, epsilon: Fraction) -> tuple[Group, ...]:
    """The groups that radii make; none for a net that has no radii."""
    radii, real = samples.radii, samples.real_radii
    if radii is None or real is None:
        return ()
    right, wrong = np.flatnonzero(radii >= 0), np.flatnonzero(real < 0)
    ascending = right[np.argsort(radii[right], kind="stable")]
    proven = ascending[radii[ascending] >= float_above(epsilon)]
    hopeless = wrong[np.argsort(real[wrong], kind="stable")]
    return (
        Group(
            "Most robust",
            "The largest proven radii: no change of up to the radius in every pixel can alter the class.",
            painter.cards(ascending[::-1]),
        ),
        Group(
            f"Wrong-proof at ε = {format_epsilon(epsilon)}, by a hair",
            "Proven at ε with the least to spare: any attack within ε leaves the class right.",
            painter.cards(proven),
        ),
        Group(
            "Least robust",
            "Right, with the smallest proven radii: next to nothing is guaranteed.",
            painter.cards(ascending),
        ),
        Group(
            "Proven wrong",
            "Wrong by the largest margins: no change of up to the length given makes them right (in real arithmetic).",
            painter.cards(hopeless),
        ),
    )


def _broken(painter: "_Painter", broken: dict[str, BrokenSamples]) -> Group:
    """Samples that the attack broke, at the run's epsilon or else the largest one kept."""
    run = painter.run
    measured = [m for m in run.main if m.name in broken and broken[m.name].index and m.epsilon > 0]
    at = next((m for m in measured if m.epsilon == run.epsilon), measured[-1] if measured else None)
    if at is None:
        return Group("Broken", "", ())
    kept = broken[at.name]
    triples = list(zip(kept.index, kept.images, kept.predictions, strict=True))[:SHOWN_BROKEN]
    nearest = "; these came nearest to a proof" if painter.samples.radii is not None else ""
    about = (
        f"Right, but within ε PGD-{at.pgd_steps} finds an image that is not{nearest}. "
        "The difference is magnified: −ε is black, +ε white, no change grey."
    )
    cards = tuple(painter.broken_card(k, changed, taken, at) for k, changed, taken in triples)
    return Group(f"Broken at ε = {at.name}", about, cards)


@dataclass(frozen=True)
class _Painter:
    """Makes cards of a run's samples."""

    run: RunRecord
    samples: Samples
    images: ImageSet
    levels: bool

    def cards(self, index: NDArray[np.int64]) -> tuple[Card, ...]:
        """Cards of the first few samples."""
        return tuple(self.card(k) for k in index[:SHOWN].tolist())

    def image(self, k: int) -> Tensor:
        return self.images.pixels(slice(k, k + 1))[0]

    def radius(self, k: int) -> float | None:
        """The proven radius of a sample; None if there is none."""
        radius = -np.inf if self.samples.radii is None else self.samples.radii[k]
        return float(radius) if radius >= 0 else None

    def card(self, k: int) -> Card:
        """One image: its class and radius, and the class that would come next or that it is taken for."""
        label, radius = self.run.class_name(self.samples.labels[k]), self.radius(k)
        if radius is not None:
            told = [f"radius {format_length(radius, self.levels)}"]
            if self.samples.runners_up is not None:
                told.append(f"runner-up {self.run.class_name(self.samples.runners_up[k])}")
            return Card((Picture(picture(self.image(k)), f"Test image {k}, {label}"),), label, tuple(told))
        taken = self.run.class_name(self.samples.predictions[k])
        real = self.samples.real_radii
        within = () if real is None else (f"within {format_length(-real[k], self.levels)}",)
        alt = f"Test image {k}, {label}, taken for {taken}"
        return Card((Picture(picture(self.image(k)), alt),), label, (f"taken for {taken}", *within))

    def broken_card(self, k: int, changed: Tensor, prediction: int, at: Measured) -> Card:
        """The image, the one that the attack made of it, and what lies between."""
        label, taken, image = (
            self.run.class_name(self.samples.labels[k]),
            self.run.class_name(prediction),
            self.image(k),
        )
        change = picture(difference(image, changed, float(at.epsilon)))
        pictures = (
            Picture(picture(image), f"Test image {k}, {label}", "image"),
            Picture(picture(changed), f"The same image attacked, taken for {taken}", "attacked"),
            Picture(change, f"Their difference, ±{at.name} drawn as black to white", "difference"),
        )
        radius = self.radius(k)
        told = () if radius is None else (f"radius {format_length(radius, self.levels)}",)
        return Card(pictures, f"{label} → {taken}", told)
