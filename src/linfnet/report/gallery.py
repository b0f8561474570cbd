"""The gallery of a report: groups of test images, each with its pictures, class and radius."""

import base64
import math
import struct
import zlib
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from linfnet.certificates.rounding import float_above
from linfnet.data import ImageSet
from linfnet.epsilon import format_epsilon
from linfnet.report.run_summary import RunSummary, Samples
from linfnet.results import Result

# Largest number of samples in a group; a broken sample needs three pictures, so fewer are shown.
SHOWN, SHOWN_BROKEN = 8, 6


class Picture(NamedTuple):
    """An image as a data URI, with its alternative text."""

    uri: str
    alt: str
    label: str = ""


class Card(NamedTuple):
    """A sample: its pictures, its class, and lines of text."""

    pictures: tuple[Picture, ...]
    title: str
    lines: tuple[str, ...]


class Group(NamedTuple):
    """Samples of one kind at one epsilon; the template has a title and a description for each `id`."""

    id: str
    epsilon: Fraction
    cards: tuple[Card, ...]
    attack: str = ""


def format_length(value: float, levels: bool) -> str:
    """Format a length in pixel units, in 255ths if `levels` is true, rounded down because radii are certified.

    >>> format_length(8.2559 / 255, True), format_length(0.12349, False), format_length(0.29, False)
    ('8.25/255', '0.1234', '0.2899')
    """
    if levels:
        return f"{math.floor(Fraction(value) * 25500) / 100:.2f}/255"
    return f"{math.floor(Fraction(value) * 10000) / 10000:.4f}"


def gallery(run: RunSummary, levels: bool) -> list[Group]:
    """Return the nonempty groups of a run; the list is empty if the samples or the images are missing."""
    if run.samples is None or run.images is None or run.epsilon is None:
        return []
    painter = _Painter(run, run.samples, run.images, levels)
    groups = _by_radius(painter)
    groups[2:2] = _broken(painter)  # between the group certified at epsilon and the least robust group
    return [group for group in groups if group.cards]


def _by_radius(painter: "_Painter") -> list[Group]:
    """Return the groups that are chosen by radius; empty for a net without radii."""
    radii, real, epsilon = painter.samples.radii, painter.samples.real_radii, painter.run.epsilon
    if radii is None or real is None or epsilon is None:
        return []
    correct, wrong = np.flatnonzero(radii >= 0), np.flatnonzero(real < 0)
    ascending = correct[np.argsort(radii[correct], kind="stable")]
    certified = ascending[radii[ascending] >= float_above(epsilon)]
    return [
        Group("most", epsilon, painter.cards(ascending[::-1])),
        Group("barely", epsilon, painter.cards(certified)),
        Group("least", epsilon, painter.cards(ascending)),
        Group("misclassified", epsilon, painter.cards(wrong[np.argsort(real[wrong], kind="stable")])),
    ]


def _broken(painter: "_Painter") -> list[Group]:
    """Return the group of samples that the attack broke, at the run's epsilon or else at the largest saved epsilon."""
    run = painter.run
    saved = [result for result in run.main if result.eps > 0 and result.eps in run.broken]
    saved = [result for result in saved if run.broken[result.eps].index]
    if not saved:
        return []
    at = next((result for result in saved if result.eps == run.epsilon), saved[-1])
    broken = run.broken[at.eps]
    triples = zip(broken.index, broken.images, broken.predictions, strict=True)
    cards = tuple(painter.broken_card(k, attacked, prediction, at) for k, attacked, prediction in triples)[
        :SHOWN_BROKEN
    ]
    return [Group("broken", at.eps, cards, str(at.attack))]


@dataclass(frozen=True)
class _Painter:
    """Creates the cards of a run's samples."""

    run: RunSummary
    samples: Samples
    images: ImageSet
    levels: bool

    def cards(self, index: NDArray[np.int64]) -> tuple[Card, ...]:
        """Return the cards of the first few samples."""
        return tuple(self.card(k) for k in index[:SHOWN].tolist())

    def image(self, k: int) -> Tensor:
        return self.images.pixels(slice(k, k + 1))[0]

    def radius(self, k: int) -> float | None:
        """Return the certified radius of a sample, or None."""
        radius = -np.inf if self.samples.radii is None else self.samples.radii[k]
        return float(radius) if radius >= 0 else None

    def card(self, k: int) -> Card:
        """Return a card with an image, its class, and its radius and runner-up, or the prediction if it is wrong."""
        label, radius = self.run.class_name(self.samples.labels[k]), self.radius(k)
        alt, lines = f"Test image {k}, {label}", list[str]()
        if radius is not None:
            lines.append(f"radius {format_length(radius, self.levels)}")
            if self.samples.runners_up is not None:
                lines.append(f"runner-up {self.run.class_name(self.samples.runners_up[k])}")
        else:
            predicted = self.run.class_name(self.samples.predictions[k])
            alt += f", predicted as {predicted}"
            lines.append(f"predicted {predicted}")
            if self.samples.real_radii is not None:
                lines.append(f"wrong up to {format_length(-self.samples.real_radii[k], self.levels)}")
        return Card((Picture(picture(self.image(k)), alt),), label, tuple(lines))

    def broken_card(self, k: int, attacked: Tensor, prediction: int, at: Result) -> Card:
        """Return a card with the image, the attacked image, and their difference."""
        label, predicted = self.run.class_name(self.samples.labels[k]), self.run.class_name(prediction)
        image, radius, epsilon = self.image(k), self.radius(k), format_epsilon(at.eps)
        change = picture(((attacked - image) / (2 * float(at.eps)) + 0.5).clamp(0, 1))
        pictures = (
            Picture(picture(image), f"Test image {k}, {label}", "image"),
            Picture(picture(attacked), f"The attacked image, predicted as {predicted}", "attacked"),
            Picture(change, f"Their difference; black is −{epsilon}, white is +{epsilon}", "difference"),
        )
        lines = () if radius is None else (f"radius {format_length(radius, self.levels)}",)
        return Card(pictures, f"{label} → {predicted}", lines)


def encode_png(image: Tensor) -> bytes:
    """Encode pixels [C, H, W] in [0, 1], rounded to bytes, as a PNG file; C is 1 (grey) or 3 (colour).

    >>> import torch
    >>> encode_png(torch.zeros(1, 2, 2))[:8]
    b'\\x89PNG\\r\\n\\x1a\\n'
    """
    levels = (image.detach().cpu().numpy() * 255).round().clip(0, 255).astype(np.uint8)
    channels, rows, columns = levels.shape
    kind = {1: 0, 3: 2}[channels]  # the colour types of PNG: greyscale and RGB
    lines = levels.transpose(1, 2, 0).reshape(rows, columns * channels)
    # Each line starts with its filter type: 0 means unfiltered bytes.
    raw = np.concatenate([np.zeros((rows, 1), np.uint8), lines], axis=1).tobytes()
    header = struct.pack(">IIBBBBB", columns, rows, 8, kind, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b""))
    packed = (struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def picture(image: Tensor) -> str:
    """Return a PNG of pixels [C, H, W] in [0, 1] as a data URI."""
    return "data:image/png;base64," + base64.b64encode(encode_png(image)).decode()
