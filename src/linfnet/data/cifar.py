"""CIFAR-10 in its three forms: python batches, binary batches, and PNG files with one image per row."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from linfnet.data.cifar_pickle import read_python_batch
from linfnet.errors import LinfnetError

Bytes = npt.NDArray[np.uint8]
_SHAPE = (3, 32, 32)
_PIXELS = 3072


def _joined(parts: list[tuple[Bytes, Bytes]]) -> tuple[Bytes, Bytes]:
    images = np.concatenate([rows for rows, _ in parts]).reshape(-1, *_SHAPE)
    return images, np.concatenate([labels for _, labels in parts])


def read_python(paths: list[Path]) -> tuple[Bytes, Bytes]:
    """Images [N, 3, 32, 32] and labels [N] of the pickled batches `paths`, in their order."""
    return _joined([read_python_batch(path) for path in paths])


def read_binary_batch(path: Path) -> tuple[Bytes, Bytes]:
    """Rows [N, 3072] and labels [N] of one binary batch: records of a label and the red, green and blue planes."""
    try:
        content = np.frombuffer(path.read_bytes(), np.uint8)
    except OSError as error:
        raise LinfnetError(f"{path} cannot be read: {error.strerror or error}") from error
    if content.size == 0 or content.size % (1 + _PIXELS):
        raise LinfnetError(
            f"{path} is truncated or no binary batch of CIFAR-10: {content.size} bytes are no multiple of {1 + _PIXELS}"
        )
    records = content.reshape(-1, 1 + _PIXELS)
    return records[:, 1:], records[:, 0]


def read_binary(paths: list[Path]) -> tuple[Bytes, Bytes]:
    """Images [N, 3, 32, 32] and labels [N] of the binary batches `paths`, in their order."""
    return _joined([read_binary_batch(path) for path in paths])


def write_binary(path: Path, images: Bytes, labels: Bytes) -> None:
    """Write images [N, 3, 32, 32] and labels [N] as one binary batch."""
    path.write_bytes(np.concatenate([labels[:, None], images.reshape(-1, _PIXELS)], axis=1).tobytes())


def _read_png_rows(path: Path) -> Bytes:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise LinfnetError(f"{path} needs Pillow to be read: pip install 'linfnet[images]'") from error
    try:
        with Image.open(path, formats=["PNG"]) as image:
            if image.mode != "RGB" or image.width != 1024:
                raise LinfnetError(
                    f"{path} is {image.width} pixels wide in mode {image.mode}; wanted 1024 RGB pixels per row"
                )
            pixels = np.asarray(image)
    except UnidentifiedImageError as error:
        raise LinfnetError(f"{path} is not a PNG file") from error
    except (OSError, SyntaxError, ValueError) as error:  # Pillow tells a broken chunk by a SyntaxError
        raise LinfnetError(f"{path} is truncated or damaged: {error}") from error
    return pixels.transpose(0, 2, 1).reshape(-1, _PIXELS)


def _read_label_list(path: Path) -> Bytes:
    try:
        labels: Any = json.loads(path.read_bytes())
    except OSError as error:
        raise LinfnetError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise LinfnetError(f"{path} is truncated or no JSON file: {error}") from error
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < 10 for label in labels):
        raise LinfnetError(f"{path} is not a list of labels from 0 to 9")
    return np.array(labels, np.uint8)


def read_png(paths: list[Path]) -> tuple[Bytes, Bytes]:
    """Images [N, 3, 32, 32] and labels [N]: `paths` are PNG files, each row an image of 1024 RGB pixels, and last a
    JSON list of the labels of all."""
    labels = _read_label_list(paths[-1])
    rows = np.concatenate([_read_png_rows(path) for path in paths[:-1]])
    if len(rows) != len(labels):
        raise LinfnetError(f"{paths[-1]} holds {len(labels)} labels for {len(rows)} images")
    return rows.reshape(-1, *_SHAPE), labels
