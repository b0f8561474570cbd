"""Image sets from arrays: layouts, dtypes, labels, mean and standard deviation; one clear error per mistake."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from linfnet.data import augment, from_arrays, load, plan_epoch
from linfnet.data.arrays import mean_and_std
from linfnet.errors import ArgumentError

GENERATOR = np.random.default_rng(0)
GREY = GENERATOR.integers(0, 256, (6, 1, 8, 5), np.uint8)
RGB = GENERATOR.integers(0, 256, (6, 3, 8, 5), np.uint8)
LABELS = np.array([0, 1, 2, 0, 1, 2])


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        (GREY[:, 0], GREY),
        (GREY, GREY),
        (GREY.transpose(0, 2, 3, 1), GREY),
        (RGB, RGB),
        (RGB.transpose(0, 2, 3, 1), RGB),
        (np.ascontiguousarray(RGB.transpose(0, 2, 3, 1)), RGB),
        (RGB[:, :, ::-1], RGB[:, :, ::-1]),
        (GREY.reshape(6, 40), GREY.reshape(6, 1, 1, 40)),
    ],
    ids=["NHW", "N1HW", "NHW1", "N3HW", "NHW3-view", "NHW3", "negative-strides", "vectors"],
)
def test_layouts_of_bytes(images: np.ndarray, expected: np.ndarray) -> None:
    for array in (images, torch.from_numpy(images.copy())):
        made = from_arrays(array, LABELS)
        assert made.images.dtype == torch.uint8
        assert np.array_equal(made.images.numpy(), expected)
        assert made.info.image_shape == expected.shape[1:]
        assert made.info.white == 255
        assert torch.equal(made.pixels(), torch.from_numpy(expected.copy()).float() / torch.tensor(255.0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_floats_become_float32(dtype: torch.dtype) -> None:
    images = torch.rand(6, 1, 8, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    made = from_arrays(images, LABELS)
    assert made.images.dtype == torch.float32
    assert torch.equal(made.pixels(), images.float())
    assert torch.equal(made.pixels(slice(1, 3)), images.float()[1:3])
    assert made.info.white == 1


def test_foreign_and_read_only_arrays() -> None:
    swapped = (GREY / 255).astype(">f8")
    assert torch.equal(from_arrays(swapped, LABELS).images, torch.from_numpy((GREY / 255).astype(np.float32)))
    locked = GREY.copy()
    locked.flags.writeable = False
    from_arrays(locked, LABELS).images.fill_(0)
    assert np.array_equal(locked, GREY)


def test_memory_is_shared() -> None:
    images = torch.from_numpy(GREY.copy())
    assert from_arrays(images, LABELS).images.data_ptr() == images.data_ptr()
    assert from_arrays(images.float().div(255).requires_grad_(), LABELS).images.requires_grad is False


@pytest.mark.parametrize(
    "shape", [(6, 3, 8, 3), (6, 1, 1, 3), (6, 4, 8, 5), (6, 3, 3, 1)], ids=lambda shape: "x".join(map(str, shape))
)
def test_an_ambiguous_layout_is_an_error_with_a_remedy(shape: tuple[int, ...]) -> None:
    images = np.zeros(shape, np.uint8)
    with pytest.raises(ArgumentError, match=r'images has shape .*; pass layout="NCHW" or layout="NHWC"'):
        from_arrays(images, LABELS)
    assert from_arrays(images, LABELS, layout="NCHW").info.image_shape == shape[1:]
    assert from_arrays(images, LABELS, layout="NHWC").info.image_shape == (shape[3], shape[1], shape[2])


NAN = torch.full((6, 1, 4, 4), 0.5)
NAN[2, 0, 1, 1] = torch.nan
WRONG_IMAGES: dict[str, tuple[Any, str]] = {
    "0-255-floats": (GREY.astype(np.float32), "from 0 to 255; divide by 255"),
    "normalised": (GREY / 127.5 - 1, "values from -.* before any normalisation"),
    "barely-above-1": (
        torch.full((6, 1, 2, 2), 1 + 1e-12, dtype=torch.float64),
        "values from 1.000000000001 to 1.000000000001; pass",
    ),
    "nan": (NAN, "holds NaN"),
    "infinite": (torch.full((6, 1, 2, 2), torch.inf), "values from inf to inf"),
    "int64": (GREY.astype(np.int64), "dtype int64; expected uint8"),
    "bool": (GREY > 100, "dtype bool; expected uint8"),
    "complex": (GREY.astype(np.complex64), "dtype complex64; expected uint8"),
    "object": (GREY.astype(object), "dtype object; expected uint8"),
    "list": ([[1, 2]], "of type list; expected a torch tensor or a NumPy array"),
    "five-dimensions": (GREY[None], r"shape \(1, 6, 1, 8, 5\); expected"),
    "one-dimension": (GREY.ravel(), r"shape \(240,\); expected"),
    "empty": (GREY[:0], "expected at least one image"),
    "no-pixels": (np.zeros((6, 1, 0, 5), np.uint8), "at least one pixel"),
}


@pytest.mark.parametrize(("images", "message"), WRONG_IMAGES.values(), ids=WRONG_IMAGES.keys())
def test_wrong_images(images: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=f"images .*{message}"):
        from_arrays(images, LABELS)


@pytest.mark.parametrize(
    "labels",
    [LABELS.tolist(), LABELS.astype(np.uint8), torch.from_numpy(LABELS).int(), LABELS[:, None], tuple(LABELS.tolist())],
    ids=["list", "uint8", "int32", "column", "tuple"],
)
def test_labels_in_every_form(labels: Any) -> None:
    made = from_arrays(GREY, labels)
    assert made.labels.dtype == torch.int64
    assert made.labels.tolist() == LABELS.tolist()
    assert made.class_names == ("0", "1", "2")


WRONG_LABELS: dict[str, tuple[Any, Any, str]] = {
    "float": (LABELS.astype(np.float32), None, "dtype float32; expected integers"),
    "bool": (LABELS > 0, None, "dtype bool; expected integers"),
    "text": (["a"] * 6, None, "dtype <U1; expected integers"),
    "none": ([None] * 6, None, "dtype object; expected integers"),
    "one-hot": (np.eye(3, dtype=np.int64)[LABELS], None, r"shape \(6, 3\); .* labels.argmax\(1\)"),
    "ragged": ([[0], [1, 2]], None, "lists of different lengths"),
    "three-dimensions": (np.zeros((6, 2, 2), int), None, r"shape \(6, 2, 2\); expected"),
    "number": (3, None, r"shape \(\); expected"),
    "short": (LABELS[:5], None, "5 labels for 6 images"),
    "above": (LABELS, 2, "holds 2; expected 0 to 1"),
    "below": (LABELS - 1, 3, "holds -1; expected 0 to 2"),
    "from-1": (LABELS + 1, None, "1 to 3 without 0; expected 0 to K - 1"),
    "gap": (LABELS * 2, None, "0 to 4 without 1"),
    "negative": (LABELS - 1, None, "-1 to 1; expected 0 to K - 1"),
    "huge": (LABELS * 10**12, None, "without 1"),
    "one-class": (LABELS * 0, None, "holds only 0; expected at least two classes"),
}


@pytest.mark.parametrize(("labels", "classes", "message"), WRONG_LABELS.values(), ids=WRONG_LABELS.keys())
def test_wrong_labels(labels: Any, classes: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=f"labels .*{message}"):
        from_arrays(GREY, labels, classes=classes)


def test_classes() -> None:
    assert from_arrays(GREY, LABELS * 0, classes=2).class_names == ("0", "1")
    assert from_arrays(GREY, LABELS, classes=["a", "b", "c", "d"]).class_names == ("a", "b", "c", "d")
    for wrong, message in (
        (["a"], "at least two classes"),
        (1, "at least two classes"),
        ("abc", "names, or their number"),
        (["a", "b", "a"], "'a' more than once"),
    ):
        with pytest.raises(ArgumentError, match=message):
            from_arrays(GREY, LABELS, classes=wrong)


def test_the_digits_have_their_published_mean_and_std() -> None:
    digits = load("digits", "train")
    (mean,), std = mean_and_std(digits.images, 16)
    assert (round(mean, 4), round(std, 4)) == (digits.info.mean[0], digits.info.std)


@pytest.mark.parametrize("kind", ["bytes", "floats"])
def test_mean_and_std(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = RGB / 255 if kind == "bytes" else (RGB / 255).astype(np.float32).astype(np.float64)
    for pixels in (1, 200, 1 << 24):  # of a chunk
        monkeypatch.setattr("linfnet.data.arrays._CHUNK", pixels)
        info = from_arrays(RGB if kind == "bytes" else exact.astype(np.float32), LABELS).info
        mean = exact.mean((0, 2, 3))
        assert info.mean == pytest.approx(tuple(mean), rel=1e-14)
        assert info.std == pytest.approx(np.sqrt(((exact - mean[:, None, None]) ** 2).mean()), rel=1e-14)


def test_sums_lose_nothing() -> None:
    images = torch.full((3000, 1, 64, 64), 0.1)  # in float32 the sum is wrong in the fourth digit
    assert from_arrays(images, [0, 1] * 1500).info.mean[0] == pytest.approx(images[0, 0, 0, 0].item(), rel=1e-12)


def test_given_mean_and_std() -> None:
    info = from_arrays(RGB, LABELS, mean=0.5, std=0.25).info
    assert (info.mean, info.std) == ((0.5, 0.5, 0.5), 0.25)
    assert from_arrays(RGB, LABELS, mean=(0.1, 0.2, 0.3)).info.mean == (0.1, 0.2, 0.3)
    assert from_arrays(np.zeros_like(RGB), LABELS).info.std == 1.0
    for wrong in ({"mean": (0.1, 0.2)}, {"mean": float("nan")}, {"std": 0.0}, {"std": float("nan")}):
        with pytest.raises(ArgumentError, match=rf"{next(iter(wrong))} is "):
            from_arrays(RGB, LABELS, **wrong)  # type: ignore[arg-type]


def test_description() -> None:
    info = from_arrays(GREY, LABELS, name="leaves", split="test").info
    assert (info.name, info.title, info.sizes) == ("leaves", "leaves", {"test": 6})


def test_a_set_is_a_dataset() -> None:
    made = from_arrays(GREY, LABELS)
    assert isinstance(made, Dataset)
    pixels, label = made[4]
    assert torch.equal(pixels, made.pixels()[4])
    assert (type(label), label) == (int, 1)
    assert [label for _, label in made] == LABELS.tolist()  # type: ignore[attr-defined]
    batch, labels = next(iter(DataLoader(made, batch_size=4)))
    assert torch.equal(batch, made.pixels(slice(0, 4)))
    assert torch.equal(labels, made.labels[:4])
    assert repr(made) == "ImageSet('own', 'train', uint8 [6, 1, 8, 5], 3 classes, cpu)"


@pytest.mark.parametrize("pad", [0, 2])
def test_floats_are_augmented_like_bytes(pad: int) -> None:
    made = from_arrays(RGB, LABELS)
    floats = from_arrays(made.pixels(), LABELS)
    plan = plan_epoch(6, 0, 0, pad=pad, flip=True)
    crops = augment(made.images, plan.top, plan.left, plan.flip, pad)
    float_crops = augment(floats.images, plan.top, plan.left, plan.flip, pad)
    assert float_crops.dtype == torch.float32
    assert torch.equal(floats.as_pixels(float_crops), made.as_pixels(crops))


def test_two_dimensional_points() -> None:
    """Vectors of two features stay together and in order."""
    points = torch.tensor([[0.1, 0.9], [0.8, 0.2]])
    made = from_arrays(points, [0, 1])
    assert made.info.image_shape == (1, 1, 2)
    assert torch.equal(made.pixels().flatten(1), points)
