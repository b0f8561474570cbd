"""Labelled image files: a folder with a sub-folder for each class, or a CSV file of file names and labels."""

import csv
import os
import unicodedata
from dataclasses import dataclass
from pathlib import Path

from linfnet.data.image_files import IMAGE_SUFFIXES, UNSUPPORTED_SUFFIXES, readable
from linfnet.data.splits import (
    SPLIT_NAMES,
    check_same_classes,
    made_split,
    name_hash,
    sorted_classes,
    stored_split,
)
from linfnet.errors import LinfnetError

_IGNORED_FOLDERS = ("__MACOSX", "__pycache__")


@dataclass(frozen=True)
class LabelledFiles:
    """The image files of one split, with their labels."""

    files: tuple[Path, ...]
    labels: tuple[int, ...]
    """For each file, the index of its class."""
    classes: tuple[str, ...]


def list_folder(folder: Path, split: str, *, seed: int = 0) -> LabelledFiles:
    """List the images of one split of a folder with a sub-folder for each class; no image is opened.

    The folder holds the class folders themselves, or `train` and `test` (or `val`) with the class folders in each.
    Without stored splits, a split is made from the seed. The order of the files is drawn from their names, the same on
    every machine: the first n files are a fair sample of all classes.

    Args:
        folder: the folder.
        split: "train", "test" or "val".
        seed: of the split, where one is made.
    """
    where = readable(folder)
    roots = _split_folders(folder)
    stored = stored_split(split, roots, where)
    root = roots[stored or "train"] if roots else folder
    folders = _class_folders(root)
    other = roots.get("test", roots.get("val")) if stored == "train" else roots.get("train")
    if other is not None:
        check_same_classes({root.name: folders, other.name: _class_folders(other)}, where)
    classes = sorted_classes(folders, readable(root))
    samples, visited = list[tuple[str, Path, int]](), dict[tuple[int, int], Path]()
    for label, name in enumerate(classes):
        found = _images_below(folders[name], visited)
        if not found:
            raise LinfnetError(f"class folder {readable(folders[name])} holds no images ({', '.join(IMAGE_SUFFIXES)})")
        samples += [(f"{name}/{_text(path.relative_to(folders[name]))}", path, label) for path in found]
    samples.sort(key=lambda sample: (name_hash(sample[0]), sample[0]))
    if stored is None:
        keys, labels = [key for key, _, _ in samples], [label for _, _, label in samples]
        samples = [samples[index] for index in made_split(split, labels, keys, classes, seed, where)]
    return LabelledFiles(tuple(path for _, path, _ in samples), tuple(label for _, _, label in samples), classes)


def list_csv(path: Path, split: str, *, seed: int = 0) -> LabelledFiles:
    """List the images of one split of a CSV file with the columns `file`, `label` and, optionally, `split`.

    File names are relative to the folder of the CSV file. The order of the rows is kept.

    Args:
        path: the CSV file, in UTF-8, with a header.
        split: "train", "test" or "val".
        seed: of the split, where the file has no column `split`.
    """
    where, rows = readable(path), _csv_rows(path)
    classes = sorted_classes((label for _, label, _ in rows), where)
    present = {part for _, _, part in rows if part}
    stored = stored_split(split, present, where)
    numbers = {name: label for label, name in enumerate(classes)}
    if stored is None:
        labels = [numbers[label] for _, label, _ in rows]
        chosen = made_split(split, labels, [name for name, _, _ in rows], classes, seed, where)
    else:
        used = {stored, "train"} if stored != "train" else {"train", "test" if "test" in present else "val"}
        check_same_classes(
            {part: {label for _, label, of in rows if of == part} for part in sorted(used & present)}, where
        )
        chosen = [index for index, (_, _, part) in enumerate(rows) if part == stored]
    files = tuple(path.parent / rows[index][0] for index in chosen)
    return LabelledFiles(files, tuple(numbers[rows[index][1]] for index in chosen), classes)


def _text(path: Path | str) -> str:
    """A path or a name in one form of Unicode and with forward slashes, on every system."""
    return unicodedata.normalize("NFC", readable(path)).replace(os.sep, "/")


def _entries(folder: Path) -> list[Path]:
    """Everything in a folder that is not hidden, by name."""
    try:
        return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise LinfnetError(f"folder {readable(folder)} cannot be read: {error.strerror}") from None


