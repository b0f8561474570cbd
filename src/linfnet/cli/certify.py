"""`linfnet certify`: what is proven about each image of a data set, a folder or an array."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import tyro
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor

from linfnet.certificates import Certification, certify_images, plot_curve, write_curve, write_radii
from linfnet.cli.console import console, guarantee, percent
from linfnet.cli.image_files import read_images
from linfnet.cli.predict import format_radius
from linfnet.cli.train import pick_device
from linfnet.data import known_sets, load
from linfnet.epsilon import format_epsilon, parse_epsilon
from linfnet.errors import ArgumentError, LinfnetError, at_least
from linfnet.files import make_folder
from linfnet.nn import Classifier
from linfnet.nn.model_path import class_names, find_model, packaged_hint
from linfnet.systems import load_model
from linfnet.train import RunFolder, resume_hint

BATCH = 500
# So many images are shown one by one; more are summed up.
SHOWN = 20


@dataclass(frozen=True)
class Subject:
    """The images to work on: pixels [N, C, H, W], their names, and their labels where those are known."""

    pixels: Tensor
    names: list[str]
    labels: Tensor | None
    title: str

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Pixels and labels, `size` at a time."""
        for start in range(0, len(self.pixels), size):
            part = slice(start, start + size)
            yield self.pixels[part], None if self.labels is None else self.labels[part]


def run_of(model: Path) -> RunFolder | None:
    """The finished run a folder holds, if it is more than a model."""
    if not model.is_dir():
        raise LinfnetError(f"{model} is not a folder{packaged_hint(model)}")
    if not (model / "recipe.toml").is_file():
        return None
    run = RunFolder.open(model)
    if not run.finished:
        raise LinfnetError(f"{model} has not finished; {resume_hint(model)}")
    return run


def find_subject(data: str, split: str, limit: int | None, net: Classifier, device: torch.device) -> Subject:
    """A known data set, or else the user's own folder or file."""
    if limit is not None:
        at_least("--limit", limit, 1)
    if data not in known_sets() and Path(data).exists():
        pixels, names = read_images(Path(data), net.image_shape)
        return Subject(pixels[:limit].to(device), names[:limit], None, data)
    images = load(data, split, device=device).first(limit)
    if images.info.image_shape != net.image_shape:
        raise LinfnetError(f"the net is for images of shape {net.image_shape}; {data} has {images.info.image_shape}")
    names = [str(k) for k in range(len(images))]
    return Subject(images.pixels(), names, images.labels, f"{data} {split}")


@dataclass(frozen=True)
class Certify:
    """Prove, image by image, how far each pixel may change without changing the class (in the program itself)."""

    model: tyro.conf.Positional[Path]
    """A finished run, any folder with model.safetensors and config.json, mnist-small, or hf://user/name."""
    data: str | None = None
    """A data set, a folder of images or a .npy array; by default the run's own data set."""
    eps: tyro.conf.UseAppendAction[tuple[tuple[str, ...], ...]] = ()
    """Perturbations in pixel units, as 8/255 or 0.1; by default those of the run's recipe."""
    split: Literal["test", "train"] = "test"
    """Which images of a data set."""
    limit: int | None = None
    """Only the first so many images."""
    out: Path | None = None
    """A folder for radii.csv, curve.csv and curve.png (the latter with the extra `plots`)."""
    device: str = "auto"
    """cpu, cuda, …; auto takes a GPU if there is one."""

    def run(self) -> int:
        """Print what holds at each epsilon; write radii and curve if asked to."""
        asked = tuple(parse_epsilon(text, "--eps") for group in self.eps for text in group)
        device = pick_device(self.device)
        model = find_model(self.model)
        run = run_of(model)
        data = self.data or (run.recipe.data.name if run else None)
        if data is None:
            raise ArgumentError(f"{self.model} has no recipe.toml: give --data")
        epsilons = asked or (run.recipe.evaluation.eps if run else ())
        net = load_model(model, device=device)
        subject = find_subject(data, self.split, self.limit, net, device)
        columns = (TextColumn("certifying"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
            task = progress.add_task("", total=len(subject.pixels))
            found = certify_images(
                net, subject.batches(BATCH), epsilons, advance=lambda count: progress.advance(task, count)
            )
        if subject.labels is None and len(subject.names) <= SHOWN:
            console.print(_images_table(found, subject, class_names(model, net.classes)))
        console.print(_shares_table(found, subject))
        if self.out is not None:
            self._write(self.out, found, subject)
        return 0

    def _write(self, out: Path, found: Certification, subject: Subject) -> None:
        make_folder(out)
        write_radii(found, out / "radii.csv", subject.names)
        rows = found.curve()
        write_curve(rows, out / "curve.csv", found.certificates)
        console.print(f"radii and curve: {out}")
        try:
            plot_curve(rows, out / "curve.png", f"{self.model.name} on {subject.title}", found.certificates)
        except LinfnetError as error:
            console.print(f"no plot: {error}", markup=False)


def _images_table(found: Certification, subject: Subject, names: list[str]) -> Table:
    table = Table("image", "class", *(f"{name} radius" for name in found.certificates), "runner-up")
    radii = (found.margin_radii, found.interval_radii)[-len(found.certificates) :]
    rows = zip(
        subject.names, found.predictions.tolist(), zip(*(column.tolist() for column in radii), strict=True),
        found.runners_up.tolist(), strict=True,
    )  # fmt: skip
    for image, first, proven, second in rows:
        table.add_row(image, names[first], *map(format_radius, proven), names[second])
    return table


def _shares_table(found: Certification, subject: Subject) -> Table:
    whole = "right" if subject.labels is not None else "without a tie"
    table = Table(title=f"{len(subject.names)} images of {subject.title}, in %", title_justify="left")
    table.add_column("eps")
    for name in (whole, *(f"certified ({name})" for name in found.certificates)):
        table.add_column(name, justify="right")
    kept = slice(-len(found.certificates), None)
    for epsilon, *held in zip(found.epsilons, found.by_margin, found.by_interval, strict=True):
        shares = (found.clean, *(flags.double().mean().item() for flags in held[kept]))
        table.add_row(format_epsilon(epsilon), *map(percent, shares))
    medians = [radii.clamp(min=0).median().item() for radii in (found.margin_radii, found.interval_radii)[kept]]
    table.add_row("median radius", "", *map(format_radius, medians), style="dim")
    if found.arithmetic == "real":
        table.caption = guarantee(found.arithmetic, found.confidence)
    return table
