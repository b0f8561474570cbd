"""Random crops and mirror images of a whole batch at once, where the batch lies."""

import torch
from torch import Tensor

from linfnet.errors import ArgumentError


def augment(images: Tensor, top: Tensor, left: Tensor, flip: Tensor, pad: int) -> Tensor:
    """Crop each image out of itself padded by repeating its edge, then mirror it left to right where `flip` says so.

    One gather with clamped indices: nothing is padded, and nothing waits for the device. The offsets' values are
    therefore not checked; one outside 0..2·pad repeats the edge further.

    Args:
        images: [B, C, H, W], any dtype.
        top: int64 [B], the first row of the crop in 0..2·pad.
        left: int64 [B], its first column.
        flip: bool [B].
        pad: the width of the padding.

    Returns:
        [B, C, H, W].

    >>> row = torch.tensor([[[[1, 2, 3]]]])
    >>> augment(row, torch.tensor([0]), torch.tensor([2]), torch.tensor([False]), pad=1)
    tensor([[[[2, 3, 3]]]])
    """
    if images.dim() != 4:
        raise ArgumentError(f"images has shape {tuple(images.shape)}; wanted [B, C, H, W]")
    batch, channels, height, width = images.shape
    for name, value in (("top", top), ("left", left), ("flip", flip)):
        if value.shape != (batch,):
            raise ArgumentError(f"{name} has shape {tuple(value.shape)}; wanted [{batch}]")
    rows = torch.arange(height, device=images.device) + (top - pad)[:, None]
    columns = torch.arange(width, device=images.device)
    columns = torch.where(flip[:, None], width - 1 - columns, columns) + (left - pad)[:, None]
    places = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None, :]
    index = places.reshape(batch, 1, height * width).expand(batch, channels, height * width)
    return images.reshape(batch, channels, height * width).gather(2, index).reshape(images.shape)
