"""`linfnet separation`, `construct` and `lipschitz`: the paper's theorems on real data and trained nets."""

import shlex
import time
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro
from tyro.conf import arg

from linfnet import theory
from linfnet.certificates import certified_by_interval, certify_by_margin
from linfnet.certificates.real import real_certified
from linfnet.cli import inputs
from linfnet.cli.console import console, draw_figure, percent, print_table, progress_bar, titled_table
from linfnet.cli.inputs import Count, Device, Folder, ModelFolder, Number
from linfnet.data import ImageSet, load
from linfnet.distributed.device import choose_device
from linfnet.epsilon import format_epsilon, parse_epsilon
from linfnet.errors import ArgumentError, LinfnetError, at_least
from linfnet.files import make_folder, write_json
from linfnet.nn import LinfNet
from linfnet.ops import check_p
from linfnet.theory.lipschitz import draw_quantiles
from linfnet.theory.separation import draw_pairs
from linfnet.theory.three_points import RADIUS, contenders, draw_three_points, three_points_net
from linfnet.train import environment, new_run_path

# Constructed nets are certified at this fraction of r. It is below 1: float32 rounds, and ties are not certified.
SHARE = 1 - Fraction(1, 100000)


def _separation(images: ImageSet, against: ImageSet | None, count: int) -> tuple[theory.Separation, int]:
    """Return the closest pairs of different classes, and the number of compared pairs."""
    total = theory.pairs_to_compare(images.labels, None if against is None else against.labels)
    with progress_bar("comparing", total) as advance:
        return theory.set_separation(images, against, count=count, advance=advance), total


@dataclass(frozen=True)
class Separate:
    """Compute the exact r of a data set: half the smallest l-infinity distance between images of different classes.

    Examples:
        linfnet separation digits
        linfnet separation mnist --split test --against train
    """

    data: Annotated[tyro.conf.Positional[str], arg(metavar="SET")]
    """The name of a data set (`linfnet data list` shows them)."""
    split: Literal["train", "test"] = "train"
    """The split of the data set."""
    against: Literal["train", "test"] | None = None
    """Compare the images with the images of this split instead of with each other."""
    limit: Count = None
    """Use only the first N images of each split."""
    pairs: Number = 8
    """Number of closest pairs to show."""
    out: Folder = None
    """A folder for the result as JSON and the pairs as a figure."""
    device: Device = "auto"

    def run(self) -> None:
        at_least("--pairs", self.pairs, 1)
        if self.out is not None:
            make_folder(self.out)  # report an error before the search, not after it
        device = choose_device(self.device)
        images = load(self.data, self.split, device=device).first(self.limit)
        against = None
        if self.against not in (None, self.split):
            against = load(self.data, self.against, device=device).first(self.limit)
        other = against or images
        start = time.perf_counter()
        found, total = _separation(images, against, self.pairs)
        seconds = time.perf_counter() - start
        splits, classes = f"{images.split}-{other.split}", images.info.classes
        compared = f"{images.split} images" + (f" and {other.split} images" if against else "")
        fractions = any("/" in format_epsilon(pair.distance) for pair in found.pairs)
        ends = (f"{images.split} image", "class", f"{other.split} image", "class")
        title = f"closest of {total:,} pairs of {images.info.title} {compared} of different classes"
        table = titled_table(title, ("distance", *(["as decimal"] if fractions else []), *ends))
        closest: list[dict[str, object]] = []
        for pair in found.pairs:
            distance, samples = format_epsilon(pair.distance), [pair.first, pair.second]
            labels = [int(images.labels[pair.first]), int(other.labels[pair.second])]
            closest.append({"distance": distance, "images": samples, "labels": labels})
            ends = [str(end) for k in (0, 1) for end in (samples[k], classes[labels[k]])]
            table.add_row(distance, *([f"{float(pair.distance):.4f}"] if fractions else []), *ends)
        print_table(table)
        if found.distance == 0:
            console.print("the set is not separated: equal images have different classes")
        smallest = format_epsilon(found.distance)
        console.print(f"r = {float(found.radius):.4f}, half of the smallest distance {smallest} ({seconds:.1f} s)")
        if self.out is not None:
            stem = f"separation-{self.data}-{splits}" + (f"-first-{self.limit}" if self.limit else "")
            file = self.out / f"{stem}.json"
            record = {
                "data": self.data,
                "splits": splits,
                "images": [len(images), len(other)],
                "pairs": total,
                "r": float(found.radius),
                "distance": smallest,
                "closest": closest,
                "environment": environment(),
                "seconds": round(seconds, 1),
            }
            write_json(file, record)
            console.print(f"result: {file}")
            draw_figure(file.with_suffix(".png"), lambda path: draw_pairs(path, found, images, against))


