"""What was measured of each test image, read back from the files that evaluation and certification left."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from linfnet.errors import LinfnetError
from linfnet.files import read_tensors


@dataclass(frozen=True)
class Samples:
    """N samples in the order of their data set; radii in pixel units."""

    labels: NDArray[np.int64]
    predictions: NDArray[np.int64]
    runners_up: NDArray[np.int64] | None
    radii: NDArray[np.float64] | None
    """Proven by the margin for the program, -inf where the prediction is wrong; None for a net without such proofs."""
    real_radii: NDArray[np.float64] | None
    """margin / 2 in pixel units, negative where wrong."""
    interval_radii: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def same_images(self, other: "Samples") -> bool:
        """Whether the others can be the same images seen by the same net, perhaps on another device."""
        return len(self) == len(other) and bool((self.labels == other.labels).all())


@dataclass(frozen=True)
class BrokenSamples:
    """Samples with images within epsilon of them that the net takes for something else."""

    index: list[int]
    images: Tensor
    predictions: list[int]


def read_samples(files: Sequence[Path]) -> Samples | None:
    """The samples of several evaluations of one set, as the newest file has them; None for none."""
    newest: Samples | None = None
    for file in sorted(files, key=lambda file: file.stat().st_mtime):
        found = _read_table(file)
        if newest is not None and not newest.same_images(found):
            raise LinfnetError(f"{file} tells of other samples than {files[0]}: evaluate again, or remove one of them")
        newest = found
    return newest


def _read_table(file: Path) -> Samples:
    """One CSV, of `linfnet evaluate` or of `linfnet certify`."""
    try:
        with file.open(newline="", encoding="utf-8") as lines:
            header, *rows = list(csv.reader(lines))
        columns = dict(zip(header, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(header, ())

        def numbers(name: str) -> NDArray[np.float64]:
            return np.array(columns[name], dtype=np.float64)

        def classes(name: str) -> NDArray[np.int64]:
            return np.array(columns[name], dtype=np.int64)

        return Samples(
            labels=classes("label"),
            predictions=classes("prediction"),
            runners_up=classes("runner_up") if "runner_up" in columns else None,
            radii=numbers("margin_radius") if "margin_radius" in columns else None,
            real_radii=numbers("real_margin_radius") if "margin_radius" in columns else None,
            interval_radii=numbers("interval_radius") if "interval_radius" in columns else None,
        )
    except (OSError, UnicodeDecodeError, ValueError, KeyError, csv.Error) as error:
        raise LinfnetError(f"{file} is not a table of samples ({type(error).__name__}: {error})") from None


def read_broken(file: Path) -> dict[str, BrokenSamples]:
    """The broken samples of an evaluation, by the name of epsilon."""
    tensors, _ = read_tensors(file)
    try:
        return {
            name.split("@")[1]: BrokenSamples(
                index.tolist(),
                tensors[name.replace("index@", "images@")],
                tensors[name.replace("index@", "predictions@")].tolist(),
            )
            for name, index in tensors.items()
            if name.startswith("index@")
        }
    except KeyError as error:
        raise LinfnetError(f"{file} lacks {error}: evaluate again, or remove it") from None
