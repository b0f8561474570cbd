"""IDX files, plain or gzipped: the file format of MNIST and Fashion-MNIST."""

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from linfnet.errors import LinfnetError

_UNSIGNED_BYTE = 0x08
_MAX_BYTES = 2**28


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def _read_header(file: _Readable, path: Path) -> tuple[int, ...]:
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0":
        raise LinfnetError(f"{path} is not an IDX file: it begins with {magic.hex(' ') or 'nothing'}")
    kind, rank = magic[2], magic[3]
    if kind != _UNSIGNED_BYTE:
        raise LinfnetError(f"{path} holds IDX type 0x{kind:02x}; expected unsigned bytes, 0x08")
    sizes = file.read(4 * rank)
    if len(sizes) < 4 * rank:
        raise LinfnetError(f"{path} is truncated: it ends within its header")
    return struct.unpack(f">{rank}I", sizes)


def read_idx(path: Path) -> npt.NDArray[np.uint8]:
    """Return the bytes of an IDX file in the shape of its header; gzip is recognised by the first bytes."""
    try:
        with path.open("rb") as plain:
            zipped = plain.read(2) == b"\x1f\x8b"
        with gzip.open(path) if zipped else path.open("rb") as file:
            shape = _read_header(file, path)
            size = math.prod(shape)
            if size > _MAX_BYTES:
                raise LinfnetError(f"{path} declares {size} bytes in its header; expected at most {_MAX_BYTES}")
            # One byte more shows whether the file is too long, without unpacking all of it.
            content = file.read(size + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise LinfnetError(f"{path} is a damaged gzip file: {error}") from error
    except OSError as error:
        raise LinfnetError(f"{path} cannot be read: {error.strerror or error}") from error
    if len(content) < size:
        raise LinfnetError(f"{path} is truncated: it holds {len(content)} of {size} bytes")
    if len(content) > size:
        raise LinfnetError(f"{path} is longer than the {size} bytes that its header declares")
    return np.frombuffer(content, np.uint8).reshape(shape)


def read_idx_pair(paths: list[Path]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Return images [N, 1, H, W] and labels [N] of two IDX files."""
    images, labels = read_idx(paths[0]), read_idx(paths[1])
    for path, array, rank in ((paths[0], images, 3), (paths[1], labels, 1)):
        if array.ndim != rank:
            raise LinfnetError(f"{path} holds an array of shape {list(array.shape)}; expected {rank} dimensions")
    if len(images) != len(labels):
        raise LinfnetError(f"{paths[1]} holds {len(labels)} labels for {len(images)} images")
    return images[:, None], labels
