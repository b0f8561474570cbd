"""Data sets as tensors of bytes on any device: found in a cache, checked by content, augmented where they lie."""

from linfnet.data.augment import augment
from linfnet.data.cache import cache_folder, content_digest, load, location, present, verify
from linfnet.data.catalog import SetInfo, known_sets, set_info
from linfnet.data.epoch_order import EpochPlan, plan_epoch
from linfnet.data.fetch import Fetched, Source, fetch
from linfnet.data.image_set import ImageSet, to_pixels

__all__ = [
    "EpochPlan",
    "Fetched",
    "ImageSet",
    "SetInfo",
    "Source",
    "augment",
    "cache_folder",
    "content_digest",
    "fetch",
    "known_sets",
    "load",
    "location",
    "plan_epoch",
    "present",
    "set_info",
    "to_pixels",
    "verify",
]
