"""Pictures are prepared like the images of MNIST: scaled to fit a box and centred by mass."""

import io

import numpy as np
import pytest
import torch
from PIL import Image
from starlette.exceptions import HTTPException

from linfnet import load
from linfnet.serve import decode, decoder
from linfnet.serve.decode import PictureError
from linfnet.serve.decoder import Decoder, check_scans, to_tensor

MNIST = (1, 28, 28)


def read_picture(body: bytes, shape: tuple[int, int, int], fit: str) -> torch.Tensor:
    return to_tensor(decode.read_picture(body, shape, fit))


def encode(array: np.ndarray, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(array).save(file, kind)
    return file.getvalue()


def blob(height: int, width: int, top: int, left: int, size: int = 280) -> np.ndarray:
    """Return a wedge of ink that is wider at the bottom, as bytes [size, size]."""
    field = np.zeros((size, size), dtype=np.uint8)
    for row in range(height):
        field[top + row, left : left + 1 + (width - 1) * (row + 1) // height] = 255
    return field


@pytest.mark.parametrize("corner", [(5, 5), (60, 150), (179, 179)])
@pytest.mark.parametrize("size", [(100, 60), (40, 90)])
def test_the_box_and_the_centre_are_those_of_mnist(corner: tuple[int, int], size: tuple[int, int]):
    pixels = read_picture(encode(blob(*size, *corner)), MNIST, "digit")[0]
    rows, columns = pixels.nonzero().T
    sides = (int(rows.max() - rows.min()) + 1, int(columns.max() - columns.min()) + 1)
    assert max(sides) == 20
    assert min(sides) == pytest.approx(20 * min(size) / max(size), abs=1)
    steps, mass = torch.arange(28.0), pixels.sum()
    assert (pixels.sum(1) * steps).sum() / mass == pytest.approx(14, abs=0.51)
    assert (pixels.sum(0) * steps).sum() / mass == pytest.approx(14, abs=0.51)


def test_the_position_of_the_drawing_does_not_matter():
    first = read_picture(encode(blob(100, 60, 5, 5)), MNIST, "digit")
    assert first.equal(read_picture(encode(blob(100, 60, 170, 30)), MNIST, "digit"))


def test_dark_ink_on_light_paper_is_inverted():
    dark = blob(100, 60, 50, 50)
    assert read_picture(encode(255 - dark), MNIST, "digit").equal(read_picture(encode(dark), MNIST, "digit"))


def test_transparent_is_black():
    ink = blob(100, 60, 50, 50)
    clear = np.stack([np.full_like(ink, 255)] * 3 + [ink], axis=2)
    assert read_picture(encode(clear), MNIST, "digit").equal(read_picture(encode(ink), MNIST, "digit"))


def test_an_empty_picture_is_an_error():
    for paper in (np.zeros((280, 280), np.uint8), np.full((280, 280), 255, np.uint8)):
        with pytest.raises(PictureError, match="no ink"):
            read_picture(encode(paper), MNIST, "digit")


def test_pictures_of_the_exact_size_are_not_changed():
    digits = load("digits", "test")
    grey = (digits.images[0, 0] * 15).numpy()
    expected = torch.from_numpy(grey).float() / torch.tensor(255.0)
    assert read_picture(encode(grey), (1, 8, 8), "none")[0].equal(expected)


@pytest.mark.parametrize("size", [(32, 32), (64, 128), (100, 50), (7, 9)])
def test_colour_pictures_are_cropped_and_scaled(size: tuple[int, int]):
    colours = np.zeros((*size, 3), dtype=np.uint8)
    colours[...] = (250, 100, 20)
    pixels = read_picture(encode(colours), (3, 32, 32), "crop")
    assert pixels.shape == (3, 32, 32)
    assert (
        pixels.amax((1, 2)).tolist() == pixels.amin((1, 2)).tolist() == pytest.approx([250 / 255, 100 / 255, 20 / 255])
    )


def three_stripes() -> np.ndarray:
    """Return a picture of three squares side by side: red, green, blue."""
    field = np.zeros((300, 900, 3), dtype=np.uint8)
    for channel in range(3):
        field[:, 300 * channel : 300 * (channel + 1), channel] = 255
    return field


def test_crop_takes_the_centre_square():
    pixels = read_picture(encode(three_stripes()), (3, 32, 32), "crop")
    assert pixels.mean((1, 2)).tolist() == pytest.approx([0, 1, 0], abs=0.01)


def test_resize_takes_the_whole_picture():
    pixels = read_picture(encode(three_stripes()), (3, 32, 32), "resize")
    assert pixels.mean((1, 2)).tolist() == pytest.approx([1 / 3] * 3, abs=0.01)
    assert [pixels[k, 16, 5 + 11 * k].item() for k in range(3)] == pytest.approx([1, 1, 1], abs=0.01)


@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "PNG"])
def test_formats(kind: str):
    grey = encode(np.full((40, 40, 3), 128, np.uint8), kind)
    assert read_picture(grey, (3, 32, 32), "crop").mean() == pytest.approx(128 / 255, abs=0.01)


