"""Images for a given net: classes by name, names of images, and files that cannot be used."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from linfnet.data import (
    BadFile,
    BadFilesError,
    Conversion,
    from_arrays,
    is_labelled,
    load_labelled,
    match_classes,
    read_images,
)
from linfnet.errors import ArgumentError, LinfnetError

SHAPE = (1, 4, 4)


def image_set(classes: list[str]):
    labels = np.arange(6) % len(classes)
    return from_arrays(np.zeros((6, 4, 4), np.uint8), labels, classes=classes)


@pytest.mark.parametrize(
    ("own", "net", "labels"),
    [
        (["dog", "fox"], ["fox", "cat", "dog"], [2, 0]),  # by name, and only some of the classes
        (["0", "1"], ["cat", "dog"], [0, 1]),  # the data has numbers
        (["cat", "dog"], ["0", "1"], [0, 1]),  # the net has numbers
        (["3", "7"], [str(k) for k in range(10)], [3, 7]),
    ],
)
def test_classes_are_matched(own: list[str], net: list[str], labels: list[int]):
    found = match_classes(image_set(own), net)
    assert found.labels[:2].tolist() == labels
    assert found.class_names == tuple(net)


@pytest.mark.parametrize(("own", "net"), [(["cat", "emu"], ["cat", "dog"]), (["a", "b"], ["0", "1", "2"])])
def test_other_classes_are_an_error(own: list[str], net: list[str]):
    with pytest.raises(LinfnetError, match="the net has the classes"):
        match_classes(image_set(own), net)


def picture(path: Path, grey: int = 7, size: tuple[int, int] = (4, 4), mode: str = "L") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, grey).save(path)


def test_names_and_bad_files(tmp_path: Path):
    picture(tmp_path / "b.png", 51)
    picture(tmp_path / "a.png", 102)
    picture(tmp_path / "wide.png", size=(5, 4))
    np.save(tmp_path / "stack.npy", np.full((2, 4, 4), 0.5))
    bad: list[BadFile] = []
    found = read_images([tmp_path], SHAPE, on_bad=bad.append)
    assert found.names == ["a.png", "b.png", "stack.npy[0]", "stack.npy[1]"]
    assert torch.equal(found.pixels[:, 0, 0, 0], torch.tensor([0.4, 0.2, 0.5, 0.5]))
    assert [file.path.name for file in bad] == ["wide.png"]
    with pytest.raises(BadFilesError, match=r"1 of 4 image files cannot be used"):
        read_images([tmp_path], SHAPE)
    assert len(read_images([tmp_path], SHAPE, conversion=Conversion(resize=(4, 4))).names) == 5
    with pytest.raises(BadFilesError, match="does not exist"):
        read_images([tmp_path / "absent.png"], SHAPE, on_bad=bad.append)


def test_what_is_labelled(tmp_path: Path):
    picture(tmp_path / "classes" / "cat" / "1.png")
    picture(tmp_path / "flat" / "1.png")
    (tmp_path / "arrays").mkdir()
    for name in ("images", "labels"):
        np.save(tmp_path / "arrays" / f"{name}.npy", np.zeros(3))
    labelled = {name: is_labelled(tmp_path / name) for name in ("classes", "flat", "arrays", "flat/1.png")}
    assert labelled == {"classes": True, "flat": False, "arrays": True, "flat/1.png": False}
    assert is_labelled("digits")


def test_all_splits_together():
    images, names = load_labelled("digits", "all", shape=(1, 8, 8))
    assert (len(images), len(names), images.split) == (1797, 1797, "all")
    with pytest.raises(LinfnetError, match=r"the net expects images of shape \(1, 9, 9\)"):
        load_labelled("digits", "test", shape=(1, 9, 9))
    with pytest.raises(ArgumentError, match="digits is a known data set"):
        load_labelled("digits", "test", conversion=Conversion(mode="grey"))


def test_a_wrong_first_file_is_the_bad_one(tmp_path: Path):
    for name in ("cat", "dog"):
        for index in range(5):
            picture(tmp_path / name / f"{index}.png", size=(9, 9) if (name, index) == ("cat", 0) else (4, 4))
    bad: list[BadFile] = []
    images, names = load_labelled(tmp_path, "all", shape=SHAPE, on_bad=bad.append)
    assert len(images) == len(names) == 9
    assert [file.path.name for file in bad] == ["0.png"]
