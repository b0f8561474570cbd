"""Image files as bytes of one shape: converted only on request, and each file that cannot be used is named."""

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from linfnet.data.jpeg import MAX_SCANS, count_scans
from linfnet.data.own_data import ImageBuffer
from linfnet.errors import ArgumentError, LinfnetError, require

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".pgm", ".ppm")
# Files with these suffixes are images, too, and are reported instead of being overlooked.
UNSUPPORTED_SUFFIXES = (".heic", ".heif", ".avif", ".svg", ".psd", ".jp2", ".tga")
# No format that starts another program (EPS) or that stands for something else.
_FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "TIFF", "GIF", "PPM")
_MOST_PIXELS = 100_000_000  # decoded, such an image takes 300 MB
_LISTED = 5

Mode = Literal["grey", "rgb"] | None
Size = int | tuple[int, int] | None


@dataclass(frozen=True)
class BadFile:
    """An image file that cannot be used."""

    path: Path
    reason: str
    convertible: bool = False
    """Whether only the size or the mode is not the expected one."""

    def __str__(self) -> str:
        return f"{readable(self.path)}: {self.reason}"


class BadFilesError(LinfnetError):
    """Some image files cannot be used; the message names the first of them, those that cannot be read before others."""

    def __init__(self, bad: Sequence[BadFile], count: int) -> None:
        self.bad = tuple(sorted(bad, key=lambda file: file.convertible))
        self.summary = f"{len(bad):,} of {count:,} image files cannot be used"
        lines = [self.summary, *self.listed()]
        super().__init__("\n  ".join(lines))

    def listed(self, show: Callable[[BadFile], str] = str) -> list[str]:
        """Return a line for each of the first files, and one that says how many others there are."""
        more = [f"and {len(self.bad) - _LISTED:,} more"] if len(self.bad) > _LISTED else []
        return [*map(show, self.bad[:_LISTED]), *more]


def read_image_files(
    files: Sequence[Path],
    *,
    resize: Size = None,
    mode: Mode = None,
    shape: tuple[int, int, int] | None = None,
    on_bad: Callable[[BadFile], None] | None = None,
    advance: Callable[[int], None] = lambda files: None,
) -> tuple[Tensor, list[int]]:
    """Read image files into one tensor.

    All files must have the same size and mode (grey or RGB), unless `resize` and `mode` ask for a conversion.
    The orientation that a camera stores in a photograph is applied.

    Args:
        files: the files, in the order of the result.
        resize: (H, W), or one number for both; the whole image is scaled, its proportions may change.
        mode: "grey" or "rgb"; transparent pixels become black.
        shape: the expected (C, H, W); None takes that of the first file that can be read.
        on_bad: is called for each file that cannot be used, which is then left out; None raises a `BadFilesError`
            that names up to five of them.
        advance: is called with 1 after each file.

    Returns:
        uint8 [N, C, H, W] and, for each image, the index of its file.
    """
    require("PIL", "images")
    size = _checked_size(resize)
    if mode not in (None, "grey", "rgb"):
        raise ArgumentError(f"mode is {mode!r}; expected 'grey', 'rgb' or None")
    buffer, indices, bad, first = ImageBuffer(len(files)), list[int](), list[BadFile](), ""
    for index, path in enumerate(files):
        try:
            image = _read(path, size, mode)
            if shape is None:
                shape, first = (image.shape[0], image.shape[1], image.shape[2]), f" like {readable(path)}"
            if tuple(image.shape) != shape:
                raise _DifferentError(_difference(tuple(image.shape), shape, first))
        except _UnusableError as error:
            bad.append(BadFile(path, str(error), isinstance(error, _DifferentError)))
        else:
            buffer.append(image[None])
            indices.append(index)
        advance(1)
    if bad and (on_bad is None or not indices):
        raise BadFilesError(bad, len(files))
    for file in bad:
        if on_bad is not None:
            on_bad(file)
    return buffer.images(), indices


def readable(path: Path | str) -> str:
    """A path as text that can be printed and stored; bytes that are not UTF-8 are written as escapes."""
    return os.fsencode(path).decode(errors="backslashreplace")


class _UnusableError(Exception):
    """The reason why a file cannot be used."""


class _DifferentError(_UnusableError):
    """The image has another size or mode than expected."""


def _checked_size(resize: Size) -> tuple[int, int] | None:
    size = (resize, resize) if isinstance(resize, int) else resize
    if size is not None and (len(size) != 2 or not all(type(side) is int and 1 <= side <= 10_000 for side in size)):
        raise ArgumentError(f"resize is {resize!r}; expected (height, width) from 1 to 10000, or one number for both")
    return size


