"""Files are written completely or not at all; errors name the file."""

import json
from pathlib import Path

import pytest
import torch

from linfnet.errors import LinfnetError
from linfnet.files import read_json, read_tensors, replacing, write_json, write_tensors


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path):
    path = tmp_path / "value.json"
    write_json(path, {"a": 1})

    def fail() -> None:
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail()
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_tensors_survive(tmp_path: Path):
    tensors = {"a": torch.randn(3, 4).t(), "b": torch.tensor(1.5), "c": torch.arange(3, dtype=torch.uint8)}
    write_tensors(tmp_path / "t.safetensors", tensors, {"note": "x"})
    back, metadata = read_tensors(tmp_path / "t.safetensors")
    assert metadata == {"note": "x"}
    assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize(
    "content", [b"", b"\x00" * 7, b"\xff" * 64, b"{}", b"\x08\x00\x00\x00\x00\x00\x00\x00{}{}{}{}"]
)
def test_foreign_files_are_named(tmp_path: Path, content: bytes):
    path = tmp_path / "odd"
    path.write_bytes(content)
    with pytest.raises(LinfnetError, match="odd is truncated or not a safetensors file"):
        read_tensors(path)


def test_absent_and_broken_json(tmp_path: Path):
    with pytest.raises(LinfnetError, match=r"x\.json does not exist"):
        read_json(tmp_path / "x.json")
    (tmp_path / "y.json").write_text("{")
    with pytest.raises(LinfnetError, match=r"y\.json is not readable JSON"):
        read_json(tmp_path / "y.json")
