"""Every file format is read, wrong files are reported in one line, and a pickle runs no code."""

import gzip
import io
import os
import pickle
import random
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from samples import Bytes, Sample, idx_bytes, new_pickle, old_pickle, write_files

from linfnet.data import formats
from linfnet.data.catalog import Format
from linfnet.errors import LinfnetError

ARRAY = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)


@pytest.mark.parametrize("array", [ARRAY, ARRAY[0, 0], ARRAY[:0]], ids=["3d", "1d", "empty"])
@pytest.mark.parametrize("zipped", [False, True], ids=["plain", "gz"])
def test_idx_files_are_read(tmp_path: Path, array: np.ndarray, zipped: bool) -> None:
    path = tmp_path / "x"
    path.write_bytes(gzip.compress(idx_bytes(array)) if zipped else idx_bytes(array))
    read = formats.read_idx(path)
    assert read.dtype == np.uint8
    assert read.shape == array.shape
    assert np.array_equal(read, array)


WHOLE = idx_bytes(ARRAY)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "x is not an IDX file: it is empty"),
        (b"\0\0", "not an IDX file"),
        (b"PK\3\4 a zip file", "not an IDX file: it begins with 50 4b 03 04"),
        (idx_bytes(ARRAY, kind=0x0D), "IDX type 0x0d; expected unsigned bytes"),
        (WHOLE[:9], "x is truncated: it ends within its header"),
        (WHOLE[:-1], "x is truncated: it contains 23 of 24 bytes"),
        (WHOLE + b"\0", "x is longer than the 24 bytes"),
        (b"\0\0\x08\x03" + b"\xff" * 12, "declares 79228162458924105385300197375 bytes"),
        (gzip.compress(WHOLE)[:-9], "x is a damaged gzip file"),
        (gzip.compress(WHOLE)[:-8] + b"\0" * 8, "x is a damaged gzip file"),
        (gzip.compress(WHOLE)[:10] + b"\xff" * 20, "x is a damaged gzip file"),
        (gzip.compress(WHOLE[:-1]), "x is truncated: it contains 23 of 24 bytes"),
    ],
    ids=range(12),
)
def test_a_wrong_idx_file_is_reported_in_one_line(tmp_path: Path, content: bytes, complaint: str) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(LinfnetError) as caught:
        formats.read_idx(tmp_path / "x")
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_idx_file(tmp_path: Path) -> None:
    with pytest.raises(LinfnetError, match="x cannot be read: No such file"):
        formats.read_idx(tmp_path / "x")


BATCHES = [f"data_batch_{number}" for number in range(1, 6)]


