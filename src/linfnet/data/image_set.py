"""One split of a data set as two tensors. Images are stored as bytes and converted to floats batch by batch."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

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


@dataclass(frozen=True, eq=False)
class ImageSet:
    """One split of a data set, on one device."""

    images: Tensor
    """uint8 [N, C, H, W]"""
    labels: Tensor
    """int64 [N]"""
    info: SetInfo
    split: str

    def __len__(self) -> int:
        return self.images.shape[0]

    def to(self, device: torch.device | str) -> "ImageSet":
        """Return the same split on another device."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))

    def first(self, limit: int | None) -> "ImageSet":
        """Return the first `limit` images, or all images if `limit` is None or larger than their number."""
        if limit is not None:
            at_least("limit", limit, 1)
        return replace(self, images=self.images[:limit], labels=self.labels[:limit])

    def pixels(self, index: Tensor | slice | None = None) -> Tensor:
        """Return the images that `index` selects (default: all images) as float32 [n, C, H, W] in [0, 1]."""
        return to_pixels(self.images if index is None else self.images[index], self.info.white)
