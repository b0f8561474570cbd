"""Data sets as tensors of bytes on any device: found in a cache, checked by content, augmented where they lie."""

from linfnet.data.arrays import from_arrays
from linfnet.data.augment import augment
from linfnet.data.cache import cache_folder, content_digest, load, location, present, verify
from linfnet.data.catalog import SetInfo, known_sets, set_info
from linfnet.data.epoch_order import EpochPlan, plan_epoch
from linfnet.data.fetch import Fetched, Source, fetch
from linfnet.data.image_files import BadFile, BadFilesError, read_image_files
from linfnet.data.image_set import ImageSet, to_pixels
from linfnet.data.own_data import as_image_set, from_dataset
from linfnet.data.own_files import list_path, load_path

__all__ = [
    "BadFile",
    "BadFilesError",
    "EpochPlan",
    "Fetched",
    "ImageSet",
    "SetInfo",
    "Source",
    "as_image_set",
    "augment",
    "cache_folder",
    "content_digest",
    "fetch",
    "from_arrays",
    "from_dataset",
    "known_sets",
    "list_path",
    "load",
    "load_path",
    "location",
    "plan_epoch",
    "present",
    "read_image_files",
    "set_info",
    "to_pixels",
    "verify",
]
