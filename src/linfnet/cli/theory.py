"""`linfnet separation`, `construct` and `lipschitz`: the paper's theorems on real data and trained nets."""

import math
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from rich.table import Table

from linfnet.certificates import certified_by_interval, certify_by_margin
from linfnet.certificates.real import real_certified
from linfnet.cli.console import add_columns, console, draw_figure, percent, progress_bar
from linfnet.cli.inputs import (
    BATCH,
    Device,
    Limit,
    ModelFolder,
    Split,
    check_counts,
    choose_device,
    find_inputs,
    load_split,
)
from linfnet.data import ImageSet, load
from linfnet.epsilon import format_epsilon, parse_epsilon
from linfnet.errors import ArgumentError, LinfnetError, at_least
from linfnet.files import make_folder, write_json
from linfnet.nn import LinfNet
from linfnet.ops import check_p
from linfnet.theory import (
    Separation,
    check_separation,
    lipschitz_estimate,
    nearest_neighbour_net,
    pairs_to_compare,
    set_separation,
)
from linfnet.theory.lipschitz import draw_quantiles
from linfnet.theory.separation import draw_pairs
from linfnet.theory.three_points import RADIUS, contenders, draw_three_points, three_points_net
from linfnet.train import environment, new_run_path

# Constructed nets are certified at this share of r: less than 1, as certificates are strict and float32 rounds.
SHARE = 1 - Fraction(1, 100000)


def _find_separation(images: ImageSet, against: ImageSet | None, count: int) -> Separation:
    total = pairs_to_compare(images.labels, None if against is None else against.labels)
    with progress_bar("comparing", total) as advance:
        return set_separation(images, against, count=count, advance=advance)


@dataclass(frozen=True)
class Separate:
    """Compute the r of a data set exactly: half the smallest l-infinity distance of images of different classes."""

    data: tyro.conf.Positional[str]
    """A data set by name (`linfnet data list`)."""
    split: Split = "train"
    against: Literal["train", "test"] | None = None
    """Compare them with those of this split instead of among themselves."""
    limit: int | None = None
    """Only the first LIMIT images of each split."""
    pairs: int = 8
    """How many of the closest pairs to show."""
    out: Path | None = None
    """Write the result as JSON and the pairs as pictures into this folder."""
    device: Device = "auto"

    def run(self) -> int:
        """Print r and the closest pairs."""
        at_least("--pairs", self.pairs, 1)
        if self.out is not None:
            make_folder(self.out)  # an error before the search, not after it
        device = choose_device(self.device)
        images = load(self.data, self.split, device=device).first(self.limit)
        other = None if self.against is None or self.against == self.split else self.against
        against = None if other is None else load(self.data, other, device=device).first(self.limit)
        start = time.perf_counter()
        found = _find_separation(images, against, self.pairs)
        seconds = time.perf_counter() - start
        splits = f"{self.split}-{other or self.split}"
        self._print(found, images, against, splits, seconds)
        if self.out is not None:
            stem = f"separation-{self.data}-{splits}" + (f"-first-{self.limit}" if self.limit else "")
            file = make_folder(self.out) / f"{stem}.json"
            write_json(file, {**self._record(found, images, against, splits), "seconds": round(seconds, 1)})
            console.print(f"result: {file}")
            draw_figure(file.with_suffix(".png"), lambda path: draw_pairs(path, found, images, against))
        return 0

    def _print(
        self, found: Separation, images: ImageSet, against: ImageSet | None, splits: str, seconds: float
    ) -> None:
        pairs = pairs_to_compare(images.labels, None if against is None else against.labels)
        other = images if against is None else against
        classes = images.info.classes
        title = f"closest of {pairs:,} pairs of different classes, {splits}"
        table = Table("distance", "", "image", "class", "image", "class", title=title, title_justify="left")
        for pair in found.pairs:
            ends = (
                (str(pair.first), classes[int(images.labels[pair.first])]),
                (str(pair.second), classes[int(other.labels[pair.second])]),
            )
            table.add_row(format_epsilon(pair.distance), f"{float(pair.distance):.4f}", *ends[0], *ends[1])
        console.print(table)
        if found.distance == 0:
            console.print("the set is not separated: equal images have different classes")
        console.print(
            f"r = {float(found.radius):.4f}, half of {format_epsilon(found.distance)} "
            f"({images.info.title}, {splits}, {seconds:.1f} s)"
        )

    def _record(self, found: Separation, images: ImageSet, against: ImageSet | None, splits: str) -> dict[str, Any]:
        other = images if against is None else against
        return {
            "data": self.data,
            "splits": splits,
            "images": [len(images), len(other)],
            "pairs": pairs_to_compare(images.labels, None if against is None else against.labels),
            "r": float(found.radius),
            "distance": format_epsilon(found.distance),
            "closest": [
                {
                    "distance": format_epsilon(pair.distance),
                    "images": [pair.first, pair.second],
                    "labels": [int(images.labels[pair.first]), int(other.labels[pair.second])],
                }
                for pair in found.pairs
            ],
            "environment": environment(),
        }


