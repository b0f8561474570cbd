"""The separation of a labelled set: half the smallest l_inf distance of two images of different classes, exactly.

The distance on a few coordinates bounds the whole distance from below. A cascade computes it on 128 coordinates for all
pairs, keeps those below the best so far, goes on with 512 coordinates and finishes the few that are left: the result is
that of all pairs on all coordinates, for a fraction of the work.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from linfnet.data import ImageSet
from linfnet.errors import ArgumentError
from linfnet.ops import lp_distance

FIRST, SECOND = 128, 512  # coordinates of the first two steps
ROWS, COLUMNS = 1024, 8192  # pairs in a block of the first step
HOPEFUL = 1024  # pairs of a block that are finished before the others, where many are left
SAMPLE = 4096  # pairs by which the first coordinates are chosen
ELEMENTS = 1 << 22  # of the largest intermediate tensor in the later ones


@dataclass(frozen=True)
class ClosePair:
    """Two samples of different classes."""

    distance: Fraction
    first: int
    second: int


@dataclass(frozen=True)
class Separation:
    """The closest pairs of different classes, the closest first."""

    pairs: tuple[ClosePair, ...]

    @property
    def distance(self) -> Fraction:
        """The smallest distance of two classes."""
        return self.pairs[0].distance

    @property
    def radius(self) -> Fraction:
        """The r of r-separation: the set is separated for every smaller radius, and for none from here on."""
        return self.distance / 2


def point_separation(
    points: Tensor,
    labels: Tensor,
    against: tuple[Tensor, Tensor] | None = None,
    *,
    count: int = 1,
    advance: Callable[[int], None] = lambda pairs: None,
) -> Separation:
    """The closest pairs of different classes within a set, or between two sets.

    Args:
        points: [n, ...], bytes (exact) or floats (each difference rounded once).
        labels: [n].
        against: points [m, ...] and labels [m] of another set; the second of each pair is then one of it.
        count: how many pairs to find; of those at one distance, the first found stay.
        advance: is told how many pairs are done; `pairs_to_compare` says how many there are.

    >>> result = point_separation(torch.tensor([[0.0, 0.0], [0.5, 1.0], [0.75, 2.0]]), torch.tensor([0, 1, 1]))
    >>> result.radius, result.pairs[0].first, result.pairs[0].second
    (Fraction(1, 2), 0, 1)
    """
    if count < 1:
        raise ArgumentError(f"count is {count}; wanted at least 1")
    other, other_labels = against if against is not None else (points, labels)
    _check(points, labels, "points")
    _check(other, other_labels, "against")
    if points.shape[1:] != other.shape[1:] or points.dtype != other.dtype:
        raise ArgumentError(
            f"points are {points.dtype} {tuple(points.shape)} and against {other.dtype} {tuple(other.shape)}; "
            "wanted samples of one kind"
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
    """`point_separation` of splits of a data set, in pixel units and exact.

    >>> from linfnet.data import load
    >>> set_separation(load("digits", "train")).distance
    Fraction(7, 16)
    """
    other = None if against is None else (against.images, against.labels)
    found = point_separation(images.images, images.labels, other, count=count, advance=advance)
    white = images.info.white
    return Separation(tuple(ClosePair(pair.distance / white, pair.first, pair.second) for pair in found.pairs))


def pairs_to_compare(labels: Tensor, against: Tensor | None = None) -> int:
    """How many pairs of different classes there are within a set, or between two sets.

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
            f"{name} have shape {tuple(points.shape)}, their labels {tuple(labels.shape)}; wanted [n, ...] and [n]"
        )
    if points.dtype != torch.uint8 and not points.is_floating_point():
        raise ArgumentError(f"{name} have dtype {points.dtype}; wanted bytes or floats")
    if points.is_floating_point() and not bool(points.isfinite().all()):
        raise ArgumentError(f"{name} hold values that are not finite; wanted numbers")
    if len(points) == 0:
        raise ArgumentError(f"{name} are empty; a separation needs two samples of different classes")


def _blocks(labels: Tensor, other: Tensor, symmetric: bool) -> Iterator[tuple[slice, slice]]:
    """Blocks of pairs of different classes (each once) of two sets sorted by class."""
    for label in labels.unique().tolist():
        top, bottom = _range(labels, label)
        before, after = _range(other, label)
        for left, right in ((after, len(other)),) if symmetric else ((0, before), (after, len(other))):
            for row in range(top, bottom, ROWS):
                for column in range(left, right, COLUMNS):
                    yield slice(row, min(row + ROWS, bottom)), slice(column, min(column + COLUMNS, right))


def _range(sorted_labels: Tensor, label: int) -> tuple[int, int]:
    return (
        int(torch.searchsorted(sorted_labels, label)),
        int(torch.searchsorted(sorted_labels, label, right=True)),
    )


