"""The order of the images in one epoch, and the random crops, flips, rotations, zooms and light that augment them."""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from linfnet.errors import ArgumentError, at_least


class EpochPlan(NamedTuple):
    """The k-th image of the epoch is image `order[k]`, cropped at `top[k]`, `left[k]`, and flipped if `flip[k]`."""

    order: Tensor
    """int64 [N], a permutation"""
    top: Tensor
    """int64 [N], in 0..2·pad; with the value `pad`, the image is not shifted"""
    left: Tensor
    """int64 [N], like `top`"""
    flip: Tensor
    """bool [N]"""

    def to(self, device: torch.device | str) -> "EpochPlan":
        """Return the same plan on another device."""
        return EpochPlan(*(tensor.to(device) for tensor in self))


def plan_epoch(size: int, seed: int, epoch: int, *, pad: int = 0, flip: bool = False) -> EpochPlan:
    """Draw the plan of one epoch. It depends only on the arguments, so that a run can resume within an epoch.

    The random numbers are NumPy's raw Philox stream, which is the same in all versions. They are drawn on the CPU, and
    separately for the four fields, so the order does not depend on `pad` or `flip`.

    Args:
        size: the number of images N.
        seed: the seed of the run.
        epoch: the number of the epoch, counted from 0.
        pad: the width of the padding before the crop, in pixels; 0 means no crop.
        flip: whether to flip each image with probability 1/2.

    >>> plan_epoch(4, seed=0, epoch=0).order
    tensor([0, 3, 1, 2])
    """
    for name, value in (("size", size), ("seed", seed), ("epoch", epoch), ("pad", pad)):
        at_least(name, value, 0)
    raw = np.random.Philox(np.random.SeedSequence((seed, epoch))).random_raw(4 * size).reshape(4, size)
    order = torch.from_numpy(np.argsort(raw[0], kind="stable").astype(np.int64))
    # These are 64 random bits modulo the bound: probabilities differ by less than bound / 2^64.
    bounds = np.array([[2 * pad + 1], [2 * pad + 1], [2 if flip else 1]], np.uint64)
    top, left, flips = torch.from_numpy((raw[1:] % bounds).astype(np.int64))
    return EpochPlan(order, top, left, flips.bool())


def augment(images: Tensor, top: Tensor, left: Tensor, flip: Tensor, pad: int) -> Tensor:
    """Pad each image by its edge pixels, crop it to its original size, and flip it left to right where `flip` is true.

    This is one gather with clamped indices, which neither allocates padded images nor synchronises with the device. The
    offsets are therefore not checked; for an offset outside 0..2·pad, more edge pixels are repeated.

    Args:
        images: [B, C, H, W], any dtype.
        top: int64 [B], the first row of the crop in 0..2·pad.
        left: int64 [B], the first column of the crop in 0..2·pad.
        flip: bool [B], which images to flip.
        pad: the width of the padding.

    >>> row = torch.tensor([[[[1, 2, 3]]]])
    >>> augment(row, torch.tensor([0]), torch.tensor([2]), torch.tensor([False]), pad=1)
    tensor([[[[2, 3, 3]]]])
    """
    if images.dim() != 4:
        raise ArgumentError(f"images has shape {tuple(images.shape)}; expected [B, C, H, W]")
    batch, channels, height, width = images.shape
    for name, value in (("top", top), ("left", left), ("flip", flip)):
        if value.shape != (batch,):
            raise ArgumentError(f"{name} has shape {tuple(value.shape)}; expected [{batch}]")
    rows = torch.arange(height, device=images.device) + (top - pad)[:, None]
    columns = torch.arange(width, device=images.device)
    columns = torch.where(flip[:, None], width - 1 - columns, columns) + (left - pad)[:, None]
    positions = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None, :]
    index = positions.reshape(batch, 1, height * width).expand(batch, channels, height * width)
    return images.reshape(batch, channels, height * width).gather(2, index).reshape(images.shape)


