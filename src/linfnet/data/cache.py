"""Where data sets lie, and how a split is loaded: found, decoded, checked against its content hash."""

import hashlib
import os
from pathlib import Path

import numpy as np
import torch

from linfnet.data.catalog import SetInfo, set_info
from linfnet.data.formats import Arrays, Bytes, Form, find_form
from linfnet.data.image_set import ImageSet
from linfnet.errors import LinfnetError

_PACKAGE = Path(__file__).parent


def cache_folder() -> Path:
    """The folder with one folder per data set: $LINFNET_DATA, else $XDG_CACHE_HOME/linfnet, else ~/.cache/linfnet."""
    if own := os.environ.get("LINFNET_DATA"):
        return Path(own).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "linfnet"


def content_digest(images: Bytes, labels: Bytes) -> str:
    """SHA-256 over the image bytes and then the label bytes, in hexadecimal: the same for every form of file."""
    digest = hashlib.sha256(np.ascontiguousarray(images).data)
    digest.update(np.ascontiguousarray(labels).data)
    return digest.hexdigest()


def _read_digits(paths: list[Path]) -> Arrays:
    split = paths[0].name
    with np.load(_PACKAGE / "digits.npz", allow_pickle=False) as arrays:
        return arrays[f"{split}_images"], arrays[f"{split}_labels"]


def _find(name: str, folder: Path | None) -> tuple[Form, Path] | None:
    """The form in which a set is there, and the folder it lies in."""
    if name == "digits":
        return Form({"train": ("train",), "test": ("test",)}, _read_digits), _PACKAGE
    root = cache_folder() if folder is None else folder
    for place in (root / name, root):
        if form := find_form(name, place):
            return form, place
    return None


def location(name: str, *, folder: Path | None = None) -> Path | None:
    """The folder in which all files of a set lie, their content unchecked; None if it is not there."""
    found = _find(set_info(name).name, folder)
    return found[1] if found else None


def present(name: str, *, folder: Path | None = None) -> bool:
    """Whether all files of a set are there, their content unchecked.

    >>> present("digits")
    True
    """
    return location(name, folder=folder) is not None


def read_checked(info: SetInfo, split: str, form: Form, place: Path) -> Arrays:
    """Decode one split of a set that lies in `place`, and check its shape, size and content."""
    images, labels = form.read(form.paths(place, split))
    wanted = (info.sizes[split], *info.image_shape)
    if images.shape != wanted:
        raise LinfnetError(
            f"the {split} split of {info.name} in {place} holds images {list(images.shape)}; wanted {list(wanted)}"
        )
    if content_digest(images, labels) != info.digests[split]:
        raise LinfnetError(f"the {split} split of {info.name} in {place} is not the published one")
    return images, labels


def load(
    name: str, split: str = "train", *, folder: Path | None = None, device: torch.device | str = "cpu"
) -> ImageSet:
    """Load one split of a data set, and check its content.

    Args:
        name: one of `known_sets()`.
        split: "train" or "test".
        folder: where to look instead of `cache_folder()`; the folder of the set itself will do too.
        device: where the tensors go.

    >>> len(load("digits", "test"))
    360
    """
    info = set_info(name)
    if split not in info.sizes:
        raise LinfnetError(f"split is {split!r}; {name} has {' and '.join(map(repr, info.sizes))}")
    found = _find(name, folder)
    if found is None:
        where = cache_folder() / name if folder is None else folder
        raise LinfnetError(f"{info.title} is not in {where}, or not wholly; get it with: linfnet data fetch {name}")
    try:
        images, labels = read_checked(info, split, *found)
    except LinfnetError as error:
        raise LinfnetError(f"{error}; get it again with: linfnet data fetch {name}") from error
    # A copy, as tensors may be written to and decoded bytes may not.
    return ImageSet(torch.tensor(images), torch.tensor(labels, dtype=torch.int64), info, split).to(device)


def verify(name: str, *, folder: Path | None = None) -> Path:
    """Read a whole set, check its content, and say where it lies; a `LinfnetError` tells what is wrong."""
    for split in set_info(name).sizes:
        load(name, split, folder=folder)
    place = location(name, folder=folder)
    assert place is not None
    return place
