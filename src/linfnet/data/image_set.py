"""One split of a data set as two tensors. Images are stored as bytes and converted to floats batch by batch."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from linfnet.data.catalog import SetInfo
from linfnet.errors import ArgumentError, at_least


def to_pixels(images: Tensor, white: int) -> Tensor:
    """Return images / white as float32, correctly rounded: bitwise the same on all devices (except in `torch.compile`).

    Args:
        images: uint8, any shape.
        white: the integer that represents 1.0.

    >>> to_pixels(torch.tensor([0, 51, 255], dtype=torch.uint8), 255)
    tensor([0.0000, 0.2000, 1.0000])
    """
    if images.dtype != torch.uint8:
        raise ArgumentError(f"images has dtype {images.dtype}; expected torch.uint8")
    # Divide by a tensor: for a Python number, CUDA would multiply by the reciprocal, which rounds twice.
    return images.float().div_(torch.full((), float(white), device=images.device))


@dataclass(frozen=True, eq=False, repr=False)
class ImageSet(Dataset[tuple[Tensor, int]]):
    """One split of a data set, on one device; also a PyTorch `Dataset` of pairs (pixels, label)."""

    images: Tensor
    """[N, C, H, W]: uint8, or float32 in [0, 1]"""
    labels: Tensor
    """int64 [N]"""
    info: SetInfo
    split: str

    def __len__(self) -> int:
        return self.images.shape[0]

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return the pixels, float32 [C, H, W] in [0, 1], and the label of one image."""
        return self.as_pixels(self.images[index]), int(self.labels[index])

    def __repr__(self) -> str:
        kind = str(self.images.dtype).removeprefix("torch.")
        return (
            f"ImageSet({self.info.name!r}, {self.split!r}, {kind} {list(self.images.shape)}, "
            f"{len(self.class_names)} classes, {self.images.device})"
        )

    @property
    def class_names(self) -> tuple[str, ...]:
        """The name of each class; label k belongs to name k."""
        return self.info.classes

    def to(self, device: torch.device | str) -> "ImageSet":
        """Return the same split on another device."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))

    def first(self, limit: int | None) -> "ImageSet":
        """Return the first `limit` images, or all images if `limit` is None or larger than their number."""
        if limit is not None:
            at_least("limit", limit, 1)
        return replace(self, images=self.images[:limit], labels=self.labels[:limit])

    def hold_out(self, count: int) -> tuple["ImageSet", "ImageSet"]:
        """Return the set without `count` images, and a set of these images; they are the same in every call.

        >>> from linfnet.data import load
        >>> rest, held_out = load("digits").hold_out(200)
        >>> len(rest), len(held_out)
        (1237, 200)
        """
        parts = (index.to(self.images.device) for index in hold_out_indices(len(self), count))
        rest, chosen = (replace(self, images=self.images[part], labels=self.labels[part]) for part in parts)
        return rest, replace(chosen, split="held-out")

    def pixels(self, index: Tensor | slice | None = None) -> Tensor:
        """Return the images that `index` selects (default: all images) as float32 [n, C, H, W] in [0, 1]."""
        return self.as_pixels(self.images if index is None else self.images[index])

    def as_pixels(self, images: Tensor) -> Tensor:
        """Convert images of this set, for example after augmentation, to float32 pixels in [0, 1]."""
        return images if images.is_floating_point() else to_pixels(images, self.info.white)


def hold_out_indices(size: int, count: int) -> tuple[Tensor, Tensor]:
    """Return the indices of the other images and of the held-out images, both ascending, of `size` training images."""
    if not 0 < count < size:
        raise ArgumentError(f"hold_out is {count}; expected a number from 1 to {size - 1}, of {size} images")
    order = np.argsort(np.random.Philox(np.random.SeedSequence(0)).random_raw(size), kind="stable")
    return torch.from_numpy(np.sort(order[count:])), torch.from_numpy(np.sort(order[:count]))
