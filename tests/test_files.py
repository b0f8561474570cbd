"""Files are written completely or not at all; errors name the file."""

import json
import os
from pathlib import Path

import pytest
import safetensors.torch
import torch

from linfnet.errors import LinfnetError
from linfnet.files import (
    check_tensors,
    read_checked_table,
    read_json,
    read_table,
    read_tensors,
    replacing,
    write_json,
    write_table,
    write_tensors,
)


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


def test_a_file_is_synced_before_it_is_renamed_and_its_folder_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Otherwise a file may be empty, or missing, after a power cut."""
    path, synced, sync = tmp_path / "value.json", list[tuple[Path, bool]](), os.fsync

    def note(handle: int) -> None:
        synced.append((Path(f"/proc/self/fd/{handle}").readlink(), path.exists()))
        sync(handle)

    monkeypatch.setattr(os, "fsync", note)
    write_json(path, {"a": 1})
    (file, existed), (folder, renamed) = synced
    assert (file.parent, folder) == (tmp_path, tmp_path)
    assert file.name.startswith(".value.json.")
    assert (existed, renamed) == (False, True)


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


def test_devices_and_pipes_are_not_read(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    for name in ("pipe", "device"):
        for read in (read_json, read_tensors):
            with pytest.raises(LinfnetError, match=f"{name} is a device or a pipe; expected a regular file$"):
                read(tmp_path / name)


def test_absent_and_broken_json(tmp_path: Path):
    with pytest.raises(LinfnetError, match=r"x\.json does not exist"):
        read_json(tmp_path / "x.json")
    (tmp_path / "y.json").write_text("{")
    with pytest.raises(LinfnetError, match=r"y\.json is not readable JSON"):
        read_json(tmp_path / "y.json")


class TestDigests:
    def tensors(self) -> dict[str, torch.Tensor]:
        return {"é": torch.arange(7.0), "step": torch.tensor(3, dtype=torch.int64), "a": torch.ones(3).half()}

    def test_every_flipped_bit_of_tensors_is_noticed(self, tmp_path: Path):
        path = tmp_path / "t.safetensors"
        write_tensors(path, self.tensors(), {"linfnet": "x", "progress": "[3]"})
        whole = path.read_bytes()
        assert check_tensors(path)[1]
        for bit in range(8 * len(whole)):
            data = bytearray(whole)
            data[bit // 8] ^= 1 << bit % 8
            path.write_bytes(data)
            with pytest.raises(LinfnetError, match=r"t\.safetensors is (damaged|truncated)"):
                read_tensors(path)

    def test_every_flipped_bit_of_a_table_is_noticed(self, tmp_path: Path):
        path, table = tmp_path / "t.json", {"a": [1, 2.5, None], "naïve": "ü", "b": {"c": True}}
        write_table(path, table)
        assert read_checked_table(path) == (table, True)
        whole = path.read_bytes()
        for bit in range(8 * len(whole)):
            data = bytearray(whole)
            data[bit // 8] ^= 1 << bit % 8
            path.write_bytes(data)
            with pytest.raises(LinfnetError, match=r"t\.json (is not readable|does not match its digest)"):
                read_table(path)

    def test_a_table_may_be_reordered_and_edited_without_its_digest(self, tmp_path: Path):
        path = tmp_path / "t.json"
        write_table(path, {"b": 1, "a": 2})
        stored = json.loads(path.read_text())
        path.write_text(json.dumps(dict(sorted(stored.items()))))
        assert read_table(path) == {"a": 2, "b": 1}
        del stored["digest"]
        write_json(path, {**stored, "a": 3})
        assert read_checked_table(path) == ({"a": 3, "b": 1}, False)

    def test_old_files_are_read_with_one_line(self, tmp_path: Path, caplog: pytest.LogCaptureFixture):
        path = tmp_path / "old.safetensors"
        safetensors.torch.save_file(self.tensors(), path, {"linfnet": "x"})
        for _ in range(2):
            assert read_tensors(path)[1] == {"linfnet": "x"}
        assert [record.getMessage() for record in caplog.records] == [
            f"{path} has no digest: damage would not be noticed"
        ]

    def test_equal_content_gives_equal_bytes(self, tmp_path: Path):
        paths = [tmp_path / name for name in "abcdefgh"]
        metadata = {str(number): "x" for number in range(8)}
        for path in paths:
            tensors = self.tensors()
            write_tensors(path, dict(reversed(tensors.items())) if path.name > "d" else tensors, metadata)
        assert len({path.read_bytes() for path in paths}) == 1
        assert all(torch.equal(safetensors.torch.load_file(paths[0])[name], each) for name, each in tensors.items())


def test_temporary_files_of_killed_processes_are_removed_after_a_while(tmp_path: Path):
    path = tmp_path / "a[1].json"
    old, new, other = (tmp_path / f".{name}.tmp" for name in ("a[1].json.0011", "a[1].json.0022", "b.json.0033"))
    for file in (old, new, other):
        file.touch()
    for file in (old, other):
        os.utime(file, (0, 0))
    write_json(path, {})
    assert sorted(tmp_path.iterdir()) == sorted([path, new, other])
