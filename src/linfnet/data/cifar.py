"""CIFAR-10 in its three file formats: Python pickles, binary batches, and PNG files with one image per row.

The pickles are read without running anything that they name. Not even NumPy's own constructors are called: the names
that a pickled array of bytes needs are mapped to two small classes of this module, and every other name is refused.
"""

import io
import json
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from linfnet.errors import LinfnetError, require

Bytes = npt.NDArray[np.uint8]
_SHAPE = (3, 32, 32)
_PIXELS = 3072


class _ByteType:
    """Replaces `numpy.dtype`; unsigned bytes only."""

    __slots__ = ()

    def __init__(self, kind: object, *_: object) -> None:
        if kind not in ("u1", b"u1"):
            raise pickle.UnpicklingError(f"it holds an array of type {kind!r}; expected unsigned bytes")

    def __setstate__(self, state: object) -> None:
        """Ignore byte order and fields, which an array of bytes does not need."""


class _ByteArray:
    """Replaces `numpy.ndarray` and the function that creates an empty one."""

    __slots__ = ("array",)

    array: Bytes

    def __init__(self, *_: object) -> None:
        self.array = np.empty(0, np.uint8)

    def __setstate__(self, state: tuple[int, tuple[int, ...], _ByteType, bool, bytes]) -> None:
        _, shape, _, column_major, content = state
        self.array = np.frombuffer(content, np.uint8).reshape(shape, order="F" if column_major else "C")


def _from_buffer(content: bytes, kind: _ByteType, shape: tuple[int, ...], order: str) -> _ByteArray:
    array = _ByteArray()
    array.__setstate__((1, shape, kind, order == "F", content))
    return array


def _encode_latin1(text: str, _: object) -> bytes:
    return text.encode("latin1")


class _BatchUnpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Callable[..., object]:
        match module_name.replace("_core", "core"), global_name:
            case ("numpy", "ndarray") | ("numpy.core.multiarray", "_reconstruct"):
                return _ByteArray
            case ("numpy", "dtype"):
                return _ByteType
            # A pickle can set attributes of these objects, so each lookup returns a new one.
            case ("numpy.core.numeric", "_frombuffer"):  # arrays in the newest protocol
                return partial(_from_buffer)
            case ("_codecs", "encode"):  # bytes that Python 3 wrote in the oldest protocols
                return partial(_encode_latin1)
            case _:
                raise pickle.UnpicklingError(
                    f"it asks for {module_name}.{global_name}, which no CIFAR-10 batch needs; it was not loaded"
                )


def read_python_batch(path: Path) -> tuple[Bytes, Bytes]:
    """Return rows, uint8 [N, 3072], and labels, uint8 [N], of one pickled batch."""
    content = _read_file(path)
    try:
        batch: Any = _BatchUnpickler(io.BytesIO(content), encoding="bytes").load()
        fields: dict[str, Any] = {k.decode("latin1") if isinstance(k, bytes) else k: v for k, v in batch.items()}
        rows, labels = fields["data"].array, np.array(fields["labels"], np.uint8)
    except Exception as error:  # a damaged pickle may raise anything
        reason = str(error) if isinstance(error, pickle.UnpicklingError) else f"{type(error).__name__}: {error}"
        raise LinfnetError(f"{path} is not a Python batch of CIFAR-10: {reason}") from error
    if rows.ndim != 2 or rows.shape[1] != _PIXELS or labels.shape != rows.shape[:1]:
        raise LinfnetError(
            f"{path} holds images {list(rows.shape)} and labels {list(labels.shape)}; expected [N, {_PIXELS}] and [N]"
        )
    return rows, labels


def read_binary_batch(path: Path) -> tuple[Bytes, Bytes]:
    """Return rows [N, 3072] and labels [N] of one binary batch: per image a label, then the three colour planes."""
    content = np.frombuffer(_read_file(path), np.uint8)
    if content.size == 0 or content.size % (1 + _PIXELS):
        raise LinfnetError(
            f"{path} is truncated or not a binary batch of CIFAR-10: its {content.size} bytes are not a multiple of "
            f"{1 + _PIXELS}"
        )
    records = content.reshape(-1, 1 + _PIXELS)
    return records[:, 1:], records[:, 0]


def _read_batches(read_batch: Callable[[Path], tuple[Bytes, Bytes]], paths: list[Path]) -> tuple[Bytes, Bytes]:
    rows, labels = zip(*(read_batch(path) for path in paths), strict=True)
    return np.concatenate(rows).reshape(-1, *_SHAPE), np.concatenate(labels)


# Both take paths and return images [N, 3, 32, 32] and labels [N].
read_python = partial(_read_batches, read_python_batch)
read_binary = partial(_read_batches, read_binary_batch)


def read_png(paths: list[Path]) -> tuple[Bytes, Bytes]:
    """Return images [N, 3, 32, 32] and labels [N].

    Args:
        paths: PNG files, in which each row of 1024 RGB pixels is an image, followed by a JSON list of all labels.
    """
    labels = _read_label_list(paths[-1])
    rows = np.concatenate([_read_png_rows(path) for path in paths[:-1]])
    if len(rows) != len(labels):
        raise LinfnetError(f"{paths[-1]} holds {len(labels)} labels for {len(rows)} images")
    return rows.reshape(-1, *_SHAPE), labels


def write_binary(path: Path, images: Bytes, labels: Bytes) -> None:
    """Write images [N, 3, 32, 32] and labels [N] as one binary batch."""
    path.write_bytes(np.concatenate([labels[:, None], images.reshape(-1, _PIXELS)], axis=1).tobytes())


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise LinfnetError(f"{path} cannot be read: {error.strerror or error}") from error


def _read_png_rows(path: Path) -> Bytes:
    require("PIL", "images")
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path, formats=["PNG"]) as image:
            if image.mode != "RGB" or image.width != 1024:
                raise LinfnetError(
                    f"{path} is {image.width} pixels wide in mode {image.mode}; expected 1024 RGB pixels per row"
                )
            pixels = np.asarray(image)
    except UnidentifiedImageError as error:
        raise LinfnetError(f"{path} is not a PNG file") from error
    except (OSError, SyntaxError, ValueError) as error:  # Pillow raises SyntaxError for a broken chunk
        raise LinfnetError(f"{path} is truncated or damaged: {error}") from error
    return pixels.transpose(0, 2, 1).reshape(-1, _PIXELS)


def _read_label_list(path: Path) -> Bytes:
    try:
        labels: Any = json.loads(_read_file(path))
    except ValueError as error:
        raise LinfnetError(f"{path} is truncated or not a JSON file: {error}") from error
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < 10 for label in labels):
        raise LinfnetError(f"{path} is not a list of labels from 0 to 9")
    return np.array(labels, np.uint8)
