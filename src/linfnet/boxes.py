"""Boxes of perturbed images in floating point, rounded outwards for certificates and inwards for attacks."""

import math
from fractions import Fraction

import torch
from torch import Tensor

from linfnet.errors import ArgumentError


def check_images(images: Tensor, name: str = "images") -> Tensor:
    """Return the images, or raise an error if a pixel is outside [0, 1] or NaN."""
    if images.numel():
        low, high = (end.item() for end in images.aminmax())
        if low != low:
            raise ArgumentError(f"{name} contain NaN; expected [0, 1]")
        if not (low >= 0 and high <= 1):
            remedy = ": divide by 255" if low >= 0 and 2 < high <= 255 else ""
            raise ArgumentError(f"{name} have pixels from {low:.9g} to {high:.9g}; expected [0, 1]{remedy}")
    return images


def _next(value: Tensor, up: bool) -> Tensor:
    return torch.nextafter(value, value.new_full((), math.inf if up else -math.inf))


def _sum_outward(a: Tensor, b: Tensor | float, up: bool) -> Tensor:
    """Return a float64 number beyond a + b: the rounded sum moved by one float64 step, more than the rounding error."""
    return _next(a + b, up)


def _sum_inward(a: Tensor, b: Tensor | float, up: bool) -> Tensor:
    """Return the float64 number closest to a + b that is not beyond it; if the rounded sum is exact, return that."""
    total = a + b
    part = total - a
    error = (a - (total - part)) + (b - part)  # the exact error of the sum (Knuth)
    return torch.where(error > 0 if up else error < 0, _next(total, up), total)


def _round_to(value: Tensor, dtype: torch.dtype, up: bool) -> Tensor:
    """Round float64 numbers to a dtype in one direction."""
    rounded = value.to(dtype)
    wrong = rounded.double() < value if up else rounded.double() > value
    return torch.where(wrong, _next(rounded, up), rounded)


def _per_image(epsilon: Tensor, images: Tensor) -> Tensor:
    return epsilon.view(-1, *[1] * (images.dim() - 1))


def _ends(images: Tensor, epsilon: Fraction | Tensor, outward: bool) -> tuple[Tensor, Tensor]:
    if not bool((epsilon >= 0).all() if isinstance(epsilon, Tensor) else epsilon >= 0):
        raise ArgumentError(f"epsilon is {epsilon}; expected a number of at least 0")
    if isinstance(epsilon, Tensor):
        size = _per_image(epsilon.double(), images)
    else:
        size = float(epsilon)
        if (Fraction(size) < epsilon) if outward else (Fraction(size) > epsilon):
            size = math.nextafter(size, math.inf if outward else -math.inf)
    add, exact = _sum_outward if outward else _sum_inward, images.double()
    lower = _round_to(add(exact, -size, not outward), images.dtype, up=not outward)
    upper = _round_to(add(exact, size, outward), images.dtype, up=outward)
    return lower, upper


def outer_box(images: Tensor, epsilon: Fraction | Tensor) -> tuple[Tensor, Tensor]:
    """Return the end points, rounded outwards, of a box that contains every image in [0, 1] within epsilon of `images`.

    This is the only step in which interval bounds are rounded outwards. No later step needs directed rounding: every
    step of an l_inf-distance net is monotone in floating point, so the computed results at the end points bound the
    computed results at every image in the box. For an epsilon of 0 the end points are the images themselves. A float64
    tensor [N] contains one exact epsilon per image.
    """
    lower, upper = _ends(images, epsilon, outward=True)
    unchanged = _per_image(torch.as_tensor(epsilon == 0, device=images.device), images)
    return torch.where(unchanged, images, lower.clamp(min=0)), torch.where(unchanged, images, upper.clamp(max=1))


def inner_box(images: Tensor, epsilon: Fraction | Tensor) -> tuple[Tensor, Tensor]:
    """Return the end points, rounded inwards, of a box whose images are all in [0, 1] and within epsilon of `images`.

    If epsilon is a float64 number, it is the largest such box. It always contains the images themselves. A float64
    tensor [N] contains one epsilon per image.
    """
    lower, upper = _ends(images, epsilon, outward=False)
    return torch.minimum(lower.clamp(min=0), images), torch.maximum(upper.clamp(max=1), images)
