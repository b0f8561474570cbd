"""`linfnet predict`: class, certified radius and runner-up of single images."""

import math
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import torch
import tyro
from rich.table import Table

from linfnet.certificates import certify_images
from linfnet.cli.console import console
from linfnet.cli.image_files import read_image
from linfnet.errors import ArgumentError
from linfnet.nn.model_path import class_names, find_model
from linfnet.systems import load_model


def format_radius(radius: float) -> str:
    """A radius cut off, never rounded up, after five digits.

    >>> format_radius(0.123459), format_radius(0.29), format_radius(-float("inf"))
    ('0.12345', '0.28999', 'none')
    """
    if radius < 0:
        return "none"
    # In whole numbers: the product with a float would round 0.29, which is a little less, up to 29,000.
    whole, part = divmod(math.floor(Fraction(radius) * 100_000), 100_000)
    return f"{whole}.{part:05d}"


@dataclass(frozen=True)
class Predict:
    """Classify image files and give the radius inside which the class is proven not to change."""

    model: tyro.conf.Positional[Path]
    """A finished run, any folder with model.safetensors and config.json, mnist-small, or hf://user/name."""
    images: tyro.conf.Positional[tuple[Path, ...]]
    """Images of the net's size: PNG, JPEG, or .npy with floats in [0, 1] or bytes."""

    def run(self) -> int:
        """Print a row for each image."""
        if not self.images:
            raise ArgumentError("no image given")
        model = find_model(self.model)
        net = load_model(model)
        names = class_names(model, net.classes)
        pixels = torch.stack([read_image(path, net.image_shape) for path in self.images])
        found = certify_images(net, [(pixels, None)])
        table = Table("image", "class", "certified radius", "runner-up")
        rows = zip(
            self.images, found.predictions.tolist(), found.best_radii.tolist(), found.runners_up.tolist(), strict=True
        )
        for path, first, radius, second in rows:
            table.add_row(str(path), names[first], format_radius(radius), names[second])
        console.print(table)
        return 0
