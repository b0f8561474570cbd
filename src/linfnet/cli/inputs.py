"""Inputs of commands: the device, a model folder with its data set and epsilons, and the user's images."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from tokenize import TokenError
from typing import Annotated, Any, Literal

import numpy as np
import torch
import tyro
from torch import Tensor
from tyro.conf import arg

from linfnet.data import ImageSet, known_sets, load
from linfnet.distributed.group import launched, own_device
from linfnet.epsilon import parse_epsilon
from linfnet.errors import ArgumentError, LinfnetError, at_least, require
from linfnet.nn import Classifier
from linfnet.nn.model_path import find_model, packaged_hint
from linfnet.systems import load_model
from linfnet.train import RunFolder, resume_hint

# Number of images in one batch of a certificate or an attack.
BATCH = 500
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".npy")

Shape = tuple[int, int, int]
EpsilonGroups = tuple[tuple[str, ...], ...]

# Options that several commands have.
Model = Annotated[
    tyro.conf.Positional[Path],
    arg(help="A finished run, a folder with model.safetensors and config.json, mnist-small, or hf://user/name."),
]
ModelFolder = Annotated[
    tyro.conf.Positional[Path], arg(help="A finished run, or a folder with model.safetensors and config.json.")
]
Epsilons = Annotated[
    tyro.conf.UseAppendAction[tuple[tuple[str, ...], ...]],
    arg(help="Perturbations in pixel units, such as 8/255 or 0.1. Default: the perturbations in the run's recipe."),
]
Changes = Annotated[tyro.conf.UseAppendAction[tuple[tuple[str, ...], ...]], arg(metavar="KEY=VALUE")]
Split = Annotated[Literal["test", "train"], arg(help="The split of the data set.")]
Limit = Annotated[int | None, arg(help="Use only the first LIMIT images.")]
Device = Annotated[str, arg(help="cpu, cuda or cuda:INDEX; auto selects a GPU if there is one.")]


def choose_device(name: str, *, shared: bool = False) -> torch.device:
    """Return the device of that name; `auto` selects a GPU if there is one.

    `shared`: under torchrun the processes share the work, so each of them uses a different GPU.
    """
    if shared and launched():
        name = own_device(name)
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"(cpu|cuda)(:\d{1,3})?", name):
        raise ArgumentError(f"device is {name!r}; expected auto, cpu, cuda or cuda:INDEX")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ArgumentError(f"device is {name!r}, but torch cannot use this GPU on this machine")
    return device


def parse_epsilons(groups: EpsilonGroups) -> tuple[Fraction, ...]:
    """Return the epsilons of all `--eps` options."""
    return tuple(parse_epsilon(text, "--eps") for group in groups for text in group)


def check_counts(**values: int | None) -> None:
    """Raise an error if an option is below 1; options that are None are ignored."""
    for name, value in values.items():
        if value is not None:
            at_least(f"--{name}", value, 1)


def finished_run(folder: Path) -> RunFolder | None:
    """Return the finished run in a folder, or None if the folder has only a model."""
    if not folder.is_dir():
        raise LinfnetError(f"{folder} is not a folder{packaged_hint(folder)}")
    if not (folder / "recipe.toml").is_file():
        return None
    run = RunFolder.open(folder)
    if not run.finished:
        raise LinfnetError(f"{folder} has not finished; {resume_hint(folder)}")
    return run


@dataclass(frozen=True)
class ModelInputs:
    """A model folder, and the data set and the epsilons to use, from the command line or from the recipe."""

    folder: Path
    run: RunFolder | None
    data: str
    epsilons: tuple[Fraction, ...]


def find_inputs(
    model: Path, data: str | None, epsilons: tuple[Fraction, ...] = (), *, needs_eps: bool = True, by_name: bool = True
) -> ModelInputs:
    """Find the model; if `--data` or `--eps` is not given, use the data set or the epsilons of its recipe.

    `needs_eps`: raise an error if there is no epsilon. `by_name`: also accept a packaged model or `hf://user/name`.
    """
    folder = find_model(model) if by_name else model
    run = finished_run(folder)
    data = data or (run.recipe.data.name if run else None)
    epsilons = epsilons or (run.recipe.evaluation.eps if run else ())
    if data is None or (needs_eps and not epsilons):
        raise ArgumentError(f"{model} has no recipe.toml: give --data{' and --eps' if needs_eps else ''}")
    return ModelInputs(folder, run, data, epsilons)


def load_split(net: Classifier, name: str, split: str, limit: int | None, device: torch.device) -> ImageSet:
    """Load the first images of a split; raise an error if they do not have the shape that the net expects."""
    images = load(name, split)
    if images.info.image_shape != net.image_shape:
        raise LinfnetError(f"the net is for images of shape {net.image_shape}; {name} has {images.info.image_shape}")
    return images.first(limit).to(device)


@dataclass(frozen=True)
class NamedImages:
    """Images of a data set or of the user: pixels [N, C, H, W], a name for each image, and labels if they are known."""

    pixels: Tensor
    names: list[str]
    labels: Tensor | None
    title: str

    def batches(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yield the pixels and the labels of each batch."""
        for start in range(0, len(self.pixels), BATCH):
            part = slice(start, start + BATCH)
            yield self.pixels[part], None if self.labels is None else self.labels[part]