def png(width: int, mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (width, 2)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def sample(small_sets: dict[str, Sample]) -> Sample:
    return small_sets["cifar10"]


def test_all_formats_have_the_same_content(tmp_path: Path, sample: Sample) -> None:
    images, labels = sample.arrays["train"]
    write_files(tmp_path, sample.python_files() | sample.binary_files() | sample.png_files())
    read = {
        "python": formats.read_python([tmp_path / batch for batch in BATCHES]),
        "binary": formats.read_binary([tmp_path / f"{batch}.bin" for batch in BATCHES]),
        "png": formats.read_png([*(tmp_path / f"{batch}.png" for batch in BATCHES), tmp_path / "train_lables.json"]),
    }
    write_files(tmp_path, sample.python_files(new_pickle))
    read["new python"] = formats.read_python([tmp_path / batch for batch in BATCHES])
    for form, (some_images, some_labels) in read.items():
        assert np.array_equal(some_images, images), form
        assert np.array_equal(some_labels, labels), form


def test_write_binary(tmp_path: Path, sample: Sample) -> None:
    formats.write_binary(tmp_path / "x.bin", *sample.arrays["test"])
    assert (tmp_path / "x.bin").read_bytes() == sample.binary_files()["test_batch.bin"]


@pytest.mark.parametrize("content", [b"", b"\0" * 3072, b"\0" * 3074], ids=["empty", "short", "long"])
def test_a_binary_batch_of_a_wrong_length(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.bin").write_bytes(content)
    with pytest.raises(LinfnetError, match=rf"x.bin is truncated .* {len(content)} bytes are not a multiple of 3073"):
        formats.read_binary([tmp_path / "x.bin"])


def test_a_missing_binary_batch(tmp_path: Path) -> None:
    with pytest.raises(LinfnetError, match=r"x.bin cannot be read: No such file"):
        formats.read_binary([tmp_path / "x.bin"])


def tall_png() -> bytes:
    """Return a file of which the header says that it has 1024 x 2^20 pixels."""
    file = png(1024)
    header = file[12:20] + (2**20).to_bytes(4, "big") + file[24:29]
    return file[:12] + header + zlib.crc32(header).to_bytes(4, "big") + file[33:]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"GIF89a", "x.png is not a PNG file"),
        (png(1024)[:60], "x.png is truncated or damaged"),
        (tall_png(), "x.png is truncated or damaged: Image size"),
        (png(1000), "x.png is 1000 pixels wide in mode RGB; expected 1024 RGB pixels per row"),
        (png(1024, "L"), "x.png is 1024 pixels wide in mode L"),
    ],
    ids=["foreign", "truncated", "tall", "narrow", "grey"],
)
def test_a_wrong_png(tmp_path: Path, content: bytes, complaint: str) -> None:
    write_files(tmp_path, {"x.png": content, "y.json": b"[1, 2]"})
    with pytest.raises(LinfnetError, match=complaint):
        formats.read_png([tmp_path / "x.png", tmp_path / "y.json"])


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"[1, 2", "y.json is truncated or not a JSON file"),
        (b"\xff\xfe\0", "y.json is truncated or not a JSON file"),
        (100_000 * b"[", "y.json is truncated or not a JSON file"),
        (b'{"a": 1}', "y.json is not a list of labels from 0 to 9"),
        (b"[1, 10]", "not a list of labels"),
        (b"[1, true]", "not a list of labels"),
        (b"[1]", "y.json contains 1 labels for 2 images"),
    ],
)
def test_wrong_labels(tmp_path: Path, content: bytes, complaint: str) -> None:
    write_files(tmp_path, {"x.png": png(1024), "y.json": content})
    with pytest.raises(LinfnetError, match=complaint):
        Format({"train": ("x.png", "y.json")}, formats.read_png).read_split(tmp_path, "train")


def test_without_pillow_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path, {"x.png": png(1024), "y.json": b"[1, 2]"})
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(LinfnetError, match=r"needs Pillow: pip install 'linfnet\[images\]'"):
        formats.read_png([tmp_path / "x.png", tmp_path / "y.json"])


ROWS = np.random.default_rng(0).integers(0, 256, (3, 3072), np.uint8)
LABELS = np.array([7, 0, 9], np.uint8)


def dump(data: object, labels: object = (7, 0, 9), protocol: int = 4) -> bytes:
    return pickle.dumps({"data": data, "labels": labels}, protocol=protocol)


def read(tmp_path: Path, content: bytes) -> tuple[Bytes, Bytes]:
    (tmp_path / "batch").write_bytes(content)
    return formats.read_python_batch(tmp_path / "batch")


@pytest.mark.parametrize(
    "content",
    [old_pickle(ROWS, LABELS), *(dump(ROWS, [7, 0, 9], protocol) for protocol in range(6))],
    ids=["python2", *(f"protocol{number}" for number in range(6))],
)
def test_pickles_of_all_protocols(tmp_path: Path, content: bytes) -> None:
    rows, labels = read(tmp_path, content)
    assert rows.dtype == labels.dtype == np.uint8
    assert np.array_equal(rows, ROWS)
    assert np.array_equal(labels, LABELS)


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_column_major_arrays(tmp_path: Path, protocol: int) -> None:
    rows, _ = read(tmp_path, dump(np.asfortranarray(ROWS), protocol=protocol))
    assert np.array_equal(rows, ROWS)


class Evil:
    """Creates a folder when it is unpickled by Python's unpickler."""

    def __init__(self, call: Callable[..., object], *arguments: object) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call, self.arguments


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_runs_no_code(tmp_path: Path, protocol: int) -> None:
    trap = tmp_path / "trap"
    content = pickle.dumps({"data": ROWS, "labels": [Evil(os.mkdir, str(trap))]}, protocol=protocol)
    with pytest.raises(
        LinfnetError, match=r"batch is not a Python batch of CIFAR-10: it refers to \w+\.mkdir, which no"
    ):
        read(tmp_path, content)
    assert not trap.exists()
    pickle.loads(content)
    assert trap.exists(), "the pickle is harmless: the test above proves nothing"


