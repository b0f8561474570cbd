"""Generated image files for the tests of own data."""

from pathlib import Path
from typing import Any

from PIL import Image

from linfnet.data import ImageSet


def image(value: int, size: tuple[int, int] = (6, 4), mode: str = "L") -> Image.Image:
    """An image of one colour; `value` is also the value of each pixel."""
    return Image.new(mode, size, value if mode in ("L", "P", "1", "I;16", "I") else (value,) * len(mode))


def save(path: Path, value: int, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image(value, **options).save(path)
    return path


def fill(folder: Path, classes: dict[str, int], **options: Any) -> Path:
    """So many images per class; each pixel value occurs once in the folder."""
    value = 0
    for name, count in classes.items():
        for number in range(count):
            save(folder / name / f"{number}.png", value, **options)
            value += 1
    return folder


def values(loaded: ImageSet) -> dict[str, set[int]]:
    """Per class, the pixel values of its images."""
    found: dict[str, set[int]] = {name: set() for name in loaded.class_names}
    for pixels, label in zip(loaded.images, loaded.labels.tolist(), strict=True):
        assert pixels.min() == pixels.max()
        found[loaded.class_names[label]].add(int(pixels.max()))
    return found
