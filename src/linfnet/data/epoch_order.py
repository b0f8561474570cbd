"""The order and the augmentation of one epoch, drawn ahead: a pure function of the seed and the epoch's number."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from linfnet.errors import ArgumentError


@dataclass(frozen=True, eq=False)
class EpochPlan:
    """Step k of the epoch takes image `order[k]`, cropped at `top[k]`, `left[k]`, mirrored where `flip[k]`."""

    order: Tensor
    """int64 [N], a permutation"""
    top: Tensor
    """int64 [N], in 0..2·pad; `pad` is the place of the image itself"""
    left: Tensor
    """int64 [N], likewise"""
    flip: Tensor
    """bool [N]"""

    def __len__(self) -> int:
        return self.order.shape[0]

    def to(self, device: torch.device | str) -> "EpochPlan":
        """The same plan on another device."""
        return EpochPlan(*(t.to(device) for t in (self.order, self.top, self.left, self.flip)))


def _below(raw: np.ndarray, bound: int) -> Tensor:
    # The low bits of 64 random ones, modulo: uneven by less than bound / 2^64.
    return torch.from_numpy((raw % np.uint64(bound)).astype(np.int64))


def plan_epoch(size: int, seed: int, epoch: int, *, pad: int = 0, flip: bool = False) -> EpochPlan:
    """Draw one epoch, on the CPU: the same on every device, and known in mid-epoch when a run resumes.

    It uses NumPy's raw Philox stream, which is fixed for all versions, and no state of the process. The four parts are
    drawn apart: the order does not depend on `pad` or `flip`.

    Args:
        size: the number of images N.
        seed: of the run, >= 0.
        epoch: the epoch's number, >= 0.
        pad: crop after padding by so many pixels; 0 leaves the images in place.
        flip: mirror half of the images.

    >>> plan_epoch(4, seed=0, epoch=0).order
    tensor([0, 3, 1, 2])
    """
    for name, value in (("size", size), ("seed", seed), ("epoch", epoch), ("pad", pad)):
        if value < 0:
            raise ArgumentError(f"{name} is {value}; wanted a number >= 0")
    raw = np.random.Philox(np.random.SeedSequence((seed, epoch))).random_raw(4 * size).reshape(4, size)
    return EpochPlan(
        order=torch.from_numpy(np.argsort(raw[0], kind="stable").astype(np.int64)),
        top=_below(raw[1], 2 * pad + 1),
        left=_below(raw[2], 2 * pad + 1),
        flip=_below(raw[3], 2 if flip else 1).bool(),
    )