def test_a_photograph_is_rotated_upright():
    ink = blob(100, 60, 50, 50)
    exif, file = Image.Exif(), io.BytesIO()
    exif[0x0112] = 6  # orientation: stored rotated by 90 degrees
    Image.fromarray(np.ascontiguousarray(np.rot90(ink))).save(file, "PNG", exif=exif)
    assert read_picture(file.getvalue(), MNIST, "digit").equal(read_picture(encode(ink), MNIST, "digit"))


def test_other_numbers_of_channels():
    with pytest.raises(PictureError, match="2 channels"):
        decode.read_picture(encode(np.zeros((28, 28), np.uint8)), (2, 28, 28), "crop")


def many_scans(side: int, scans: int) -> bytes:
    """Return a progressive JPEG file of a grey square, whose last scan is repeated."""
    file = io.BytesIO()
    Image.fromarray(np.full((side, side), 128, np.uint8)).save(file, "JPEG", progressive=True)
    body = file.getvalue()
    last = body[body.rindex(b"\xff\xda") : -2]
    return body[:-2] + last * scans + body[-2:]


def test_a_jpeg_with_many_scans_is_refused_before_it_is_decoded():
    check_scans(many_scans(64, 50))
    with pytest.raises(HTTPException, match=r"has 100,0\d\d scans; expected at most 100") as raised:
        check_scans(many_scans(64, 100_000))
    assert raised.value.status_code == 400


def test_pictures_with_too_many_pixels_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(decode, "MAX_PIXELS", 10_000)
    read_picture(encode(blob(90, 50, 5, 5, 100)), MNIST, "digit")
    with pytest.raises(PictureError, match="expected at most 10,000 pixels") as raised:
        read_picture(encode(blob(90, 50, 5, 5, 101)), MNIST, "digit")
    assert raised.value.status == 413
    assert decode.MAX_SIDE > 101


def test_very_long_pictures_are_refused():
    with pytest.raises(PictureError, match="20,000 per side") as raised:
        read_picture(encode(np.zeros((20_001, 1), np.uint8)), MNIST, "digit")
    assert raised.value.status == 413


@pytest.mark.process
def test_the_process_decodes_as_the_function_does():
    worker, colours = Decoder(), encode(three_stripes())
    for fit in ("crop", "resize"):
        assert worker.read(colours, (3, 32, 32), fit).equal(read_picture(colours, (3, 32, 32), fit))
    with pytest.raises(HTTPException, match="not a PNG"):
        worker.read(b"words", MNIST, "digit")
    ink = encode(blob(100, 60, 5, 5))
    assert worker.read(ink, MNIST, "digit").equal(read_picture(ink, MNIST, "digit"))


@pytest.mark.process
def test_a_costly_picture_is_not_decoded():
    """The work is the number of pixels, times the scans of a JPEG file."""
    worker, ink = Decoder(max_work=280 * 280), encode(blob(100, 60, 5, 5))
    assert worker.read(ink, MNIST, "digit").equal(read_picture(ink, MNIST, "digit"))
    scans = many_scans(64, 50)
    for costly, work in (scans, 64 * 64 * scans.count(b"\xff\xda")), (encode(blob(100, 60, 5, 5, 281)), 281 * 281):
        with pytest.raises(decode.CostlyPictureError) as raised:
            worker.read(costly, MNIST, "digit")
        assert raised.value.work == work
    assert worker.read(ink, MNIST, "digit").equal(read_picture(ink, MNIST, "digit"))


@pytest.mark.process
def test_a_picture_that_takes_too_long_ends_the_process(monkeypatch: pytest.MonkeyPatch):
    worker, ink = Decoder(), encode(blob(100, 60, 5, 5))
    worker.read(ink, MNIST, "digit")
    monkeypatch.setattr(decoder, "DECODE_SECONDS", 0.3)
    with pytest.raises(HTTPException, match=r"within 0\.3 s") as raised:
        worker.read(many_scans(4000, 2000), MNIST, "digit")
    assert raised.value.status_code == 400
    monkeypatch.setattr(decoder, "DECODE_SECONDS", 20.0)
    assert worker.read(ink, MNIST, "digit").equal(read_picture(ink, MNIST, "digit"))


@pytest.mark.process
def test_a_process_that_died_is_replaced():
    worker, ink = Decoder(), encode(blob(100, 60, 5, 5))
    expected = worker.read(ink, MNIST, "digit")
    process = worker.start()
    process.kill()
    process.wait(20)
    assert worker.read(ink, MNIST, "digit").equal(expected)
