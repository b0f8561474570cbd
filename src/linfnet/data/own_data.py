"""The user's own data from Python: a PyTorch `Dataset` or `DataLoader`, Hugging Face rows, or a pair of arrays."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from linfnet.data.arrays import Array, Classes, Labels, Layout, from_arrays, integer_labels
from linfnet.data.image_set import ImageSet
from linfnet.errors import ArgumentError, LinfnetError

IMAGE_COLUMNS = ("image", "img", "images", "pixel_values")
LABEL_COLUMNS = ("label", "labels")


class ImageBuffer:
    """Images in one tensor, which is allocated once if their number is known: nothing is stored twice.

    Args:
        capacity: the expected number of images; the buffer grows beyond it if needed.
    """

    def __init__(self, capacity: int = 0) -> None:
        self._capacity = capacity
        self._storage: Tensor | None = None
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, images: Tensor) -> None:
        """Add images [n, …], all of the dtype and shape of the first ones."""
        if self._storage is None:
            self._storage = self._allocate(max(self._capacity, len(images)), images)
        elif (images.dtype, images.shape[1:]) != (self._storage.dtype, self._storage.shape[1:]):
            first = f"{list(self._storage.shape[1:])} {self._storage.dtype}"
            raise ArgumentError(
                f"image {self._count} has shape {list(images.shape[1:])} and dtype {images.dtype}; expected {first} as "
                "in the images before it"
            )
        end = self._count + len(images)
        if end > len(self._storage):
            larger = self._allocate(max(end, 2 * len(self._storage)), images)
            larger[: self._count] = self._storage[: self._count]
            self._storage = larger
        self._storage[self._count : end] = images
        self._count = end

    def images(self) -> Tensor:
        """[N, …]: everything that was added."""
        return torch.empty(0) if self._storage is None else self._storage[: self._count]

    @staticmethod
    def _allocate(count: int, like: Tensor) -> Tensor:
        try:
            return torch.empty((count, *like.shape[1:]), dtype=like.dtype)
        except RuntimeError:
            size = count * like[0].numel() * like.element_size() / 1e9
            raise LinfnetError(
                f"{count:,} images of shape {list(like.shape[1:])} need {size:,.1f} GB of memory; resize them"
            ) from None


def from_dataset(
    dataset: object,
    *,
    classes: Classes = None,
    name: str = "own",
    split: str = "train",
    mean: float | Sequence[float] | None = None,
    std: float | None = None,
    layout: Layout = None,
    advance: Callable[[int], None] = lambda images: None,
) -> ImageSet:
    """Read a whole dataset into an `ImageSet`.

    Args:
        dataset: a PyTorch `Dataset` of (image, label), a `DataLoader` of batches of them, a Hugging Face `Dataset` with
            an image and a label column, or a pair (images, labels). An image is a tensor, a NumPy array, or a Pillow
            image of mode L or RGB.
        classes: as in `from_arrays`; None takes the names that the dataset has (`classes`, or `features` of its label).
        name: as in `from_arrays`.
        split: as in `from_arrays`.
        mean: as in `from_arrays`.
        std: as in `from_arrays`.
        layout: as in `from_arrays`.
        advance: is called with the number of images read since the last call.

    >>> rows = [(np.full((8, 8), 9 * k, dtype=np.uint8), k % 2) for k in range(4)]
    >>> from_dataset(rows).labels
    tensor([0, 1, 0, 1])
    """
    options: dict[str, Any] = {"name": name, "split": split, "mean": mean, "std": std}
    pair = _pair(dataset)
    if pair is not None:
        return from_arrays(*pair, classes=_names_in(dataset) if classes is None else classes, layout=layout, **options)
    if isinstance(dataset, Mapping):
        keys = ", ".join(repr(key) for key in cast(Mapping[object, object], dataset))
        raise ArgumentError(f"the dataset is a mapping with the keys {keys}; pass one split of it, or (images, labels)")
    batched = isinstance(dataset, DataLoader)
    buffer, labels = ImageBuffer(_length(dataset.dataset if batched else dataset) or 0), list[npt.NDArray[np.int64]]()
    for row in _rows(dataset):
        image, label = _image_and_label(row, len(buffer))
        pixels = _image_tensor(image, len(buffer))
        numbers = integer_labels(cast(Labels, label if batched else [label]))
        if len(pixels if batched else pixels[None]) != len(numbers):
            raise ArgumentError(f"labels holds {len(numbers)} labels for {len(pixels)} images; expected one for each")
        buffer.append(pixels if batched else pixels[None])
        labels.append(numbers)
        advance(len(numbers))
    if not labels:
        raise ArgumentError("the dataset is empty; expected at least one image")
    names = _names_in(dataset) if classes is None else classes
    return from_arrays(buffer.images(), np.concatenate(labels), classes=names, layout=layout, **options)


def as_image_set(
    data: object,
    *,
    classes: Classes = None,
    name: str = "own",
    split: str = "test",
    layout: Layout = None,
    advance: Callable[[int], None] = lambda images: None,
) -> ImageSet:
    """Whatever a user passes as data, as an `ImageSet`; an `ImageSet` is returned as it is.

    Args:
        data: an `ImageSet`, or anything that `from_dataset` takes.
        classes: the classes that the data must have, for example those of a net: their names or their number.
        name: of the result, unless `data` is an `ImageSet`.
        split: likewise.
        layout: as in `from_arrays`.
        advance: as in `from_dataset`.

    >>> as_image_set((torch.rand(2, 1, 4, 4), torch.tensor([0, 7])), classes=10)
    ImageSet('own', 'test', float32 [2, 1, 4, 4], 10 classes, cpu)
    """
    if isinstance(data, str | Path):
        raise ArgumentError(f"data is the path {str(data)!r}; load it first with linfnet.data.load_path")
    own = data.class_names if isinstance(data, ImageSet) else _names_in(data)
    agreed = classes if own is None else _agreed(own, classes)
    if isinstance(data, ImageSet):
        return data
    return from_dataset(data, classes=agreed, name=name, split=split, layout=layout, advance=advance)


def _agreed(own: Sequence[str], expected: Classes) -> Classes:
    """The class names of the data, or the expected ones; raise where a label would mean different classes."""
    if expected is None or isinstance(expected, int):
        if expected not in (None, len(own)):
            raise ArgumentError(f"data has {len(own)} classes ({', '.join(own)}); expected {expected}")
        return own
    # Other names for all classes are a matter of taste; some names in common at other positions are not.
    if len(own) != len(expected) or (set(own) & set(expected) and list(own) != list(expected)):
        raise ArgumentError(f"data has the classes {', '.join(own)}; expected {', '.join(expected)}")
    return expected


def _pair(data: object) -> tuple[Array, Labels] | None:
    """(images, labels) where both are in memory as a whole."""
    if isinstance(data, TensorDataset):
        data = data.tensors
    if isinstance(data, tuple | list):
        items = cast(Sequence[object], data)
        whole = all(isinstance(item, Tensor | np.ndarray) for item in items)
        if len(items) == 2 and (isinstance(data, tuple) or isinstance(items[0], Tensor | np.ndarray)):
            return cast(tuple[Array, Labels], tuple(items))
        if isinstance(data, tuple) and whole:
            raise ArgumentError(f"data holds {len(items)} arrays; expected two, (images, labels)")
    return None


def _length(data: object) -> int | None:
    """The length of a dataset, or None if it has none."""
    try:
        return len(cast(Sequence[object], data))
    except (TypeError, NotImplementedError):
        return None


def _rows(data: object) -> Iterator[object]:
    """The items of a dataset, or the batches of a loader, in order."""
    length = _length(data)
    if isinstance(data, DataLoader | IterableDataset) or length is None or not hasattr(data, "__getitem__"):
        if not hasattr(data, "__iter__"):
            raise ArgumentError(
                f"data is of type {type(data).__name__}; expected (images, labels), a Dataset, a DataLoader or an "
                "ImageSet"
            )
        yield from cast(Iterable[object], data)
        return
    # By index: many datasets do not raise the IndexError that ends a plain iteration.
    for index in range(length):
        yield cast(Sequence[object], data)[index]


def _image_and_label(row: object, number: int) -> tuple[object, object]:
    if isinstance(row, Mapping):
        columns = cast(Mapping[str, object], row)
        image = next((key for key in IMAGE_COLUMNS if key in columns), None)
        label = next((key for key in LABEL_COLUMNS if key in columns), None)
        if image is not None and label is not None:
            return columns[image], columns[label]
        raise ArgumentError(
            f"the dataset has the columns {', '.join(columns)}; expected an image ({' or '.join(IMAGE_COLUMNS)}) and a "
            f"label ({' or '.join(LABEL_COLUMNS)}): rename them"
        )
    if isinstance(row, tuple | list):
        pair = cast(Sequence[object], row)
        if len(pair) == 2:
            return pair[0], pair[1]
    raise ArgumentError(f"item {number} of the dataset is of type {type(row).__name__}; expected (image, label)")


def _image_tensor(image: object, number: int) -> Tensor:
    """A tensor, an array or a Pillow image (recognised by its attributes) as a tensor of the same dtype."""
    if isinstance(image, Tensor):
        return image.detach()
    mode = getattr(image, "mode", None)
    if isinstance(mode, str) and hasattr(image, "getbands"):
        if mode not in ("L", "RGB"):
            raise ArgumentError(
                f"image {number} has the Pillow mode {mode!r}; expected L or RGB: convert it in the dataset, for "
                "example by image.convert('RGB')"
            )
        array = np.array(image)
        return torch.from_numpy(array[None] if array.ndim == 2 else array.transpose(2, 0, 1))
    try:
        return torch.from_numpy(np.array(image))
    except (TypeError, ValueError):
        raise ArgumentError(
            f"image {number} is of type {type(image).__name__}; expected a tensor, a NumPy array or a Pillow image"
        ) from None


def _names_in(data: object) -> Sequence[str] | None:
    """The class names that a dataset knows, looked for also below a `DataLoader` or a `Subset`; else None."""
    features: object = getattr(data, "features", None)
    if isinstance(features, Mapping):
        columns = cast(Mapping[str, object], features)
        names: object = next((getattr(columns[key], "names", None) for key in LABEL_COLUMNS if key in columns), None)
    else:
        names = getattr(data, "classes", None)
    if isinstance(names, list | tuple) and all(isinstance(each, str) for each in cast(Sequence[object], names)):
        return cast(Sequence[str], names)
    inner: object = getattr(data, "dataset", None)
    return None if inner is None else _names_in(inner)
