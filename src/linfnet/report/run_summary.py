"""A run as a report sees it: everything its folder tells, and a note for everything it does not."""

import re
import shlex
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from linfnet.data import ImageSet, known_sets, load
from linfnet.epsilon import parse_epsilon
from linfnet.errors import LinfnetError
from linfnet.files import read_table
from linfnet.nn.model_card import names_in
from linfnet.nn.model_path import packaged_hint
from linfnet.recipes import Recipe
from linfnet.report.samples import BrokenSamples, Samples, read_broken, read_samples
from linfnet.train import RunFolder, read_results

_KEY = re.compile(r"(?P<what>.+) eps=(?P<eps>\S+)")
_FIRST = re.compile(r"-first-(\d+)")
_CERTIFIED = re.compile(r"certified_(?!and_broken)\w+")
_STEPS = re.compile(r"-pgd-\d+$")


@dataclass(frozen=True)
class Measured:
    """One entry of results.json: accuracies in [0, 1] on one set at one epsilon."""

    what: str
    name: str
    """Epsilon as it was typed: 8/255, 0.1."""
    epsilon: Fraction
    samples: int
    clean: float
    pgd: float
    pgd_steps: int
    certified: dict[str, float]
    """By the name of each certificate: margin and interval, or the one of another system."""
    arithmetic: str = "float32"
    """What the certificates speak of: the program, or real numbers."""
    confidence: float = 1.0
    """With which probability each certificate holds."""

    @property
    def best(self) -> float:
        """The larger share of all certificates."""
        return max(self.certified.values())


@dataclass(frozen=True, eq=False)
class RunRecord:
    """What the folder of a run holds."""

    path: Path
    name: str
    recipe: Recipe | None
    config: dict[str, Any]
    environment: dict[str, Any]
    results: dict[str, Any]
    events: list[dict[str, Any]]
    finished: bool
    held: bool = False
    """Whether some process is training it now."""
    measured: tuple[Measured, ...] = ()
    """All evaluations, those of the main set first."""
    what: str | None = None
    """The main set: the one the curve, the histogram and the gallery are drawn from."""
    samples: Samples | None = None
    broken: dict[str, BrokenSamples] = field(default_factory=dict[str, BrokenSamples])
    images: ImageSet | None = None
    notes: tuple[str, ...] = ()

    @property
    def main(self) -> tuple[Measured, ...]:
        """The evaluations of the main set, by rising epsilon."""
        return tuple(sorted((m for m in self.measured if m.what == self.what), key=lambda m: m.epsilon))

    @property
    def epsilon(self) -> Fraction | None:
        """The perturbation the run is about: the recipe's, or the largest that was measured."""
        if self.recipe is not None:
            return self.recipe.evaluation.eps[0]
        return self.main[-1].epsilon if self.main else None

    @property
    def at_epsilon(self) -> Measured | None:
        """The main evaluation at that perturbation."""
        return next((m for m in self.main if m.epsilon == self.epsilon), None)

    def class_name(self, index: int) -> str:
        """A class in words."""
        names = names_in(self.config)
        return names[index] if index < len(names) else str(index)


def read_training(path: Path) -> RunRecord:
    """A run or model folder as far as training goes: settings, events and results, no samples."""
    if not path.is_dir():
        raise LinfnetError(f"{path} is not a folder{packaged_hint(path)}")
    folder = RunFolder.open(path) if (path / "recipe.toml").is_file() else None
    if folder is None and not (path / "config.json").is_file():
        raise LinfnetError(f"{path} is no run or model folder: it has neither recipe.toml nor config.json")
    return RunRecord(
        path=path,
        name=path.resolve().name,
        recipe=folder.recipe if folder else None,
        config=_table(path / "config.json"),
        environment=_table(path / "env.json"),
        results=read_results(path),
        events=folder.events() if folder else [],
        finished=folder.finished if folder else True,
        held=folder.locked if folder else False,
    )


def read_run(path: Path) -> RunRecord:
    """Read a run or model folder; what is missing becomes a note, what is broken an error that names the file."""
    record = read_training(path)
    measured = tuple(found for key, entry in record.results.items() if (found := _measured(key, entry)))
    data = record.recipe.data.name if record.recipe else None
    what = _main_set(measured, data)
    samples, broken = _read_samples(path, what)
    counted = next((m.samples for m in measured if m.what == what), None)
    if samples is not None and counted not in (None, len(samples)):
        raise LinfnetError(
            f"the table of samples in {path} has {len(samples):,} samples, but results.json tells of {counted:,}: "
            "evaluate again"
        )
    images, missing = _read_images(what or (f"{data}-test" if data else None), samples)
    ordered = tuple(sorted(measured, key=lambda m: m.what != what))
    record = replace(record, measured=ordered, what=what, samples=samples, broken=broken, images=images)
    return replace(record, notes=(*_notes(record), *missing))


