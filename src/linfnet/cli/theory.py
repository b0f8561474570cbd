"""`linfnet separation` and `linfnet construct`: the paper's first theorem on real data."""

import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from linfnet.certificates import certified_by_interval, certified_by_margin
from linfnet.cli.console import console, percent
from linfnet.cli.train import pick_device
from linfnet.data import ImageSet, load
from linfnet.epsilon import format_epsilon
from linfnet.errors import ArgumentError, LinfnetError, at_least
from linfnet.files import make_folder, write_json
from linfnet.nn import LinfNet
from linfnet.theory import (
    Separation,
    check_separation,
    nearest_neighbour_net,
    pairs_to_compare,
    set_separation,
)
from linfnet.theory.plots import draw_pairs, draw_three_points
from linfnet.theory.three_points import RADIUS, contenders, three_points
from linfnet.train import environment, new_run_path

BATCH = 500
# The share of r at which constructed nets are certified: below 1, as certificates are strict and float32 rounds.
SHARE = 1 - Fraction(1, 100000)


def with_progress(name: str, total: int, work: Callable[[Callable[[int], None]], Any]) -> Any:
    """Run `work(advance)` under a progress bar."""
    columns = (TextColumn(name), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=total)
        return work(lambda done: progress.advance(task, done))


def draw_into(path: Path, draw: Callable[[Path], None]) -> None:
    """Draw a figure and say where it is; without matplotlib say that instead: the numbers stand."""
    try:
        draw(path)
    except LinfnetError as error:
        console.print(f"no figure: {error}")
    else:
        console.print(f"figure: {path}")


def _find_separation(images: ImageSet, against: ImageSet | None, count: int) -> Separation:
    total = pairs_to_compare(images.labels, None if against is None else against.labels)
    return with_progress(
        "comparing", total, lambda advance: set_separation(images, against, count=count, advance=advance)
    )


@dataclass(frozen=True)
class Separate:
    """The r of a data set: half the smallest l-infinity distance of two images of different classes, exactly."""

    data: tyro.conf.Positional[str]
    """A data set by name (`linfnet data list`)."""
    split: Literal["train", "test"] = "train"
    """Which images."""
    against: Literal["train", "test"] | None = None
    """Compare them with those of this split instead of among themselves."""
    limit: int | None = None
    """Only the first so many images of each split."""
    pairs: int = 8
    """How many of the closest pairs to show."""
    out: Path | None = None
    """Write the result as JSON and the pairs as pictures into this folder."""
    device: str = "auto"
    """cpu, cuda, …; auto takes a GPU if there is one."""

    def run(self) -> int:
        """Print r and the closest pairs."""
        at_least("--pairs", self.pairs, 1)
        if self.out is not None:
            make_folder(self.out)  # told before the search, not after it
        device = pick_device(self.device)
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
            draw_into(file.with_suffix(".png"), lambda path: draw_pairs(path, found, images, against))
        return 0

    def _print(
        self, found: Separation, images: ImageSet, against: ImageSet | None, splits: str, seconds: float
    ) -> None:
        pairs = pairs_to_compare(images.labels, None if against is None else against.labels)
        other = images if against is None else against
        classes = images.info.classes
        table = Table(title=f"closest of {pairs:,} pairs of different classes, {splits}", title_justify="left")
        for name in ("distance", "", "image", "class", "image", "class"):
            table.add_column(name)
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
    """Build the net of the paper's theorems, which certifies a whole data set up to its separation, and check it."""

    data: tyro.conf.Positional[str] = "three-points"
    """A data set by name, or three-points: what interval bounds cannot prove on conventional nets."""
    layers: int = 2
    """Number of layers."""
    limit: int | None = None
    """Only the first so many training images."""
    out: Path | None = None
    """Folder of the net, new or empty; by default runs/construct-DATA-TIME."""
    device: str = "auto"
    """cpu, cuda, …; auto takes a GPU if there is one."""

    def run(self) -> int:
        """Build, certify, save, and print what holds."""
        device = pick_device(self.device)
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
        shares = with_progress("certifying", len(images), lambda advance: _certified(net, images, epsilon, advance))
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
            raise ArgumentError(f"three points take 2 to 4 layers (--layers is {self.layers}) and no --limit")
        points, labels = three_points()
        net = nearest_neighbour_net(points.view(3, 1, 1, 1), labels, 2, layers=self.layers)
        nets = contenders(net)
        radii = {net.name: net.proven / RADIUS for net in nets}
        table = Table(title="three points: the share of r that interval bounds prove", title_justify="left")
        table.add_column("net")
        table.add_column("proven", justify="right")
        for name, share in radii.items():
            table.add_row(name, f"{share:.6f}")
        console.print(table)
        net.save(make_folder(out))
        write_json(out / "three-points.json", {"r": RADIUS, "proven_share_of_r": radii})
        draw_into(out / "three-points.png", lambda path: draw_three_points(path, nets))
        console.print(f"net: {out}")
        return 0


def _certified(net: LinfNet, images: ImageSet, epsilon: Fraction, advance: Callable[[int], None]) -> dict[str, float]:
    """The shares that the margin and interval bounds certify."""
    by_margin = by_interval = 0
    for start in range(0, len(images), BATCH):
        part = slice(start, start + BATCH)
        pixels, labels = images.pixels(part), images.labels[part]
        with net.at_infinity(), torch.no_grad():
            by_margin += int(certified_by_margin(net(pixels), labels, net.lipschitz, epsilon).sum())
        by_interval += int(certified_by_interval(net, pixels, labels, epsilon).sum())
        advance(len(labels))
    return {"certified_margin": by_margin / len(images), "certified_interval": by_interval / len(images)}
