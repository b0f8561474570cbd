"""Own data from CSV files and NumPy arrays, and paths that hold no data."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from own_samples import save, values

from linfnet.data import load_path
from linfnet.errors import ArgumentError, LinfnetError

# CSV files.


def write_csv(folder: Path, text: str) -> Path:
    for value in range(6):
        save(folder / "images" / f"{value}.png", value)
    path = folder / "index.csv"
    path.write_text(text, encoding="utf-8")
    return path


def rows(labels: str, splits: str = "") -> str:
    """One letter for each row."""
    header = "file,label,split" if splits else "file,label"
    names = {"r": ",train", "e": ",test", "v": ",val"}
    lines = [f"images/{k}.png,{label}{names[splits[k]] if splits else ''}" for k, label in enumerate(labels)]
    return "\n".join([header, *lines]) + "\n"


def test_a_csv_with_splits(tmp_path: Path) -> None:
    path = write_csv(tmp_path, rows("aabbab", "rerere"))
    train, test = load_path(path, "train"), load_path(path, "test")
    assert train.class_names == ("a", "b")
    assert (train.images[:, 0, 0, 0].tolist(), train.labels.tolist()) == ([0, 2, 4], [0, 1, 0])
    assert (test.images[:, 0, 0, 0].tolist(), test.labels.tolist()) == ([1, 3, 5], [0, 1, 1])
    assert train.info.name == "index"


def test_a_csv_without_splits(tmp_path: Path) -> None:
    path = write_csv(tmp_path, "\ufeff File , LABEL,note\nimages/0.png,10,x\n\n" + "".join(
        f"images/{k}.png, {label} ,\n" for k, label in ((1, 9), (2, 9), (3, 10), (4, 9), (5, 10))
    ))  # fmt: skip
    train, test = load_path(path, "train"), load_path(path, "test")
    assert train.class_names == ("9", "10")
    assert (len(train), len(test)) == (4, 2)
    assert {*train.images.unique().tolist(), *test.images.unique().tolist()} == set(range(6))


CSV_FAULTS: dict[str, tuple[str, str]] = {
    "empty": ("", "begins with ''; expected the header file,label"),
    "header": ("images/0.png;a\n", "expected the header file,label"),
    "no-rows": ("file,label\n", "has no classes; expected at least two"),
    "one-class": (rows("aaa"), "only the class 'a'"),
    "short-row": ("file,label\nimages/0.png\n", "row 2: 1 values; expected 2"),
    "no-label": ("file,label\nimages/0.png, \n", "row 2: expected a file and a label"),
    "twice": (rows("ab") + "images/0.png,b\n", "row 4: images/0.png is listed twice"),
    "other-spelling": (rows("ab") + "./images//0.png,b\n", r"listed twice \(first as images/0.png\)"),
    "other-path": (rows("ab") + "images/../images/0.png,b\n", r"listed twice \(first as images/0.png\)"),
    "two-columns": ("file,label,label\nimages/0.png,a,b\n", "has several columns 'label'; expected one"),
    "split": ("file,label,split\nimages/0.png,a,other\n", "row 2: split is 'other'; expected train, test or val"),
    "classes": (rows("abac", "rree"), "different classes: test lacks b; train lacks c"),
    "missing": (rows("aabb").replace("3.png", "9.png").replace("1.png", "8.png"), "does not exist"),
    "quote": ('file,label\n"images/0.png,a\n', "is not a CSV file in UTF-8"),
}


@pytest.mark.parametrize(("text", "message"), CSV_FAULTS.values(), ids=CSV_FAULTS.keys())
def test_faults_of_csv_files(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(LinfnetError, match=message):
        load_path(write_csv(tmp_path, text), "train")


def test_a_csv_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b"file,label\n\xff\xfe,a\n")
    with pytest.raises(LinfnetError, match="is not a CSV file in UTF-8"):
        load_path(tmp_path / "x.csv")


# Arrays.

IMAGES = np.arange(20, dtype=np.uint8)[:, None, None] + np.zeros((20, 4, 6), np.uint8)
LABELS = np.arange(20) % 2


@pytest.mark.parametrize("form", ["npz", "npy", "compressed"])
def test_arrays_are_split(tmp_path: Path, form: str) -> None:
    path = tmp_path / ("x" if form == "npy" else "x.npz")
    if form == "npy":
        path.mkdir()
        np.save(path / "images.npy", IMAGES)
        np.save(path / "labels.npy", LABELS)
    else:
        (np.savez if form == "npz" else np.savez_compressed)(path, images=IMAGES, labels=LABELS)
    steps: list[int] = []
    train, test = load_path(path, "train", advance=steps.append), load_path(path, "test")
    assert (len(train), len(test), train.info.name, steps) == (16, 4, "x", [16])
    found = values(train), values(test)
    assert {name: len(part) for name, part in found[1].items()} == {"0": 2, "1": 2}
    assert found[0]["0"] | found[1]["0"] == set(range(0, 20, 2))
    train.images.fill_(0)  # the file is not changed
    assert values(load_path(path, "train")) == found[0]


@pytest.mark.parametrize("keys", [("x_{}", "y_{}"), ("{}_images", "{}_labels")], ids=lambda keys: keys[0])
@pytest.mark.parametrize("held_out", ["test", "val"])
def test_arrays_with_splits(tmp_path: Path, keys: tuple[str, str], held_out: str) -> None:
    arrays: dict[str, Any] = {
        keys[0].format("train"): IMAGES[:15] / 255,
        keys[1].format("train"): LABELS[:15, None].astype(np.uint8),
        keys[0].format(held_out): IMAGES[16:17] / 255,
        keys[1].format(held_out): LABELS[16:17],
    }
    np.savez(tmp_path / "x.npz", **arrays)
    test = load_path(tmp_path / "x.npz", "test")
    assert (len(test), test.class_names, test.images.dtype) == (1, ("0", "1"), torch.float32)
    assert len(load_path(tmp_path / "x.npz", "train")) == 15


def test_class_names_of_arrays(tmp_path: Path) -> None:
    for kind in ("U", "S"):
        names = np.array(["ant", "bee", "cow"], dtype=kind)
        np.savez(tmp_path / "x.npz", images=IMAGES, labels=LABELS, classes=names)
        assert load_path(tmp_path / "x.npz").class_names == ("ant", "bee", "cow")


class Trap:
    """Would be run by a reader that unpickles."""

    def __reduce__(self) -> Any:
        return os.abort, ()


def test_a_link_to_a_listed_file_is_an_error(tmp_path: Path) -> None:
    save(tmp_path / "images" / "0.png", 0)
    (tmp_path / "images" / "1.png").symlink_to("0.png")
    (tmp_path / "x.csv").write_text(rows("ab"))
    with pytest.raises(LinfnetError, match=r"images/1.png is listed twice \(first as images/0.png\)"):
        load_path(tmp_path / "x.csv")


ARRAY_FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "names": ({"a": IMAGES, "b": LABELS}, "holds the arrays a, b; expected images and labels"),
    "lengths": ({"images": IMAGES, "labels": LABELS[:5]}, "5 labels for 20 images"),
    "lengths-stored": (
        {"x_train": IMAGES, "y_train": LABELS[:5], "x_test": IMAGES, "y_test": LABELS},
        "labels holds 5 labels for 20 images",
    ),
    "float-labels": ({"images": IMAGES, "labels": LABELS / 2}, "x.npz: labels has dtype float64"),
    "gaps": ({"images": IMAGES, "labels": LABELS * 10**9}, "labels has no label 1; expected 0 to K - 1"),
    "negative": ({"images": IMAGES, "labels": LABELS - 1}, "hold -1 to 0; expected 0 to K - 1"),
    "negative-stored": (
        {"x_train": IMAGES, "y_train": LABELS - 1, "x_test": IMAGES, "y_test": LABELS},
        "y_train hold -1 to 0; expected 0 to K - 1",
    ),
    "one-class": ({"images": IMAGES, "labels": LABELS * 0}, "at least two classes"),
    "no-train": ({"x_test": IMAGES, "y_test": LABELS}, "has no train split; it has test"),
    "range": ({"images": IMAGES / 1.0, "labels": LABELS}, "x.npz: images holds values from 0 to 19"),
    "layout": ({"images": np.zeros((20, 3, 4, 3), np.uint8), "labels": LABELS}, "x.npz: .*pass layout="),
    "long-names": (
        {"images": IMAGES, "labels": LABELS, "classes": np.array(["a", "b" * 301])},
        "a class name has 301 characters; expected at most 300",
    ),
    "too-few-names": ({"images": IMAGES, "labels": LABELS, "classes": np.array(["a"])}, "hold 0 to 1; expected 0 to 0"),
}


@pytest.mark.parametrize(("arrays", "message"), ARRAY_FAULTS.values(), ids=ARRAY_FAULTS.keys())
def test_faults_of_arrays(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(LinfnetError, match=message):
        load_path(tmp_path / "x.npz", "train")


def test_a_damaged_archive_is_one_error(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "whole.npz", images=IMAGES, labels=LABELS)
    whole, seen = (tmp_path / "whole.npz").read_bytes(), Counter[str]()
    for position in range(0, len(whole), 3):
        (tmp_path / "x.npz").write_bytes(whole[:position] + b"\xb7" + whole[position + 1 :])
        try:
            load_path(tmp_path / "x.npz")
        except LinfnetError as error:
            seen[str(error).partition("cannot be read: ")[2][:16]] += 1
    assert seen["Error -3 while d"]  # of zlib
    assert seen["Bad CRC-32 for f"]  # of zipfile


def test_labels_that_training_does_not_have(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x_train=IMAGES, y_train=LABELS, x_test=IMAGES, y_test=LABELS + 1)
    with pytest.raises(ArgumentError, match="labels holds 2; expected 0 to 1"):
        load_path(tmp_path / "x.npz", "test")


def test_layout_of_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", images=np.zeros((20, 3, 4, 3), np.uint8), labels=LABELS)
    assert load_path(tmp_path / "x.npz", layout="NHWC").info.image_shape == (3, 3, 4)


def test_arrays_are_not_converted(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", images=IMAGES, labels=LABELS)
    for options in ({"resize": 4}, {"mode": "grey"}):
        with pytest.raises(ArgumentError, match="resize and mode convert image files only"):
            load_path(tmp_path / "x.npz", **options)  # type: ignore[arg-type]


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    trap = np.array([Trap()] * 20, dtype=object)
    np.savez(tmp_path / "x.npz", images=IMAGES, labels=trap)
    np.save(tmp_path / "labels.npy", trap)
    np.save(tmp_path / "images.npy", IMAGES)
    for path in (tmp_path / "x.npz", tmp_path):
        with pytest.raises(LinfnetError, match="cannot be read: it is damaged, or contains Python objects"):
            load_path(path)


def test_broken_archives(tmp_path: Path) -> None:
    np.savez(tmp_path / "whole.npz", images=IMAGES, labels=LABELS)
    whole = (tmp_path / "whole.npz").read_bytes()
    for name, content in (("cut", whole[:-40]), ("text", b"no archive"), ("empty", b"")):
        (tmp_path / f"{name}.npz").write_bytes(content)
        with pytest.raises(LinfnetError, match=rf"{name}.npz cannot be read") as caught:
            load_path(tmp_path / f"{name}.npz")
        assert "pickle" not in str(caught.value)
    with (tmp_path / "single.npz").open("wb") as file:
        np.save(file, IMAGES)
    with pytest.raises(LinfnetError, match="expected an archive of arrays"):
        load_path(tmp_path / "single.npz")
