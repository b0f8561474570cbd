"""Test images of a known data set as samples for the page, one of each class, if the data set is in the cache."""

import io
from collections.abc import Sequence

from PIL import Image

from linfnet.data import load
from linfnet.data.cache import present
from linfnet.data.catalog import SetInfo, known_sets, set_info
from linfnet.errors import LinfnetError
from linfnet.serve.schemas import Class, Sample


def read_samples(image_shape: Sequence[int], classes: Sequence[Class]) -> tuple[list[Sample], list[bytes]]:
    """Return the first test image of each class and their PNG files, for the data set that has the net's classes.

    Both lists are empty if there is no such data set, or if it is missing or damaged in the cache. The data set
    `digits` has no samples: the page contains digits.
    """
    info = _set_of(tuple(image_shape), tuple(one.name for one in classes))
    if info is None or not present(info.name):
        return [], []
    try:
        images = load(info.name, "test")
    except LinfnetError:
        return [], []
    samples, files = list[Sample](), list[bytes]()
    for one in classes:
        pixels = images.images[int((images.labels == one.index).nonzero()[0])]
        file = io.BytesIO()
        Image.fromarray(pixels.permute(1, 2, 0).squeeze(2).numpy()).save(file, "PNG")
        samples.append(Sample(url=f"/samples/{one.index}.png", label=one))
        files.append(file.getvalue())
    return samples, files


def _set_of(image_shape: tuple[int, ...], names: tuple[str, ...]) -> SetInfo | None:
    """Return the known data set with these classes and this shape, and bytes as pixels."""
    sets = map(set_info, known_sets())
    return next((one for one in sets if (one.image_shape, one.classes, one.white) == (image_shape, names, 255)), None)
