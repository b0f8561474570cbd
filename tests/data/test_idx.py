"""IDX files are read plain and gzipped; wrong files are reported in one line."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from samples import idx_bytes

from linfnet.data.idx import read_idx
from linfnet.errors import LinfnetError

ARRAY = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)


@pytest.mark.parametrize("array", [ARRAY, ARRAY[0, 0], ARRAY[:0]], ids=["3d", "1d", "empty"])
@pytest.mark.parametrize("zipped", [False, True], ids=["plain", "gz"])
def test_round_trip(tmp_path: Path, array: np.ndarray, zipped: bool) -> None:
    path = tmp_path / "x"
    path.write_bytes(gzip.compress(idx_bytes(array)) if zipped else idx_bytes(array))
    read = read_idx(path)
    assert read.dtype == np.uint8
    assert read.shape == array.shape
    assert np.array_equal(read, array)


WHOLE = idx_bytes(ARRAY)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "x is not an IDX file: it begins with nothing"),
        (b"\0\0", "not an IDX file"),
        (b"PK\3\4 a zip file", "not an IDX file: it begins with 50 4b 03 04"),
        (idx_bytes(ARRAY, kind=0x0D), "IDX type 0x0d; expected unsigned bytes"),
        (WHOLE[:9], "x is truncated: it ends within its header"),
        (WHOLE[:-1], "x is truncated: it holds 23 of 24 bytes"),
        (WHOLE + b"\0", "x is longer than the 24 bytes"),
        (b"\0\0\x08\x03" + b"\xff" * 12, "declares 79228162458924105385300197375 bytes"),
        (gzip.compress(WHOLE)[:-9], "x is a damaged gzip file"),
        (gzip.compress(WHOLE)[:-8] + b"\0" * 8, "x is a damaged gzip file"),
        (gzip.compress(WHOLE)[:10] + b"\xff" * 20, "x is a damaged gzip file"),
        (gzip.compress(WHOLE[:-1]), "x is truncated: it holds 23 of 24 bytes"),
    ],
    ids=range(12),
)
def test_what_is_wrong_is_told_in_a_line(tmp_path: Path, content: bytes, complaint: str) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(LinfnetError) as caught:
        read_idx(tmp_path / "x")
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(LinfnetError, match="x cannot be read: No such file"):
        read_idx(tmp_path / "x")