@dataclass(frozen=True)
class Construct:
    """Build the net of the paper's theorems, which is certified on all images up to the separation of the data set.

    Examples:
        linfnet construct three-points
        linfnet construct digits --layers 3 --out runs/nearest
    """

    data: Annotated[tyro.conf.Positional[str], arg(metavar="SET")] = "three-points"
    """The name of a data set, or three-points, an example on which interval bounds fail for conventional nets."""
    layers: Number = 2
    """Number of layers."""
    limit: Count = None
    """Use only the first N training images."""
    out: Folder = None
    """The folder for the net, new or empty. Default: runs/construct-DATA-TIME."""
    device: Device = "auto"

    def run(self) -> None:
        device = choose_device(self.device)
        out = self.out or new_run_path(f"construct-{self.data}")
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise LinfnetError(f"output folder {out} already contains files; choose another --out")
        if self.data == "three-points":
            self._three_points(out)
        else:
            self._construct(out, device)

    def _construct(self, out: Path, device: torch.device) -> None:
        at_least("--layers", self.layers, 2)
        images = load(self.data, "train", device=device).first(self.limit)
        missing = sorted(set(range(len(images.info.classes))) - set(images.labels.tolist()))
        if missing:
            raise ArgumentError(f"the first {len(images)} images lack the classes {missing}; increase --limit")
        found, _ = _separation(images, None, 1)
        epsilon = found.radius * SHARE
        theory.check_separation(found, epsilon, self.layers)
        classes = images.info.classes
        net = theory.nearest_neighbour_net(images.pixels(), images.labels, len(classes), layers=self.layers)
        shares = _certified(net, images, epsilon)
        net.save(make_folder(out), class_names=classes)
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
        margin, interval = percent(shares["certified_margin"]), percent(shares["certified_interval"])
        console.print(f"{len(images)} training images of {images.info.title}: r = {float(found.radius):.6f}")
        console.print(f"{self.layers} layers, hidden {' × '.join(map(str, net.hidden))}, at eps = r (1 - 1e-5):")
        console.print(f"certified {margin} % by margin, {interval} % by interval bounds")
        console.print(f"net: {out}")
        console.print(f"next: linfnet evaluate {shlex.quote(str(out))} --data {self.data} --eps 0.1 --limit 100")

    def _three_points(self, out: Path) -> None:
        if self.layers not in (2, 3, 4) or self.limit is not None:
            raise ArgumentError(f"three-points needs 2 to 4 layers (--layers is {self.layers}) and no --limit")
        net = three_points_net(self.layers)
        nets = contenders(net)
        radii = {net.name: net.proven / RADIUS for net in nets}
        table = titled_table("three points: the share of r that interval bounds certify", ("net",), ("certified",))
        for name, share in radii.items():
            table.add_row(name, f"{share:.6f}")
        print_table(table)
        net.save(make_folder(out))
        write_json(out / "three-points.json", {"r": RADIUS, "proven_share_of_r": radii})
        draw_figure(out / "three-points.png", lambda path: draw_three_points(path, nets))
        console.print(f"net: {out}")


def _certified(net: LinfNet, images: ImageSet, epsilon: Fraction) -> dict[str, float]:
    """Return the certified fractions by margin and by interval for the program, and by margin in real arithmetic."""
    counts = torch.zeros(3, dtype=torch.int64)
    with progress_bar("certifying", len(images)) as advance:
        for start in range(0, len(images), inputs.BATCH):
            part = slice(start, start + inputs.BATCH)
            pixels, labels = images.pixels(part), images.labels[part]
            by_margin = certify_by_margin(net, pixels, labels)
            real = real_certified(by_margin.logits, labels, net.lipschitz, epsilon)
            flags = (by_margin.at(epsilon), certified_by_interval(net, pixels, labels, epsilon), real)
            counts += torch.stack(flags).sum(1).cpu()
            advance(len(labels))
    names = ("certified_margin", "certified_interval", "certified_real_margin")
    return {name: count / len(images) for name, count in zip(names, counts.tolist(), strict=True)}


@dataclass(frozen=True)
class Lipschitz(inputs.OnImages):
    """Compute upper and lower bounds on the Lipschitz constant of a trained net that is relaxed to a finite p.

    At p = infinity the constant is known. At a finite p, gradient ascent around each image finds a lower bound.

    Examples:
        linfnet lipschitz runs/first --p 8 --limit 100
    """

    model: ModelFolder
    p: Annotated[float, arg(metavar="P")] = 8.0
    """The exponent of all layers: a number >= 1, or inf."""
    eps: Annotated[str, arg(metavar="EPS")] = "1/255"
    """Radius of the balls in which the logits are compared, in pixel units."""
    steps: Number = 20
    """Number of steps in each gradient ascent; each step has size eps/4."""
    restarts: Number = 5
    """Number of gradient ascents for each image and label."""
    batch: Number = 100
    """Number of images in one batch; each image needs one row for every label."""
    seed: Number = 0
    """Seed of the starting points."""

    def run(self) -> None:
        p, epsilon = check_p(self.p, "--p"), parse_epsilon(self.eps, "--eps")
        at_least("--seed", self.seed, 0)
        inputs.check_counts(steps=self.steps, restarts=self.restarts)
        found, device = self.find(needs_eps=False, by_name=False)
        net = LinfNet.load(self.model, device=device)
        images = self.load_set(net, found, device)
        start = time.perf_counter()
        with progress_bar("ascending", len(images)) as advance:
            estimate = theory.lipschitz_estimate(
                net,
                images.pixels(),
                p,
                epsilon=epsilon,
                steps=self.steps,
                restarts=self.restarts,
                batch=self.batch,
                generator=torch.Generator(device).manual_seed(self.seed),
                advance=advance,
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
        layers = " × ".join(f"{bound:.4g}" for bound in estimate.layers)
        console.print(
            f"Lipschitz constant of the distance layers at p = {p:g}, in the l-infinity norm (at p = inf it is 1):"
        )
        console.print(
            f"  found on {len(images)} images: {summary['mean']:.4g} on average, {summary['max']:.4g} at most "
            f"({seconds:.0f} s)"
        )
        console.print(f"  proven for all images: at most {estimate.upper:.4g} (by layer: {layers})")
        console.print(
            f"The net first divides the pixels by {net.std:g}: if no pixel changes by more than d, no logit changes by "
            f"more than {estimate.upper * net.lipschitz:.4g} d."
        )
        console.print(f"result: {file}")
        draw_figure(file.with_suffix(".png"), lambda path: draw_quantiles(path, estimate))