def _split_folders(folder: Path) -> dict[str, Path]:
    """The folders of stored splits; none if the sub-folders are classes."""
    folders = [entry for entry in _entries(folder) if entry.is_dir() and entry.name not in _IGNORED_FOLDERS]
    named = [(part, entry) for entry in folders if (part := SPLIT_NAMES.get(entry.name.lower()))]
    splits = dict(named)
    # "train" may also be a class, beside "car" and "plane".
    if not ({"train", "test"} <= splits.keys() or {"train", "val"} <= splits.keys() or len(named) == len(folders)):
        return {}
    for part, entry in named:
        if splits[part] != entry:
            raise LinfnetError(f"{readable(entry)} and {readable(splits[part])} are both the {part} split; keep one")
    return splits


def _class_folders(folder: Path) -> dict[str, Path]:
    """The class folders in a folder, by class name."""
    classes: dict[str, Path] = {}
    entries = _entries(folder)
    for entry in entries:
        if entry.is_dir() and entry.name not in _IGNORED_FOLDERS:
            name = _text(entry.name)
            if name in classes:
                raise LinfnetError(f"{readable(folder)} holds two folders called {name!r} (in different Unicode forms)")
            classes[name] = entry
    if not classes:
        images = "images but no" if any(map(_is_image, entries)) else "no"
        raise LinfnetError(f"{readable(folder)} holds {images} class folders; expected one folder for each class")
    return classes


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in (*IMAGE_SUFFIXES, *UNSUPPORTED_SUFFIXES)


def _images_below(folder: Path, visited: dict[tuple[int, int], Path]) -> list[Path]:
    """All image files in a class folder and its sub-folders; links to folders are followed.

    Args:
        folder: the class folder.
        visited: the folders of this and of other classes, by device and inode: no folder is visited twice, and it is
            an error if links lead from two classes to one folder.
    """
    images: list[Path] = []
    pending = [folder]
    while pending:
        current = pending.pop()
        entries, status = _entries(current), current.stat()
        owner = visited.setdefault((status.st_dev, status.st_ino), current)
        if owner is not current:
            if folder not in (owner, *owner.parents):
                raise LinfnetError(
                    f"{readable(owner)} and {readable(current)} are one folder in two classes: remove a link"
                )
            continue
        below = [entry for entry in entries if entry.is_dir()]
        pending += [entry for entry in below if entry.name not in _IGNORED_FOLDERS]
        images += [entry for entry in entries if entry not in below and _is_image(entry)]
    return images


def _resolved(path: Path) -> Path:
    """The path without links and `..`; a path that cannot be a file (with a NUL) as it is."""
    try:
        return path.resolve()
    except (OSError, ValueError, RuntimeError):
        return path


def _csv_rows(path: Path) -> list[tuple[str, str, str]]:
    """File name, label and split (or "") of each row."""
    where = readable(path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = list(enumerate(csv.reader(file, strict=True), 1))
    except OSError as error:
        raise LinfnetError(f"{where} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise LinfnetError(f"{where} is not a CSV file in UTF-8: {error}") from None
    header = [cell.strip().lower() for cell in lines[0][1]] if lines else []
    if not {"file", "label"} <= set(header):
        raise LinfnetError(f"{where} begins with {','.join(header)[:80]!r}; expected the header file,label[,split]")
    double = next((name for name in ("file", "label", "split") if header.count(name) > 1), None)
    if double is not None:
        raise LinfnetError(f"{where} has several columns {double!r}; expected one")
    rows: dict[Path, tuple[str, str, str]] = {}
    for number, cells in lines[1:]:
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(header):
            raise LinfnetError(f"{where}, row {number}: {len(cells)} values; expected {len(header)}")
        row = {name: cell.strip() for name, cell in zip(header, cells, strict=True)}
        name, label, part = row["file"], row["label"], row.get("split")
        if not name or not label:
            raise LinfnetError(f"{where}, row {number}: expected a file and a label")
        if part is not None and part.lower() not in SPLIT_NAMES:
            raise LinfnetError(f"{where}, row {number}: split is {part!r}; expected train, test or val")
        file = _resolved(path.parent / name)
        if file in rows:
            first = f" (first as {rows[file][0]})" if rows[file][0] != name else ""
            raise LinfnetError(f"{where}, row {number}: {name} is listed twice{first}")
        rows[file] = (name, label, SPLIT_NAMES[part.lower()] if part else "")
    return list(rows.values())