@dataclass(frozen=True)
class Construct:
    """Build the net of the paper's theorems, which is certified on a whole data set up to its separation."""

    data: tyro.conf.Positional[str] = "three-points"
    """A data set by name, or three-points, where interval bounds fail on conventional nets."""
    layers: int = 2
    """Number of layers."""
    limit: int | None = None
    """Only the first LIMIT training images."""
    out: Path | None = None
    """Folder of the net, new or empty; by default runs/construct-DATA-TIME."""
    device: Device = "auto"

    def run(self) -> int:
        """Build, certify and save the net; print the certified shares."""
        device = choose_device(self.device)
        out = self.out or new_run_path(f"construct-{self.data}")
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise LinfnetError(f"output folder {out} already holds files; choose another --out")
        return self._three_points(out) if self.data == "three-points" else self._construct(out, device)

    def _construct(self, out: Path, device: torch.device) -> int:
        at_least("--layers", self.layers, 2)
        images = load(self.data, "train", device=device).first(self.limit)
        missing = sorted(set(range(len(images.info.classes))) - set(images.labels.tolist()))
        if missing:
            raise ArgumentError(f"the {len(images)} images lack the classes {missing}; take more with --limit")
        found = _find_separation(images, None, 1)
        epsilon = found.radius * SHARE
        check_separation(found, epsilon, self.layers)
        net = nearest_neighbour_net(images.pixels(), images.labels, len(images.info.classes), layers=self.layers)
        with progress_bar("certifying", len(images)) as advance:
            shares = _certified(net, images, epsilon, advance)
        net.save(make_folder(out), class_names=images.info.classes)
        result = {
            "data": self.data,
            "images": len(images),
            "layers": self.layers,
            "hidden": list(net.hidden),
            "r": float(found.radius),
            "eps": float(epsilon),
            **shares,
            "environment": environment(),
        }
        write_json(out / "construct.json", result)
        console.print(f"{len(images)} training images of {images.info.title}: r = {float(found.radius):.6f}")
        console.print(f"{self.layers} layers, hidden {' × '.join(map(str, net.hidden))}, at eps = r (1 - 1e-5):")
        console.print(
            f"certified {percent(shares['certified_margin'])} % by margin, "
            f"{percent(shares['certified_interval'])} % by interval bounds"
        )
        console.print(f"net: {out}")
        console.print(f"next: linfnet evaluate {shlex.quote(str(out))} --data {self.data} --eps 0.1 --limit 100")
        return 0

    def _three_points(self, out: Path) -> int:
        if self.layers not in (2, 3, 4) or self.limit is not None:
            raise ArgumentError(f"three-points needs 2 to 4 layers (--layers is {self.layers}) and no --limit")
        net = three_points_net(self.layers)
        nets = contenders(net)
        radii = {net.name: net.proven / RADIUS for net in nets}
        table = Table(title="three points: the share of r that interval bounds certify", title_justify="left")
        add_columns(table, ("net",), ("certified",))
        for name, share in radii.items():
            table.add_row(name, f"{share:.6f}")
        console.print(table)
        net.save(make_folder(out))
        write_json(out / "three-points.json", {"r": RADIUS, "proven_share_of_r": radii})
        draw_figure(out / "three-points.png", lambda path: draw_three_points(path, nets))
        console.print(f"net: {out}")
        return 0


