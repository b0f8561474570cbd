"""Image files: conversion on request only, and every file that cannot be used is named."""

import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from own_samples import fill, image, save, values
from PIL import Image

from linfnet.data import BadFile, BadFilesError, image_files, load_path
from linfnet.data import read_image_files as read
from linfnet.errors import ArgumentError


def test_conversion_on_request(tmp_path: Path) -> None:
    folder = fill(tmp_path / "train", {"a": 1, "b": 1}).parent
    fill(tmp_path / "test", {"a": 1, "b": 1})
    save(folder / "train" / "b" / "large.png", 50, size=(9, 9))
    save(folder / "train" / "b" / "colour.png", 60, mode="RGB")
    with pytest.raises(BadFilesError) as caught:
        load_path(folder)
    assert "2 of 4 image files cannot be used" in str(caught.value)
    loaded = load_path(folder, resize=(4, 6), mode="grey")
    assert loaded.images.shape == (4, 1, 4, 6)
    assert values(loaded) == {"a": {0}, "b": {1, 50, 60}}
    assert load_path(folder, resize=5, mode="rgb").images.shape == (4, 3, 5, 5)


def test_the_option_is_named(tmp_path: Path) -> None:
    first, large = save(tmp_path / "first.png", 0), save(tmp_path / "large.png", 0, size=(9, 8))
    colour = save(tmp_path / "colour.png", 0, mode="RGB")
    bad: list[BadFile] = []
    images, indices = read([first, large, colour, first], on_bad=bad.append)
    assert (images.shape, indices) == ((2, 1, 4, 6), [0, 3])
    assert [file.path for file in bad] == [large, colour]
    assert (
        bad[0].reason
        == f"has 8 x 9 pixels (height x width); expected 4 x 6 like {first}: convert all with resize=(4, 6)"
    )
    assert bad[1].reason == f'is RGB; expected grey like {first}: convert all with mode="grey" or mode="rgb"'
    (torn := tmp_path / "torn.png").write_text("not an image")
    with pytest.raises(BadFilesError) as caught:
        read([first, large, torn])
    assert [file.path for file in caught.value.bad] == [torn, large]  # files that cannot be read are listed first
    with pytest.raises(
        BadFilesError,
        match=r"first.png: has 4 x 6 pixels \(height x width\); expected 28 x 28: convert all with resize",
    ):
        read([first], shape=(1, 28, 28))


@pytest.mark.parametrize(
    ("mode", "value", "kind", "grey"),
    [
        ("RGBA", 200, "RGB with transparency", 157),  # 200 · 200 / 255: the rest is black
        ("LA", 200, "grey with transparency", 157),
        ("P", 3, "a palette", None),
        ("1", 1, "black and white", 255),
        ("CMYK", 0, "CMYK", 255),
        ("I;16", 257 * 77, "grey with 16 bits", 77),
        ("I;16", 65535, "grey with 16 bits", 255),
    ],
)
def test_modes(tmp_path: Path, mode: str, value: int, kind: str, grey: int | None) -> None:
    path = tmp_path / ("x.tif" if mode == "CMYK" else "x.png")
    Image.new(mode, (6, 4), (value,) * len(mode) if mode in ("RGBA", "LA", "CMYK") else value).save(path)
    with pytest.raises(BadFilesError, match=rf'{kind}.*; convert all with mode="grey" or mode="rgb"'):
        read([path])
    assert read([path], mode="rgb")[0].shape == (1, 3, 4, 6)
    converted = read([path], mode="grey")[0]
    assert converted.shape == (1, 1, 4, 6)
    assert grey is None or converted.unique().tolist() == [grey]


def test_pixels_are_in_their_rows_and_columns(tmp_path: Path) -> None:
    for channels, name in ((1, "grey.png"), (3, "rgb.png")):
        pixels = np.random.default_rng(0).integers(0, 256, (channels, 4, 6), np.uint8)
        Image.fromarray(pixels[0] if channels == 1 else pixels.transpose(1, 2, 0)).save(tmp_path / name)
        assert np.array_equal(read([tmp_path / name])[0][0].numpy(), pixels)


def test_photographs_are_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned by 90 degrees
    image(100).save(tmp_path / "x.jpg", exif=exif)
    assert read([tmp_path / "x.jpg"])[0].shape == (1, 1, 6, 4)


