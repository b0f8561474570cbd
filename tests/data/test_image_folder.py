"""Own data from paths: class folders, CSV files and NumPy arrays; splits, conversions and bad files."""

import hashlib
import os
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from linfnet.data import BadFile, BadFilesError, ImageSet, image_files, image_folder, list_path, load_path
from linfnet.data import read_image_files as read
from linfnet.errors import ArgumentError, LinfnetError


def image(value: int, size: tuple[int, int] = (6, 4), mode: str = "L") -> Image.Image:
    """An image of one colour; `value` is also the value of each pixel."""
    return Image.new(mode, size, value if mode in ("L", "P", "1", "I;16", "I") else (value,) * len(mode))


def save(path: Path, value: int, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image(value, **options).save(path)
    return path


def fill(folder: Path, classes: dict[str, int], **options: Any) -> Path:
    """So many images per class; each pixel value occurs once in the folder."""
    value = 0
    for name, count in classes.items():
        for number in range(count):
            save(folder / name / f"{number}.png", value, **options)
            value += 1
    return folder


def values(loaded: ImageSet) -> dict[str, set[int]]:
    """Per class, the pixel values of its images."""
    found: dict[str, set[int]] = {name: set() for name in loaded.class_names}
    for pixels, label in zip(loaded.images, loaded.labels.tolist(), strict=True):
        assert pixels.min() == pixels.max()
        found[loaded.class_names[label]].add(int(pixels.max()))
    return found


# Folders.


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
    (folder / "a" / "above").symlink_to(folder)  # brings in the images of b, once
    (folder / "b" / "self").symlink_to("self")
    elsewhere = fill(tmp_path / "elsewhere", {"more": 2})
    (folder / "c").symlink_to(elsewhere / "more")
    counts = [0, 0, 0]
    for split in ("train", "test"):
        for label in load_path(folder, split).labels.tolist():
            counts[label] += 1
    assert counts == [8, 3, 2]


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


# Files.


def test_conversion_on_request(tmp_path: Path) -> None:
    folder = fill(tmp_path / "train", {"a": 1, "b": 1}).parent
    fill(tmp_path / "test", {"a": 1, "b": 1})
    save(folder / "train" / "b" / "large.png", 50, size=(9, 9))
    save(folder / "train" / "b" / "colour.png", 60, mode="RGB")
    with pytest.raises(BadFilesError) as caught:
        load_path(folder)
    assert "2 of 4 image files cannot be used" in str(caught.value)
    loaded = load_path(folder, resize=(4, 6), mode="grey")
    assert loaded.images.shape == (4, 1, 4, 6)
    assert values(loaded) == {"a": {0}, "b": {1, 50, 60}}
    assert load_path(folder, resize=5, mode="rgb").images.shape == (4, 3, 5, 5)


def test_the_option_is_named(tmp_path: Path) -> None:
    first, large = save(tmp_path / "first.png", 0), save(tmp_path / "large.png", 0, size=(9, 8))
    colour = save(tmp_path / "colour.png", 0, mode="RGB")
    bad: list[BadFile] = []
    images, indices = read([first, large, colour, first], on_bad=bad.append)
    assert (images.shape, indices) == ((2, 1, 4, 6), [0, 3])
    assert [file.path for file in bad] == [large, colour]
    assert bad[0].reason == f"has 9 x 8 pixels; expected 6 x 4 like {first}: convert all with resize=(4, 6)"
    assert bad[1].reason == f'is RGB; expected grey like {first}: convert all with mode="grey" or mode="rgb"'
    with pytest.raises(BadFilesError, match=r"first.png: has 6 x 4 pixels; expected 28 x 28: convert all with resize"):
        read([first], shape=(1, 28, 28))


@pytest.mark.parametrize(
    ("mode", "value", "kind", "grey"),
    [
        ("RGBA", 200, "RGB with transparency", 157),  # 200 · 200 / 255: the rest is black
        ("LA", 200, "grey with transparency", 157),
        ("P", 3, "a palette", None),
        ("1", 1, "black and white", 255),
        ("CMYK", 0, "CMYK", 255),
        ("I;16", 257 * 77, "grey with 16 bits", 77),
        ("I;16", 65535, "grey with 16 bits", 255),
    ],
)
def test_modes(tmp_path: Path, mode: str, value: int, kind: str, grey: int | None) -> None:
    path = tmp_path / ("x.tif" if mode == "CMYK" else "x.png")
    Image.new(mode, (6, 4), (value,) * len(mode) if mode in ("RGBA", "LA", "CMYK") else value).save(path)
    with pytest.raises(BadFilesError, match=rf'{kind}.*; convert all with mode="grey" or mode="rgb"'):
        read([path])
    assert read([path], mode="rgb")[0].shape == (1, 3, 4, 6)
    converted = read([path], mode="grey")[0]
    assert converted.shape == (1, 1, 4, 6)
    assert grey is None or converted.unique().tolist() == [grey]


def test_pixels_are_in_their_rows_and_columns(tmp_path: Path) -> None:
    for channels, name in ((1, "grey.png"), (3, "rgb.png")):
        pixels = np.random.default_rng(0).integers(0, 256, (channels, 4, 6), np.uint8)
        Image.fromarray(pixels[0] if channels == 1 else pixels.transpose(1, 2, 0)).save(tmp_path / name)
        assert np.array_equal(read([tmp_path / name])[0][0].numpy(), pixels)


def test_photographs_are_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned by 90 degrees
    image(100).save(tmp_path / "x.jpg", exif=exif)
    assert read([tmp_path / "x.jpg"])[0].shape == (1, 1, 6, 4)


def bomb(path: Path, side: int) -> None:
    """A PNG of a few bytes that announces side x side pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b""))


def test_bad_files_are_named(tmp_path: Path) -> None:
    good = save(tmp_path / "good.png", 7)
    (tmp_path / "truncated.png").write_bytes(good.read_bytes()[:-30])
    (tmp_path / "text.png").write_text("no image")
    (tmp_path / "empty.png").touch()
    (tmp_path / "photo.heic").write_text("x")
    (tmp_path / "dangling.png").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe.png")
    bomb(tmp_path / "bomb.png", 12_000)
    bomb(tmp_path / "large-bomb.png", 60_000)
    (tmp_path / "page.eps.png").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n")
    image(1).save(tmp_path / "two.gif", save_all=True, append_images=[image(2)])
    reasons = {
        "truncated.png": "cannot be read: ",
        "text.png": "is not an image in a supported format",
        "empty.png": "is not an image in a supported format",
        "photo.heic": ".heic files are not supported; convert the file to PNG",
        "dangling.png": "does not exist",
        "pipe.png": "is not a regular file",
        "bomb.png": "has 12000 x 12000 pixels; the limit is 100,000,000",
        "large-bomb.png": "has too many pixels; the limit is 100,000,000",
        "page.eps.png": "is not an image in a supported format",
        "two.gif": "has 2 frames; expected one image",
    }
    files, bad, steps = [good, *(tmp_path / name for name in reasons), good], list[BadFile](), list[int]()
    images, indices = read(files, on_bad=bad.append, advance=steps.append)
    assert (images.unique().tolist(), indices, sum(steps)) == ([7], [0, len(files) - 1], len(files))
    assert [file.path.name for file in bad] == list(reasons)
    for file in bad:
        assert file.reason.startswith(reasons[file.path.name]), file
    with pytest.raises(BadFilesError) as caught:
        read(files)
    lines = str(caught.value).splitlines()
    assert lines[0] == "10 of 12 image files cannot be used"
    assert lines[1].strip().startswith(str(tmp_path / "truncated.png"))
    assert (len(lines), lines[-1].strip(), len(caught.value.bad)) == (7, "and 5 more", 10)


def test_an_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "x.png", 0)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "x.png")

    monkeypatch.setattr(Image, "open", refuse)
    with pytest.raises(BadFilesError, match=r"x.png: cannot be read: Permission denied"):
        read([path])


def test_bad_files_of_a_set(tmp_path: Path) -> None:
    folder = fill(tmp_path / "train", {"a": 3, "b": 3}).parent
    fill(tmp_path / "test", {"a": 1, "b": 1})
    (folder / "train" / "a" / "1.png").write_text("broken")
    with pytest.raises(BadFilesError, match=r"1 of 6 image files cannot be used\n  .*1.png: is not an image"):
        load_path(folder)
    bad: list[BadFile] = []
    assert values(load_path(folder, on_bad=bad.append)) == {"a": {0, 2}, "b": {3, 4, 5}}
    assert [file.path.name for file in bad] == ["1.png"]


def test_nothing_but_bad_files_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_text("broken")
    with pytest.raises(BadFilesError, match="1 of 1 image files"):
        read([tmp_path / "x.png"], on_bad=lambda file: None)


@pytest.mark.parametrize("resize", [0, -1, (4,), (4, 0), (4.0, 4), True, 10**6], ids=str)
def test_wrong_sizes(tmp_path: Path, resize: Any) -> None:
    with pytest.raises(ArgumentError, match=r"resize is .*; expected \(height, width\)"):
        read([save(tmp_path / "x.png", 0)], resize=resize)


def test_wrong_mode(tmp_path: Path) -> None:
    wrong: Any = "gray"
    with pytest.raises(ArgumentError, match="mode is 'gray'; expected 'grey', 'rgb' or None"):
        load_path(fill(tmp_path, {"a": 2, "b": 2}), mode=wrong)


def test_images_are_stored_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    allocated: list[int] = []
    real = image_files.ImageBuffer._allocate  # type: ignore[attr-defined]

    def count(number: int, like: torch.Tensor) -> torch.Tensor:
        allocated.append(number)
        return real(number, like)

    monkeypatch.setattr(image_files.ImageBuffer, "_allocate", staticmethod(count))
    loaded = load_path(fill(tmp_path, {"a": 10, "b": 10}), "train")
    assert allocated == [len(loaded)] == [16]


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


ARRAY_FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "names": ({"a": IMAGES, "b": LABELS}, "holds the arrays a, b; expected images and labels"),
    "lengths": ({"images": IMAGES, "labels": LABELS[:5]}, "5 labels for 20 images"),
    "lengths-stored": (
        {"x_train": IMAGES, "y_train": LABELS[:5], "x_test": IMAGES, "y_test": LABELS},
        "labels holds 5 labels for 20 images",
    ),
    "float-labels": ({"images": IMAGES, "labels": LABELS / 2}, "x.npz: labels has dtype float64"),
    "gaps": ({"images": IMAGES, "labels": LABELS * 10**9}, "labels has no label 1; expected 0 to K - 1"),
    "negative": ({"images": IMAGES, "labels": LABELS - 1}, "hold -1 to 0; expected 0 to 0"),
    "one-class": ({"images": IMAGES, "labels": LABELS * 0}, "at least two classes"),
    "no-train": ({"x_test": IMAGES, "y_test": LABELS}, "has no train split; it has test"),
    "range": ({"images": IMAGES / 1.0, "labels": LABELS}, "x.npz: images holds values from 0 to 19"),
    "layout": ({"images": np.zeros((20, 3, 4, 3), np.uint8), "labels": LABELS}, "x.npz: .*pass layout="),
    "too-few-names": ({"images": IMAGES, "labels": LABELS, "classes": np.array(["a"])}, "hold 0 to 1; expected 0 to 0"),
}


@pytest.mark.parametrize(("arrays", "message"), ARRAY_FAULTS.values(), ids=ARRAY_FAULTS.keys())
def test_faults_of_arrays(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(LinfnetError, match=message):
        load_path(tmp_path / "x.npz", "train")


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
        with pytest.raises(LinfnetError, match=r"cannot be read: .*(allow_pickle|Python objects)"):
            load_path(path)


def test_broken_archives(tmp_path: Path) -> None:
    np.savez(tmp_path / "whole.npz", images=IMAGES, labels=LABELS)
    whole = (tmp_path / "whole.npz").read_bytes()
    for name, content in (("cut", whole[:-40]), ("text", b"no archive"), ("empty", b"")):
        (tmp_path / f"{name}.npz").write_bytes(content)
        with pytest.raises(LinfnetError, match=rf"{name}.npz cannot be read"):
            load_path(tmp_path / f"{name}.npz")
    with (tmp_path / "single.npz").open("wb") as file:
        np.save(file, IMAGES)
    with pytest.raises(LinfnetError, match="expected an archive of arrays"):
        load_path(tmp_path / "single.npz")


def test_listing_needs_no_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fill(tmp_path, {"a": 2, "b": 2})
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    assert len(image_folder.list_folder(folder, "train").files) == 2
    with pytest.raises(LinfnetError, match=r"needs PIL|needs Pillow"):
        load_path(folder)
