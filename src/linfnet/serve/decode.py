"""Decode posted PNG, JPEG and WebP pictures to bytes of the net's size, optionally prepared like MNIST images.

`serve/decoder.py` runs this file as a script in a separate process, which it can end: a small file may take minutes to
decode. Therefore this file imports only Pillow and NumPy.
"""

import contextlib
import io
import json
import sys
import warnings

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

FORMATS = ("PNG", "JPEG", "WEBP")
# Largest number of pixels of a picture, and of one of its sides; decoded, they take at most 64 MB.
MAX_PIXELS, MAX_SIDE = 16_000_000, 20_000
# Largest memory of the process that decodes: a few copies of a picture.
MAX_BYTES = 512_000_000


class CostlyPictureError(Exception):
    """A picture that takes long to decode: its pixels times the scans of a JPEG file."""

    def __init__(self, work: int) -> None:
        super().__init__(work)
        self.work = work


class PictureError(Exception):
    """A picture that cannot be used: the status of the response and the reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def read_picture(
    body: bytes, shape: tuple[int, int, int], fit: str, max_work: int | None = None, scans: int = 1
) -> np.ndarray:
    """Return bytes [H, W] or [H, W, 3] of the net's shape (C, H, W) from the bytes of a PNG, JPEG or WebP file.

    Raises `CostlyPictureError`, before it is decoded, for a picture of more work than `max_work`; `scans` is the number
    of scans of the file.

    The fit "none" accepts only pictures of exactly the net's size and mode; "crop" cuts out the centre and scales it;
    "resize" scales the whole picture, which distorts pictures of another shape; "digit" prepares it like the images of
    MNIST: white ink on black, scaled to fit a box and centred by its mass.
    """
    mode = {1: "L", 3: "RGB"}.get(shape[0])
    if mode is None:
        raise PictureError(415, f"the net has {shape[0]} channels, which no picture has; post JSON pixels instead")
    picture = _decode(body, rotate=fit != "none", max_work=max_work, scans=scans)
    if fit == "none":
        if picture.mode != mode or picture.size != (shape[2], shape[1]):
            size = f"{picture.height} x {picture.width} (height x width), mode {picture.mode}"
            expected = f"{shape[1]} x {shape[2]}, mode {mode}"
            raise PictureError(400, f"the picture is {size}; expected {expected}, or fit=crop, resize or digit")
        array = np.asarray(picture)
    else:
        if picture.mode not in ("L", "RGB"):
            # Transparent pixels become black.
            picture = Image.alpha_composite(Image.new("RGBA", picture.size, "black"), picture.convert("RGBA"))
        opaque = picture if picture.mode == mode else picture.convert(mode)
        if fit == "digit":
            array = _fit_digit(opaque, shape)
        elif fit == "crop":
            array = np.asarray(ImageOps.fit(opaque, (shape[2], shape[1]), Image.Resampling.LANCZOS))
        else:
            array = np.asarray(opaque.resize((shape[2], shape[1]), Image.Resampling.LANCZOS))
    return array


def _decode(body: bytes, rotate: bool, max_work: int | None, scans: int) -> Image.Image:
    """Decode a picture; if `rotate` is true, apply the orientation that the camera stored."""
    try:
        with warnings.catch_warnings(action="ignore"), contextlib.suppress(Image.DecompressionBombError):
            picture = Image.open(io.BytesIO(body), formats=FORMATS)
            if picture.width * picture.height <= MAX_PIXELS and max(picture.size) <= MAX_SIDE:
                work = picture.width * picture.height * scans
                if max_work is not None and work > max_work:
                    raise CostlyPictureError(work)
                picture.load()
                return ImageOps.exif_transpose(picture) if rotate else picture
    except CostlyPictureError:
        raise
    # For damaged files Pillow raises OSError, ValueError, struct.error, SyntaxError, MemoryError and more.
    except Exception as error:
        unknown = isinstance(error, UnidentifiedImageError)
        reason = (
            "it is not a PNG, JPEG or WebP file" if unknown else (str(error).splitlines() or [type(error).__name__])[0]
        )
        raise PictureError(400, f"the picture cannot be read: {reason[:100]}") from None
    raise PictureError(413, f"the picture is too large; expected at most {MAX_PIXELS:,} pixels, {MAX_SIDE:,} per side")


def _fit_digit(grey: Image.Image, shape: tuple[int, int, int]) -> np.ndarray:
    """Return bytes [H, W]: the ink, scaled to fit a box, with its centre of mass in the centre of the image."""
    right, bottom = grey.width, grey.height
    sides = [(0, 0, right, 1), (0, bottom - 1, right, bottom), (0, 0, 1, bottom), (right - 1, 0, right, bottom)]
    edge = np.concatenate([np.asarray(grey.crop(side)).ravel() for side in sides])
    # Ink on paper is dark on a light background; MNIST is light on a dark background.
    ink = ImageOps.invert(grey) if np.median(edge) > 127 else grey
    bounds = ink.point([0] * 26 + [255] * 230).getbbox()  # fainter pixels are treated as noise
    if bounds is None:
        raise PictureError(400, "the picture is empty: it contains no ink")
    part = ink.crop(bounds)
    height, width = shape[1:]
    # MNIST has a border of four pixels; the 8 x 8 digits fill the full height of the image.
    box = 20 if (height, width) == (28, 28) else min(height, width)
    scale = box / max(part.size)
    size = (max(1, round(part.width * scale)), max(1, round(part.height * scale)))
    small = np.asarray(part.resize(size, Image.Resampling.BOX if scale < 1 else Image.Resampling.BICUBIC))
    image = np.zeros((height, width), dtype=np.uint8)
    top, left = _centred_start(small.sum(1), height), _centred_start(small.sum(0), width)
    image[top : top + small.shape[0], left : left + small.shape[1]] = small
    return image


def _centred_start(mass: np.ndarray, side: int) -> int:
    """Return the offset that moves the centre of mass closest to the middle of a side without cutting anything off."""
    centre = float((mass * np.arange(len(mass))).sum() / max(1, mass.sum()))
    return min(max(0, round(side / 2 - centre)), side - len(mass))


def main() -> None:
    """Decode the pictures that arrive on the standard input, until it ends.

    A request is a line of JSON with the number of bytes and the other arguments of `read_picture`, followed by the
    file; a response is a line of JSON with the shape of the array, followed by its bytes, or with the status and the
    reason of an error, or with null and the work of a picture that is not decoded.
    """
    with contextlib.suppress(ImportError, ValueError, OSError):  # not on Windows; a stricter limit may exist
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (MAX_BYTES, MAX_BYTES))
    source, target = sys.stdin.buffer, sys.stdout.buffer
    target.write(b"ready\n")
    target.flush()
    while line := source.readline():
        size, shape, *options = json.loads(line)
        body = source.read(size)
        try:
            array = np.ascontiguousarray(read_picture(body, tuple(shape), *options))
            target.write(json.dumps([array.shape, None]).encode() + b"\n" + array.tobytes())
        except CostlyPictureError as error:
            target.write(json.dumps([None, error.work]).encode() + b"\n")
        except PictureError as error:
            target.write(json.dumps([error.status, str(error)]).encode() + b"\n")
        target.flush()


if __name__ == "__main__":
    main()