def bomb(path: Path, side: int) -> None:
    """A PNG of a few bytes that announces side x side pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b""))


def many_scans(path: Path, scans: int) -> None:
    """Write a progressive JPEG file whose last scan is repeated."""
    image(1).save(path, progressive=True)
    content = path.read_bytes()
    last = content[content.rindex(b"\xff\xda") : -2]
    path.write_bytes(content[:-2] + (scans - content.count(b"\xff\xda")) * last + content[-2:])


def test_a_jpeg_file_may_have_some_scans(tmp_path: Path) -> None:
    many_scans(tmp_path / "some.jpg", 100)
    assert read([tmp_path / "some.jpg"])[0].unique().tolist() == [1]


def test_bad_files_are_named(tmp_path: Path) -> None:
    good = save(tmp_path / "good.png", 7)
    (tmp_path / "truncated.png").write_bytes(good.read_bytes()[:-30])
    (tmp_path / "text.png").write_text("no image")
    (tmp_path / "empty.png").touch()
    (tmp_path / "photo.heic").write_text("x")
    (tmp_path / "dangling.png").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe.png")
    bomb(tmp_path / "bomb.png", 12_000)
    bomb(tmp_path / "large-bomb.png", 60_000)
    (tmp_path / "page.eps.png").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n")
    image(1).save(tmp_path / "two.gif", save_all=True, append_images=[image(2)])
    many_scans(tmp_path / "scans.jpg", 101)
    reasons = {
        "truncated.png": "cannot be read: ",
        "text.png": "is not an image in a supported format",
        "empty.png": "is not an image in a supported format",
        "photo.heic": ".heic files are not supported; convert the file to PNG",
        "dangling.png": "does not exist",
        "pipe.png": "is not a regular file",
        "bomb.png": "has 12000 x 12000 pixels; the limit is 100,000,000",
        "large-bomb.png": "has too many pixels; the limit is 100,000,000",
        "page.eps.png": "is not an image in a supported format",
        "two.gif": "has 2 frames; expected one image",
        "scans.jpg": "has 101 scans; the limit is 100",
    }
    files, bad, steps = [good, *(tmp_path / name for name in reasons), good], list[BadFile](), list[int]()
    images, indices = read(files, on_bad=bad.append, advance=steps.append)
    assert (images.unique().tolist(), indices, sum(steps)) == ([7], [0, len(files) - 1], len(files))
    assert [file.path.name for file in bad] == list(reasons)
    for file in bad:
        assert file.reason.startswith(reasons[file.path.name]), file
    with pytest.raises(BadFilesError) as caught:
        read(files)
    lines = str(caught.value).splitlines()
    assert lines[0] == "11 of 13 image files cannot be used"
    assert lines[1].strip().startswith(str(tmp_path / "truncated.png"))
    assert (len(lines), lines[-1].strip(), len(caught.value.bad)) == (7, "and 6 more", 11)


def test_an_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "x.png", 0)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "x.png")

    monkeypatch.setattr(Image, "open", refuse)
    with pytest.raises(BadFilesError, match=r"x.png: cannot be read: Permission denied"):
        read([path])


def test_bad_files_of_a_set(tmp_path: Path) -> None:
    folder = fill(tmp_path / "train", {"a": 3, "b": 3}).parent
    fill(tmp_path / "test", {"a": 1, "b": 1})
    (folder / "train" / "a" / "1.png").write_text("broken")
    with pytest.raises(BadFilesError, match=r"1 of 6 image files cannot be used\n  .*1.png: is not an image"):
        load_path(folder)
    bad: list[BadFile] = []
    assert values(load_path(folder, on_bad=bad.append)) == {"a": {0, 2}, "b": {3, 4, 5}}
    assert [file.path.name for file in bad] == ["1.png"]


def test_nothing_but_bad_files_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_text("broken")
    with pytest.raises(BadFilesError, match="1 of 1 image files"):
        read([tmp_path / "x.png"], on_bad=lambda file: None)


@pytest.mark.parametrize("resize", [0, -1, (4,), (4, 0), (4.0, 4), True, 10**6], ids=str)
def test_wrong_sizes(tmp_path: Path, resize: Any) -> None:
    with pytest.raises(ArgumentError, match=r"resize is .*; expected \(height, width\)"):
        read([save(tmp_path / "x.png", 0)], resize=resize)


def test_wrong_mode(tmp_path: Path) -> None:
    wrong: Any = "gray"
    with pytest.raises(ArgumentError, match="mode is 'gray'; expected 'grey', 'rgb' or None"):
        load_path(fill(tmp_path, {"a": 2, "b": 2}), mode=wrong)


def test_images_are_stored_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    allocated: list[int] = []
    real = image_files.ImageBuffer._allocate  # type: ignore[attr-defined]

    def count(number: int, like: torch.Tensor) -> torch.Tensor:
        allocated.append(number)
        return real(number, like)

    monkeypatch.setattr(image_files.ImageBuffer, "_allocate", staticmethod(count))
    loaded = load_path(fill(tmp_path, {"a": 10, "b": 10}), "train")
    assert allocated == [len(loaded)] == [16]
