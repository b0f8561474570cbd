"""A posted PNG or JPEG as pixels of the net's shape: as it is, or fitted the way the net's training images were."""

import io
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linfnet.errors import LinfnetError
from linfnet.serve.refusal import RefusedError

FITS = ("none", "digit", "whole")
# Decoded, one such picture takes at most 64 MB.
MOST_PIXELS = 16_000_000
# Fainter strokes are noise of the scanner.
INK = 0.1


def require_pillow() -> Any:
    """The module PIL.Image, or an error that says how to get it."""
    try:
        from PIL import Image
    except ImportError:
        raise LinfnetError("serving needs Pillow: pip install 'linfnet[serve]'") from None
    return Image


def read_picture(body: bytes, shape: tuple[int, int, int], fit: str) -> Tensor:
    """float32 [C, H, W] in [0, 1] from the bytes of a picture.

    Args:
        body: a PNG or JPEG; its size is looked at before it is decoded.
        shape: (C, H, W) of the net.
        fit: "none" takes only pictures of exactly the net's size and mode; "whole" cuts out the middle and scales it;
            "digit" does what was done to MNIST: ink on black, scaled into a box, centred by its mass.
    """
    if fit not in FITS:
        raise RefusedError(400, f"fit is {fit[:40]!r}; known are {', '.join(FITS)}")
    wanted = {1: "L", 3: "RGB"}.get(shape[0])
    if wanted is None:
        raise RefusedError(415, f"no picture has the net's {shape[0]} channels; post JSON")
    picture = _decode(body, upright=fit != "none")
    if fit == "none":
        if picture.mode != wanted or picture.size != (shape[2], shape[1]):
            raise RefusedError(
                400,
                f"the picture is {picture.size[0]} x {picture.size[1]}, mode {picture.mode}; the net wants "
                f"{shape[2]} x {shape[1]}, mode {wanted} (or ask for fit=whole or fit=digit)",
            )
        array = np.asarray(picture)
    else:
        opaque = _on_black(picture).convert(wanted)
        array = _fit_digit(np.asarray(opaque), shape) if fit == "digit" else np.asarray(_cut(opaque, shape))
    # The division every image of a data set goes through (`to_pixels`): correctly rounded.
    pixels = torch.from_numpy(np.array(array, dtype=np.float32)) / torch.full((), 255.0)
    return pixels.unsqueeze(0) if shape[0] == 1 else pixels.permute(2, 0, 1).contiguous()


def _decode(body: bytes, upright: bool) -> Any:
    """The picture; `upright` turns a photograph the way its camera was held."""
    image = require_pillow()
    from PIL import ImageOps, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            picture = image.open(io.BytesIO(body), formats=("PNG", "JPEG"))
            if picture.size[0] * picture.size[1] > MOST_PIXELS:
                size = f"{picture.size[0]} x {picture.size[1]}"
                raise RefusedError(413, f"the picture is {size}; wanted at most {MOST_PIXELS:,} pixels")
            picture.load()
            if upright:
                picture = ImageOps.exif_transpose(picture)
    except RefusedError:
        raise
    except image.DecompressionBombError:
        raise RefusedError(413, f"the picture is far too large; wanted at most {MOST_PIXELS:,} pixels") from None
    except UnidentifiedImageError:
        raise RefusedError(400, "the picture cannot be read: it is no PNG or JPEG") from None
    # Broken files make Pillow raise OSError, ValueError, struct.error, SyntaxError, MemoryError and more.
    except Exception as error:
        message = (str(error).splitlines() or [type(error).__name__])[0]
        raise RefusedError(400, f"the picture cannot be read: {message[:100]}") from None
    return picture


def _on_black(picture: Any) -> Any:
    """The picture without transparency, in mode RGB or L."""
    if picture.mode in ("L", "RGB"):
        return picture
    clear = picture.convert("RGBA")
    black = require_pillow().new("RGBA", clear.size, (0, 0, 0, 255))
    black.alpha_composite(clear)
    return black.convert("RGB")


def _cut(picture: Any, shape: tuple[int, int, int]) -> Any:
    """The largest middle part of the net's proportions, scaled to its size."""
    width, height = picture.size
    scale = min(width / shape[2], height / shape[1])
    left, top = (width - shape[2] * scale) / 2, (height - shape[1] * scale) / 2
    box = (left, top, left + shape[2] * scale, top + shape[1] * scale)
    return picture.resize((shape[2], shape[1]), require_pillow().Resampling.LANCZOS, box=box)


def _fit_digit(grey: np.ndarray, shape: tuple[int, int, int]) -> np.ndarray:
    """bytes [H, W]: the ink, its longer side 20 of 28 pixels, its centre of mass on the centre (14, 14)."""
    edge = np.concatenate([grey[0], grey[-1], grey[:, 0], grey[:, -1]])
    # Ink on paper is dark on light: MNIST is light on dark.
    ink = 255 - grey if np.median(edge) > 127 else grey
    rows, columns = np.nonzero(ink > 255 * INK)
    if not len(rows):
        raise RefusedError(400, "the picture is empty: there is no ink on it")
    part = ink[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
    height, width = shape[1:]
    # MNIST leaves a rim of four pixels; the 8 x 8 digits fill their height.
    room = 20 if (height, width) == (28, 28) else min(height, width)
    scale = room / max(part.shape)
    size = (max(1, round(part.shape[1] * scale)), max(1, round(part.shape[0] * scale)))
    image = require_pillow()
    small = np.asarray(
        image.fromarray(part).resize(size, image.Resampling.BOX if scale < 1 else image.Resampling.BICUBIC)
    )
    field = np.zeros((height, width), dtype=np.uint8)
    top = _place(small.sum(1), height)
    left = _place(small.sum(0), width)
    field[top : top + small.shape[0], left : left + small.shape[1]] = small
    return field


def _place(mass: np.ndarray, side: int) -> int:
    """Where a line of masses starts on a side so that its centre lies on the middle, as near as the side has room."""
    centre = float((mass * np.arange(len(mass))).sum() / max(1, mass.sum()))
    return min(max(0, round(side / 2 - centre)), side - len(mass))
