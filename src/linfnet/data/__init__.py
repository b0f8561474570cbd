"""Data sets as tensors of bytes. They are stored in a cache, verified by their content, and augmented on any device."""

from linfnet.data.cache import cache_folder as cache_folder
from linfnet.data.cache import load as load
from linfnet.data.cache import location as location
from linfnet.data.cache import present as present
from linfnet.data.cache import verify as verify
from linfnet.data.catalog import SetInfo as SetInfo
from linfnet.data.catalog import known_sets as known_sets
from linfnet.data.catalog import set_info as set_info
from linfnet.data.fetch import Fetched as Fetched
from linfnet.data.fetch import Source as Source
from linfnet.data.fetch import fetch as fetch
from linfnet.data.image_set import ImageSet as ImageSet
from linfnet.data.image_set import to_pixels as to_pixels
from linfnet.data.sampling import augment as augment
from linfnet.data.sampling import plan_epoch as plan_epoch
