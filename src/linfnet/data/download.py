"""Files from the network and out of archives, written under names of our own choice only."""

import http.client
import shutil
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

from linfnet.errors import LinfnetError

Progress = Callable[[str, int, int | None], None]
"""Told what is being fetched, how many bytes came so far, and how many there are if that is known."""

_TIMEOUT = 30.0
_CHUNK = 2**18
_MOST_BYTES = 2**28


def no_progress(what: str, done: int, total: int | None) -> None:
    """Tells nobody."""


def download(address: str, target: Path, progress: Progress = no_progress) -> None:
    """Write what lies at `address` into the file `target`; a transfer cut short is an error."""
    request = urllib.request.Request(address, headers={"User-Agent": "linfnet"})
    what = address.rsplit("/", 1)[-1]
    done, total = 0, None
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer, target.open("wb") as file:
            length = answer.headers.get("Content-Length")
            total = int(length) if length else None
            progress(what, 0, total)
            while chunk := answer.read(_CHUNK):
                file.write(chunk)
                done += len(chunk)
                if done > _MOST_BYTES:
                    raise LinfnetError(f"{address} is longer than {_MOST_BYTES} bytes: not a data set")
                progress(what, done, total)
    except urllib.error.HTTPError as error:
        # The error is itself an open answer.
        error.close()
        raise LinfnetError(f"{address} answered {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise LinfnetError(f"{address} cannot be fetched: {reason}") from error
    if total is not None and done != total:
        raise LinfnetError(f"{address} was cut short: {done} of {total} bytes came")


def extract(archive: Path, members: Mapping[str, Path]) -> None:
    """Write the plain files `members` of a gzipped tar file, each to the path given for it, and nothing else."""
    missing = set(members)
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                if member.name not in missing or not member.isfile():
                    continue
                if member.size > _MOST_BYTES:
                    raise LinfnetError(f"{member.name} in {archive.name} is too long: {member.size} bytes")
                content = tar.extractfile(member)
                assert content is not None  # a plain file has content
                with content, members[member.name].open("wb") as file:
                    shutil.copyfileobj(content, file)
                missing.remove(member.name)
                if not missing:
                    break
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise LinfnetError(f"{archive.name} is a damaged archive: {error}") from error
    if missing:
        raise LinfnetError(f"{archive.name} does not hold {', '.join(sorted(missing))}")
