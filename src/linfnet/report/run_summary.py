"""The contents of a run folder for a report, including individual samples, with a note for every missing part."""

import csv
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from linfnet.data import ImageSet, known_sets, load, load_split
from linfnet.errors import LinfnetError
from linfnet.files import read_table, read_tensors
from linfnet.nn.model_card import names_in
from linfnet.nn.model_path import packaged_hint
from linfnet.recipes import Recipe
from linfnet.results import PGD_100, Result, Results, guarantee, read_results, storage
from linfnet.train import RunFolder


@dataclass(frozen=True)
class Samples:
    """N samples in the order of their data set; radii are in pixel units."""

    labels: NDArray[np.int64]
    predictions: NDArray[np.int64]
    runners_up: NDArray[np.int64] | None
    radii: NDArray[np.float64] | None
    """Certified by margin for the floating-point program; -inf if misclassified. None without such certificates."""
    real_radii: NDArray[np.float64] | None
    """Half the margin in real arithmetic, negative if misclassified."""
    interval_radii: NDArray[np.float64] | None = None
    exact_radii: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def same_images(self, other: "Samples") -> bool:
        """Return whether both can describe the same images, which is true if their labels are equal."""
        return len(self) == len(other) and bool((self.labels == other.labels).all())


@dataclass(frozen=True)
class BrokenSamples:
    """Samples for which the attack found a misclassified image within epsilon."""

    index: list[int]
    images: Tensor
    predictions: list[int]


@dataclass(frozen=True, eq=False)
class RunSummary:
    """The contents of a run or model folder."""

    path: Path
    name: str
    recipe: Recipe | None
    config: dict[str, Any]
    environment: dict[str, Any]
    results: Results
    events: list[dict[str, Any]]
    finished: bool
    in_training: bool = False
    """Whether a process is training the run now."""
    main: tuple[Result, ...] = ()
    """The evaluations that the curve, the histogram and the gallery show, of one image set, sorted by epsilon."""
    samples: Samples | None = None
    broken: dict[Fraction, BrokenSamples] = field(default_factory=dict[Fraction, BrokenSamples])
    images: ImageSet | None = None
    notes: tuple[str, ...] = ()

    @property
    def epsilon(self) -> Fraction | None:
        """The epsilon of the headline: the first in the recipe, or else the largest evaluated epsilon."""
        if self.recipe is not None:
            return self.recipe.evaluation.eps[0]
        return self.main[-1].eps if self.main else None

    @property
    def at_epsilon(self) -> Result | None:
        """The main evaluation at `epsilon`, or None."""
        return next((result for result in self.main if result.eps == self.epsilon), None)

    @property
    def guarantee(self) -> str:
        """What the radii promise, as a phrase. Only nets with certificates for float32 have margins as radii."""
        return self.main[0].guarantee if self.main else guarantee("float32")

    def class_name(self, index: int) -> str:
        """Return the name of a class."""
        names = names_in(self.config)
        return names[index] if index < len(names) else str(index)


def read_training(path: Path) -> RunSummary:
    """Read the settings, events and results of a run or model folder, but no samples."""
    if not path.is_dir():
        raise LinfnetError(f"{path} is not a folder{packaged_hint(path)}")
    folder = RunFolder.open(path) if (path / "recipe.toml").is_file() else None
    if folder is None and not (path / "config.json").is_file():
        raise LinfnetError(f"{path} is not a run or model folder: it has neither recipe.toml nor config.json")
    return RunSummary(
        path=path,
        name=path.resolve().name,
        recipe=folder.recipe if folder else None,
        config=_table(path / "config.json"),
        environment=_table(path / "env.json"),
        results=read_results(path),
        events=folder.events() if folder else [],
        finished=folder.finished if folder else True,
        in_training=folder.locked if folder else False,
    )


def read_run(path: Path) -> RunSummary:
    """Read a run or model folder; a missing part adds a note, and an unreadable file raises an error that names it."""
    run = read_training(path)
    data = run.recipe.data.name if run.recipe else None
    main = _main_evaluations(run.results, data)
    samples, broken = _read_samples(path, main)
    if samples is not None and main and main[0].count != len(samples):
        raise LinfnetError(
            f"the table of samples in {path} has {len(samples):,} samples, but {storage.RESULTS_FILE} reports "
            f"{main[0].count:,}: evaluate again"
        )
    images, missing = None, tuple[str, ...]()
    if samples is not None and (main or data):
        source = (main[0].data, main[0].split, main[0].limit) if main else (str(data), "test", None)
        images, missing = _read_images(*source, samples, run.recipe)
    run = replace(run, main=main, samples=samples, broken=broken, images=images)
    return replace(run, notes=(*_notes(run), *missing))


def _table(file: Path) -> dict[str, Any]:
    return read_table(file) if file.is_file() else {}


def _main_evaluations(results: Results, data: str | None) -> tuple[Result, ...]:
    """Return the evaluations of the largest test set, preferring the default attack, then the most epsilons."""
    own = [r for r in results.evaluations if not r.net and r.split == "test"]
    own = [r for r in own if r.data in ((data,) if data else known_sets())]
    sets = [r.images for r in own]
    best = max(own, key=lambda r: (r.count, r.attack == PGD_100, sets.count(r.images)), default=None)
    return tuple(sorted((r for r in own if best and r.images == best.images), key=lambda r: r.eps))


