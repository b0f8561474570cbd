"""Folders with a sub-folder for each class: splits, class names, links, and faults."""

import hashlib
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from own_samples import fill, save, values

from linfnet.data import list_path, load_path
from linfnet.data.image_folder import list_folder
from linfnet.errors import ArgumentError, LinfnetError


def test_stored_splits(tmp_path: Path) -> None:
    fill(tmp_path / "leaves" / "train", {"oak": 3, "elm": 2})
    fill(tmp_path / "leaves" / "test", {"oak": 1, "elm": 2})
    train, test = (load_path(tmp_path / "leaves", split) for split in ("train", "test"))
    assert train.class_names == test.class_names == ("elm", "oak")
    assert values(train) == {"oak": {0, 1, 2}, "elm": {3, 4}}
    assert values(test) == {"oak": {0}, "elm": {1, 2}}
    assert (train.info.name, train.split, test.split) == ("leaves", "train", "test")
    assert train.images.shape == (5, 1, 4, 6)
    assert train.info.mean[0] == pytest.approx(2 / 255)


@pytest.mark.parametrize("name", ["val", "valid", "Validation"])
def test_val_serves_as_test(tmp_path: Path, name: str) -> None:
    fill(tmp_path / "train", {"a": 2, "b": 2})
    fill(tmp_path / name, {"a": 1, "b": 1})
    assert len(load_path(tmp_path, "test")) == len(load_path(tmp_path, "val")) == 2
    assert len(load_path(tmp_path, "train")) == 4


def test_test_and_val_stay_apart(tmp_path: Path) -> None:
    for count, name in enumerate(("train", "test", "val"), 1):
        fill(tmp_path / name, {"a": count, "b": count})
    assert [len(load_path(tmp_path, split)) for split in ("train", "test", "val")] == [2, 4, 6]


def test_a_split_made_from_a_seed(tmp_path: Path) -> None:
    folder = fill(tmp_path / "x", {"a": 20, "b": 10, "c": 2})
    train, test = load_path(folder, "train"), load_path(folder, "test")
    assert {name: len(found) for name, found in values(test).items()} == {"a": 4, "b": 2, "c": 1}
    assert len(train) + len(test) == 32
    assert all(not (values(train)[name] & values(test)[name]) for name in "abc")
    assert torch.equal(load_path(folder, "test", seed=0).images, test.images)
    assert values(load_path(folder, "test", seed=1)) != values(test)
    # Fixed for all time, so that a recorded run can be repeated: by the hash of seed and name.
    order = sorted(range(10), key=lambda number: hashlib.sha256(f"0/b/{number}.png".encode()).digest())
    assert values(test)["b"] == {20 + number for number in order[:2]} == {25, 28}


def test_the_split_does_not_depend_on_the_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fill(tmp_path / "x", {"a": 9, "b": 9})
    before = list_path(folder, "test")
    moved = shutil.copytree(folder, tmp_path / "elsewhere" / "x")
    real = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda self: sorted(real(self), reverse=True))
    after = list_path(moved, "test")
    assert before is not None
    assert after is not None
    assert [path.relative_to(folder) for path in before.files] == [path.relative_to(moved) for path in after.files]
    assert before.labels == after.labels


def test_only_a_train_folder_is_split(tmp_path: Path) -> None:
    fill(tmp_path / "train", {"a": 5, "b": 5})
    assert (len(load_path(tmp_path, "train")), len(load_path(tmp_path, "test"))) == (8, 2)
    with pytest.raises(LinfnetError, match="has no val split; it has train"):
        load_path(tmp_path, "val")


def test_only_a_test_folder(tmp_path: Path) -> None:
    fill(tmp_path / "test", {"a": 5, "b": 5})
    assert len(load_path(tmp_path, "test")) == 10
    with pytest.raises(LinfnetError, match="has no train split; it has test"):
        load_path(tmp_path, "train")


def test_train_may_be_a_class(tmp_path: Path) -> None:
    fill(tmp_path, {"train": 3, "plane": 3, "car": 3})
    assert load_path(tmp_path, "train").class_names == ("car", "plane", "train")


def test_the_first_images_are_of_all_classes(tmp_path: Path) -> None:
    folder = fill(tmp_path / "train", {"a": 30, "b": 30, "c": 30}).parent
    fill(tmp_path / "test", {"a": 1, "b": 1, "c": 1})
    assert len(load_path(folder, "train").first(15).labels.unique()) == 3


def test_classes_in_numeric_order(tmp_path: Path) -> None:
    fill(tmp_path / "numbers", {"10": 2, "9": 2, "-1": 2})
    assert load_path(tmp_path / "numbers").class_names == ("-1", "9", "10")
    fill(tmp_path / "words", {"10": 2, "9": 2, "x": 2})
    assert load_path(tmp_path / "words").class_names == ("10", "9", "x")


def test_unicode_hidden_and_other_files(tmp_path: Path) -> None:
    fill(tmp_path / "Blätter 🌿", {"Eiche": 2, "Ahorn ü": 2, "橡": 2})
    folder = tmp_path / "Blätter 🌿"
    for name in (".DS_Store", "Eiche/._0.png", "Eiche/notes.txt", "Eiche/.hidden/x.png", "__MACOSX/a/x.png", ".git/y"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"no image")
    save(folder / "Eiche" / "deeper" / "UPPER.PNG", 100)
    loaded = load_path(folder)
    assert loaded.class_names == ("Ahorn ü", "Eiche", "橡")
    assert loaded.info.name == "Blätter 🌿"
    listed = list_path(folder, "train"), list_path(folder, "test")
    names = [path.name for part in listed if part for path in part.files]
    assert sorted(names) == ["0.png", "0.png", "0.png", "1.png", "1.png", "1.png", "UPPER.PNG"]


