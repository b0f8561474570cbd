"""Where the data of a recipe is: a known data set, the user's own path, or the memory of a Python program."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from linfnet.data.cache import load
from linfnet.data.catalog import known_sets, set_info
from linfnet.data.image_files import Mode
from linfnet.data.image_set import ImageSet
from linfnet.data.own_files import load_path
from linfnet.errors import ArgumentError, LinfnetError

_CHUNK = 1 << 26  # bytes that are copied to the CPU at once


class DataSource(Protocol):
    """The keys of a recipe's [data] that say where the data is."""

    @property
    def name(self) -> str: ...
    @property
    def path(self) -> str | None: ...
    @property
    def resize(self) -> tuple[int, int] | None: ...
    @property
    def mode(self) -> Mode: ...
    @property
    def split_seed(self) -> int | None: ...
    @property
    def digest(self) -> str | None: ...


def load_split(
    source: DataSource,
    split: str,
    *,
    device: torch.device | str = "cpu",
    advance: Callable[[int], None] = lambda images: None,
) -> ImageSet:
    """Load one split of the data of a recipe.

    Args:
        source: the section [data] of a recipe (`recipe.data`).
        split: "train" or "test".
        device: the device of the tensors.
        advance: is called with the number of images read since the last call.

    >>> from linfnet.recipes import load_recipe
    >>> load_split(load_recipe("digits").data, "test")
    ImageSet('digits', 'test', uint8 [360, 1, 8, 8], 10 classes, cpu)
    """
    if source.path is not None:
        seed = source.split_seed or 0
        images = load_path(source.path, split, seed=seed, resize=source.resize, mode=source.mode, advance=advance)
        if source.digest is not None:
            # The name in the recipe of a run is also the name in its results, even if the folder was renamed.
            images = replace(images, info=replace(images.info, name=source.name, title=source.name))
        return images.to(device)
    if source.digest is not None:
        raise LinfnetError(
            f"the data {source.name!r} was passed from Python, so its files are not known; pass the data "
            "again (on the command line: --data PATH)"
        )
    return load(source.name, split, device=device)


def content_digest(images: ImageSet) -> str:
    """Return the SHA-256 of the images and labels of a set, for example to detect that data has changed."""
    shape = f"{images.images.dtype} {tuple(images.images.shape)} {images.info.white} {images.class_names}"
    digest = hashlib.sha256(shape.encode())
    _update(digest.update, images.images)
    _update(digest.update, images.labels)
    return digest.hexdigest()


def is_known(images: ImageSet, split: str) -> bool:
    """Return whether a set is a complete, unchanged split of the known data set whose name it has.

    >>> digits = load("digits", "test")
    >>> is_known(digits, "test"), is_known(digits.first(100), "test")
    (True, False)
    """
    if images.info.name not in known_sets():
        return False
    info = set_info(images.info.name)
    if (images.info.classes, images.info.white) != (info.classes, info.white) or images.images.dtype != torch.uint8:
        return False
    if tuple(images.images.shape) != (info.sizes[split], *info.image_shape):
        return False
    digest = hashlib.sha256()
    _update(digest.update, images.images)
    _update(digest.update, images.labels.to(torch.uint8))
    return digest.hexdigest() == info.digests[split]


def parse_size(text: str, name: str = "resize") -> tuple[int, int]:
    """Convert `HxW` or one number for both to (height, width).

    >>> parse_size("28x32"), parse_size("28")
    ((28, 32), (28, 28))
    """
    sides = text.lower().replace("×", "x").split("x")
    if len(sides) > 2 or not all(side.strip().isdecimal() and 1 <= int(side) <= 10_000 for side in sides):
        raise ArgumentError(f"{name} is {text!r}; expected HxW such as 28x28, each from 1 to 10000")
    return int(sides[0]), int(sides[-1])


def named_or_path(data: str | Path) -> tuple[str | None, Path | None]:
    """Return the known data set that a text names, or else the path that it is."""
    if isinstance(data, str) and data in known_sets():
        return data, None
    path = Path(data).expanduser()
    if not path.exists():
        sets = ", ".join(known_sets())
        raise LinfnetError(f"data is {str(data)!r}; expected one of {sets}, or an existing folder or file")
    return None, path.resolve()


def _update(update: Callable[[memoryview], object], values: Tensor) -> None:
    """Pass the bytes of a tensor to a hash, in parts."""
    step = max(1, _CHUNK // max(1, values[0].numel() * values.element_size())) if len(values) else 1
    for part in values.split(step):
        update(part.contiguous().cpu().numpy().data)
