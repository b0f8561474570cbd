"""The gallery: which test images to look at, and what to say of each."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from linfnet.certify.arithmetic import float_above
from linfnet.perturbation import format_epsilon
from linfnet.report.png import difference, picture
from linfnet.report.record import RunRecord

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
    radii, real = run.samples.radii, run.samples.real_radii
    epsilon = format_epsilon(run.epsilon)
    right = np.flatnonzero(radii >= 0)
    ascending = right[np.argsort(radii[right], kind="stable")]
    proven = ascending[radii[ascending] >= float_above(run.epsilon)]
    wrong = np.flatnonzero(real < 0)
    hopeless = wrong[np.argsort(real[wrong], kind="stable")]
    groups = (
        Group(
            "Most robust",
            "The largest proven radii: no change of up to the radius in every pixel can alter the class.",
            _cards(run, ascending[::-1][:SHOWN].tolist(), levels),
        ),
        Group(
            f"Wrong-proof at ε = {epsilon}, by a hair",
            "Proven at ε with the least to spare: any attack within ε leaves the class right.",
            _cards(run, proven[:SHOWN].tolist(), levels),
        ),
        _broken_group(run, levels),
        Group(
            "Least robust",
            "Right, with the smallest proven radii: next to nothing is guaranteed.",
            _cards(run, ascending[:SHOWN].tolist(), levels),
        ),
        Group(
            "Proven wrong",
            "Wrong by the largest margins: no change of up to the length given makes them right (in real arithmetic).",
            _cards(run, hopeless[:SHOWN].tolist(), levels),
        ),
    )
    return tuple(group for group in groups if group.cards)


def _cards(run: RunRecord, index: Sequence[int], levels: bool) -> tuple[Card, ...]:
    assert run.samples is not None
    assert run.images is not None
    cards: list[Card] = []
    for k in index:
        label, taken = run.class_name(run.samples.labels[k]), run.class_name(run.samples.predictions[k])
        image = picture(run.images.pixels(slice(k, k + 1))[0])
        if run.samples.radii[k] >= 0:
            second = None if run.samples.runners_up is None else run.class_name(run.samples.runners_up[k])
            lines = (f"radius {format_length(run.samples.radii[k], levels)}", f"runner-up {second}" if second else "")
            cards.append(Card((Picture(image, f"Test image {k}, {label}"),), label, lines))
        else:
            lines = (f"taken for {taken}", f"within {format_length(-run.samples.real_radii[k], levels)}")
            cards.append(Card((Picture(image, f"Test image {k}, {label}, taken for {taken}"),), label, lines))
    return tuple(cards)


def _broken_group(run: RunRecord, levels: bool) -> Group:
    """Samples that the attack broke, at the run's epsilon or else the largest one kept."""
    assert run.samples is not None
    assert run.images is not None
    measured = [m for m in run.main if m.name in run.broken and run.broken[m.name].index and m.epsilon > 0]
    at = next((m for m in measured if m.epsilon == run.epsilon), measured[-1] if measured else None)
    if at is None:
        return Group("Broken", "", ())
    broken, size, cards = run.broken[at.name], float(at.epsilon), list[Card]()
    for k, changed, prediction in zip(broken.index, broken.images, broken.predictions, strict=True):
        image = run.images.pixels(slice(k, k + 1))[0]
        label, taken = run.class_name(run.samples.labels[k]), run.class_name(prediction)
        pictures = (
            Picture(picture(image), f"Test image {k}, {label}", "image"),
            Picture(picture(changed), f"The same image attacked, taken for {taken}", "attacked"),
            Picture(
                picture(difference(image, changed, size)),
                f"Their difference, ±{at.name} drawn as black to white",
                "difference",
            ),
        )
        radius = format_length(run.samples.radii[k], levels)
        cards.append(Card(pictures, f"{label} → {taken}", (f"radius {radius}",)))
    about = (
        f"Right, but within ε PGD-{at.pgd_steps} finds an image that is not; these came nearest to a proof. "
        "The difference is magnified: −ε is black, +ε white, no change grey."
    )
    return Group(f"Broken at ε = {at.name}", about, tuple(cards[:SHOWN_BROKEN]))
