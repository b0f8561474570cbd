"""Image sets from datasets and loaders: the same content in every form, and one clear error per mistake."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from linfnet.data import as_image_set, from_arrays, from_dataset
from linfnet.data.own_data import ImageBuffer
from linfnet.errors import ArgumentError

GENERATOR = np.random.default_rng(0)
GREY = GENERATOR.integers(0, 256, (6, 1, 8, 5), np.uint8)
RGB = GENERATOR.integers(0, 256, (6, 3, 8, 5), np.uint8)
LABELS = np.array([0, 1, 2, 0, 1, 2])


class Rows(Dataset[Any]):
    """A dataset that, as many do, does not end a plain iteration."""

    def __init__(self, convert: Any) -> None:
        self.convert = convert

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        return self.convert(RGB[index % 6]), LABELS[index % 6]


class Stream(IterableDataset[Any]):
    """A dataset without a length."""

    def __iter__(self) -> Iterator[Any]:
        return ((torch.from_numpy(image), int(label)) for image, label in zip(RGB, LABELS, strict=True))


class HubRows:
    """What `datasets.Dataset` looks like from outside."""

    def __init__(self, image: str = "image", label: str = "label") -> None:
        self.image, self.label = image, label
        self.features = {image: object(), label: SimpleNamespace(names=["ant", "bee", "cow"])}

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> dict[str, object]:
        if index >= 6:
            raise IndexError
        return {self.image: Image.fromarray(RGB[index].transpose(1, 2, 0)), self.label: int(LABELS[index])}


def picture(image: np.ndarray) -> Image.Image:
    return Image.fromarray(image.transpose(1, 2, 0))


DATASETS: dict[str, Any] = {
    "tensors": Rows(torch.from_numpy),
    "arrays": Rows(np.asarray),
    "arrays-HWC": Rows(lambda image: image.transpose(1, 2, 0)),
    "pictures": Rows(picture),
    "list": [(torch.from_numpy(image), torch.tensor(label)) for image, label in zip(RGB, LABELS, strict=True)],
    "stream": Stream(),
    "generator": ((image, label) for image, label in zip(RGB, LABELS, strict=True)),
    "tensor-dataset": TensorDataset(torch.from_numpy(RGB), torch.from_numpy(LABELS)),
    "loader": DataLoader(Rows(torch.from_numpy), batch_size=4),
    "loader-of-a-stream": DataLoader(Stream(), batch_size=4),
    "loader-of-dicts": DataLoader(
        [{"image": torch.from_numpy(x), "label": y} for x, y in zip(RGB, LABELS, strict=True)],  # type: ignore[arg-type]
        batch_size=5,
    ),
    "hub": HubRows(),
    "hub-img-labels": HubRows("img", "labels"),
    "pair": (RGB, LABELS),
    "pair-as-list": [torch.from_numpy(RGB), LABELS.tolist()],
    "set": from_arrays(RGB, LABELS),
}


@pytest.mark.parametrize("data", DATASETS.values(), ids=DATASETS.keys())
def test_every_form_gives_the_same_set(data: Any) -> None:
    made = as_image_set(data, classes=3)
    assert made.images.dtype == torch.uint8
    assert np.array_equal(made.images.numpy(), RGB)
    assert made.labels.tolist() == LABELS.tolist()


def test_progress_and_options() -> None:
    steps: list[int] = []
    made = from_dataset(DATASETS["loader"], name="x", split="val", mean=0.5, std=1.0, advance=steps.append)
    assert steps == [4, 2]
    assert (made.info.name, made.split, made.info.mean, made.info.std) == ("x", "val", (0.5, 0.5, 0.5), 1.0)


def test_class_names_of_datasets() -> None:
    named = Rows(torch.from_numpy)
    named.classes = ["ant", "bee", "cow"]  # type: ignore[attr-defined]
    for data in (
        named,
        Subset(named, range(6)),
        DataLoader(named, batch_size=2),
        HubRows(),
        DataLoader(Subset(named, range(6))),
    ):
        assert from_dataset(data).class_names == ("ant", "bee", "cow")
        assert as_image_set(data, classes=3).class_names == ("ant", "bee", "cow")
        assert from_dataset(data, classes=["x", "y", "z"]).class_names == ("x", "y", "z")
        assert as_image_set(data, classes=["0", "1", "2"]).class_names == ("0", "1", "2")
        with pytest.raises(ArgumentError, match=r"data has 3 classes \(ant, bee, cow\); expected 10"):
            as_image_set(data, classes=10)
        with pytest.raises(ArgumentError, match="has the classes ant, bee, cow; expected bee, ant, cow"):
            as_image_set(data, classes=["bee", "ant", "cow"])


def test_a_set_must_have_the_expected_classes() -> None:
    made = from_arrays(GREY, LABELS)
    assert as_image_set(made) is made
    assert as_image_set(made, classes=("0", "1", "2")) is made
    with pytest.raises(ArgumentError, match=r"data has 3 classes \(0, 1, 2\); expected 10"):
        as_image_set(made, classes=10)


class Item(Dataset[Any]):
    """A dataset of one repeated item."""

    def __init__(self, item: object, count: int = 6) -> None:
        self.item, self.count = item, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.item


WRONG_DATA: dict[str, tuple[Any, str]] = {
    "path": ("photos", "data is the path 'photos'; load it first with linfnet.data.load_path"),
    "number": (7, "data is of type int; expected"),
    "none": (None, "data is of type NoneType; expected"),
    "three-arrays": ((RGB, LABELS, LABELS), "3 arrays; expected two"),
    "splits": ({"train": HubRows(), "test": HubRows()}, "keys 'train', 'test'; pass one split"),
    "no-label": (Item(torch.zeros(1, 4, 4)), r"item 0 of the dataset is of type Tensor; expected \(image, label\)"),
    "columns": (Item({"picture": 1, "label": 2}), "columns picture, label; expected an image"),
    "one-hot": (Item((torch.zeros(1, 4, 4), torch.tensor([0, 1]))), "one-hot"),
    "float-label": (Item((torch.zeros(1, 4, 4), 1.0)), "labels has dtype float64"),
    "unlabelled": (Item((torch.zeros(1, 4, 4), -1)), "labels holds -1"),
    "file-name": (Item(("a.png", 1)), "image 0 is of type str; expected a tensor"),
    "rgba": (Item((Image.new("RGBA", (4, 4)), 1)), "image 0 has the Pillow mode 'RGBA'; expected L or RGB: convert"),
    "sizes": ([(torch.zeros(1, 4, 4), 0), (torch.zeros(1, 4, 5), 1)], r"image 1 has shape \[1, 4, 5\]"),
    "dtypes": ([(torch.zeros(1, 4, 4), 0), (torch.zeros(1, 4, 4).byte(), 1)], "dtype torch.uint8; expected"),
    "empty": (Item(None, 0), "the dataset is empty"),
    "loader-labels": ([[torch.zeros(4, 1, 4, 4), torch.zeros(3).long()]], r"labels has shape \(1, 3\)"),
}


@pytest.mark.parametrize(("data", "message"), WRONG_DATA.values(), ids=WRONG_DATA.keys())
def test_wrong_data(data: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        as_image_set(data, classes=3)


def test_a_loader_with_too_few_labels() -> None:
    loader = DataLoader(Item(0, 4), batch_size=4, collate_fn=lambda _: (torch.zeros(4, 1, 4, 4), torch.zeros(3).long()))
    with pytest.raises(ArgumentError, match="3 labels for 4 images"):
        from_dataset(loader)


def test_the_buffer_is_allocated_once() -> None:
    buffer = ImageBuffer(5)
    buffer.append(torch.zeros(1, 2, 2))
    address = buffer.images().data_ptr()
    for k in range(1, 5):
        buffer.append(torch.full((1, 2, 2), float(k)))
    assert buffer.images().data_ptr() == address
    buffer.append(torch.full((4, 2, 2), 5.0))  # more than announced
    assert buffer.images()[:, 0, 0].tolist() == [0, 1, 2, 3, 4, 5, 5, 5, 5]
