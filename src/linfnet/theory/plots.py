"""Plots of the theory: closest pairs, quantiles of the Lipschitz estimate, the three points."""

from pathlib import Path

import numpy as np
import torch

from linfnet.data import ImageSet
from linfnet.epsilon import format_epsilon
from linfnet.figures import new_figure, save_figure
from linfnet.theory.lipschitz import QUANTILES, Estimate
from linfnet.theory.separation import Separation
from linfnet.theory.three_points import RADIUS, Contender, three_points


def draw_pairs(path: Path, separation: Separation, images: ImageSet, against: ImageSet | None = None) -> None:
    """Draw the closest pairs of different classes and their difference, one column for each pair."""
    other = images if against is None else against
    pairs = separation.pairs
    figure = new_figure(1.4 * len(pairs) + 0.6, 4.2)
    axes = figure.subplots(3, len(pairs), squeeze=False)
    for column, pair in enumerate(pairs):
        first = images.pixels(slice(pair.first, pair.first + 1))[0]
        second = other.pixels(slice(pair.second, pair.second + 1))[0]
        rows = (first, second, (first - second).abs())
        classes = images.info.classes
        names = (
            f"{classes[int(images.labels[pair.first])]} ({pair.first})",
            f"{classes[int(other.labels[pair.second])]} ({pair.second})",
            f"distance {format_epsilon(pair.distance)}",
        )
        for axis, picture, name in zip(axes[:, column], rows, names, strict=True):
            axis.imshow(picture.permute(1, 2, 0).squeeze(2).cpu().numpy(), cmap="gray", vmin=0, vmax=1)
            axis.set_title(name, fontsize=7)
            axis.set_axis_off()
    save_figure(figure, path)


def draw_quantiles(path: Path, estimate: Estimate) -> None:
    """Draw the lower bound of the Lipschitz constant at each quantile of the images, and the upper bound."""
    figure = new_figure(5, 3.5)
    axis = figure.subplots()
    axis.plot(QUANTILES, estimate.quantiles(), marker=".", label=f"lower bound, {len(estimate.values)} images")
    axis.axhline(estimate.upper, linestyle="--", color="tab:red", label=f"upper bound {estimate.upper:.4g}")
    axis.axhline(1.0, linestyle=":", color="black", label="p = ∞")
    axis.set_yscale("log")
    axis.set_xlabel("quantile")
    axis.set_ylabel(f"Lipschitz constant at p = {estimate.p:g}")
    axis.legend(loc="center left", fontsize=8)
    save_figure(figure, path)


def draw_three_points(path: Path, contenders: list[Contender], share: float = 0.95) -> None:
    """Draw scores and bounds of the first, a middle and the last net at `share` of r, and all proven radii."""
    points, labels = three_points()
    shown = [contenders[0], contenders[len(contenders) // 2 - 1], contenders[-1]]
    figure = new_figure(11, 5.5)
    grid = figure.add_gridspec(2, 3, height_ratios=(1, 1.2))
    line = torch.linspace(0, 1, 401)
    epsilon = share * RADIUS
    lower, upper = (points - epsilon).clamp(min=0), (points + epsilon).clamp(max=1)
    for column, contender in enumerate(shown):
        axis = figure.add_subplot(grid[0, column])
        axis.plot(line.numpy(), contender.score(line).numpy(), color="black")
        low, high = contender.bounds(lower, upper)
        for k in range(3):
            proven = bool(low[k] > 0 if labels[k] == 1 else high[k] < 0)
            corner, sizes = (float(lower[k]), float(low[k])), (float(upper[k] - lower[k]), float(high[k] - low[k]))
            colour = "tab:green" if proven else "tab:red"
            axis.bar(corner[0], sizes[1], sizes[0], bottom=corner[1], align="edge", alpha=0.3, color=colour)
        axis.axhline(0, linestyle=":", color="black")
        axis.set_title(f"{contender.name}: bounds at {share:g} r", fontsize=9)
    axis = figure.add_subplot(grid[1, :])
    radii = np.array([contender.proven / RADIUS for contender in contenders])
    colours = ["tab:blue"] * (len(radii) - 1) + ["tab:green"]
    axis.barh([contender.name for contender in contenders], radii, color=colours)
    axis.axvline(1.0, linestyle="--", color="black")
    axis.set_xlabel("proven radius / r")
    axis.tick_params(axis="y", labelsize=7)
    axis.invert_yaxis()
    save_figure(figure, path)
