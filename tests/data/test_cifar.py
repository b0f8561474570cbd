import io
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from samples import Sample, new_pickle, write_files

from linfnet.data import cifar
from linfnet.errors import LinfnetError

BATCHES = [f"data_batch_{number}" for number in range(1, 6)]


def png(width: int, mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (width, 2)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def sample(small_sets: dict[str, Sample]) -> Sample:
    return small_sets["cifar10"]


def test_all_forms_hold_the_same(tmp_path: Path, sample: Sample) -> None:
    images, labels = sample.arrays["train"]
    write_files(tmp_path, sample.python_files() | sample.binary_files() | sample.png_files())
    read = {
        "python": cifar.read_python([tmp_path / batch for batch in BATCHES]),
        "binary": cifar.read_binary([tmp_path / f"{batch}.bin" for batch in BATCHES]),
        "png": cifar.read_png([*(tmp_path / f"{batch}.png" for batch in BATCHES), tmp_path / "train_lables.json"]),
    }
    write_files(tmp_path, sample.python_files(new_pickle))
    read["new python"] = cifar.read_python([tmp_path / batch for batch in BATCHES])
    for form, (some_images, some_labels) in read.items():
        assert np.array_equal(some_images, images), form
        assert np.array_equal(some_labels, labels), form


def test_write_binary(tmp_path: Path, sample: Sample) -> None:
    cifar.write_binary(tmp_path / "x.bin", *sample.arrays["test"])
    assert (tmp_path / "x.bin").read_bytes() == sample.binary_files()["test_batch.bin"]


@pytest.mark.parametrize("content", [b"", b"\0" * 3072, b"\0" * 3074], ids=["empty", "short", "long"])
def test_a_binary_batch_of_a_wrong_length(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.bin").write_bytes(content)
    with pytest.raises(LinfnetError, match=rf"x.bin is truncated .* {len(content)} bytes are no multiple of 3073"):
        cifar.read_binary([tmp_path / "x.bin"])


def test_a_missing_binary_batch(tmp_path: Path) -> None:
    with pytest.raises(LinfnetError, match=r"x.bin cannot be read: No such file"):
        cifar.read_binary([tmp_path / "x.bin"])


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"GIF89a", "x.png is not a PNG file"),
        (png(1024)[:60], "x.png is truncated or damaged"),
        (png(1000), "x.png is 1000 pixels wide in mode RGB; wanted 1024 RGB pixels per row"),
        (png(1024, "L"), "x.png is 1024 pixels wide in mode L"),
    ],
    ids=["foreign", "truncated", "narrow", "grey"],
)
def test_a_wrong_png(tmp_path: Path, content: bytes, complaint: str) -> None:
    write_files(tmp_path, {"x.png": content, "y.json": b"[1, 2]"})
    with pytest.raises(LinfnetError, match=complaint):
        cifar.read_png([tmp_path / "x.png", tmp_path / "y.json"])


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"[1, 2", "y.json is truncated or no JSON file"),
        (b"\xff\xfe\0", "y.json is truncated or no JSON file"),
        (b'{"a": 1}', "y.json is not a list of labels from 0 to 9"),
        (b"[1, 10]", "not a list of labels"),
        (b"[1, true]", "not a list of labels"),
        (b"[1]", "y.json holds 1 labels for 2 images"),
    ],
)
def test_wrong_labels(tmp_path: Path, content: bytes, complaint: str) -> None:
    write_files(tmp_path, {"x.png": png(1024), "y.json": content})
    with pytest.raises(LinfnetError, match=complaint):
        cifar.read_png([tmp_path / "x.png", tmp_path / "y.json"])


def test_without_pillow_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path, {"x.png": png(1024), "y.json": b"[1, 2]"})
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(LinfnetError, match=r"needs Pillow to be read: pip install 'linfnet\[images\]'"):
        cifar.read_png([tmp_path / "x.png", tmp_path / "y.json"])
