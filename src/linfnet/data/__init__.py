"""Data sets as tensors. They are stored in a cache, verified by their content, and augmented on any device."""

from linfnet.data.arrays import from_arrays as from_arrays
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
from linfnet.data.image_files import BadFile as BadFile
from linfnet.data.image_files import BadFilesError as BadFilesError
from linfnet.data.image_files import read_image_files as read_image_files
from linfnet.data.image_set import ImageSet as ImageSet
from linfnet.data.image_set import to_pixels as to_pixels
from linfnet.data.own_data import as_image_set as as_image_set
from linfnet.data.own_data import from_dataset as from_dataset
from linfnet.data.own_files import list_path as list_path
from linfnet.data.own_files import load_path as load_path
from linfnet.data.sampling import augment as augment
from linfnet.data.sampling import plan_epoch as plan_epoch
