"""Data sets as tensors of bytes on any device: found in a cache, checked by content, augmented where they lie."""

from linfnet.data.augment import augment
from linfnet.data.cache import cache_folder, load
from linfnet.data.images import ImageSet, to_pixels
from linfnet.data.plan import EpochPlan, plan_epoch
from linfnet.data.sets import SetInfo, known_sets, set_info

__all__ = [
    "EpochPlan",
    "ImageSet",
    "SetInfo",
    "augment",
    "cache_folder",
    "known_sets",
    "load",
    "plan_epoch",
    "set_info",
    "to_pixels",
]
