"""The user's own arrays as an `ImageSet`: shapes, dtypes and labels are checked, mean and std are computed."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from linfnet.data.catalog import SetInfo, check_names, own_name
from linfnet.data.image_set import ImageSet
from linfnet.errors import ArgumentError, printable

Array = Tensor | npt.NDArray[Any]
Labels = Tensor | npt.NDArray[Any] | Sequence[int]
Classes = int | Sequence[str] | None
Layout = Literal["NCHW", "NHWC"] | None

_CHUNK = 1 << 24  # pixels that are counted or converted to float64 at once


def channels_hint(given: Sequence[int], shape: Sequence[int]) -> str:
    """Return a hint for an error message if images have the channels last, otherwise an empty text.

    >>> channels_hint((10, 32, 32, 3), (3, 32, 32)), channels_hint((10, 3, 32, 31), (3, 32, 32))
    ('; the channels are last, expected first: [N, C, H, W]', '')
    """
    last = (*shape[1:], shape[0])
    matches = len(shape) == 3 and last != tuple(shape) and tuple(given[-3:]) == last
    return "; the channels are last, expected first: [N, C, H, W]" if matches else ""


def from_arrays(
    images: Array,
    labels: Labels,
    *,
    classes: Classes = None,
    name: str = "own",
    split: str = "train",
    mean: float | Sequence[float] | None = None,
    std: float | None = None,
    layout: Layout = None,
) -> ImageSet:
    """Make an `ImageSet` from images and labels in memory; arrays of the right dtype and layout are not copied.

    Args:
        images: uint8 (0 to 255) or floats in [0, 1], of shape [N, H, W], [N, C, H, W], [N, H, W, C] or, for vectors,
            [N, d]. Vectors become images of shape (1, 1, d).
        labels: integers [N] from 0 to K - 1.
        classes: the class names, or the number of classes K; None takes the labels that occur, which must then be
            0, 1, …, K - 1 without gaps.
        name: the name of the data set in results and tables; the name of a known data set gets the prefix `own-`.
        split: the name of the split.
        mean: per channel, in pixel units; None computes it from the images.
        std: one number for all channels; None computes it from the images, around the mean of each channel.
        layout: of images with four dimensions; None takes the one in which the number of channels is 1 or 3.

    >>> from_arrays(np.zeros((6, 8, 8), dtype=np.uint8), [0, 1, 2, 0, 1, 2])
    ImageSet('own', 'train', uint8 [6, 1, 8, 8], 3 classes, cpu)
    """
    pixels = _four_dimensions(as_tensor(images), layout)
    if not len(pixels):
        raise ArgumentError(f"images has shape {tuple(pixels.shape)}; expected at least one image")
    pixels = _bytes_or_floats(pixels)
    numbers = integer_labels(labels)
    if len(numbers) != len(pixels):
        raise ArgumentError(f"labels holds {len(numbers)} labels for {len(pixels)} images; expected one for each")
    names = _class_names(numbers, classes)
    white = 255 if pixels.dtype == torch.uint8 else 1
    own_mean, own_std = mean_and_std(pixels, white) if mean is None or std is None else ((), 1.0)
    info = SetInfo(
        name=own_name(name),
        title=own_name(name),
        image_shape=(pixels.shape[1], pixels.shape[2], pixels.shape[3]),
        classes=names,
        mean=own_mean if mean is None else _given_mean(mean, pixels.shape[1]),
        std=own_std if std is None else _given_std(std),
        sizes={split: len(pixels)},
        white=white,
    )
    return ImageSet(pixels, torch.from_numpy(numbers).to(pixels.device), info, split)


def mean_and_std(images: Tensor, white: int) -> tuple[tuple[float, ...], float]:
    """The mean of each channel, and the root of the mean squared deviation from it over all channels.

    Sums are taken in float64, of bytes in integers. A standard deviation of 0 (all pixels of a channel are the same)
    is replaced by 1.

    Args:
        images: [N, C, H, W], uint8 or float32.
        white: the value that means 1.0.

    >>> mean_and_std(torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1), 255)
    ((0.5,), 0.5)
    """
    step = max(1, _CHUNK // images[0].numel())
    chunks = [slice(start, start + step) for start in range(0, len(images), step)]
    channels, count = images.shape[1], images.numel() // images.shape[1]
    if images.dtype == torch.uint8:
        counts = torch.zeros(channels, 256, dtype=torch.int64)
        for chunk in chunks:
            for channel in range(channels):
                counts[channel] += torch.bincount(images[chunk, channel].flatten().cpu(), minlength=256)
        values = torch.arange(256, dtype=torch.float64) / white
        mean = (counts @ torch.arange(256)).double() / (count * white)
        squares = (counts * (values - mean[:, None]).square()).sum()
    else:
        mean = torch.stack([images[chunk].cpu().double().sum((0, 2, 3)) for chunk in chunks]).sum(0) / (count * white)
        squares = torch.zeros((), dtype=torch.float64)
        for chunk in chunks:
            squares += (images[chunk].cpu().double() / white - mean[:, None, None]).square().sum()
    std = (squares / (count * channels)).sqrt().item()
    return tuple(mean.tolist()), std or 1.0


def integer_labels(labels: Labels) -> npt.NDArray[np.int64]:
    """The labels as int64 [N], or an error that says why they are no labels; [N, 1] is taken as [N]."""
    try:
        array = np.asarray(labels.detach().cpu() if isinstance(labels, Tensor) else labels)
    except ValueError:  # lists of different lengths
        raise ArgumentError("labels holds lists of different lengths; expected one integer for each image") from None
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        remedy = "; one-hot labels become integers by labels.argmax(1)" if array.ndim == 2 else ""
        raise ArgumentError(f"labels has shape {array.shape}; expected integers of shape [N]{remedy}")
    if array.dtype.kind not in "iu":
        raise ArgumentError(f"labels has dtype {array.dtype}; expected integers from 0 to K - 1")
    return array.astype(np.int64)


def as_tensor(images: object) -> Tensor:
    """The images as a tensor that shares their memory where it can."""
    if isinstance(images, Tensor):
        if images.layout != torch.strided:
            raise ArgumentError("images is a sparse tensor; expected a dense one: pass images.to_dense()")
        if images.is_meta:
            raise ArgumentError("images is on the device meta, which stores no values; expected a tensor with values")
        if images.is_complex():
            raise ArgumentError(f"images has dtype {images.dtype}; expected uint8 (0 to 255) or floats in [0, 1]")
        return images.detach()
    if not isinstance(images, np.ndarray):
        raise ArgumentError(
            f"images is of type {type(images).__name__}; expected a torch tensor or a NumPy array "
            "(torch.stack or np.stack joins single images)"
        )
    dtype: np.dtype[Any] = images.dtype
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise ArgumentError(f"images has dtype {dtype}; expected uint8 (0 to 255) or floats in [0, 1]")
    # torch takes neither negative strides nor foreign byte orders, and warns of arrays that must not be written to.
    return torch.from_numpy(np.require(images, dtype.newbyteorder("="), ["C", "W"]))


def _four_dimensions(images: Tensor, layout: Layout) -> Tensor:
    """The images as [N, C, H, W]."""
    shape = tuple(images.shape)
    if layout not in (None, "NCHW", "NHWC"):
        raise ArgumentError(f"layout is {layout!r}; expected 'NCHW', 'NHWC' or None")
    if len(shape) == 2:
        images = images[:, None, None, :]
    elif len(shape) == 3:
        images = images[:, None]
    elif len(shape) == 4:
        images = images.permute(0, 3, 1, 2).contiguous() if _channels_last(shape, layout) else images
    else:
        raise ArgumentError(
            f"images has shape {shape}; expected [N, H, W], [N, C, H, W], [N, H, W, C] or, for vectors, [N, d]"
        )
    if 0 in images.shape[1:]:
        raise ArgumentError(f"images has shape {shape}; expected images of at least one pixel")
    return images


def _channels_last(shape: tuple[int, ...], layout: Layout) -> bool:
    if layout is not None:
        return layout == "NHWC"
    first, last = shape[1] in (1, 3), shape[3] in (1, 3)
    if first == last:
        fit = "both [N, C, H, W] and [N, H, W, C] fit" if first else "neither axis 1 nor axis 3 has length 1 or 3"
        raise ArgumentError(
            f'images has shape {shape}, and {fit}; pass layout="NCHW" or layout="NHWC" to say where the channels are'
        )
    return last


def _bytes_or_floats(images: Tensor) -> Tensor:
    """The images as uint8, or as float32 after a check that they are in [0, 1]."""
    if images.dtype == torch.uint8:
        return images
    if not images.is_floating_point():
        raise ArgumentError(
            f"images has dtype {str(images.dtype).removeprefix('torch.')}; expected uint8 (0 to 255) or floats in "
            "[0, 1]; convert integers from 0 to 255 to uint8"
        )
    # Before rounding to float32, which could bring a value from outside to 1.
    low, high = (end.item() for end in images.aminmax())
    if not (low >= 0 and high <= 1):
        if low != low:
            remedy = "NaN"
        elif low >= 0 and 2 < high <= 255:
            remedy = f"values from {low:.13g} to {high:.13g}; divide by 255 if white is 255"
        else:
            remedy = f"values from {low:.13g} to {high:.13g}; pass pixels before any normalisation, which the net does"
        raise ArgumentError(f"images holds {remedy} (expected floats in [0, 1], or uint8)")
    return images.float()


def _class_names(labels: npt.NDArray[np.int64], classes: Classes) -> tuple[str, ...]:
    """One name for each class; raise unless the labels are indices of them."""
    low, high = int(labels.min()), int(labels.max())
    if classes is None:
        present = np.unique(labels)
        if len(present) < 2:
            raise ArgumentError(f"labels holds only {low}; expected at least two classes (or pass classes=…)")
        if low < 0 or high >= len(present):
            absent = next(k for k in range(len(present) + 1) if k not in present) if low >= 0 else None
            reason = f"{low} to {high}" + ("" if absent is None else f" without {absent}")
            raise ArgumentError(f"labels holds {reason}; expected 0 to K - 1 without gaps (or pass classes=…)")
        return tuple(map(str, range(high + 1)))
    names = tuple(printable(str(name)) for name in (range(classes) if isinstance(classes, int) else classes))
    check_names(names)
    if len(names) < 2 or isinstance(classes, str):
        raise ArgumentError(f"classes is {classes!r}; expected at least two classes: names, or their number")
    if len(set(names)) < len(names):
        double = next(name for name in names if names.count(name) > 1)
        raise ArgumentError(f"classes holds {double!r} more than once; expected different names")
    if low < 0 or high >= len(names):
        raise ArgumentError(f"labels holds {low if low < 0 else high}; expected 0 to {len(names) - 1}")
    return names


def _given_mean(mean: float | Sequence[float], channels: int) -> tuple[float, ...]:
    values = (float(mean),) * channels if isinstance(mean, int | float) else tuple(map(float, mean))
    if len(values) not in (1, channels) or not np.isfinite(values).all():
        raise ArgumentError(f"mean is {mean}; expected one finite number or {channels}, one for each channel")
    return values * channels if len(values) == 1 else values


def _given_std(std: float) -> float:
    if not (np.isfinite(std) and std > 0):
        raise ArgumentError(f"std is {std}; expected a finite number above 0")
    return float(std)