def _table(file: Path) -> dict[str, Any]:
    return read_table(file) if file.is_file() else {}


def _measured(key: str, entry: Any) -> Measured | None:
    """The evaluation under a key of results.json; None for entries of other kinds."""
    match = _KEY.fullmatch(key)
    if match is None or not isinstance(entry, dict):
        return None
    certified = {name[10:]: share for name, share in entry.items() if _CERTIFIED.fullmatch(name)}
    try:
        figures = {name: entry[name] for name in ("samples", "clean", "pgd", "pgd_steps")}
        epsilon = parse_epsilon(match["eps"])
    except (KeyError, LinfnetError):
        return None
    if not certified or not all(isinstance(value, int | float) for value in (*figures.values(), *certified.values())):
        return None
    return Measured(
        match["what"],
        match["eps"],
        epsilon,
        **figures,
        certified=certified,
        arithmetic=str(entry.get("arithmetic", "float32")),
        confidence=float(entry.get("confidence", 1)),
    )


def _main_set(measured: tuple[Measured, ...], data: str | None) -> str | None:
    """The set with most samples; among equals the run's own test set, then the one with most epsilons."""
    counts = {m.what: sum(other.what == m.what for other in measured) for m in measured}
    own = [m for m in measured if m.what.split("-test")[0] in ((data,) if data else known_sets())]
    best = max(own, key=lambda m: (m.samples, not _STEPS.search(m.what), counts[m.what]), default=None)
    return best.what if best else None


def _read_samples(path: Path, what: str | None) -> tuple[Samples | None, dict[str, BrokenSamples]]:
    """The samples of the main set, or those of `linfnet certify` where there was no evaluation."""
    certified = path / "radii.csv"
    if what is None:
        return read_samples([certified] if certified.is_file() else []), {}
    files = sorted(path.glob(f"samples-{what}-eps-*.csv"))
    samples = read_samples(files)
    if samples is not None and certified.is_file():
        proven = read_samples([certified])
        if proven is not None and proven.same_images(samples):
            samples = replace(samples, interval_radii=proven.interval_radii)
    broken: dict[str, BrokenSamples] = {}
    for file in sorted(path.glob(f"samples-{what}-eps-*.broken.safetensors")):
        broken |= read_broken(file)
    return samples, broken


def _read_images(what: str | None, samples: Samples | None) -> tuple[ImageSet | None, tuple[str, ...]]:
    """The images of the main set, if they are at hand and the samples are theirs."""
    if what is None or samples is None:
        return None, ()
    data = next((name for name in sorted(known_sets(), key=len, reverse=True) if what.startswith(f"{name}-")), None)
    if data is None:
        return None, (f"The images of {what} are not of a known data set: there is no gallery.",)
    split = "train" if what.startswith(f"{data}-train") else "test"
    first = _FIRST.search(what)
    try:
        images = load(data, split).first(int(first[1]) if first else None)
    except LinfnetError as error:
        return None, (f"The test images are not on this machine, so there is no gallery: {error}",)
    if len(images) < len(samples) or images.labels[: len(samples)].tolist() != samples.labels.tolist():
        return None, (f"The samples are not those of {data} {split}, so there is no gallery.",)
    return images, ()


def _notes(record: RunRecord) -> list[str]:
    """What cannot be shown, and the command that would mend it."""
    path, notes = shlex.quote(str(record.path)), list[str]()
    if record.held and not record.finished:
        notes.append("The run is still training: this is how far it has come.")
    elif record.recipe is not None and not record.finished:
        notes.append(f"The run has not finished. Go on with: linfnet train --resume {path}")
    elif record.what is None:
        notes.append(f"The net has not been evaluated on its test images. Do so with: linfnet evaluate {path}")
    if record.recipe is not None and not any(event["event"] == "epoch" for event in record.events):
        notes.append("No epoch of training has been logged: there are no training curves.")
    if record.what is not None and record.samples is None:
        notes.append(
            f"The table of samples is missing: the curve has only what was measured, and there is no gallery. "
            f"Write it with: linfnet evaluate {path}"
        )
    elif record.samples is not None and record.samples.radii is None:
        notes.append("The net has no margin certificate: there are no radii, so the curve has only what was measured.")
    if record.samples is not None and record.what is not None and not record.broken:
        notes.append(f"Images that break the net were not kept. Keep some with: linfnet evaluate {path}")
    return notes