def _read_samples(path: Path, main: tuple[Result, ...]) -> tuple[Samples | None, dict[Fraction, BrokenSamples]]:
    """Read the samples of the main evaluations, or the table of `linfnet certify` if there is no evaluation."""
    certified = path / storage.RADII_FILE
    if not main:
        return _read_tables([certified] if certified.is_file() else []), {}
    samples = _read_tables(storage.sample_files(path, main[0]))
    if samples is not None and certified.is_file():
        proven = _read_tables([certified])
        if proven is not None and proven.same_images(samples):
            samples = replace(samples, interval_radii=proven.interval_radii, exact_radii=proven.exact_radii)
    broken: dict[Fraction, BrokenSamples] = {}
    for file in storage.broken_files(path, main[0]):
        broken |= _read_broken(file)
    return samples, broken


def _read_tables(files: Sequence[Path]) -> Samples | None:
    """Read the samples of several evaluations of one image set from the newest file; return None without files."""
    newest: Samples | None = None
    for file in sorted(files, key=lambda file: file.stat().st_mtime):
        samples = _read_table(file)
        if newest is not None and not newest.same_images(samples):
            raise LinfnetError(
                f"{file} and {files[0]} describe different samples: evaluate again, or remove one of them"
            )
        newest = samples
    return newest


def _read_table(file: Path) -> Samples:
    """Read one CSV of `linfnet evaluate` or `linfnet certify`."""
    try:
        columns = storage.read_columns(file)
        margin, interval, exact = map(storage.radius_column, ("margin", "interval", "exact"))

        def numbers(name: str) -> NDArray[np.float64]:
            return np.array(columns[name], dtype=np.float64)

        def classes(name: str) -> NDArray[np.int64]:
            return np.array(columns[name], dtype=np.int64)

        return Samples(
            labels=classes(storage.LABEL),
            predictions=classes(storage.PREDICTION),
            runners_up=classes(storage.RUNNER_UP) if storage.RUNNER_UP in columns else None,
            radii=numbers(margin) if margin in columns else None,
            real_radii=numbers(storage.REAL_MARGIN_RADIUS) if margin in columns else None,
            interval_radii=numbers(interval) if interval in columns else None,
            exact_radii=numbers(exact) if exact in columns else None,
        )
    except (OSError, UnicodeDecodeError, ValueError, KeyError, csv.Error) as error:
        raise LinfnetError(f"{file} is not a table of samples ({type(error).__name__}: {error})") from None


def _read_broken(file: Path) -> dict[Fraction, BrokenSamples]:
    """Read the broken samples of an evaluation, by epsilon."""
    tensors, _ = read_tensors(file)
    try:
        return {
            eps: BrokenSamples(
                tensors[storage.at_epsilon(storage.INDEX, eps)].tolist(),
                tensors[storage.at_epsilon(storage.IMAGES, eps)],
                tensors[storage.at_epsilon(storage.PREDICTIONS, eps)].tolist(),
            )
            for eps in storage.epsilons_in(tensors)
        }
    except KeyError as error:
        raise LinfnetError(f"{file} lacks {error}: evaluate again, or remove the file") from None


def _read_images(
    data: str, split: str, limit: int | None, samples: Samples, recipe: Recipe | None
) -> tuple[ImageSet | None, tuple[str, ...]]:
    """Return the images of the samples, or None and a note if they are not available or do not match."""
    own = recipe.data if recipe is not None and recipe.data.name == data and data not in known_sets() else None
    if own is None and data not in known_sets():
        return None, (f"There is no gallery, because {data} is neither a known data set nor the data of the run.",)
    try:
        images = (load(data, split) if own is None else load_split(own, split)).first(limit)
    except LinfnetError as error:
        return None, (f"There is no gallery, because the test images are not on this machine: {error}",)
    if len(images) < len(samples) or images.labels[: len(samples)].tolist() != samples.labels.tolist():
        return None, (f"There is no gallery, because the samples do not match {data} {split}.",)
    return images, ()


def _notes(run: RunSummary) -> list[str]:
    """Return notes about the parts that cannot be shown, with the commands that add them."""
    path, notes = shlex.quote(str(run.path)), list[str]()
    if run.in_training and not run.finished:
        notes.append("The run is still training; this page shows its state so far.")
    elif run.recipe is not None and not run.finished:
        notes.append(f"The run has not finished. Resume it with: linfnet train --resume {path}")
    elif not run.main:
        notes.append(f"The net has not been evaluated on its test images. Evaluate it with: linfnet evaluate {path}")
    if run.recipe is not None and not any(event["event"] == "epoch" for event in run.events):
        notes.append("There are no training curves, because no epoch has been logged.")
    if run.main and run.samples is None:
        notes.append(
            "The table of samples is missing: the curve shows only the evaluated ε, and there is no gallery. "
            f"Write the table with: linfnet evaluate {path}"
        )
    elif run.samples is not None and run.samples.radii is None:
        notes.append("The net has no margin certificate, so there are no radii: the curve shows only the evaluated ε.")
    if run.samples is not None and run.main and not run.broken:
        notes.append(f"Images that break the net were not saved. Save some with: linfnet evaluate {path}")
    return notes
