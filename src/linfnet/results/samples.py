"""The files beside results.json that describe single images: their names and columns.

`samples-IMAGES-eps-EPSILONS.csv` has a row for each image, `….broken.safetensors` a few images that the attack found.
`linfnet certify` writes radii.csv with the same columns.
"""

import csv
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from linfnet.epsilon import format_epsilon
from linfnet.files import replacing
from linfnet.results.result import AttackSettings, Result

LABEL, PREDICTION, RUNNER_UP, MARGIN = "label", "prediction", "runner_up", "margin"
REAL_MARGIN_RADIUS = "real_margin_radius"
# The tensors of a file of broken images, each with one entry per image.
INDEX, IMAGES, PREDICTIONS = "index", "images", "predictions"
# File systems allow 255 bytes in a file name; this many may be epsilons.
_LONGEST = 100


def radius_column(certificate: str) -> str:
    """The column of the radii of a certificate: margin_radius, interval_radius, …"""
    return f"{certificate}_radius"


def certified_column(certificate: str, eps: Fraction) -> str:
    """The column that says which images are certified at epsilon."""
    return at_epsilon(f"certified_{certificate}", eps)


def attacked_column(attack: AttackSettings, eps: Fraction) -> str:
    """The column that says which images survived the attack at epsilon."""
    return at_epsilon(f"{attack.name}{attack.steps}", eps)


def at_epsilon(name: str, eps: Fraction) -> str:
    """The name of a column or tensor that holds for one epsilon.

    >>> at_epsilon(INDEX, Fraction(8, 255))
    'index@8/255'
    """
    return f"{name}@{format_epsilon(eps)}"


def samples_path(folder: Path, results: Sequence[Result]) -> Path:
    """The CSV of one evaluation, which may cover several epsilons.

    >>> result = Result("mnist", "test", 500, Fraction(8, 255), 0.9, 0.8, {"margin": 0.7}, limit=500)
    >>> samples_path(Path("run"), [result]).name
    'samples-mnist-test-first-500-eps-8-255.csv'
    """
    epsilons = "_".join(format_epsilon(result.eps).replace("/", "-") for result in results)
    if len(epsilons) > _LONGEST:
        digest = hashlib.sha256(epsilons.encode()).hexdigest()[:8]
        epsilons = f"{epsilons[:_LONGEST].rpartition('_')[0]}_and-more-{digest}"
    return folder / f"samples-{results[0].images}-eps-{epsilons}.csv"


def broken_path(samples: Path) -> Path:
    """The file of broken images beside a CSV of samples."""
    return samples.with_suffix(".broken.safetensors")


def sample_files(folder: Path, result: Result) -> list[Path]:
    """The CSVs of all evaluations of the same images with the same attack, at whatever epsilons."""
    return sorted(folder.glob(f"samples-{result.images}-eps-*.csv"))


def broken_files(folder: Path, result: Result) -> list[Path]:
    """The files of broken images of the same evaluations."""
    return sorted(folder.glob(f"samples-{result.images}-eps-*.broken.safetensors"))


def write_columns(path: Path, columns: Mapping[str, Iterable[Any]]) -> None:
    """Write columns of equal length as CSV, in one step."""
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def read_columns(path: Path) -> dict[str, tuple[str, ...]]:
    """The columns of a CSV by name, as text; raises ValueError where rows differ in length."""
    with path.open(newline="", encoding="utf-8") as file:
        header, *rows = list(csv.reader(file))
    return dict(zip(header, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(header, ())