def _difference(got: tuple[int, ...], expected: tuple[int, int, int], first: str) -> str:
    """How an image differs from the expected shape, and which option converts it."""
    if got[1:] != expected[1:]:
        sizes = f"has {got[1]} x {got[2]} pixels (height x width); expected {expected[1]} x {expected[2]}{first}"
        return f"{sizes}: convert all with resize=({expected[1]}, {expected[2]})"
    kinds = {1: "grey", 3: "RGB"}
    kind = kinds.get(expected[0], f"{expected[0]} channels")
    return f'is {kinds[got[0]]}; expected {kind}{first}: convert all with mode="grey" or mode="rgb"'


def _read(path: Path, size: tuple[int, int] | None, mode: Mode) -> Tensor:
    """One file as uint8 [C, H, W]."""
    if path.suffix.lower() in UNSUPPORTED_SUFFIXES:
        raise _UnusableError(f"{path.suffix.lower()} files are not supported; convert the file to PNG")
    from PIL import Image, ImageOps

    try:
        if not path.is_file():
            raise _UnusableError("is not a regular file" if path.exists() else "does not exist")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of bombs, which are checked here, and of odd metadata
            with Image.open(path, formats=_FORMATS) as picture:
                if picture.width * picture.height > _MOST_PIXELS:
                    raise _UnusableError(
                        f"has {picture.height} x {picture.width} pixels; the limit is {_MOST_PIXELS:,}"
                    )
                scans = count_scans(path.read_bytes()) if picture.format in ("JPEG", "MPO") else 1
                if scans > MAX_SCANS:  # a small file may take minutes to decode
                    raise _UnusableError(f"has {scans:,} scans; the limit is {MAX_SCANS}")
                # The further images in a camera's JPEG file (MPO) are versions of the first one.
                if (frames := getattr(picture, "n_frames", 1)) != 1 and picture.format != "MPO":
                    raise _UnusableError(f"has {frames} frames; expected one image")
                array = _as_bytes(ImageOps.exif_transpose(picture), size, mode)
    except _UnusableError:
        raise
    except Image.DecompressionBombError:
        raise _UnusableError(f"has too many pixels; the limit is {_MOST_PIXELS:,}") from None
    except Image.UnidentifiedImageError:
        raise _UnusableError("is not an image in a supported format") from None
    # Broken files make Pillow raise OSError, ValueError, struct.error, SyntaxError, MemoryError and more.
    except Exception as error:
        reason = getattr(error, "strerror", None) or (str(error).splitlines() or [type(error).__name__])[0]
        raise _UnusableError(f"cannot be read: {reason}") from None
    return torch.from_numpy(array[None] if array.ndim == 2 else np.ascontiguousarray(array.transpose(2, 0, 1)))


def _as_bytes(picture: Any, size: tuple[int, int] | None, mode: Mode) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    """A Pillow image as uint8 [H, W] or [H, W, 3]."""
    from PIL import Image

    if mode is None and picture.mode not in ("L", "RGB"):
        raise _UnusableError(
            f'its pixels are stored as {_KINDS.get(picture.mode, picture.mode)}; convert all with mode="grey" or '
            'mode="rgb"'
        )
    if picture.mode.startswith("I;16"):
        # Pillow would cut off all values above 255.
        wide = np.asarray(picture).astype(np.uint32)
        picture = Image.fromarray(((wide * 255 + 32767) // 65535).astype(np.uint8))
    if picture.mode in ("I", "F"):
        raise _UnusableError("has pixels of 32 bits, whose white is unknown; save it with 8 bits per channel")
    if mode is not None and ("A" in picture.getbands() or "transparency" in picture.info):
        layer = picture.convert("RGBA")
        picture = Image.new("RGBA", layer.size, (0, 0, 0, 255))
        picture.alpha_composite(layer)
    if mode is not None:
        picture = picture.convert({"grey": "L", "rgb": "RGB"}[mode])
    if size is not None and picture.size != (size[1], size[0]):
        picture = picture.resize((size[1], size[0]), Image.Resampling.LANCZOS)
    return np.array(picture)


_KINDS = {
    "1": "black and white (1 bit)",
    "P": "a palette",
    "RGBA": "RGB with transparency",
    "LA": "grey with transparency",
    "PA": "a palette with transparency",
    "CMYK": "CMYK",
    "I;16": "grey with 16 bits",
    "I;16B": "grey with 16 bits",
}
