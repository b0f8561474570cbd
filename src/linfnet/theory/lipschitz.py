"""The Lipschitz constant of the relaxed net: an upper bound d^(1/p) for each layer, and a lower bound by ascent.

Both bounds refer to the distance layers, with the l_inf norm on normalised pixels and on logits: at p = inf, the
constant is 1. From pixels to logits, it is larger by the factor `net.lipschitz` (1 / std).
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from linfnet.errors import at_least
from linfnet.figures import RUST, TEAL, new_figure, save_figure, style_axes
from linfnet.nn import LinfNet
from linfnet.ops import check_p

QUANTILES = tuple(k / 20 for k in range(21))


@dataclass(frozen=True)
class Estimate:
    """Lower bounds on the local Lipschitz constant around each image, and an upper bound for each layer."""

    p: float
    epsilon: Fraction
    values: Tensor  # [N] float64
    layers: tuple[float, ...]

    @property
    def upper(self) -> float:
        """The upper bound for the whole net."""
        return math.prod(self.layers)

    def summary(self) -> dict[str, Any]:
        """Return the mean, maximum and quantiles of the lower bounds, and the upper bound."""
        return {
            "p": self.p if math.isfinite(self.p) else "inf",
            "eps": str(self.epsilon),
            "images": len(self.values),
            "mean": self.values.mean().item(),
            "max": self.values.max().item(),
            "quantiles": dict(zip(map(str, QUANTILES), self.quantiles(), strict=True)),
            "upper": self.upper,
            "upper_by_layer": list(self.layers),
        }

    def quantiles(self) -> list[float]:
        """Return the quantiles of the lower bounds at the levels QUANTILES."""
        return self.values.quantile(self.values.new_tensor(QUANTILES)).tolist()


def layer_bounds(widths: tuple[int, ...], p: float) -> tuple[float, ...]:
    """Return the Lipschitz constant d^(1/p) of each layer, where d is its number of inputs.

    >>> bounds = layer_bounds((3072, 5120, 5120, 5120, 5120, 5120), 8.0)
    >>> round(math.prod(bounds), 2)
    567.83
    """
    check_p(p)
    return tuple(width ** (1 / p) for width in widths)


def net_bounds(net: LinfNet, p: float) -> tuple[float, ...]:
    """Return the Lipschitz constant of each layer of a net."""
    return layer_bounds((math.prod(net.image_shape), *net.hidden), p)


def lipschitz_estimate(
    net: LinfNet,
    images: Tensor,
    p: float,
    *,
    epsilon: Fraction = Fraction(1, 255),
    steps: int = 20,
    restarts: int = 5,
    batch: int = 100,
    generator: torch.Generator | None = None,
    advance: Callable[[int], None] = lambda images: None,
) -> Estimate:
    """Estimate the local Lipschitz constant: the largest change of a logit found within epsilon, divided by epsilon.

    For each label and restart, start at a random point of the ball and take `steps` steps of eps/4 along the sign of
    the gradient of |g_j(x + delta) - g_j(x)|; the largest change at any visited point counts. As in the paper, the ball
    is not clipped to [0, 1]. The net itself is not changed.

    Args:
        images: [N, C, H, W] in [0, 1]; they are processed in batches of `batch` images, each with one row per label.
        p: exponent of all layers, a number >= 1 or `math.inf`.
        epsilon: radius of the balls, in pixel units.
        generator: source of the starting points, on the device of the images.
        advance: callback that receives the number of images in each finished batch.
    """
    bounds = net_bounds(net, p)
    for name, value in (("steps", steps), ("restarts", restarts), ("batch", batch), ("images", len(images))):
        at_least(name, value, 1)
    at_least("epsilon", float(epsilon), 0, strictly=True)
    parts: list[Tensor] = []
    # The ascent runs in float32, but the change of the logits is computed in float64: division by a small epsilon would
    # otherwise magnify the rounding of the logits beyond the upper bound.
    dtypes = (images.dtype, torch.float64)
    relaxed, exact = (copy.deepcopy(net).to(dtype).eval().requires_grad_(False) for dtype in dtypes)
    relaxed.p = exact.p = p
    for part in images.split(batch):
        best = part.new_zeros(len(part), dtype=torch.float64)
        for _ in range(restarts):
            moved = _ascend(relaxed, part, float(epsilon), steps, generator)
            best = torch.maximum(best, _quotient(exact, part, moved, float(epsilon)))
        parts.append(best / net.lipschitz)
        advance(len(part))
    return Estimate(float(p), epsilon, torch.cat(parts).cpu(), bounds)


def _ascend(net: LinfNet, images: Tensor, size: float, steps: int, generator: torch.Generator | None) -> Tensor:
    """Return the points [B, C, H, W] of one restart where a logit changes most; the batch has B * K rows."""
    with torch.no_grad():
        start = net(images).repeat_interleave(net.classes, 0)
    own = torch.arange(net.classes, device=images.device).repeat(len(images)).unsqueeze(1)
    centre = images.repeat_interleave(net.classes, 0)
    noise = torch.rand(centre.shape, generator=generator, device=centre.device, dtype=centre.dtype)
    moved = centre + (2 * noise - 1) * size
    best, point = images.new_full((len(images),), -1.0), images.clone()
    for step in range(steps + 1):
        moved.requires_grad_(step < steps)
        change = (net(moved) - start).abs()
        most, winner = change.detach().amax(1).view(len(images), -1).max(1)
        candidates = moved.detach().view(len(images), net.classes, *images.shape[1:])
        chosen = candidates[torch.arange(len(images), device=images.device), winner]
        point = torch.where((most > best).view(-1, 1, 1, 1), chosen, point)
        best = torch.maximum(best, most)
        if step < steps:
            (slope,) = torch.autograd.grad(change.gather(1, own).sum(), moved)
            ahead = moved.detach() + size / 4 * slope.sign()
            moved = centre + (ahead - centre).clamp(-size, size)
    return point


@torch.no_grad()
def _quotient(exact: LinfNet, images: Tensor, moved: Tensor, size: float) -> Tensor:
    """Return the largest change of a logit divided by the distance moved (at least `size`), as float64 [B]."""
    change = (exact(moved.double()) - exact(images.double())).abs().amax(1)
    return change / (moved.double() - images.double()).abs().flatten(1).amax(1).clamp(min=size)


def draw_quantiles(path: Path, estimate: Estimate) -> None:
    """Plot the quantiles of the lower bounds on the Lipschitz constant over the images, and the upper bound."""
    figure = new_figure(5, 3.5)
    axis = figure.subplots()
    lower = f"lower bound, {len(estimate.values)} images"
    axis.plot(QUANTILES, estimate.quantiles(), marker=".", color=TEAL, label=lower)
    axis.axhline(estimate.upper, linestyle="--", color=RUST, label=f"upper bound {estimate.upper:.4g}")
    axis.axhline(1.0, linestyle=":", color="black", label="p = ∞")
    axis.set(yscale="log", xlabel="quantile", ylabel=f"Lipschitz constant at p = {estimate.p:g}")
    style_axes(axis)
    axis.legend(loc="center left", fontsize=8)
    save_figure(figure, path)
