"""The cache of data sets: find a data set, decode a split, and verify its content hash."""

import hashlib
import os
from pathlib import Path

import numpy as np
import torch

from linfnet.data.catalog import FORMATS, Format, SetInfo, set_info
from linfnet.data.formats import Arrays
from linfnet.data.image_set import ImageSet
from linfnet.distributed.device import choose_device
from linfnet.errors import LinfnetError

_PACKAGE = Path(__file__).parent


def cache_folder() -> Path:
    """Return the cache folder: $LINFNET_DATA, or else $XDG_CACHE_HOME/linfnet, or else ~/.cache/linfnet.

    It has one folder for each data set.
    """
    user_cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("LINFNET_DATA") or Path(user_cache, "linfnet")).expanduser()


def _read_digits(paths: list[Path]) -> Arrays:
    split = paths[0].name
    with np.load(_PACKAGE / "digits.npz", allow_pickle=False) as arrays:
        return arrays[f"{split}_images"], arrays[f"{split}_labels"]


def find(name: str, folder: Path | None) -> tuple[Format, Path] | None:
    """Return the first format whose files are all present, and the folder of these files."""
    set_info(name)  # raises an error if the name is unknown
    if name == "digits":
        return Format({"train": ("train",), "test": ("test",)}, _read_digits), _PACKAGE
    root = cache_folder() if folder is None else folder
    for candidate in (root / name, root):
        for file_format in FORMATS[name]:
            if all((candidate / file).is_file() for file in file_format.all_files()):
                return file_format, candidate
    return None


def location(name: str, *, folder: Path | None = None) -> Path | None:
    """Return the folder with all files of a data set, or None if files are missing; the content is not verified."""
    found = find(name, folder)
    return found[1] if found else None


def present(name: str, *, folder: Path | None = None) -> bool:
    """Return whether all files of a data set are present; the content is not verified.

    >>> present("digits")
    True
    """
    return location(name, folder=folder) is not None


def read_verified(info: SetInfo, split: str, file_format: Format, folder: Path) -> Arrays:
    """Decode one split of the data set in `folder`, and verify its shape, size and content."""
    images, labels = file_format.read_split(folder, split)
    title, expected = f"the {split} split of {info.name} in {folder}", (info.sizes[split], *info.image_shape)
    if images.shape != expected:
        raise LinfnetError(f"{title} has images of shape {list(images.shape)}; expected {list(expected)}")
    digest = hashlib.sha256(np.ascontiguousarray(images).data)
    digest.update(np.ascontiguousarray(labels).data)
    if digest.hexdigest() != info.digests[split]:
        raise LinfnetError(f"{title} differs from the published data")
    return images, labels


def load(
    name: str, split: str = "train", *, folder: Path | None = None, device: torch.device | str = "cpu"
) -> ImageSet:
    """Load one split of a data set and verify its content.

    Args:
        name: one of `known_sets()`.
        split: "train" or "test".
        folder: the cache to use instead of `cache_folder()`, or the folder of the data set itself.
        device: the device of the tensors.

    >>> len(load("digits", "test"))
    360
    """
    info = set_info(name)
    if split not in info.sizes:
        raise LinfnetError(f"split is {split!r}; {name} has {' and '.join(map(repr, info.sizes))}")
    found = find(name, folder)
    if found is None:
        where = cache_folder() / name if folder is None else folder
        raise LinfnetError(
            f"{info.title} is missing or incomplete in {where}; fetch it with: linfnet data fetch {name}"
        )
    try:
        images, labels = read_verified(info, split, *found)
    except LinfnetError as error:
        raise LinfnetError(f"{error}; fetch it again with: linfnet data fetch {name}") from error
    # Copy the arrays: decoded bytes are read-only, but tensors must be writable.
    tensors = torch.tensor(images), torch.tensor(labels, dtype=torch.int64)
    return ImageSet(*tensors, info, split).to(choose_device(device))


def verify(name: str, *, folder: Path | None = None) -> Path:
    """Verify the content of all splits and return the folder; raise a `LinfnetError` if anything is wrong."""
    for split in set_info(name).sizes:
        load(name, split, folder=folder)
    found = location(name, folder=folder)
    assert found is not None
    return found
