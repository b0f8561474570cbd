"""Checks of the arguments that a user passes to any public function: net, images, labels, epsilon, counts.

Each function returns the argument in the form in which the library computes with it, or raises an `ArgumentError` whose
single line says what is wrong and what to do.
"""

import operator
from fractions import Fraction
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn

from linfnet.boxes import check_images
from linfnet.data.arrays import Labels, as_tensor, integer_labels
from linfnet.epsilon import Epsilon, parse_epsilon
from linfnet.errors import ArgumentError, at_least
from linfnet.nn import Classifier
from linfnet.nn.nonexpansive import modules_of

Images = Tensor | npt.NDArray[Any]
"""Images [N, C, H, W] in [0, 1], of the dtype of the net (float32)."""


def check_net(net: object) -> Classifier:
    """Return the net, or raise an error if it is not a `Classifier`, has no std, or is compiled as a whole or in part.

    A compiled net is a different program: the compiler may replace a division by a product with the reciprocal.
    """
    # `torch.compile(net)` wraps the net and `net.compile()` replaces its call; submodules can be compiled as well.
    if isinstance(net, nn.Module) and any(map(_is_compiled, modules_of(net))):
        raise ArgumentError("the net is compiled; certificates hold for the plain program: pass the original net")
    if isinstance(net, Classifier):
        net.check_std()
        return net
    if isinstance(net, nn.Module) and isinstance(getattr(net, "module", None), Classifier):
        remedy = "pass net.module"
    elif isinstance(net, nn.Module):
        remedy = "wrap your own module with linfnet.Classifier.wrap(module, image_shape=…, classes=…)"
    else:
        remedy = "expected a net, for example linfnet.load_model('mnist-small')"
    raise ArgumentError(f"net is a {type(net).__name__}, not a linfnet Classifier; {remedy}")


def _is_compiled(module: nn.Module) -> bool:
    # The wrapper is recognised by its attribute because importing its class takes a second.
    return "_orig_mod" in vars(module)["_modules"] or module._compiled_call_impl is not None  # pyright: ignore


def net_device(net: Classifier) -> torch.device:
    """Return the device on which the net computes."""
    return net.normalize.std.device


def is_same_row(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Return whether two shapes describe the same vector (d,) or image of one row (1, 1, d).

    An `ImageSet` stores vectors [N, d] as images [N, 1, 1, d], so a net that is trained on them expects these.

    >>> is_same_row((5,), (1, 1, 5)), is_same_row((5,), (1, 5, 1)), is_same_row((2, 5), (2, 5))
    (True, False, False)
    """
    rows = [each if len(each) == 3 else (1, 1, *each) for each in (shape, other)]
    return rows[0] == rows[1] and rows[0][:2] == (1, 1) and len(rows[0]) == 3


def prepare_images(net: Classifier, images: Images, *, move: bool = True) -> Tensor:
    """Return images [N, *net.image_shape] as a tensor, by default on the device of the net.

    The dtype must be the dtype of the net: images of another precision would be rounded, and a certificate would hold
    for the rounded images instead. Vectors [N, d] and images of one row [N, 1, 1, d] are converted to each other.
    """
    pixels = as_tensor(images)
    if (shape := tuple(pixels.shape[1:])) != net.image_shape and is_same_row(shape, net.image_shape):
        pixels = pixels.reshape(len(pixels), *net.image_shape)
    pixels = net.check_dtype(net.check_shape(pixels))
    check_images(pixels)
    return pixels.to(net_device(net)) if move else pixels


def prepare_labels(labels: Labels, samples: Tensor, classes: int) -> Tensor:
    """Return labels as int64 [N] on the device of the samples [N, …]; they must be from 0 to classes - 1."""
    if isinstance(labels, Tensor) and labels.dtype == torch.int64 and labels.dim() == 1:
        numbers = labels.detach()
    else:
        numbers = torch.from_numpy(integer_labels(labels))
    if len(numbers) != len(samples):
        raise ArgumentError(f"labels has length {len(numbers)}; expected {len(samples)}, one for each image")
    if len(numbers):
        low, high = (int(end) for end in numbers.aminmax())
        if low < 0 or high >= classes:
            raise ArgumentError(f"labels contain {low if low < 0 else high}; expected classes from 0 to {classes - 1}")
    return numbers.to(samples.device)


def prepare_logits(logits: object) -> Tensor:
    """Return logits [N, K], or raise an error, for example if a net is passed instead."""
    if not isinstance(logits, Tensor):
        remedy = ": pass net(images)" if isinstance(logits, nn.Module) else ""
        raise ArgumentError(f"logits is a {type(logits).__name__}; expected a tensor [N, K]{remedy}")
    if logits.dim() != 2 or not logits.is_floating_point():
        raise ArgumentError(f"logits has shape {tuple(logits.shape)}, {logits.dtype}; expected floats [N, K]")
    return logits


def prepare_epsilon(epsilon: Epsilon | Tensor, images: Tensor) -> Fraction | Tensor:
    """Return epsilon as an exact fraction; a tensor [N] with one epsilon per image as float64."""
    return prepare_epsilons(epsilon, images) if isinstance(epsilon, Tensor) else parse_epsilon(epsilon)


def prepare_epsilons(epsilon: Tensor, images: Tensor) -> Tensor:
    """Return a tensor [N] with one epsilon per image as float64, on the device of the images [N, …]."""
    if epsilon.shape != images.shape[:1] or not epsilon.is_floating_point():
        shape = tuple(epsilon.shape)
        raise ArgumentError(f"eps has shape {shape}; expected one number, or a float64 tensor [N] for N images")
    if len(epsilon):
        low, high = (end.item() for end in epsilon.aminmax())
        if not (low >= 0 and high <= 1):
            raise ArgumentError(f"eps is from {low:.9g} to {high:.9g}; expected numbers from 0 to 1 (pixel units)")
    return epsilon.detach().double().to(images.device)


def check_count(name: str, value: int, least: int = 1) -> int:
    """Return a whole number of at least `least`."""
    try:
        count = operator.index(value)
    except TypeError:
        raise ArgumentError(f"{name} is {value!r}; expected a whole number of at least {least}") from None
    at_least(name, count, least)
    return count
