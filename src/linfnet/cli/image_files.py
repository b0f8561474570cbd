"""The user's images as pixels in [0, 1]: single files, folders of files, and NumPy arrays."""

import os
from pathlib import Path
from tokenize import TokenError

import numpy as np
import torch
from torch import Tensor

from linfnet.errors import LinfnetError

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".npy")


def read_image(path: Path, shape: tuple[int, int, int]) -> Tensor:
    """Return an image file as pixels [C, H, W] in [0, 1]: .npy (floats in [0, 1] or bytes), or a format of Pillow."""
    if not path.is_file():
        raise LinfnetError(f"image {path} does not exist")
    array = _read_array(path) if path.suffix.lower() == ".npy" else _read_picture(path, shape[0])
    image = _to_pixels(array, f"image {path}")
    if image.dim() == 2:
        image = image.unsqueeze(0)
    if tuple(image.shape) != shape:
        raise LinfnetError(f"image {path} has shape {tuple(image.shape)}; the net wants {shape}")
    return image


def read_images(path: Path, shape: tuple[int, int, int]) -> tuple[Tensor, list[str]]:
    """Return pixels [N, C, H, W] and a name for each: the images of a folder, sorted by name, or of one .npy array."""
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix.lower() in PICTURES)
        if not files:
            raise LinfnetError(f"folder {path} holds no images ({', '.join(PICTURES)})")
        return torch.stack([read_image(file, shape) for file in files]), [_readable(file.name) for file in files]
    if path.suffix.lower() != ".npy" or not path.is_file():
        return read_image(path, shape).unsqueeze(0), [_readable(path.name)]
    images = _to_pixels(_read_array(path), f"array {path}")
    if tuple(images.shape) == shape or tuple(images.shape) == shape[1:]:
        images = images.unsqueeze(0)
    if images.dim() == 3 and shape[0] == 1:
        images = images.unsqueeze(1)
    if images.dim() != 4 or tuple(images.shape[1:]) != shape or not len(images):
        raise LinfnetError(f"array {path} has shape {tuple(images.shape)}; the net wants images of shape {shape}")
    return images, [f"{_readable(path.name)}[{k}]" for k in range(len(images))]


def _readable(name: str) -> str:
    """Return a file name as valid text: bytes that are not UTF-8 are written as escapes."""
    return os.fsencode(name).decode(errors="backslashreplace")


def _to_pixels(array: np.ndarray, what: str) -> Tensor:
    if array.dtype == np.uint8:
        array = (array / np.float32(255)).astype(np.float32)
    if array.dtype.kind != "f":
        raise LinfnetError(f"{what} holds {array.dtype}; wanted floats in [0, 1] or bytes")
    # Checked before rounding to float32, which would turn 1.0000000001 into 1.
    if not ((array >= 0) & (array <= 1)).all():
        raise LinfnetError(
            f"{what} holds pixels from {array.min():.17g} to {array.max():.17g}; wanted [0, 1] and no NaN"
        )
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))


def _read_array(path: Path) -> np.ndarray:
    try:
        array = np.load(path, allow_pickle=False)
    # A wrong size in the header fails in the allocator, a broken header in Python's tokenizer.
    except (ValueError, OSError, EOFError, MemoryError, OverflowError, TypeError, SyntaxError, TokenError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise LinfnetError(f"image {path} is not a NumPy array: {reason}") from None
    if not isinstance(array, np.ndarray):
        array.close()
        raise LinfnetError(f"image {path} is not a NumPy array but an archive")
    return array


def _read_picture(path: Path, channels: int) -> np.ndarray:
    try:
        from PIL import Image
    except ImportError:
        raise LinfnetError("reading pictures needs Pillow: pip install 'linfnet[images]'") from None
    wanted = {1: "L", 3: "RGB"}.get(channels, f"{channels} channels")
    try:
        with Image.open(path) as picture:
            # A silent conversion would certify a different image.
            if picture.mode != wanted:
                raise LinfnetError(f"image {path} has mode {picture.mode}; the net wants {wanted}")
            if (frames := getattr(picture, "n_frames", 1)) > 1:
                raise LinfnetError(f"image {path} has {frames} frames; wanted one")
            array = np.asarray(picture)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise LinfnetError(f"image {path} cannot be read: {error}") from None
    return array if channels == 1 else array.transpose(2, 0, 1)
