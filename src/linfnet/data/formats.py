"""Readers of the file formats: IDX (MNIST, Fashion-MNIST); pickles, binary batches and PNG files (CIFAR-10)."""

import gzip
import io
import json
import math
import struct
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from linfnet.data.pickled import Bytes, read_pickle
from linfnet.errors import LinfnetError, require

Arrays = tuple[Bytes, Bytes]
"""Images as uint8 [N, C, H, W], and labels as uint8 [N]."""

_MAX_IDX_BYTES = 2**28
_CIFAR_SHAPE = (3, 32, 32)
_CIFAR_PIXELS = 3072


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise LinfnetError(f"{path} cannot be read: {error.strerror or error}") from error


def read_idx(path: Path) -> Bytes:
    """Return the bytes of an IDX file as an array of the shape in its header; the file may be compressed by gzip."""
    content = _read_file(path)
    file = gzip.GzipFile(fileobj=io.BytesIO(content)) if content[:2] == b"\x1f\x8b" else io.BytesIO(content)
    try:
        magic = file.read(4)
        if len(magic) < 4 or magic[:2] != b"\0\0":
            reason = f"it begins with {magic.hex(' ')}" if magic else "it is empty"
            raise LinfnetError(f"{path} is not an IDX file: {reason}")
        kind, rank = magic[2:]
        if kind != 8:
            raise LinfnetError(f"{path} contains IDX type 0x{kind:02x}; expected unsigned bytes, 0x08")
        sizes = file.read(4 * rank)
        if len(sizes) < 4 * rank:
            raise LinfnetError(f"{path} is truncated: it ends within its header")
        shape = struct.unpack(f">{rank}I", sizes)
        size = math.prod(shape)
        if size > _MAX_IDX_BYTES:
            raise LinfnetError(f"{path} declares {size} bytes in its header; expected at most {_MAX_IDX_BYTES}")
        # Read one more byte than declared, to detect a file that is too long without decompressing all of it.
        data = file.read(size + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise LinfnetError(f"{path} is a damaged gzip file: {error}") from error
    if len(data) < size:
        raise LinfnetError(f"{path} is truncated: it contains {len(data)} of {size} bytes")
    if len(data) > size:
        raise LinfnetError(f"{path} is longer than the {size} bytes that its header declares")
    return np.frombuffer(data, np.uint8).reshape(shape)


def read_idx_pair(paths: list[Path]) -> Arrays:
    """Return the images [N, 1, H, W] and the labels [N] of two IDX files."""
    images, labels = map(read_idx, paths)
    for path, array, rank in ((paths[0], images, 3), (paths[1], labels, 1)):
        if array.ndim != rank:
            raise LinfnetError(f"{path} contains an array of shape {list(array.shape)}; expected {rank} dimensions")
    return images[:, None], labels


def read_python_batch(path: Path) -> Arrays:
    """Return the rows, uint8 [N, 3072], and the labels, uint8 [N], of one pickled batch."""
    content = _read_file(path)
    try:
        rows, labels = read_pickle(content)
    except LinfnetError as error:
        raise LinfnetError(f"{path} is not a Python batch of CIFAR-10: {error}") from None
    if rows.shape != (len(labels), _CIFAR_PIXELS):
        shapes = f"images {list(rows.shape)} and labels {list(labels.shape)}"
        raise LinfnetError(f"{path} contains {shapes}; expected [N, {_CIFAR_PIXELS}] and [N]")
    return rows, labels


def read_binary_batch(path: Path) -> Arrays:
    """Return the rows [N, 3072] and the labels [N] of one binary batch.

    A batch has for each image one byte for the label, then the three colour planes.
    """
    content, length = np.frombuffer(_read_file(path), np.uint8), 1 + _CIFAR_PIXELS
    if content.size == 0 or content.size % length:
        reason = f"its {content.size} bytes are not a multiple of {length}"
        raise LinfnetError(f"{path} is truncated or not a binary batch of CIFAR-10: {reason}")
    records = content.reshape(-1, length)
    return records[:, 1:], records[:, 0]


def _read_batches(read_batch: Callable[[Path], Arrays], paths: list[Path]) -> Arrays:
    rows, labels = zip(*map(read_batch, paths), strict=True)
    return np.concatenate(rows).reshape(-1, *_CIFAR_SHAPE), np.concatenate(labels)


# Both functions take a list of paths and return images [N, 3, 32, 32] and labels [N].
read_python = partial(_read_batches, read_python_batch)
read_binary = partial(_read_batches, read_binary_batch)


def write_binary(path: Path, images: Bytes, labels: Bytes) -> None:
    """Write images [N, 3, 32, 32] and labels [N] as one binary batch."""
    path.write_bytes(np.concatenate([labels[:, None], images.reshape(-1, _CIFAR_PIXELS)], axis=1).tobytes())


def read_png(paths: list[Path]) -> Arrays:
    """Return the images [N, 3, 32, 32] and the labels [N] of PNG files.

    Args:
        paths: PNG files, in which each row of 1024 RGB pixels is one image; the last path is a JSON list of all labels.
    """
    try:
        labels: Any = json.loads(_read_file(paths[-1]))
    except (ValueError, RecursionError) as error:
        raise LinfnetError(f"{paths[-1]} is truncated or not a JSON file: {error}") from error
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < 10 for label in labels):
        raise LinfnetError(f"{paths[-1]} is not a list of labels from 0 to 9")
    rows = np.concatenate([_read_png_rows(path) for path in paths[:-1]])
    return rows.reshape(-1, *_CIFAR_SHAPE), np.array(labels, np.uint8)


def _read_png_rows(path: Path) -> Bytes:
    require("PIL", "images")
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path, formats=["PNG"]) as image:
            if image.mode != "RGB" or image.width != 1024:
                size = f"{image.width} pixels wide in mode {image.mode}"
                raise LinfnetError(f"{path} is {size}; expected 1024 RGB pixels per row")
            return np.asarray(image).transpose(0, 2, 1)
    except LinfnetError:
        raise
    except UnidentifiedImageError as error:
        raise LinfnetError(f"{path} is not a PNG file") from error
    except Exception as error:  # Pillow raises SyntaxError for a broken chunk, and others
        raise LinfnetError(f"{path} is truncated or damaged: {error}") from error
