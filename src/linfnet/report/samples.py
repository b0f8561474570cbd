"""Per-image results, read from the files that `linfnet evaluate` and `linfnet certify` write."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from linfnet.epsilon import parse_epsilon
from linfnet.errors import LinfnetError
from linfnet.files import read_tensors
from linfnet.results import storage as names


@dataclass(frozen=True)
class Samples:
    """N samples in the order of their data set; radii in pixel units."""

    labels: NDArray[np.int64]
    predictions: NDArray[np.int64]
    runners_up: NDArray[np.int64] | None
    radii: NDArray[np.float64] | None
    """Certified by margin for the floating-point program, -inf where misclassified; None without such certificates."""
    real_radii: NDArray[np.float64] | None
    """margin / 2 in real arithmetic, negative where misclassified."""
    interval_radii: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def same_images(self, other: "Samples") -> bool:
        """Whether both can describe the same images: equal number and labels."""
        return len(self) == len(other) and bool((self.labels == other.labels).all())


@dataclass(frozen=True)
class BrokenSamples:
    """Samples for which the attack found a misclassified image within epsilon."""

    index: list[int]
    images: Tensor
    predictions: list[int]


def read_samples(files: Sequence[Path]) -> Samples | None:
    """Read the samples of several evaluations of one image set from the newest file; None without files."""
    newest: Samples | None = None
    for file in sorted(files, key=lambda file: file.stat().st_mtime):
        samples = _read_table(file)
        if newest is not None and not newest.same_images(samples):
            raise LinfnetError(f"{file} and {files[0]} describe different samples: evaluate again, or remove one")
        newest = samples
    return newest


def _read_table(file: Path) -> Samples:
    """Read one CSV of `linfnet evaluate` or `linfnet certify`."""
    try:
        columns = names.read_columns(file)
        margin, interval = names.radius_column("margin"), names.radius_column("interval")

        def numbers(name: str) -> NDArray[np.float64]:
            return np.array(columns[name], dtype=np.float64)

        def classes(name: str) -> NDArray[np.int64]:
            return np.array(columns[name], dtype=np.int64)

        return Samples(
            labels=classes(names.LABEL),
            predictions=classes(names.PREDICTION),
            runners_up=classes(names.RUNNER_UP) if names.RUNNER_UP in columns else None,
            radii=numbers(margin) if margin in columns else None,
            real_radii=numbers(names.REAL_MARGIN_RADIUS) if margin in columns else None,
            interval_radii=numbers(interval) if interval in columns else None,
        )
    except (OSError, UnicodeDecodeError, ValueError, KeyError, csv.Error) as error:
        raise LinfnetError(f"{file} is not a table of samples ({type(error).__name__}: {error})") from None


def read_broken(file: Path) -> dict[Fraction, BrokenSamples]:
    """Read the broken samples of an evaluation, by epsilon."""
    tensors, _ = read_tensors(file)
    epsilons = [name.partition("@")[2] for name in tensors if name.startswith(f"{names.INDEX}@")]
    try:
        return {
            parse_epsilon(eps): BrokenSamples(
                tensors[f"{names.INDEX}@{eps}"].tolist(),
                tensors[f"{names.IMAGES}@{eps}"],
                tensors[f"{names.PREDICTIONS}@{eps}"].tolist(),
            )
            for eps in epsilons
        }
    except KeyError as error:
        raise LinfnetError(f"{file} lacks {error}: evaluate again, or remove it") from None