class _Search:
    """The sets sorted by class, their first coordinates, and the best pairs so far."""

    def __init__(self, points: Tensor, labels: Tensor, other: Tensor, other_labels: Tensor, count: int) -> None:
        self.count = count
        self.labels, self.index = labels.sort(stable=True)
        self.other_labels, self.other_index = other_labels.sort(stable=True)
        self._check_classes()
        self.points = points[self.index]
        self.other = self.points if other is points else other[self.other_index]
        self.best = torch.empty(0, dtype=torch.float64, device=points.device)
        self.pairs = torch.empty(0, 2, dtype=torch.int64, device=points.device)
        sample = self._sample()
        self._offer(self._distances(*sample, self.points, self.other), *sample)
        order = self._telling_coordinates(*sample)
        self.steps = [(self.points[:, order[:w]], self.other[:, order[:w]]) for w in (FIRST, SECOND)]
        self.steps.append((self.points, self.other))
        real = torch.float32 if points.dtype == torch.uint8 else points.dtype
        self.first = tuple(part.to(real).contiguous() for part in self.steps[0])

    def _check_classes(self) -> None:
        seen = torch.cat([self.labels, self.other_labels]).unique()
        if len(seen) == 1:
            many = len(self.labels)
            what = "there is one sample" if many == 1 else f"all {many} samples are"
            raise ArgumentError(f"{what} of class {int(seen)}; a separation needs two samples of different classes")

    @property
    def limit(self) -> float:
        """Pairs from here on are of no interest."""
        return math.inf if len(self.best) < self.count else float(self.best[-1])

    def block(self, rows: slice, columns: slice) -> None:
        """Search a block of pairs."""
        bound = lp_distance(self.first[0][rows], self.first[1][columns])
        below = (bound < self.limit).nonzero()
        if len(below) > 4 * HOPEFUL:
            # The pairs that look closest first: they lower the limit for the others.
            hopeful = bound.flatten().topk(HOPEFUL, largest=False).indices
            self._finish(rows.start + hopeful // bound.shape[1], columns.start + hopeful % bound.shape[1])
            below = (bound < self.limit).nonzero()
        self._finish(rows.start + below[:, 0], columns.start + below[:, 1])

    def _finish(self, i: Tensor, j: Tensor) -> None:
        """Take pairs through the later steps."""
        distance = self.best[:0]
        for points, other in self.steps[1:]:
            distance = self._distances(i, j, points, other)
            near = distance < self.limit
            i, j, distance = i[near], j[near], distance[near]
        if len(i):
            self._offer(distance, i, j)

    @staticmethod
    def _distances(i: Tensor, j: Tensor, points: Tensor, other: Tensor) -> Tensor:
        """The distance of each pair (i, j) as float64."""
        real = torch.int16 if points.dtype == torch.uint8 else points.dtype
        part = max(1, ELEMENTS // max(1, points.shape[1]))
        parts = [
            (points[a].to(real) - other[b].to(real)).abs_().amax(1)
            for a, b in zip(i.split(part), j.split(part), strict=True)
        ]
        return torch.cat(parts).double() if parts else torch.empty(0, dtype=torch.float64, device=points.device)

    def _offer(self, distance: Tensor, i: Tensor, j: Tensor) -> None:
        """Keep the best; a pair that is there already is not taken twice."""
        distances = torch.cat([self.best, distance])
        pairs = torch.cat([self.pairs, torch.stack([i, j], 1)])
        order = distances.argsort(stable=True)
        known: set[tuple[int, int]] = set()
        chosen: list[int] = []
        for place in order.tolist():
            pair = (int(pairs[place, 0]), int(pairs[place, 1]))
            if pair not in known:
                known.add(pair)
                chosen.append(place)
            if len(chosen) == self.count:
                break
        self.best, self.pairs = distances[chosen], pairs[chosen]

    def _sample(self) -> tuple[Tensor, Tensor]:
        """Some pairs of different classes, spread over the set, always the same."""
        generator = torch.Generator().manual_seed(0)
        ends = [
            torch.randint(size, (SAMPLE,), generator=generator) for size in (len(self.labels), len(self.other_labels))
        ]
        i, j = (end.to(self.labels.device) for end in ends)
        apart = self.labels[i] != self.other_labels[j]
        if self.other is self.points:
            i, j = torch.minimum(i, j), torch.maximum(i, j)
        return i[apart], j[apart]

    def _telling_coordinates(self, i: Tensor, j: Tensor) -> Tensor:
        """SECOND coordinates; the FIRST of them rule out most pairs: a greedy cover of the sample, again and again."""
        features = self.points.shape[1]
        few = max(1, ELEMENTS // max(1, features))
        i, j = i[:few], j[:few]
        real = torch.int16 if self.points.dtype == torch.uint8 else self.points.dtype
        # The limit to come is guessed: the order changes the speed alone, never the result.
        limit = 0.5 * float(self.best[0]) if len(self.best) else 0.0
        telling = ((self.points[i].to(real) - self.other[j].to(real)).abs_() > limit).float()
        generator = torch.Generator().manual_seed(0)
        order = torch.randperm(features, generator=generator).tolist()
        chosen: list[int] = []
        uncovered = telling.new_ones(len(i))
        while len(chosen) < min(FIRST, features):
            scores = uncovered @ telling
            scores[chosen] = -1.0
            best = int(scores.argmax())
            chosen.append(best)
            uncovered = uncovered * (1 - telling[:, best])
            if not bool(uncovered.any()):
                uncovered = telling.new_ones(len(i))
        rest = [feature for feature in order if feature not in set(chosen)]
        return torch.tensor((chosen + rest)[:SECOND], device=self.points.device)

    def result(self) -> Separation:
        """The pairs in the numbering of the sets as they were given."""
        found = zip(self.best.tolist(), self.pairs.tolist(), strict=True)
        return Separation(
            tuple(ClosePair(Fraction(d), int(self.index[i]), int(self.other_index[j])) for d, (i, j) in found)
        )
