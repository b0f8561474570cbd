"""`linfnet certify` and `linfnet attack`: certified radii of images, and attacks that test them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from rich.table import Table
from torch import Tensor
from tyro.conf import arg

from linfnet.attacks import DEFAULT_ATTACKS, Attacked, attack_all, check_sandwich, known_attacks, parse_exponents
from linfnet.certificates import Certification, certify_images, plot_curve, write_curve, write_radii
from linfnet.certificates.exact.radii import WIDTH, parse_width
from linfnet.cli.console import console, draw_figure, percent, print_table, progress_bar, status_line, titled_table
from linfnet.cli.inputs import BATCH, Epsilons, Folder, Number, OnImages
from linfnet.data import NamedImages
from linfnet.epsilon import format_epsilon
from linfnet.errors import ArgumentError, at_least
from linfnet.evaluation.evaluator import EXPENSIVE_BATCH
from linfnet.files import make_folder, replacing
from linfnet.nn import Classifier
from linfnet.nn.model_path import class_names
from linfnet.results.storage import LABEL, PREDICTION, RADII_FILE, write_columns

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
    """Compute for each image by how much every pixel may change without changing the predicted class.

    With labelled data, the table shows the certified accuracy. Images without labels (a folder of images, or a .npy
    array) are certified for the class that the net predicts.

    Examples:
        linfnet certify mnist-small --limit 500
        linfnet certify runs/first --data photos/ --eps 0.05 0.1 --out certified
        linfnet certify mnist-small --limit 100 --eps 0.3 --exact
    """

    eps: Epsilons = ()
    exact: bool = False
    """Also decide exactly: how far every pixel may change before some image has another class."""
    width: Annotated[str, arg(metavar="WIDTH")] = WIDTH
    """The width of exact radii: the class is proven up to the radius, and an image within radius + WIDTH breaks it."""
    out: Folder = None
    """A folder for radii.csv, curve.csv and curve.png (which needs the extra `plots`)."""

    def run(self) -> int:
        """Print the tables; return 2 if image files were skipped."""
        parse_width(self.width, "--width")
        net, images, inputs, status = self.load(self.eps, needs_eps=False, skip=True)
        if self.out is not None:
            make_folder(self.out)  # report an error before the work, not after it
        found = _certify(net, images, inputs.epsilons, exact=self.exact, width=self.width)
        if images.labels is None and len(images.names) <= SHOWN:
            radii = {f"{name} radius": column for name, column in found.radii.items()}
            print_table(images_table(found, images.names, class_names(inputs.folder, net.classes), radii))
        print_table(_shares_table(found, images))
        if self.out is not None:
            write_radii(found, self.out / RADII_FILE, images.names, labelled=images.labels is not None)
            curve = found.curve()
            write_curve(curve, self.out / "curve.csv", found.guarantee)
            console.print(f"radii and curve: {self.out}")
            title = f"{self.model.name} on {images.title}\n({found.guarantee})"
            draw_figure(self.out / "curve.png", lambda path: plot_curve(curve, path, title))
        return status


def _certify(net: Classifier, images: NamedImages, epsilons: Sequence[Fraction], **options: Any) -> Certification:
    """Certify images with a progress bar; `options` are arguments of `certify_images`."""
    with progress_bar("certifying", len(images.pixels)) as advance:
        batches = images.batches(BATCH if net.cheap else EXPENSIVE_BATCH)
        return certify_images(net, batches, epsilons, advance=advance, **options)


def images_table(
    found: Certification,
    images: Sequence[str],
    classes: list[str],
    radii: dict[str, Tensor],
    *,
    at_epsilons: bool = False,
) -> Table:
    """Return a table with the predicted class, the radii and the runner-up of each image.

    `at_epsilons`: add a column for each epsilon that says whether the class is certified.
    """
    epsilons = [f"at {format_epsilon(epsilon)}" for epsilon in found.epsilons] if at_epsilons else []
    table = titled_table(None, ("image", "class"), (*radii, *epsilons))
    table.add_column("runner-up", overflow="fold")
    rows: list[tuple[float, ...]] = list(zip(*(column.tolist() for column in radii.values()), strict=True))
    flags: list[list[bool]] = found.certified_by_any.T.tolist() if epsilons else [[]] * len(images)
    tops: list[tuple[int, int]] = list(zip(found.predictions.tolist(), found.runners_up.tolist(), strict=True))
    for image, (first, second), row, certified in zip(images, tops, rows, flags, strict=True):
        words = ("certified" if flag else "no" for flag in certified)
        table.add_row(image, classes[first], *map(format_radius, row), *words, classes[second])
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
    table.caption = f"radii: {found.guarantee}"
    if found.undecided is not None and bool(found.undecided.any()):
        table.caption += f"\nundecided by the exact method: {int(found.undecided.any(0).sum())} images"
    return table


@dataclass(frozen=True)
class Attack(OnImages):
    """Try to break a net with every attack, and compare the result with the certificates.

    Images without labels are attacked for the class that the net predicts. Images for which a proof in float32 says
    that no attack can break them are not attacked, unless --all is given.

    Examples:
        linfnet attack mnist-small --limit 100
        linfnet attack runs/first --eps 8/255 --attacks pgd square --out attacked
    """

    eps: Epsilons = ()
    attacks: Annotated[tuple[str, ...], arg(metavar="NAME [NAME ...]")] = DEFAULT_ATTACKS
    """The attacks, in order: any of pgd, best-pgd, smoothed, square, autoattack (needs the extra `autoattack`)."""
    p: Annotated[str, arg(metavar="P,P")] = "16,64"
    """Exponents whose gradients the smoothed attack follows."""
    steps: Number = 100
    """Number of steps of the gradient attacks."""
    restarts: Number = 2
    """Number of random starts of best-pgd and smoothed."""
    queries: Number = 1000
    """Number of queries of the Square attack."""
    seed: Number = 0
    """Seed of all random choices."""
    all: bool = False
    """Also attack the images that are certified, as a test of the certificates."""
    out: Folder = None
    """A folder for attacked.csv and, for each epsilon, the attacked images as .npy."""

    def run(self) -> None:
        """Print the table; raise an error that names the samples if an attack broke certified ones."""
        at_least("--seed", self.seed, 0)
        if not self.attacks:
            raise ArgumentError("--attacks is empty; expected at least one attack, such as pgd")
        settings = {"steps": self.steps, "restarts": self.restarts, "queries": self.queries}
        attacks = known_attacks(self.attacks, exponents=parse_exponents(self.p), **settings)
        net, images, inputs, _ = self.load(self.eps)
        if self.out is not None:
            make_folder(self.out)  # report an error before the work, not after it
        found = _certify(net, images, tuple(sorted(inputs.epsilons)))
        labels, epsilons, skipped = found.labels, found.epsilons, None
        if not self.all and found.proven:
            skipped = dict(zip(epsilons, found.certified_by_any, strict=True))
        with status_line() as update:

            def show(name: str, epsilon: Fraction, left: int) -> None:
                noun = "image" if left == 1 else "images"
                update(f"{name} at eps = {format_epsilon(epsilon)}: {left} {noun} left")

            options: dict[str, Any] = {"seed": self.seed, "certified": skipped, "report": show}
            results = attack_all(net, images.pixels, labels, epsilons, attacks, **options)
        print_table(_attacks_table(images, found, results))
        if self.out is not None:
            _write_attacked(self.out, images, labels, results)
        for at, certified in zip(results, found.certified_by_any, strict=True):
            check_sandwich(at.epsilon, certified, at.survived)
        if skipped is None:
            console.print("certified ≤ robust ≤ clean holds for every sample")
        else:
            console.print("certified images were not attacked, since no attack can break them; --all attacks them too")


def _attacks_table(images: NamedImages, found: Certification, results: list[Attacked]) -> Table:
    title = f"{len(images.names)} images of {images.title}: accuracy after each attack in this order, in %"
    table = titled_table(title, ("eps",), ("clean", *results[0].after, "robust", "certified"))
    table.caption = f"robust: correct after all attacks\ncertified: {found.guarantee}"
    for at, certified in zip(results, found.certified_by_any.double().mean(1).tolist(), strict=True):
        shares = (found.clean, *at.after.values(), at.robust, certified)
        table.add_row(format_epsilon(at.epsilon), *map(percent, shares))
    return table


def _write_attacked(out: Path, images: NamedImages, labels: Tensor, results: list[Attacked]) -> None:
    survived = {f"survived@{format_epsilon(at.epsilon)}": at.survived.int().tolist() for at in results}
    kind = PREDICTION if images.labels is None else LABEL
    write_columns(out / "attacked.csv", {"image": images.names, kind: labels.tolist(), **survived})
    for at in results:
        name = format_epsilon(at.epsilon).replace("/", "-of-")
        with replacing(out / f"attacked-{name}.npy") as temporary, temporary.open("wb") as file:
            np.save(file, at.images.cpu().numpy())
    console.print(f"attacked images: {out}")
