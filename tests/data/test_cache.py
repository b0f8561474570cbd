"""Sets are found in every file format, and damage is reported with a remedy."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from samples import Sample, idx_bytes, new_pickle, write_files

from linfnet.data import cache_folder, load, location, present, verify
from linfnet.errors import LinfnetError


def prefixed(prefix: str, files: dict[str, bytes]) -> dict[str, bytes]:
    return {prefix + name: data for name, data in files.items()}


FORMATS: list[tuple[str, str, Callable[[Sample], dict[str, bytes]]]] = [
    ("mnist", "plain", lambda sample: sample.idx_files("")),
    ("mnist", "gz", lambda sample: sample.idx_files(".gz")),
    ("fashion-mnist", "gz", lambda sample: sample.idx_files(".gz")),
    ("cifar10", "python", lambda sample: sample.python_files()),
    ("cifar10", "python-inside", lambda sample: prefixed("cifar-10-batches-py/", sample.python_files(new_pickle))),
    ("cifar10", "binary", lambda sample: sample.binary_files()),
    ("cifar10", "binary-inside", lambda sample: prefixed("cifar-10-batches-bin/", sample.binary_files())),
    ("cifar10", "png", lambda sample: sample.png_files()),
]


@pytest.mark.parametrize(("name", "files"), [(n, f) for n, _, f in FORMATS], ids=[f"{n}-{i}" for n, i, _ in FORMATS])
def test_every_format_is_found_and_read(
    name: str, files: Callable[[Sample], dict[str, bytes]], small_sets: dict[str, Sample], empty_cache: Path
) -> None:
    assert not present(name)
    write_files(empty_cache / name, files(small_sets[name]))
    assert present(name)
    assert location(name) == empty_cache / name
    for split, (images, labels) in small_sets[name].arrays.items():
        loaded = load(name, split)
        assert (loaded.images.dtype, loaded.labels.dtype) == (torch.uint8, torch.int64)
        assert np.array_equal(loaded.images.numpy(), images)
        assert np.array_equal(loaded.labels.numpy(), labels)
        assert (loaded.split, loaded.info.name) == (split, name)
    assert verify(name) == empty_cache / name


def test_a_folder_may_be_the_cache_or_the_set(tmp_path: Path, small_sets: dict[str, Sample]) -> None:
    files = small_sets["mnist"].idx_files("")
    of_the_set = write_files(tmp_path / "elsewhere/mnist", files)
    assert len(load("mnist", folder=of_the_set)) == len(load("mnist", folder=tmp_path / "elsewhere")) == 10
    assert not present("mnist")


def test_the_digits_are_always_present() -> None:
    train, test = load("digits"), load("digits", "test")
    assert (train.images.shape, test.images.shape) == ((1437, 1, 8, 8), (360, 1, 8, 8))
    assert train.images.max() == 16
    assert train.labels.bincount().tolist() == [143, 146, 152, 150, 147, 145, 137, 144, 133, 140]
    assert test.labels.bincount().tolist() == [35, 36, 25, 33, 34, 37, 44, 35, 41, 40]
    assert present("digits")
    assert verify("digits").joinpath("digits.txt").read_text().count("CC BY 4.0")


def test_the_splits_of_the_digits_share_no_image() -> None:
    both = torch.cat([load("digits").images, load("digits", "test").images])
    assert len({image.numpy().tobytes() for image in both}) == 1797


def test_a_missing_set_says_how_to_get_it(small_sets: dict[str, Sample], empty_cache: Path) -> None:
    files = small_sets["mnist"].idx_files("")
    for there in ({}, dict(list(files.items())[:3])):
        write_files(empty_cache / "mnist", there)
        with pytest.raises(
            LinfnetError, match=r"MNIST is missing or incomplete in .*mnist; fetch it with: linfnet data fetch mnist$"
        ):
            load("mnist")
        assert not present("mnist")


def change_a_byte(files: dict[str, bytes], name: str, position: int) -> dict[str, bytes]:
    data = bytearray(files[name])
    data[position] ^= 1
    return files | {name: bytes(data)}


@pytest.mark.parametrize("file", ["train-images-idx3-ubyte", "train-labels-idx1-ubyte"])
def test_one_changed_bit_is_detected(file: str, small_sets: dict[str, Sample], empty_cache: Path) -> None:
    write_files(empty_cache / "mnist", change_a_byte(small_sets["mnist"].idx_files(""), file, -1))
    match = r"the train split of mnist in .*mnist differs from the published data; .* linfnet data fetch mnist$"
    with pytest.raises(LinfnetError, match=match):
        load("mnist", "train")
    with pytest.raises(LinfnetError, match=match):
        verify("mnist")
    assert len(load("mnist", "test")) == 4


def test_images_in_another_order_are_detected(small_sets: dict[str, Sample], empty_cache: Path) -> None:
    files = small_sets["cifar10"].binary_files()
    files["data_batch_1.bin"], files["data_batch_2.bin"] = files["data_batch_2.bin"], files["data_batch_1.bin"]
    write_files(empty_cache / "cifar10", files)
    with pytest.raises(LinfnetError, match=r"train split of cifar10 .* differs from the published data"):
        load("cifar10")


def test_another_set_is_detected(small_sets: dict[str, Sample], empty_cache: Path) -> None:
    write_files(empty_cache / "mnist", small_sets["fashion-mnist"].idx_files(".gz"))
    with pytest.raises(LinfnetError, match="differs from the published data"):
        load("mnist")


SMALL = np.zeros((10, 8, 8), np.uint8)


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"train-images-idx3-ubyte": idx_bytes(SMALL)}, r"images of shape \[10, 1, 8, 8\]; expected \[10, 1, 28, 28\]"),
        ({"train-images-idx3-ubyte": idx_bytes(SMALL[0])}, r"shape \[8, 8\]; expected 3 dimensions"),
        ({"train-images-idx3-ubyte": idx_bytes(SMALL[:9])}, "labels-idx1-ubyte contains 10 labels for 9 images"),
        ({"train-labels-idx1-ubyte": idx_bytes(SMALL)}, r"shape \[10, 8, 8\]; expected 1 dimensions"),
        ({"train-labels-idx1-ubyte": b"<html>"}, "train-labels-idx1-ubyte is not an IDX file"),
    ],
    ids=["shape", "image-rank", "count", "label-rank", "foreign"],
)
def test_damage_names_the_file_and_says_fetch_again(
    changed: dict[str, bytes], complaint: str, small_sets: dict[str, Sample], empty_cache: Path
) -> None:
    write_files(empty_cache / "mnist", small_sets["mnist"].idx_files("") | changed)
    with pytest.raises(LinfnetError, match=complaint + ".*; fetch it again with: linfnet data fetch mnist$"):
        load("mnist")


def test_a_wrong_split_or_name() -> None:
    with pytest.raises(LinfnetError, match="split is 'valid'; digits has 'train' and 'test'"):
        load("digits", "valid")
    with pytest.raises(LinfnetError, match="did you mean 'mnist'"):
        present("mnits")


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("LINFNET_DATA", "~/own")
    assert cache_folder() == tmp_path / "own"
    monkeypatch.setenv("LINFNET_DATA", "")
    assert cache_folder() == tmp_path / "xdg/linfnet"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == tmp_path / ".cache/linfnet"