def plan_maps(size: int, seed: int, epoch: int, *, rotate: float = 0.0, zoom: float = 0.0) -> Tensor:
    """Draw a rotation and a zoom for each image of an epoch, as matrices float32 [N, 2, 2].

    A matrix maps positions (x, y) in the new image to positions in the old one, relative to the centre. The random
    numbers do not depend on those of `plan_epoch`.

    Args:
        size, seed, epoch: as in `plan_epoch`; the k-th map belongs to the k-th image of the epoch.
        rotate: the largest angle in degrees; angles are uniform in [-rotate, rotate].
        zoom: images are enlarged by (1 + zoom)^u with u uniform in [-1, 1].

    >>> plan_maps(1, seed=0, epoch=0)
    tensor([[[1., 0.],
             [-0., 1.]]])
    """
    uniform = _uniform((seed, epoch, 1), (2, size))
    angle, shrink = math.radians(rotate) * uniform[0], (1 + zoom) ** -uniform[1]
    cosine, sine = shrink * np.cos(angle), shrink * np.sin(angle)
    maps = np.stack([np.stack([cosine, sine], 1), np.stack([-sine, cosine], 1)], 1)
    return torch.from_numpy(maps.astype(np.float32))


def _uniform(seed: tuple[int, ...], shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Return numbers that are uniform in [-1, 1)."""
    raw = np.random.Philox(np.random.SeedSequence(seed)).random_raw(math.prod(shape)).reshape(shape)
    return (raw >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1


def warp(pixels: Tensor, maps: Tensor) -> Tensor:
    """Rotate and zoom images around their centres, with bilinear interpolation; pixels at the edge are repeated.

    Args:
        pixels: float [B, C, H, W] in [0, 1], and so is the result.
        maps: [B, 2, 2], as `plan_maps` returns.

    >>> quarter = torch.tensor([[[0.0, 1.0], [-1.0, 0.0]]])
    >>> warp(torch.tensor([[[[0.0, 0.25], [0.5, 0.75]]]]), quarter)
    tensor([[[[0.5000, 0.0000],
              [0.7500, 0.2500]]]])
    """
    height, width = pixels.shape[2:]
    # The coordinates of `affine_grid` are from -1 to 1 in both directions.
    maps = F.pad(maps, (0, 1))
    maps[:, 0, 1] *= height / width
    maps[:, 1, 0] *= width / height
    grid = F.affine_grid(maps, list(pixels.shape), align_corners=False)
    return F.grid_sample(pixels, grid, padding_mode="border", align_corners=False).clamp_(0, 1)


def plan_light(size: int, seed: int, epoch: int, *, contrast: float = 0.0, brightness: float = 0.0) -> Tensor:
    """Draw a change of contrast and brightness for each image of an epoch: float32 [N, 2], a factor and a summand.

    The random numbers do not depend on those of `plan_epoch` and `plan_maps`.

    Args:
        size, seed, epoch: as in `plan_epoch`; the k-th row belongs to the k-th image of the epoch.
        contrast: the factor is (1 + contrast)^u with u uniform in [-1, 1].
        brightness: the summand is uniform in [-brightness, brightness].

    >>> plan_light(1, seed=0, epoch=0)
    tensor([[1., 0.]])
    """
    uniform = _uniform((seed, epoch, 2), (2, size))
    light = np.stack([(1 + contrast) ** uniform[0], brightness * uniform[1] + 0.0], 1)
    return torch.from_numpy(light.astype(np.float32))


def relight(pixels: Tensor, light: Tensor) -> Tensor:
    """Change the contrast and the brightness of images; values outside [0, 1] are clipped.

    The differences of the pixels from the mean of their image are multiplied by the factor, and the summand is added.

    Args:
        pixels: float [B, C, H, W] in [0, 1], and so is the result.
        light: [B, 2], as `plan_light` returns.

    >>> relight(torch.tensor([[[[0.2, 0.6]]]]), torch.tensor([[1.5, 0.25]]))
    tensor([[[[0.3500, 0.9500]]]])
    """
    factor, summand = light.view(-1, 2, 1, 1, 1).unbind(1)
    mean = pixels.mean((1, 2, 3), keepdim=True)
    return torch.addcmul(mean + summand, pixels - mean, factor).clamp_(0, 1)
