"""The separation of a labelled set: half the smallest l_inf distance between two images of different classes.

The distance on some coordinates is a lower bound on the distance on all coordinates. The search computes it on 128
coordinates for all pairs, then on 512 for the pairs whose bound is below the best distance so far, and finally on all
coordinates for the few remaining pairs. The result is exact, at a fraction of the cost of comparing all pairs in full.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import torch
from torch import Tensor

from linfnet.data import ImageSet
from linfnet.epsilon import format_epsilon
from linfnet.errors import ArgumentError, at_least
from linfnet.figures import new_figure, save_figure
from linfnet.ops import lp_distance

FIRST_COORDINATES, SECOND_COORDINATES = 128, 512  # numbers of coordinates in the first two steps of the search
ROWS, COLUMNS = 1024, 8192  # size of a block of pairs in the first step
CLOSEST = 1024  # if many pairs of a block remain, this many with the smallest bounds are computed first
SAMPLE = 4096  # number of sampled pairs that determine the order of the coordinates
ELEMENTS = 1 << 22  # largest number of elements in an intermediate tensor of the later steps


@dataclass(frozen=True)
class ClosePair:
    """The indices of two samples of different classes, and their distance."""

    distance: Fraction
    first: int
    second: int


@dataclass(frozen=True)
class Separation:
    """The closest pairs of samples of different classes, sorted by distance."""

    pairs: tuple[ClosePair, ...]

    @property
    def distance(self) -> Fraction:
        """The smallest distance between two classes."""
        return self.pairs[0].distance

    @property
    def radius(self) -> Fraction:
        """The r of r-separation: the set is separated at every smaller radius, but not at r or at larger radii."""
        return self.distance / 2


def point_separation(
    points: Tensor,
    labels: Tensor,
    against: tuple[Tensor, Tensor] | None = None,
    *,
    count: int = 1,
    advance: Callable[[int], None] = lambda pairs: None,
) -> Separation:
    """Find the closest pairs of different classes within a set, or between two sets.

    Args:
        points, labels: [n, ...] and [n]; points are bytes (exact result) or floats (differences are rounded).
        against: points [m, ...] and labels [m] of a second set, which then provides the second sample of each pair.
        count: number of pairs to find; among pairs of equal distance, those found first are returned.
        advance: callback that receives the number of pairs in each finished block; `pairs_to_compare` gives the total.

    >>> result = point_separation(torch.tensor([[0.0, 0.0], [0.5, 1.0], [0.75, 2.0]]), torch.tensor([0, 1, 1]))
    >>> result.radius, result.pairs[0].first, result.pairs[0].second
    (Fraction(1, 2), 0, 1)
    """
    at_least("count", count, 1)
    other, other_labels = against if against is not None else (points, labels)
    _check(points, labels, "points")
    _check(other, other_labels, "against")
    if points.shape[1:] != other.shape[1:] or points.dtype != other.dtype:
        raise ArgumentError(
            f"points are {points.dtype} {tuple(points.shape)} and against {other.dtype} {tuple(other.shape)}; "
            "expected the same dtype and shape"
        )
    search = _Search(points.flatten(1), labels, other.flatten(1), other_labels, count)
    for rows, columns in _blocks(search.labels, search.other_labels, against is None):
        search.block(rows, columns)
        advance((rows.stop - rows.start) * (columns.stop - columns.start))
    return search.result()


def set_separation(
    images: ImageSet,
    against: ImageSet | None = None,
    *,
    count: int = 1,
    advance: Callable[[int], None] = lambda pairs: None,
) -> Separation:
    """Compute `point_separation` for splits of a data set, exactly and in pixel units.

    >>> from linfnet.data import load
    >>> set_separation(load("digits", "train")).distance
    Fraction(7, 16)
    """
    other = None if against is None else (against.images, against.labels)
    found = point_separation(images.images, images.labels, other, count=count, advance=advance)
    return Separation(tuple(replace(pair, distance=pair.distance / images.info.white) for pair in found.pairs))


def pairs_to_compare(labels: Tensor, against: Tensor | None = None) -> int:
    """Count the pairs of different classes within a set, or between two sets.

    >>> pairs_to_compare(torch.tensor([0, 0, 1])), pairs_to_compare(torch.tensor([0, 0, 1]), torch.tensor([1]))
    (2, 2)
    """
    other = labels if against is None else against
    same = sum(int((labels == label).sum()) * int((other == label).sum()) for label in labels.unique())
    pairs = len(labels) * len(other) - same
    return pairs // 2 if against is None else pairs


def _check(points: Tensor, labels: Tensor, name: str) -> None:
    if points.dim() < 2 or labels.shape != points.shape[:1]:
        raise ArgumentError(
            f"{name} have shape {tuple(points.shape)}, their labels {tuple(labels.shape)}; expected [n, ...] and [n]"
        )
    if points.dtype != torch.uint8 and not points.is_floating_point():
        raise ArgumentError(f"{name} have dtype {points.dtype}; expected bytes or floats")
    if points.is_floating_point() and not bool(points.isfinite().all()):
        raise ArgumentError(f"{name} contain non-finite values; expected finite numbers")
    if len(points) == 0:
        raise ArgumentError(f"{name} are empty; a separation needs two samples of different classes")


def _blocks(labels: Tensor, other: Tensor, symmetric: bool) -> Iterator[tuple[slice, slice]]:
    """Yield blocks that cover each pair of different classes once; both sets must be sorted by class."""
    for label in labels.unique().tolist():
        top, bottom, before, after = (
            int(torch.searchsorted(part, label, right=right)) for part in (labels, other) for right in (False, True)
        )
        for left, right in ((after, len(other)),) if symmetric else ((0, before), (after, len(other))):
            for row in range(top, bottom, ROWS):
                for column in range(left, right, COLUMNS):
                    yield slice(row, min(row + ROWS, bottom)), slice(column, min(column + COLUMNS, right))


def _difference(points: Tensor, other: Tensor) -> Tensor:
    """Return the absolute difference of each coordinate, which is exact for bytes."""
    real = torch.int16 if points.dtype == torch.uint8 else points.dtype
    return (points.to(real) - other.to(real)).abs_()


class _Search:
    """The state of a search: the sets sorted by class, their first coordinates, and the best pairs so far."""

    def __init__(self, points: Tensor, labels: Tensor, other: Tensor, other_labels: Tensor, count: int) -> None:
        self.count = count
        self.labels, self.index = labels.sort(stable=True)
        self.other_labels, self.other_index = other_labels.sort(stable=True)
        classes = torch.cat([self.labels, self.other_labels]).unique()
        if len(classes) == 1:
            what = "there is one sample" if len(labels) == 1 else f"all {len(labels)} samples are"
            raise ArgumentError(f"{what} of class {int(classes)}; a separation needs two samples of different classes")
        self.points = points[self.index]
        self.other = self.points if other is points else other[self.other_index]
        self.best = torch.empty(0, dtype=torch.float64, device=points.device)
        self.pairs = torch.empty(0, 2, dtype=torch.int64, device=points.device)
        sample = self._sample()
        self._offer(self._distances(*sample, self.points, self.other), *sample)
        order = self._coordinate_order(*sample)
        widths = (FIRST_COORDINATES, SECOND_COORDINATES)
        self.steps = [(self.points[:, order[:w]], self.other[:, order[:w]]) for w in widths]
        self.steps.append((self.points, self.other))
        real = torch.float32 if points.dtype == torch.uint8 else points.dtype
        self.first = tuple(part.to(real).contiguous() for part in self.steps[0])

    @property
    def limit(self) -> float:
        """The largest distance among the best pairs; pairs at this distance or above are skipped."""
        return math.inf if len(self.best) < self.count else float(self.best[-1])

    def block(self, rows: slice, columns: slice) -> None:
        """Search one block of pairs."""
        bound = lp_distance(self.first[0][rows], self.first[1][columns])
        below = (bound < self.limit).nonzero()
        if len(below) > 4 * CLOSEST:
            # Start with the pairs that have the smallest bounds: they lower the limit for the remaining pairs.
            closest = bound.flatten().topk(CLOSEST, largest=False).indices
            self._finish(rows.start + closest // bound.shape[1], columns.start + closest % bound.shape[1])
            below = (bound < self.limit).nonzero()
        self._finish(rows.start + below[:, 0], columns.start + below[:, 1])

    def _finish(self, i: Tensor, j: Tensor) -> None:
        """Compute the later steps of the search for the pairs (i, j)."""
        distance = self.best[:0]
        for points, other in self.steps[1:]:
            distance = self._distances(i, j, points, other)
            near = distance < self.limit
            i, j, distance = i[near], j[near], distance[near]
        if len(i):
            self._offer(distance, i, j)

    @staticmethod
    def _distances(i: Tensor, j: Tensor, points: Tensor, other: Tensor) -> Tensor:
        """Return the distance of each pair (i, j) as float64."""
        part = max(1, ELEMENTS // max(1, points.shape[1]))
        pairs = zip(i.split(part), j.split(part), strict=True)
        return torch.cat([_difference(points[a], other[b]).amax(1) for a, b in pairs]).double()

    def _offer(self, distance: Tensor, i: Tensor, j: Tensor) -> None:
        """Merge new pairs into the best pairs, without duplicates."""
        distances = torch.cat([self.best, distance])
        pairs = torch.cat([self.pairs, torch.stack([i, j], 1)])
        chosen: dict[tuple[int, int], int] = {}
        for index in distances.argsort(stable=True).tolist():
            chosen.setdefault((int(pairs[index, 0]), int(pairs[index, 1])), index)
            if len(chosen) == self.count:
                break
        indices = list(chosen.values())
        self.best, self.pairs = distances[indices], pairs[indices]

    def _sample(self) -> tuple[Tensor, Tensor]:
        """Return a fixed random sample of pairs of different classes."""
        generator = torch.Generator().manual_seed(0)
        sizes = (len(self.labels), len(self.other_labels))
        i, j = (torch.randint(size, (SAMPLE,), generator=generator).to(self.labels.device) for size in sizes)
        apart = self.labels[i] != self.other_labels[j]
        if self.other is self.points:
            i, j = torch.minimum(i, j), torch.maximum(i, j)
        return i[apart], j[apart]

    def _coordinate_order(self, i: Tensor, j: Tensor) -> Tensor:
        """Return the coordinates of the first two steps: first greedy covers of the sample, then random coordinates."""
        features = self.points.shape[1]
        few = max(1, ELEMENTS // max(1, features))
        i, j = i[:few], j[:few]
        # The final limit is not known yet. A guess suffices: the order affects only the speed, not the result.
        limit = 0.5 * float(self.best[0]) if len(self.best) else 0.0
        apart = (_difference(self.points[i], self.other[j]) > limit).float()
        order = torch.randperm(features, generator=torch.Generator().manual_seed(0)).tolist()
        chosen: list[int] = []
        uncovered = apart.new_ones(len(i))
        while len(chosen) < min(FIRST_COORDINATES, features):
            scores = uncovered @ apart
            scores[chosen] = -1.0
            best = int(scores.argmax())
            chosen.append(best)
            uncovered = uncovered * (1 - apart[:, best])
            if not bool(uncovered.any()):
                uncovered = apart.new_ones(len(i))
        rest = [feature for feature in order if feature not in set(chosen)]
        return torch.tensor((chosen + rest)[:SECOND_COORDINATES], device=self.points.device)

    def result(self) -> Separation:
        """Return the best pairs, with indices into the given sets."""
        found = zip(self.best.tolist(), self.pairs.tolist(), strict=True)
        return Separation(
            tuple(ClosePair(Fraction(d), int(self.index[i]), int(self.other_index[j])) for d, (i, j) in found)
        )


def draw_pairs(path: Path, separation: Separation, images: ImageSet, against: ImageSet | None = None) -> None:
    """Draw the closest pairs of different classes and their difference, one column for each pair."""
    other = images if against is None else against
    pairs = separation.pairs
    figure = new_figure(1.4 * len(pairs) + 0.6, 4.2)
    axes = figure.subplots(3, len(pairs), squeeze=False)
    for column, pair in enumerate(pairs):
        ends = ((images, pair.first), (other, pair.second))
        first, second = (part.pixels(slice(index, index + 1))[0] for part, index in ends)
        rows = (first, second, (first - second).abs())
        names = [f"{images.info.classes[int(part.labels[index])]} ({index})" for part, index in ends]
        names.append(f"distance {format_epsilon(pair.distance)}")
        for axis, picture, name in zip(axes[:, column], rows, names, strict=True):
            axis.imshow(picture.permute(1, 2, 0).squeeze(2).cpu().numpy(), cmap="gray", vmin=0, vmax=1)
            axis.set_title(name, fontsize=7)
            axis.set_axis_off()
    save_figure(figure, path)
