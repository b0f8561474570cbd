"""`linfnet certify`, `predict` and `attack`: certified radii of images, and attacks that test them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
import tyro
from rich.table import Table
from torch import Tensor

from linfnet.attacks import DEFAULT_ATTACKS, Attacked, attack_all, check_sandwich, known_attacks, parse_exponents
from linfnet.certificates import Certification, certify_images, plot_curve, write_curve, write_radii
from linfnet.cli.console import console, draw_figure, guarantee, percent, progress_bar, titled_table
from linfnet.cli.inputs import Epsilons, Model, NamedImages, OnImages, read_image
from linfnet.epsilon import format_epsilon
from linfnet.errors import ArgumentError, at_least
from linfnet.files import make_folder, replacing
from linfnet.nn.model_path import class_names, find_model
from linfnet.results.storage import RADII_FILE, write_columns
from linfnet.systems import load_model

# Largest number of images of the user for which the table has one row per image.
SHOWN = 20


def format_radius(radius: float) -> str:
    """Format a radius with five decimals. It is rounded down, so that the printed radius is also certified.

    >>> format_radius(0.123459), format_radius(0.29), format_radius(-float("inf"))
    ('0.12345', '0.28999', 'none')
    """
    if radius < 0:
        return "none"
    # Use integers: in floating point, 0.29 (stored as slightly less) times 100,000 would be rounded up to 29,000.
    whole, part = divmod(math.floor(Fraction(radius) * 100_000), 100_000)
    return f"{whole}.{part:05d}"


@dataclass(frozen=True)
class Certify(OnImages):
    """Compute for each image by how much every pixel may change without changing the predicted class."""

    eps: Epsilons = ()
    out: Path | None = None
    """A folder for radii.csv, curve.csv and curve.png (which needs the extra `plots`)."""

    def run(self) -> None:
        net, images, inputs = self.load(self.eps, needs_eps=False)
        with progress_bar("certifying", len(images.pixels)) as advance:
            found = certify_images(net, images.batches(), inputs.epsilons, advance=advance)
        if images.labels is None and len(images.names) <= SHOWN:
            radii = {f"{name} radius": column for name, column in found.radii.items()}
            console.print(_images_table(found, images.names, class_names(inputs.folder, net.classes), radii))
        console.print(_shares_table(found, images))
        if self.out is not None:
            make_folder(self.out)
            write_radii(found, self.out / RADII_FILE, images.names)
            curve = found.curve()
            write_curve(curve, self.out / "curve.csv")
            console.print(f"radii and curve: {self.out}")
            title = f"{self.model.name} on {images.title}"
            draw_figure(self.out / "curve.png", lambda path: plot_curve(curve, path, title))


def _images_table(
    found: Certification, images: Sequence[object], classes: list[str], radii: dict[str, Tensor]
) -> Table:
    table = Table("image", "class", *radii, "runner-up")
    rows = zip(*(column.tolist() for column in radii.values()), strict=True)
    columns = (found.predictions.tolist(), found.runners_up.tolist(), rows)
    for image, first, second, row in zip(images, *columns, strict=True):
        table.add_row(str(image), classes[first], *map(format_radius, row), classes[second])
    return table


def _shares_table(found: Certification, images: NamedImages) -> Table:
    clean = "correct" if images.labels is not None else "unique top class"
    certified = (f"certified ({name})" for name in found.names)
    table = titled_table(f"{len(images.names)} images of {images.title}, in %", ("eps",), (clean, *certified))
    for eps, *flags in zip(found.epsilons, *found.certified.values(), strict=True):
        shares = (certified.double().mean().item() for certified in flags)
        table.add_row(format_epsilon(eps), *map(percent, (found.clean, *shares)))
    medians = (radii.clamp(min=0).median().item() for radii in found.radii.values())
    table.add_row("median radius", "", *map(format_radius, medians), style="dim")
    if found.arithmetic == "real":
        table.caption = guarantee(found.arithmetic, found.confidence)
    return table


@dataclass(frozen=True)
class Predict:
    """Classify image files, and compute the radius inside which the class is certified not to change."""

    model: Model
    images: tyro.conf.Positional[tuple[Path, ...]]
    """Images of the size that the net expects: PNG, JPEG, or .npy with floats in [0, 1] or bytes."""

    def run(self) -> None:
        if not self.images:
            raise ArgumentError("no image is given")
        model = find_model(self.model)
        net = load_model(model)
        classes = class_names(model, net.classes)
        pixels = torch.stack([read_image(path, net.picture_shape()) for path in self.images])
        found = certify_images(net, [(pixels, None)])
        console.print(_images_table(found, self.images, classes, {"certified radius": found.best_radii}))


@dataclass(frozen=True)
class Attack(OnImages):
    """Try to break a net with every attack, and compare the result with the certificates."""

    eps: Epsilons = ()
    attacks: tuple[str, ...] = DEFAULT_ATTACKS
    """The attacks, in order: any of pgd, best-pgd, smoothed, square, autoattack (needs the extra `autoattack`)."""
    p: str = "16,64"
    """Exponents whose gradients the smoothed attack follows."""
    steps: int = 100
    """Number of steps of the gradient attacks."""
    restarts: int = 2
    """Number of random starts of best-pgd and smoothed."""
    queries: int = 1000
    """Number of queries of the Square attack."""
    seed: int = 0
    """Seed of all random choices."""
    out: Path | None = None
    """A folder for attacked.csv and, for each epsilon, the attacked images as .npy."""

    def run(self) -> None:
        """Print the table; raise an error that names the samples if an attack broke certified ones."""
        at_least("--seed", self.seed, 0)
        if not self.attacks:
            raise ArgumentError("--attacks is empty; expected at least one attack, such as pgd")
        settings = {"steps": self.steps, "restarts": self.restarts, "queries": self.queries}
        attacks = known_attacks(self.attacks, exponents=parse_exponents(self.p), **settings)
        net, images, inputs = self.load(self.eps)
        found = certify_images(net, images.batches(), tuple(sorted(inputs.epsilons)))
        with console.status("attacking") as status:

            def show(name: str, epsilon: Fraction, left: int) -> None:
                status.update(f"{name} at eps = {format_epsilon(epsilon)}: {left} samples remaining")

            labels, epsilons = found.labels, found.epsilons
            results = attack_all(net, images.pixels, labels, epsilons, attacks, seed=self.seed, report=show)
        console.print(_attacks_table(images, found, results))
        if self.out is not None:
            _write_attacked(self.out, images.names, labels, results)
        for at, certified in zip(results, found.certified_by_any, strict=True):
            check_sandwich(at.epsilon, certified, at.survived)
        console.print("certified ≤ robust ≤ clean holds for every sample")


def _attacks_table(images: NamedImages, found: Certification, results: list[Attacked]) -> Table:
    title = f"{len(images.names)} images of {images.title}: accuracy after each attack in this order, in %"
    table = titled_table(title, ("eps",), ("certified", "robust", *results[0].after, "clean"))
    for at, certified in zip(results, found.certified_by_any.double().mean(1).tolist(), strict=True):
        shares = (certified, at.robust, *at.after.values(), found.clean)
        table.add_row(format_epsilon(at.epsilon), *map(percent, shares))
    return table


def _write_attacked(out: Path, names: list[str], labels: Tensor, results: list[Attacked]) -> None:
    make_folder(out)
    survived = {f"survived@{format_epsilon(at.epsilon)}": at.survived.int().tolist() for at in results}
    write_columns(out / "attacked.csv", {"image": names, "label": labels.tolist(), **survived})
    for at in results:
        name = format_epsilon(at.epsilon).replace("/", "-of-")
        with replacing(out / f"attacked-{name}.npy") as temporary, temporary.open("wb") as file:
            np.save(file, at.images.cpu().numpy())
    console.print(f"attacked images: {out}")