def _certified(net: LinfNet, images: ImageSet, epsilon: Fraction, advance: Callable[[int], None]) -> dict[str, float]:
    """The certified shares: for the program by margin and by interval, and by margin in real arithmetic."""
    counts = dict.fromkeys(("certified_margin", "certified_interval", "certified_real_margin"), 0)
    for start in range(0, len(images), BATCH):
        part = slice(start, start + BATCH)
        pixels, labels = images.pixels(part), images.labels[part]
        by_margin = certify_by_margin(net, pixels, labels)
        real = real_certified(by_margin.logits, labels, net.lipschitz, epsilon)
        flags = (by_margin.at(epsilon), certified_by_interval(net, pixels, labels, epsilon), real)
        counts = {name: count + int(flag.sum()) for (name, count), flag in zip(counts.items(), flags, strict=True)}
        advance(len(labels))
    return {name: count / len(images) for name, count in counts.items()}


@dataclass(frozen=True)
class Lipschitz:
    """Bound the Lipschitz constant of a trained net relaxed to a finite p, from above and from below."""

    model: ModelFolder
    p: str = "8"
    """Exponent of all layers: a number >= 1, or inf."""
    split: Split = "test"
    limit: Limit = None
    eps: str = "1/255"
    """Radius of the balls in which logits are compared, in pixel units."""
    steps: int = 20
    """Steps of eps/4 in each ascent."""
    restarts: int = 5
    """Ascents for each image and label."""
    batch: int = 100
    """Images in one batch; each takes a row for every label."""
    seed: int = 0
    """Seed of the starting points."""
    data: str | None = None
    """Another data set than the run's."""
    device: Device = "auto"

    def run(self) -> int:
        """Print both bounds; write them and the quantile plot into the folder."""
        p, epsilon = self._p(), parse_epsilon(self.eps, "--eps")
        at_least("--seed", self.seed, 0)
        device = choose_device(self.device)
        net, images = self._load(device)
        pixels = images.pixels()
        generator = torch.Generator(device).manual_seed(self.seed)
        start = time.perf_counter()
        settings: dict[str, Any] = {"epsilon": epsilon, "steps": self.steps, "restarts": self.restarts}
        with progress_bar("ascending", len(images)) as advance:
            estimate = lipschitz_estimate(
                net, pixels, p, batch=self.batch, generator=generator, advance=advance, **settings
            )
        seconds = time.perf_counter() - start
        summary = estimate.summary()
        record = {
            "model": self.model.name,
            "data": f"{images.info.name}-{self.split}",
            **summary,
            "upper_from_pixels": estimate.upper * net.lipschitz,
            "steps": self.steps,
            "restarts": self.restarts,
            "seed": self.seed,
            "seconds": round(seconds, 1),
            "environment": environment(),
        }
        file = self.model / f"lipschitz-p{p:g}.json"
        write_json(file, record)
        console.print(
            f"p = {p:g}: mean {summary['mean']:.4g}, largest {summary['max']:.4g} over {len(images)} images; "
            f"upper bound {estimate.upper:.4g} (distance layers; from pixels {net.lipschitz:.4g} times as much)"
        )
        console.print(f"by layer: {'  '.join(f'{bound:.4g}' for bound in estimate.layers)}  ({seconds:.0f} s)")
        console.print(f"result: {file}")
        draw_figure(file.with_suffix(".png"), lambda path: draw_quantiles(path, estimate))
        return 0

    def _p(self) -> float:
        try:
            value = float(self.p)
        except ValueError:
            raise ArgumentError(f"--p is {self.p!r}; wanted a number >= 1 or inf") from None
        return math.inf if math.isinf(check_p(value, "--p")) else value

    def _load(self, device: torch.device) -> tuple[LinfNet, ImageSet]:
        check_counts(limit=self.limit, steps=self.steps, restarts=self.restarts)
        inputs = find_inputs(self.model, self.data, needs_eps=False, by_name=False)
        net = LinfNet.load(self.model, device=device)
        return net, load_split(net, inputs.data, self.split, self.limit, device)
