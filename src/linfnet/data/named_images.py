"""Images for a given net, with a name for each: a known data set, the user's labelled data, or unlabelled images."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from linfnet.data.arrays import channels_hint, from_arrays
from linfnet.data.cache import load
from linfnet.data.catalog import known_sets, own_name
from linfnet.data.image_files import IMAGE_SUFFIXES, BadFile, BadFilesError, Mode, Size, read_image_files, readable
from linfnet.data.image_set import ImageSet, to_pixels
from linfnet.data.own_files import list_path, load_path
from linfnet.errors import ArgumentError, LinfnetError

Shape = tuple[int, ...]
# A folder with arrays of these names is labelled data, which `load_path` reads.
_LABELLED_ARRAYS = ("labels.npy", "y.npy", "y_train.npy", "y_test.npy", "train_labels.npy", "test_labels.npy")


@dataclass(frozen=True)
class Conversion:
    """How image files are converted before they are used; by default they are not."""

    resize: Size = None
    """(H, W), or one number for both, to which image files are scaled."""
    mode: Mode = None
    """"grey" or "rgb"."""


@dataclass(frozen=True)
class NamedImages:
    """Images of a data set or of the user: pixels [N, C, H, W], a name for each image, and labels if they are known."""

    pixels: Tensor
    names: list[str]
    labels: Tensor | None
    title: str

    def first(self, limit: int | None) -> "NamedImages":
        """Return the first `limit` images, or all images if `limit` is None."""
        labels = None if self.labels is None else self.labels[:limit]
        return replace(self, pixels=self.pixels[:limit], names=self.names[:limit], labels=labels)

    def to(self, device: torch.device | str) -> "NamedImages":
        """Return the same images on another device."""
        labels = None if self.labels is None else self.labels.to(device)
        return replace(self, pixels=self.pixels.to(device), labels=labels)

    def batches(self, size: int = 500) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yield the pixels and the labels of each batch."""
        for start in range(0, len(self.pixels), size):
            part = slice(start, start + size)
            yield self.pixels[part], None if self.labels is None else self.labels[part]


def data_name(source: str | Path) -> str:
    """Return the name under which results on a source of images are stored: that of the set, the folder or the file.

    >>> data_name("mnist"), data_name("/photos/cats"), data_name("/photos/cats.csv"), data_name("/photos/mnist")
    ('mnist', 'cats', 'cats', 'own-mnist')
    """
    path = Path(source).expanduser()
    if str(source) in known_sets():
        return str(source)
    name = readable(path.resolve().name if path.is_dir() else path.stem) or "own"
    return own_name(name)  # results must not be taken for those on the known set


def is_labelled(source: str | Path) -> bool:
    """Return whether a source of images has labels: a known data set, a class folder, a CSV or .npz file, arrays."""
    path = Path(source).expanduser()
    if str(source) in known_sets() or not path.exists():
        return True  # a misspelt name is reported by `load_labelled`
    if path.is_dir():
        entries = _entries(path)
        if any(entry.name in _LABELLED_ARRAYS for entry in entries):
            return True
        return not any(map(_is_image, entries)) and any(map(Path.is_dir, entries))
    return path.suffix.lower() in (".csv", ".npz")


