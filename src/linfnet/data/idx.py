"""IDX files, plain or gzipped: the form of MNIST and Fashion-MNIST."""

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
_MOST_BYTES = 2**28


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def _read_header(file: _Readable, path: Path) -> tuple[int, ...]:
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0":
        raise LinfnetError(f"{path} is not an IDX file: it begins with {magic.hex(' ') or 'nothing'}")
    kind, rank = magic[2], magic[3]
    if kind != _UNSIGNED_BYTE:
        raise LinfnetError(f"{path} holds IDX type 0x{kind:02x}; wanted unsigned bytes, 0x08")
    sizes = file.read(4 * rank)
    if len(sizes) < 4 * rank:
        raise LinfnetError(f"{path} is truncated: it ends within its header")
    return struct.unpack(f">{rank}I", sizes)


def read_idx(path: Path) -> npt.NDArray[np.uint8]:
    """The bytes in an IDX file, in the shape its header tells; a gzipped file is known by how it begins."""
    try:
        with path.open("rb") as plain:
            zipped = plain.read(2) == b"\x1f\x8b"
        with gzip.open(path) if zipped else path.open("rb") as file:
            shape = _read_header(file, path)
            wanted = math.prod(shape)
            if wanted > _MOST_BYTES:
                raise LinfnetError(f"{path} tells of {wanted} bytes in its header; wanted {_MOST_BYTES} at most")
            # One byte more than wanted tells a longer file, and no bomb is unpacked.
            content = file.read(wanted + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise LinfnetError(f"{path} is a damaged gzip file: {error}") from error
    except OSError as error:
        raise LinfnetError(f"{path} cannot be read: {error.strerror or error}") from error
    if len(content) < wanted:
        raise LinfnetError(f"{path} is truncated: it holds {len(content)} of {wanted} bytes")
    if len(content) > wanted:
        raise LinfnetError(f"{path} is longer than the {wanted} bytes that its header tells")
    return np.frombuffer(content, np.uint8).reshape(shape)
