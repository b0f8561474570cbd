"""`linfnet predict`: class, certified radius and runner-up of single images."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import tyro
from rich.table import Table
from torch import Tensor

from linfnet.certify import margin_radius
from linfnet.cli.console import console
from linfnet.errors import ArgumentError, LinfnetError
from linfnet.files import read_json
from linfnet.nn import LinfNet
from linfnet.perturbation import check_images


def read_image(path: Path, shape: tuple[int, int, int]) -> Tensor:
    """An image file as pixels [C, H, W] in [0, 1]: .npy (floats in [0, 1] or bytes), or what Pillow reads."""
    if not path.is_file():
        raise LinfnetError(f"image {path} does not exist")
    array = _read_array(path) if path.suffix == ".npy" else _read_picture(path, shape[0])
    if array.dtype == np.uint8:
        array = (array / np.float32(255)).astype(np.float32)
    if array.dtype.kind != "f":
        raise LinfnetError(f"image {path} holds {array.dtype}; wanted floats in [0, 1] or bytes")
    image = torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))
    if image.dim() == 2:
        image = image.unsqueeze(0)
    if tuple(image.shape) != shape:
        raise LinfnetError(f"image {path} has shape {tuple(image.shape)}; the net wants {shape}")
    return check_images(image, f"the pixels of {path}")


def _read_array(path: Path) -> np.ndarray:
    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise LinfnetError(f"image {path} is not a NumPy array: {str(error).splitlines()[0]}") from None
    if not isinstance(array, np.ndarray):
        array.close()
        raise LinfnetError(f"image {path} is not a NumPy array but an archive")
    return array


def _read_picture(path: Path, channels: int) -> np.ndarray:
    try:
        from PIL import Image
    except ImportError:
        raise LinfnetError("reading pictures needs Pillow: pip install 'linfnet[images]'") from None
    try:
        with Image.open(path) as picture:
            array = np.asarray(picture.convert("L" if channels == 1 else "RGB"))
    except (OSError, ValueError) as error:
        raise LinfnetError(f"image {path} cannot be read: {error}") from None
    return array if channels == 1 else array.transpose(2, 0, 1)


def class_names(model: Path, classes: int) -> list[str]:
    """The names of the classes in a model's config.json; their numbers if it has none."""
    names: Any = read_json(model / "config.json").get("class_names") or [str(k) for k in range(classes)]
    if not isinstance(names, list) or len(cast(list[Any], names)) != classes:
        raise LinfnetError(f"{model / 'config.json'}: class_names is not a list of {classes} names")
    return [str(name) for name in cast(list[Any], names)]


@dataclass(frozen=True)
class Predict:
    """Classify image files and give the radius inside which the class is proven not to change."""

    model: tyro.conf.Positional[Path]
    """A finished run, or any folder with model.safetensors and config.json."""
    images: tyro.conf.Positional[tuple[Path, ...]]
    """Images of the net's size: PNG, JPEG, or .npy with floats in [0, 1] or bytes."""

    def run(self) -> int:
        """Print a row for each image."""
        if not self.images:
            raise ArgumentError("no image given")
        net = LinfNet.load(self.model)
        names = class_names(self.model, net.classes)
        pixels = torch.stack([read_image(path, net.image_shape) for path in self.images])
        with net.at_infinity(), torch.no_grad():
            logits = net(pixels)
        best = logits.topk(2).indices
        radii = margin_radius(logits, best[:, 0], net.lipschitz)
        table = Table("image", "class", "certified radius", "runner-up")
        for path, (first, second), radius in zip(self.images, best.tolist(), radii.tolist(), strict=True):
            table.add_row(str(path), names[first], f"{radius:.5f}", names[second])
        console.print(table)
        return 0