@pytest.mark.parametrize("call", [eval, getattr, np.load, np.frombuffer, __import__])
def test_no_other_name_is_allowed(tmp_path: Path, call: Callable[..., object]) -> None:
    with pytest.raises(LinfnetError, match="it refers to "):
        read(tmp_path, pickle.dumps(Evil(call, "1")))


def test_arrays_of_objects_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LinfnetError, match=r"it contains an array of type b?'O8'; expected unsigned bytes"):
        read(tmp_path, dump(np.array([{}, []], dtype=object)))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "pickle exhausted before seeing STOP"),
        (b"not a pickle", "not a Python batch"),
        (old_pickle(ROWS, LABELS)[:-2000], "not a Python batch"),
        (pickle.dumps([1, 2]), "it contains a list; expected a dictionary"),
        (pickle.dumps({"labels": [1]}), "it has no array 'data'"),
        (dump(ROWS, [7, 0, 999]), "its 'labels' are not a list of numbers from 0 to 255"),
        (dump(ROWS, [7, 0]), "contains images [3, 3072] and labels [2]; expected [N, 3072] and [N]"),
        (dump(ROWS[:, :784]), "contains images [3, 784]"),
        (dump(ROWS[0], [7]), "contains images [3072]"),
        (b"\x80\x02c_codecs\nencode\nC\x01aX\x06\x00\x00\x00latin1\x86R.", "it encodes a bytes; expected a text"),
        (b"\x80\x04}\x8f.", "it contains the instruction EMPTY_SET, which no CIFAR-10 batch needs"),
    ],
    ids=range(11),
)
def test_a_wrong_pickle(tmp_path: Path, content: bytes, complaint: str) -> None:
    with pytest.raises(LinfnetError) as caught:
        read(tmp_path, content)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def nested(depth: int) -> list:
    value: list = [1] * 10
    for _ in range(depth):
        value = [value] * 10
    return value


def deep(depth: int) -> tuple:
    value: tuple = (1,) * 10
    for _ in range(depth):
        value = (value,) * 10
    return value


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        # The state of a function: with `functools.partial`, this pickle of 49 bytes ended Python by a recursion in C.
        (b"\x80\x02cnumpy.core.numeric\n_frombuffer\nq\x00(h\x00)}Ntbh\x00)R.", "it changes a _Name"),
        (dump(ROWS, nested(30)), "'labels' are not a list of numbers"),
        (dump(nested(30)), "it has no array 'data'"),
        (pickle.dumps({"data": np.zeros(1, np.uint8), "labels": Evil(np.dtype, nested(30))}), "array of type list"),
        (b"\x80\x04}" + pickle.dumps(deep(30), 2)[2:-1] + b"Ns.", "has a tuple as a key"),
        (b"\x80\x02Nr\xff\xff\xff\x3f.", "it contains a NoneType"),  # an index that takes 16 GB as a position
        (b"\x80\x05\x96\xff\xff\xff\xff\x0f\x00\x00\x00.", "expected 68719476735 bytes"),
        (b"\x80\x028\xff\xff\xff\x7f.", "at position 2, opcode b'8' unknown"),
        (
            b"\x80\x02X\x64\0\0\0" + 100 * b"a" + b"q\x00c_codecs\nencode\nq\x01" + 50 * b"h\x01h\x00N\x86R" + b".",
            "encodes more",
        ),
        (b"\x80\x02N\x85R.", "pop from empty list"),
        (b"\x80\x02(1.", "POP_MARK"),
        (b"\x80\x02]q\x00h\x00a.", "it contains a list"),
    ],
    ids=range(12),
)
def test_a_small_pickle_takes_little_memory_and_time(tmp_path: Path, content: bytes, complaint: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(LinfnetError) as caught:
            read(tmp_path, content)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_random_pickles_are_one_line(tmp_path: Path) -> None:
    draw, whole = random.Random(0), dump(ROWS[:1, :50], [7])
    for _ in range(300):
        content = bytearray(whole)
        for _ in range(draw.randint(1, 3)):
            content[draw.randrange(len(content))] = draw.randrange(256)
        with pytest.raises(LinfnetError) as caught:
            read(tmp_path, bytes(content))
        assert "\n" not in str(caught.value)


def test_a_missing_pickle(tmp_path: Path) -> None:
    with pytest.raises(LinfnetError, match="batch cannot be read: No such file"):
        formats.read_python_batch(tmp_path / "batch")