def test_class_names_in_one_form_of_unicode(tmp_path: Path) -> None:
    fill(tmp_path / "train", {"u\u0308": 2, "b": 2})
    fill(tmp_path / "test", {"\u00fc": 2, "b": 2})
    assert load_path(tmp_path, "test").class_names == ("b", "\u00fc")
    fill(tmp_path / "test", {"u\u0308": 2})
    with pytest.raises(LinfnetError, match="two folders called"):
        load_path(tmp_path, "test")


@pytest.mark.skipif(os.name == "nt", reason="names are text on Windows")
def test_names_that_are_not_text(tmp_path: Path) -> None:
    fill(tmp_path, {"a": 2})
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    save(odd / "0.png", 1)
    save(odd / "1.png", 1)
    assert load_path(tmp_path).class_names == ("\\xff", "a")


def test_links_are_followed_once(tmp_path: Path) -> None:
    folder = fill(tmp_path / "x", {"a": 3, "b": 3})
    (folder / "a" / "again").symlink_to(folder / "a")
    (folder / "b" / "self").symlink_to("self")
    elsewhere = fill(tmp_path / "elsewhere", {"more": 2})
    (folder / "c").symlink_to(elsewhere / "more")
    counts = [0, 0, 0]
    for split in ("train", "test"):
        for label in load_path(folder, split).labels.tolist():
            counts[label] += 1
    assert counts == [3, 3, 2]


@pytest.mark.parametrize(("link", "target"), [("a/above", ""), ("a/other", "b"), ("c", "a"), ("b/deep/other", "a")])
def test_a_folder_in_two_classes_is_an_error(tmp_path: Path, link: str, target: str) -> None:
    folder = fill(tmp_path / "x", {"a": 3, "b": 3})
    (folder / "b" / "deep").mkdir()
    (folder / link).symlink_to(folder / target)
    with pytest.raises(LinfnetError, match="are one folder in two classes: remove a link"):
        load_path(folder)


FAULTS: dict[str, tuple[dict[str, int], str]] = {
    "one-class": ({"cats": 3}, "has only the class 'cats'; expected at least two"),
    "empty": ({}, "holds no class folders; expected one folder for each class"),
    "empty-class": ({"a": 2, "b": 0}, r"class folder .*b holds no images \(.png"),
    "one-sample": ({"a": 2, "b": 1}, "class 'b' has one sample; a split needs at least two"),
    "other-classes": (
        {"train/a": 2, "train/b": 2, "test/b": 2, "test/c": 2},
        "have different classes: .* lacks c; test lacks a",
    ),
    "missing-class": ({"train/a": 2, "train/b": 2, "val/b": 2}, "different classes: val lacks a"),
    "unlabelled-test": ({"train/a": 2, "train/b": 2, "test": 2}, "test holds images but no class folders"),
    "two-trains": ({"train/a": 2, "Training/a": 2, "test/a": 1}, "are both the train split; keep one"),
}


@pytest.mark.parametrize(("classes", "message"), FAULTS.values(), ids=FAULTS.keys())
def test_faults_of_folders(tmp_path: Path, classes: dict[str, int], message: str) -> None:
    for name in classes:
        (tmp_path / name).mkdir(parents=True)
    fill(tmp_path, classes)
    with pytest.raises(LinfnetError, match=message):
        load_path(tmp_path, "train")


def test_images_without_class_folders(tmp_path: Path) -> None:
    save(tmp_path / "a.png", 0)
    with pytest.raises(LinfnetError, match="holds images but no class folders"):
        load_path(tmp_path, "train")


def test_a_folder_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fill(tmp_path, {"a": 2, "b": 2})
    real = Path.iterdir

    def refuse(self: Path) -> Any:
        if self.name == "b":
            raise PermissionError(13, "Permission denied", str(self))
        return real(self)

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(LinfnetError, match=r"folder .*b cannot be read: Permission denied"):
        load_path(folder)


@pytest.mark.parametrize("split", ["trian", "", "TEST"])
def test_an_unknown_split(tmp_path: Path, split: str) -> None:
    with pytest.raises(ArgumentError, match=rf"split is '{split}'; expected 'train' or 'test'"):
        load_path(fill(tmp_path, {"a": 2, "b": 2}), split)


def test_paths_that_are_no_data(tmp_path: Path) -> None:
    for name, message in (
        ("absent", "does not exist"),
        ("x.txt", "is not data; expected a folder, a .csv or an .npz file"),
        ("images.npy", "pass the folder that holds images.npy and labels.npy"),
    ):
        if name != "absent":
            (tmp_path / name).write_text("x")
        with pytest.raises(LinfnetError, match=message):
            load_path(tmp_path / name)


def test_listing_needs_no_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fill(tmp_path, {"a": 2, "b": 2})
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert len(list_folder(folder, "train").files) == 2
    with pytest.raises(LinfnetError, match=r"needs PIL|needs Pillow"):
        load_path(folder)