def load_images(net: Classifier, data: str, split: str, limit: int | None, device: torch.device) -> NamedImages:
    """Load a data set by name, or the user's images from a folder or file."""
    check_counts(limit=limit)
    if data not in known_sets() and Path(data).exists():
        pixels, names = read_images(Path(data), net.picture_shape())
        return NamedImages(pixels[:limit].to(device), names[:limit], None, data)
    images = load_split(net, data, split, limit, device)
    return NamedImages(images.pixels(), [str(k) for k in range(len(images))], images.labels, f"{data} {split}")


@dataclass(frozen=True)
class OnImages:
    """Options of the commands that certify or attack images."""

    model: Model
    data: str | None = None
    """A data set, or a folder of images or a .npy array (with predicted classes as labels). Default: the run's set."""
    split: Split = "test"
    limit: Limit = None
    device: Device = "auto"

    def find(
        self, eps: EpsilonGroups = (), *, needs_eps: bool = True, by_name: bool = True, shared: bool = False
    ) -> tuple[ModelInputs, torch.device]:
        """Check the options; return the model, the data set and the epsilons to use, and the device."""
        epsilons = parse_epsilons(eps)
        check_counts(limit=self.limit)
        device = choose_device(self.device, shared=shared)
        return find_inputs(self.model, self.data, epsilons, needs_eps=needs_eps, by_name=by_name), device

    def load(self, eps: EpsilonGroups, *, needs_eps: bool = True) -> tuple[Classifier, NamedImages, ModelInputs]:
        """Load the net and the images; also return the epsilons and the model folder."""
        inputs, device = self.find(eps, needs_eps=needs_eps)
        net = load_model(inputs.folder, device=device)
        return net, load_images(net, inputs.data, self.split, self.limit, device), inputs


def read_image(path: Path, shape: Shape) -> Tensor:
    """Read an image file as pixels [C, H, W] in [0, 1]: .npy (floats in [0, 1] or bytes), or any format of Pillow."""
    if not path.is_file():
        raise LinfnetError(f"image {path} does not exist")
    array = _read_array(path) if path.suffix.lower() == ".npy" else _read_picture(path, shape[0])
    return _to_pixels(array[np.newaxis], path, shape)[0]


def read_images(path: Path, shape: Shape) -> tuple[Tensor, list[str]]:
    """Return pixels [N, C, H, W] and a name for each image: those of a folder, sorted by name, or of one .npy array."""
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES)
        if not files:
            raise LinfnetError(f"folder {path} contains no images ({', '.join(SUFFIXES)})")
        return torch.stack([read_image(file, shape) for file in files]), [_readable(file) for file in files]
    if path.suffix.lower() != ".npy":
        return read_image(path, shape).unsqueeze(0), [_readable(path)]
    array = _read_array(path)
    images = _to_pixels(array[np.newaxis] if array.shape in (shape, shape[1:]) else array, path, shape)
    return images, [f"{_readable(path)}[{k}]" for k in range(len(images))]


def _readable(path: Path) -> str:
    """Return the name of a file as valid UTF-8 text; bytes that are not UTF-8 are escaped."""
    return os.fsencode(path.name).decode(errors="backslashreplace")


def _to_pixels(array: np.ndarray, path: Path, shape: Shape) -> Tensor:
    """Convert images [N, C, H, W], or [N, H, W] with one channel, to float32; raise if they do not fit the net."""
    if array.dtype == np.uint8:
        array = (array / np.float32(255)).astype(np.float32)
    if array.dtype.kind != "f":
        raise LinfnetError(f"image {path} contains {array.dtype}; expected floats in [0, 1] or bytes")
    # Check this before rounding to float32: 1.0000000001 is not a pixel value.
    if not ((array >= 0) & (array <= 1)).all():
        extent = f"{array.min():.17g} to {array.max():.17g}"
        raise LinfnetError(f"image {path} contains pixels from {extent}; expected [0, 1] and no NaN")
    if not array.size or array.shape[1:] not in ((shape, shape[1:]) if shape[0] == 1 else (shape,)):
        raise LinfnetError(f"image {path} has shape {array.shape}; the net expects images of shape {shape}")
    return torch.from_numpy(array.astype(np.float32).reshape(-1, *shape))


def _read_array(path: Path) -> np.ndarray:
    try:
        with path.open("rb") as file:
            return np.lib.format.read_array(file, allow_pickle=False)
    # A wrong size in the header causes an error of the allocator; a malformed header, an error of Python's tokenizer.
    except (ValueError, OSError, EOFError, MemoryError, OverflowError, TypeError, SyntaxError, TokenError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise LinfnetError(f"image {path} is not a NumPy array: {reason}") from None


def _read_picture(path: Path, channels: int) -> np.ndarray:
    Image: Any = require("PIL.Image", "images")
    expected = {1: "L", 3: "RGB"}.get(channels, f"{channels} channels")
    try:
        with Image.open(path) as picture:
            # After a silent conversion, the certified image would differ from the user's image.
            if picture.mode != expected:
                raise LinfnetError(f"image {path} has mode {picture.mode}; the net expects {expected}")
            if (frames := getattr(picture, "n_frames", 1)) > 1:
                raise LinfnetError(f"image {path} has {frames} frames; expected one")
            array = np.asarray(picture)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise LinfnetError(f"image {path} cannot be read: {error}") from None
    return array if channels == 1 else array.transpose(2, 0, 1)
