"""The user's own data from a path: folders of images, CSV files, and NumPy arrays."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from linfnet.data.arrays import Layout, from_arrays, integer_labels
from linfnet.data.image_files import BadFile, Mode, Size, read_image_files, readable
from linfnet.data.image_folder import LabelledFiles, list_csv, list_folder
from linfnet.data.image_set import ImageSet
from linfnet.data.splits import SPLIT_NAMES, made_split, stored_split
from linfnet.errors import ArgumentError, LinfnetError

_CLASS_KEYS = ("classes", "class_names")


def load_path(
    path: Path | str,
    split: str = "train",
    *,
    seed: int = 0,
    resize: Size = None,
    mode: Mode = None,
    layout: Layout = None,
    on_bad: Callable[[BadFile], None] | None = None,
    advance: Callable[[int], None] = lambda images: None,
) -> ImageSet:
    """Load one split of the user's own data; it has the name of the folder or file.

    Args:
        path: one of

            - a folder with a sub-folder of images for each class, or with `train` and `test` (or `val`) that hold such
              sub-folders;
            - a CSV file with the columns file, label and, optionally, split;
            - an `.npz` file, or a folder of `.npy` files, with the arrays images and labels; or x_train, y_train,
              x_test and y_test; or train_images, train_labels, test_images and test_labels; class names may be stored
              in an array called classes.
        split: "train" or "test"; "val" if the data has it.
        seed: of the split (20 % of each class for the test), where the data has none.
        resize: (H, W), or one number for both, to which image files are scaled; None expects files of one size.
        mode: "grey" or "rgb" converts image files; None expects files of one of these kinds.
        layout: of arrays with four dimensions, as in `from_arrays`.
        on_bad: is called for each image file that cannot be used, which is then left out; None raises an error that
            names up to five of them.
        advance: is called with the number of images read since the last call.
    """
    path = Path(path).expanduser()
    name = readable(path.resolve().name if path.is_dir() else path.stem) or "own"
    listed = list_path(path, split, seed=seed)
    try:
        if listed is None:
            if resize is not None or mode is not None:
                raise ArgumentError("resize and mode convert image files only; these are arrays")
            images, labels, classes = _read_arrays(path, split, seed)
            loaded = from_arrays(images, labels, classes=classes, name=name, split=split, layout=layout)
            advance(len(loaded))
            return loaded
        pixels, indices = read_image_files(listed.files, resize=resize, mode=mode, on_bad=on_bad, advance=advance)
        labels = np.array([listed.labels[index] for index in indices])
        return from_arrays(pixels, labels, classes=listed.classes, name=name, split=split, layout="NCHW")
    except ArgumentError as error:
        raise ArgumentError(f"{readable(path)}: {error}") from None


def list_path(path: Path, split: str, *, seed: int = 0) -> LabelledFiles | None:
    """The image files that `load_path` reads, in its order, with their labels; None if the path holds arrays.

    Args:
        path: as in `load_path`.
        split: as in `load_path`.
        seed: as in `load_path`.
    """
    if path.is_dir():
        return None if _array_files(path) else list_folder(path, split, seed=seed)
    if not path.exists():
        raise LinfnetError(f"data path {readable(path)} does not exist")
    suffix = path.suffix.lower()
    if suffix == ".npy":
        raise LinfnetError(f"{readable(path)} is one array; pass the folder that holds images.npy and labels.npy")
    if suffix not in (".csv", ".npz"):
        raise LinfnetError(f"{readable(path)} is not data; expected a folder, a .csv or an .npz file")
    return list_csv(path, split, seed=seed) if suffix == ".csv" else None


def _array_files(folder: Path) -> dict[str, Path]:
    """The `.npy` files in a folder, by name without suffix."""
    try:
        return {path.stem: path for path in folder.iterdir() if path.suffix == ".npy" and path.name[0] != "."}
    except OSError as error:
        raise LinfnetError(f"folder {readable(folder)} cannot be read: {error.strerror}") from None


class _Arrays(Mapping[str, npt.NDArray[Any]]):
    """The arrays of an `.npz` file or of a folder of `.npy` files, each read when it is used; nothing is unpickled."""

    def __init__(self, path: Path) -> None:
        self._files = _array_files(path) if path.is_dir() else dict.fromkeys(_load(path, list), path)

    def __getitem__(self, key: str) -> npt.NDArray[Any]:
        return _load(self._files[key], lambda archive: archive[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def _load(file: Path, take: Callable[[Any], Any]) -> Any:
    """An `.npy` file as an array, or what `take` takes from an `.npz` file."""
    try:
        if file.suffix == ".npy":
            # A memory map: only the images of the split are copied.
            loaded = np.load(file, allow_pickle=False, mmap_mode="r")
            if isinstance(loaded, np.ndarray):
                return loaded
            loaded.close()
            raise LinfnetError(f"{readable(file)} is an archive; expected one array (numpy.save)")
        with file.open("rb") as stream:
            archive = np.load(stream, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise LinfnetError(f"{readable(file)} is one array; expected an archive of arrays (numpy.savez)")
            return take(archive)
    except LinfnetError:
        raise
    # For damaged files NumPy raises errors of its own, of the tokenizer, of zipfile, of zlib and of the allocator.
    except Exception as error:
        # NumPy takes a file that it does not recognise for a pickle, and advises to load it as one.
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        if "pickle" in str(error) or "Python objects" in str(error):
            reason = "it is damaged, or contains Python objects"
        raise LinfnetError(f"{readable(file)} cannot be read: {reason}") from None


def _pairs(arrays: Mapping[str, object], where: str) -> dict[str, tuple[str, str]]:
    """For each stored split, the keys of images and labels; "" stands for arrays without a split."""
    pairs: dict[str, tuple[str, str]] = {}
    for word, part in SPLIT_NAMES.items():
        for images, labels in ((f"x_{word}", f"y_{word}"), (f"{word}_images", f"{word}_labels")):
            if images in arrays and labels in arrays:
                pairs.setdefault(part, (images, labels))
    if not pairs:
        for images, labels in (("images", "labels"), ("x", "y")):
            if images in arrays and labels in arrays:
                return {"": (images, labels)}
        raise LinfnetError(
            f"{where} holds the arrays {', '.join(sorted(arrays))}; expected images and labels, or x_train, y_train, "
            "x_test and y_test"
        )
    return pairs


def _read_arrays(
    path: Path, split: str, seed: int
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64], int | tuple[str, ...]]:
    """Images, labels and classes of one split."""
    where, arrays = readable(path), _Arrays(path)
    pairs = _pairs(arrays, where)
    stored = stored_split(split, pairs.keys() - {""}, where)
    main = "" if "" in pairs else "train" if "train" in pairs else stored or "train"
    main_labels = integer_labels(arrays[pairs[main][1]])
    key = next((key for key in _CLASS_KEYS if key in arrays), None)
    if key is None and main_labels.min(initial=0) < 0:
        ends = f"{main_labels.min()} to {main_labels.max()}"
        raise LinfnetError(f"{where}: {pairs[main][1]} hold {ends}; expected 0 to K - 1")
    classes = int(main_labels.max(initial=0)) + 1 if key is None else tuple(arrays[key].astype(str).ravel().tolist())
    count = classes if isinstance(classes, int) else len(classes)
    empty = sorted(set(range(min(count, len(main_labels) + 1))) - set(main_labels.tolist()))
    if key is None and empty:
        raise LinfnetError(f"{where}: {pairs[main][1]} has no label {empty[0]}; expected 0 to K - 1 without gaps")
    if stored is not None:
        return arrays[pairs[stored][0]], integer_labels(arrays[pairs[stored][1]]), classes
    images, labels = arrays[pairs[main][0]], main_labels
    if len(images) != len(labels):
        raise LinfnetError(f"{where}: {len(labels)} labels for {len(images)} images; expected one for each")
    names = tuple(map(str, range(count))) if isinstance(classes, int) else classes
    if not (labels.min(initial=0) >= 0 and labels.max(initial=0) < count):
        raise LinfnetError(f"{where}: labels hold {labels.min()} to {labels.max()}; expected 0 to {count - 1}")
    chosen = made_split(split, labels.tolist(), list(map(str, range(len(labels)))), names, seed, where)
    return images[chosen], labels[chosen], classes
