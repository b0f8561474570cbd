import io
import os
import tarfile
from pathlib import Path

import pytest
from samples import Served, tar_bytes

from linfnet.data.download import download, extract
from linfnet.errors import LinfnetError


def test_download(tmp_path: Path, served: Served) -> None:
    content = os.urandom(600_000)
    served.files["/a/file.gz"] = content
    seen: list[tuple[str, int, int | None]] = []
    download(served.address + "a/file.gz", tmp_path / "x", lambda *told: seen.append(told))
    assert (tmp_path / "x").read_bytes() == content
    assert seen[0] == ("file.gz", 0, len(content))
    assert seen[-1] == ("file.gz", len(content), len(content))
    assert len(seen) > 2


def test_an_absent_file(tmp_path: Path, served: Served) -> None:
    with pytest.raises(LinfnetError, match=r"http://127.0.0.1:\d+/nothing answered 404 Not Found"):
        download(served.address + "nothing", tmp_path / "x")


def test_a_transfer_cut_short(tmp_path: Path, served: Served) -> None:
    served.files["/x"] = b"abc" * 1000
    served.keep_back = 100
    with pytest.raises(LinfnetError, match=r"/x was cut short: 2900 of 3000 bytes came"):
        download(served.address + "x", tmp_path / "x")


def test_no_server(tmp_path: Path, served: Served) -> None:
    served.stop()
    with pytest.raises(LinfnetError, match=r"/x cannot be fetched: .*refused"):
        download(served.address + "x", tmp_path / "x")


def test_a_file_without_end(tmp_path: Path, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("linfnet.data.download._MOST_BYTES", 1000)
    served.files["/x"] = b"abc" * 1000
    with pytest.raises(LinfnetError, match="/x is longer than 1000 bytes"):
        download(served.address + "x", tmp_path / "x")


def test_extract_takes_only_what_is_named(tmp_path: Path) -> None:
    archive = tmp_path / "x.tgz"
    archive.write_bytes(tar_bytes({"a/one": b"1", "../evil": b"!", str(tmp_path / "evil"): b"!", "a/two": b"2"}))
    before = set(tmp_path.parent.rglob("*"))
    extract(archive, {"a/two": tmp_path / "II", "a/one": tmp_path / "I"})
    assert set(tmp_path.parent.rglob("*")) - before == {tmp_path / "I", tmp_path / "II"}
    assert ((tmp_path / "I").read_bytes(), (tmp_path / "II").read_bytes()) == (b"1", b"2")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE])
def test_only_plain_files_are_extracted(tmp_path: Path, kind: bytes) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        member = tarfile.TarInfo("a/one")
        member.type, member.linkname = kind, "/etc/passwd"
        tar.addfile(member)
    (tmp_path / "x.tgz").write_bytes(buffer.getvalue())
    with pytest.raises(LinfnetError, match=r"x.tgz does not hold a/one"):
        extract(tmp_path / "x.tgz", {"a/one": tmp_path / "I"})
    assert not (tmp_path / "I").exists()


@pytest.mark.parametrize("cut", [0, 40, 600], ids="{} bytes".format)
def test_a_damaged_archive(tmp_path: Path, cut: int) -> None:
    (tmp_path / "x.tgz").write_bytes(tar_bytes({"a/one": os.urandom(5000)})[:cut])
    with pytest.raises(LinfnetError, match=r"x.tgz is a damaged archive"):
        extract(tmp_path / "x.tgz", {"a/one": tmp_path / "I"})


def test_a_foreign_archive(tmp_path: Path) -> None:
    (tmp_path / "x.tgz").write_bytes(b"<html>")
    with pytest.raises(LinfnetError, match=r"x.tgz is a damaged archive"):
        extract(tmp_path / "x.tgz", {"a/one": tmp_path / "I"})


def test_a_member_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("linfnet.data.download._MOST_BYTES", 1000)
    (tmp_path / "x.tgz").write_bytes(tar_bytes({"a/one": b"0" * 1001}))
    with pytest.raises(LinfnetError, match=r"a/one in x.tgz is too long: 1001 bytes"):
        extract(tmp_path / "x.tgz", {"a/one": tmp_path / "I"})