def load_labelled(
    source: str | Path,
    split: str = "test",
    *,
    shape: Shape | None = None,
    class_names: Sequence[str] = (),
    conversion: Conversion | None = None,
    seed: int = 0,
    on_bad: Callable[[BadFile], None] | None = None,
) -> tuple[ImageSet, list[str]]:
    """Load a known data set by name, or the user's labelled data from a path; also return a name for each image.

    Args:
        source: a name in `known_sets()`, or a path as in `load_path`.
        split: "train", "test", "val" if the data has it, or "all" for train and test together.
        shape: the shape of image that a net expects, or None for any.
        class_names: the classes of the net, see `match_classes`; empty if they are not known.
        conversion: of image files.
        seed: of the split of the user's data, where it has none.
        on_bad: is called for each image file that cannot be used, which is then left out; None raises an error.
    """
    if split == "all":
        options: Any = {
            "shape": shape,
            "class_names": class_names,
            "conversion": conversion,
            "seed": seed,
            "on_bad": on_bad,
        }
        return _joined([load_labelled(source, part, **options) for part in ("train", "test")])
    path = Path(source).expanduser()
    conversion = conversion or Conversion()
    if str(source) in known_sets() or not path.exists():
        if conversion != Conversion():
            raise ArgumentError(f"resize and mode convert image files only; {source} is a known data set")
        images = load(str(source), split)
        names = [str(index) for index in range(len(images))]
    else:
        listed = list_path(path, split, seed=seed)
        if listed is None:
            images = load_path(path, split, seed=seed, resize=conversion.resize, mode=conversion.mode)
            names = [str(index) for index in range(len(images))]
        else:
            expected = (shape[0], shape[1], shape[2]) if shape is not None and len(shape) == 3 else None
            pixels, indices = read_image_files(
                listed.files, resize=conversion.resize, mode=conversion.mode, shape=expected, on_bad=on_bad
            )
            labels = [listed.labels[index] for index in indices]
            images = from_arrays(pixels, labels, classes=listed.classes, split=split, layout="NCHW")
            names = [_relative(listed.files[index], path) for index in indices]
        images = replace(images, info=replace(images.info, name=data_name(source), title=data_name(source)))
        if class_names:
            images = match_classes(images, class_names)
    if shape is not None and images.info.image_shape != shape:
        raise LinfnetError(f"{_kind(images.info.image_shape, source)}; the net expects {_kind(shape)}")
    return images, names


def match_classes(images: ImageSet, class_names: Sequence[str]) -> ImageSet:
    """Return the images with the labels that a net uses: classes are matched by name, and if that fails by number.

    A folder may have some of the net's classes only. Classes are matched by number if the data or the net has numbers
    0, 1, … as names.

    Args:
        images: the data.
        class_names: the names of the net's classes.
    """
    own, wanted = images.info.classes, tuple(class_names)
    if own == wanted:
        return images
    if set(own) <= set(wanted):
        numbers = torch.tensor([wanted.index(name) for name in own], device=images.labels.device)
        labels = numbers[images.labels]
    elif len(own) <= len(wanted) and (_numbered(own) or (_numbered(wanted) and len(own) == len(wanted))):
        labels = images.labels
    else:
        unknown = [name for name in own if name not in wanted]
        raise LinfnetError(
            f"{images.info.name} has the class {unknown[0]!r}; the net has the classes {_listed(wanted)}: "
            "rename the classes of the data"
        )
    return replace(images, labels=labels, info=replace(images.info, classes=wanted))


def read_images(
    sources: Sequence[Path],
    shape: Shape,
    *,
    conversion: Conversion | None = None,
    on_bad: Callable[[BadFile], None] | None = None,
    advance: Callable[[int], None] = lambda files: None,
) -> NamedImages:
    """Read unlabelled images: image files, .npy arrays of one or several images, or folders of them.

    Args:
        sources: paths; all images in a folder are read, or all below it if it has only sub-folders.
        shape: the (C, H, W) that the net expects.
        conversion: of image files.
        on_bad: is called for each file that cannot be used, which is then left out; None raises a `BadFilesError`.
        advance: is called with 1 after each file.
    """
    files = [pair for source in sources for pair in _files_of(source, alone=len(sources) == 1)]
    pixels, names, bad = list[Tensor](), list[str](), list[BadFile]()
    for path, name in files:
        try:
            found = _read_file(path, shape, conversion or Conversion())
        except BadFilesError as error:
            bad += error.bad
        else:
            pixels.append(found)
            names += [name] if path.suffix.lower() != ".npy" else _array_names(name, len(found))
        advance(1)
    if bad and (on_bad is None or not pixels):
        raise BadFilesError(bad, len(files))
    for file in bad:
        assert on_bad is not None
        on_bad(file)
    return NamedImages(torch.cat(pixels), names, None, ", ".join(map(readable, sources)))


