"""Pictures as PNG data URIs, with nothing but zlib."""

import base64
import struct
import zlib

import numpy as np
from torch import Tensor

GREY, COLOUR = 0, 2


def encode_png(image: Tensor) -> bytes:
    """A PNG of pixels [C, H, W] in [0, 1], C being 1 (grey) or 3 (colour), rounded to bytes.

    >>> import torch
    >>> encode_png(torch.zeros(1, 2, 2))[:8]
    b'\\x89PNG\\r\\n\\x1a\\n'
    """
    levels = (image.detach().cpu().numpy() * 255).round().clip(0, 255).astype(np.uint8)
    channels, rows, columns = levels.shape
    kind = {1: GREY, 3: COLOUR}[channels]
    lines = levels.transpose(1, 2, 0).reshape(rows, columns * channels)
    # Each line starts with its filter: 0, the bytes as they are.
    raw = np.concatenate([np.zeros((rows, 1), np.uint8), lines], axis=1).tobytes()
    header = struct.pack(">IIBBBBB", columns, rows, 8, kind, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in chunks)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def picture(image: Tensor) -> str:
    """The PNG of pixels [C, H, W] in [0, 1] as a data URI."""
    return "data:image/png;base64," + base64.b64encode(encode_png(image)).decode()


def difference(image: Tensor, changed: Tensor, size: float) -> Tensor:
    """The change of each pixel, magnified: -size is black, +size white, none the grey between.

    >>> import torch
    >>> difference(torch.tensor([0.5, 0.5, 0.5]), torch.tensor([0.25, 0.5, 0.75]), 0.25)
    tensor([0.0000, 0.5000, 1.0000])
    """
    return ((changed - image) / (2 * size) + 0.5).clamp(0, 1)
