"""Where data sets lie, and how a split is loaded: found, decoded, checked against its content hash."""

import hashlib
import os
from pathlib import Path

import numpy as np
import torch

from linfnet.data.images import ImageSet
from linfnet.data.sets import SetInfo, set_info
from linfnet.errors import LinfnetError

Arrays = tuple[np.ndarray, np.ndarray]
"""Images, uint8 [N, C, H, W], and labels, uint8 [N]."""


def cache_folder() -> Path:
    """The folder with one folder per data set: $LINFNET_DATA, else $XDG_CACHE_HOME/linfnet, else ~/.cache/linfnet."""
    if own := os.environ.get("LINFNET_DATA"):
        return Path(own).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "linfnet"


def content_digest(images: np.ndarray, labels: np.ndarray) -> str:
    """SHA-256 over the image bytes and then the label bytes, in hexadecimal: the same for every form of file."""
    digest = hashlib.sha256(np.ascontiguousarray(images).data)
    digest.update(np.ascontiguousarray(labels).data)
    return digest.hexdigest()


def _read_digits(split: str) -> Arrays:
    with np.load(Path(__file__).with_name("digits.npz"), allow_pickle=False) as arrays:
        return arrays[f"{split}_images"], arrays[f"{split}_labels"]


def _read(info: SetInfo, split: str, folder: Path | None) -> Arrays:
    if info.name == "digits":
        return _read_digits(split)
    raise LinfnetError(f"{info.title} is not here; get it with: linfnet data fetch {info.name}")


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
    images, labels = _read(info, split, folder)
    if content_digest(images, labels) != info.digests[split]:
        raise LinfnetError(
            f"the {split} split of {name} is not what it should be; get it again: linfnet data fetch {name}"
        )
    return ImageSet(torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64)), info, split).to(device)