def _array_names(name: str, count: int) -> list[str]:
    return [f"{name}[{k}]" for k in range(count)]


def _kind(shape: Shape, source: str | Path = "") -> str:
    """Describe images of a shape, for an error message."""
    of = f"{readable(source)} has " if source else ""
    return f"{of}images of shape {tuple(shape)}"


def _numbered(names: Sequence[str]) -> bool:
    return list(names) == [str(number) for number in range(len(names))]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (", …" if len(names) > 10 else "")


def _joined(parts: list[tuple[ImageSet, list[str]]]) -> tuple[ImageSet, list[str]]:
    images, labels = (torch.cat([getattr(part, name) for part, _ in parts]) for name in ("images", "labels"))
    info = replace(parts[0][0].info, sizes={"all": len(images)})
    return ImageSet(images, labels, info, "all"), [name for _, names in parts for name in names]


def _entries(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in (*IMAGE_SUFFIXES, ".npy")


def _relative(path: Path, folder: Path) -> str:
    return readable(path.relative_to(folder) if path.is_relative_to(folder) else path.name)


def _files_of(source: Path, *, alone: bool) -> list[tuple[Path, str]]:
    """The image files of one source, sorted, with their names; `alone`: there is no other source."""
    if not source.is_dir():
        return [(source, readable(source.name if alone else source))]
    files = [entry for entry in _entries(source) if _is_image(entry)]
    files = files or sorted(path for path in source.rglob("*") if _is_image(path))
    if not files:
        suffixes = ", ".join((*IMAGE_SUFFIXES, ".npy"))
        raise LinfnetError(f"folder {readable(source)} contains no images ({suffixes})")
    return [(file, _relative(file, source)) for file in files]


def _read_file(path: Path, shape: Shape, conversion: Conversion) -> Tensor:
    """One file as pixels [n, C, H, W]: n is 1 for image files."""
    if path.suffix.lower() != ".npy" or not path.is_file():
        if len(shape) != 3:
            raise LinfnetError(f"the net expects inputs of shape {shape}; give them as a .npy array")
        (c, h, w), resize = shape, conversion.resize
        found, _ = read_image_files([path], resize=resize, mode=conversion.mode, shape=(c, h, w))
        return to_pixels(found, 255)
    try:
        return _array_pixels(_read_array(path), shape)
    except LinfnetError as error:
        raise BadFilesError([BadFile(path, str(error))], 1) from None


def _array_pixels(array: npt.NDArray[Any], shape: Shape) -> Tensor:
    """Convert images [N, C, H, W], or [N, H, W] with one channel, or one of them, to float32."""
    given = array.shape
    if given in (shape, shape[1:]):
        array = array[np.newaxis]
    if array.dtype == np.uint8:
        array = (array / np.float32(255)).astype(np.float32)
    if array.dtype.kind != "f":
        raise LinfnetError(f"contains {array.dtype}; expected floats in [0, 1] or bytes")
    # Check this before rounding to float32: 1.0000000001 is not a pixel value.
    if not ((array >= 0) & (array <= 1)).all():
        extent = f"{array.min():.17g} to {array.max():.17g}"
        raise LinfnetError(f"contains pixels from {extent}; expected [0, 1] and no NaN")
    if not array.size or array.shape[1:] not in ((shape, shape[1:]) if shape[0] == 1 else (shape,)):
        raise LinfnetError(f"has shape {given}; the net expects images of shape {shape}{channels_hint(given, shape)}")
    return torch.from_numpy(array.astype(np.float32).reshape(-1, *shape))


def _read_array(path: Path) -> npt.NDArray[Any]:
    try:
        with path.open("rb") as file:
            return np.lib.format.read_array(file, allow_pickle=False)
    # A wrong size in the header causes an error of the allocator; a malformed header, an error of Python's tokenizer.
    except (ValueError, OSError, EOFError, MemoryError, OverflowError, TypeError, SyntaxError, TokenError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise LinfnetError(f"is not a NumPy array: {reason}") from None
