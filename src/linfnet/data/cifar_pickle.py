"""The python batches of CIFAR-10 are pickles: read here without running anything they name.

Not even NumPy's own constructors are called: the names that a pickled array of bytes uses stand for two small classes
of ours, and every other name is refused.
"""

import io
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from linfnet.errors import LinfnetError


class _ByteType:
    """Stands for `numpy.dtype`, unsigned bytes only."""

    __slots__ = ()

    def __init__(self, kind: object, *_: object) -> None:
        if kind not in ("u1", b"u1"):
            raise pickle.UnpicklingError(f"it holds an array of type {kind!r}; wanted unsigned bytes")

    def __setstate__(self, state: object) -> None:
        """Byte order and fields: nothing that an array of bytes needs."""


class _ByteArray:
    """Stands for `numpy.ndarray` and the function that makes an empty one."""

    __slots__ = ("array",)

    array: npt.NDArray[np.uint8]

    def __init__(self, *_: object) -> None:
        self.array = np.empty(0, np.uint8)

    def __setstate__(self, state: tuple[int, tuple[int, ...], _ByteType, bool, bytes]) -> None:
        _, shape, _, column_major, content = state
        self.array = np.frombuffer(content, np.uint8).reshape(shape, order="F" if column_major else "C")


def _filled(content: bytes, kind: _ByteType, shape: tuple[int, ...], order: str) -> _ByteArray:
    array = _ByteArray()
    array.__setstate__((1, shape, kind, order == "F", content))
    return array


def _latin1(text: str, _: object) -> bytes:
    return text.encode("latin1")


class _BatchUnpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Callable[..., object]:
        match module_name.replace("_core", "core"), global_name:
            case ("numpy", "ndarray") | ("numpy.core.multiarray", "_reconstruct"):
                return _ByteArray
            case ("numpy", "dtype"):
                return _ByteType
            # A pickle may write to what it is given: a new object each time.
            case ("numpy.core.numeric", "_frombuffer"):  # how NumPy writes an array in the newest protocol
                return partial(_filled)
            case ("_codecs", "encode"):  # how Python 3 writes bytes in the oldest protocols
                return partial(_latin1)
            case _:
                raise pickle.UnpicklingError(
                    f"it asks for {module_name}.{global_name}, which no CIFAR-10 batch needs; it is not opened"
                )


def read_python_batch(path: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Rows, uint8 [N, 3072], and labels, uint8 [N], of one python batch."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise LinfnetError(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        batch: Any = _BatchUnpickler(io.BytesIO(content), encoding="bytes").load()
        fields: dict[str, Any] = {k.decode("latin1") if isinstance(k, bytes) else k: v for k, v in batch.items()}
        rows, labels = fields["data"].array, np.array(fields["labels"], np.uint8)
    except Exception as error:  # a damaged pickle may raise anything
        reason = str(error) if isinstance(error, pickle.UnpicklingError) else f"{type(error).__name__}: {error}"
        raise LinfnetError(f"{path} is not a python batch of CIFAR-10: {reason}") from error
    if rows.ndim != 2 or rows.shape[1] != 3072 or labels.shape != rows.shape[:1]:
        raise LinfnetError(
            f"{path} holds images {list(rows.shape)} and labels {list(labels.shape)}; wanted [N, 3072] and [N]"
        )
    return rows, labels
