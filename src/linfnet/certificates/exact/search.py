"""The complete search for one image and one rival class, in NumPy: bounds forwards, demands backwards, branches.

`low` and `high` bound every node over the images that are left in a branch. Forwards, the bounds of a node follow from
its inputs. Backwards, "node <= high" is a condition on each input, and "node >= low" is a disjunction over the
connections of the node (and the sign of a difference): no candidate is a contradiction, one is a condition on its
input, several are branches. docs/certificates.md contains the proof; csrc/search.cpp does the same faster.
"""

import time
from dataclasses import dataclass

import numpy as np

from linfnet.certificates.exact.circuit import Kind
from linfnet.certificates.exact.reduced import Floats, Ints, Reduced
from linfnet.certificates.exact.rules import (
    FUNCTIONS,
    largest_input,
    largest_minuend,
    middle,
    smallest_input,
    smallest_minuend,
)
from linfnet.ops.search import has_search, run_search

# Sweeps over the circuit before the search branches although the bounds still change.
SWEEPS = 30
# The same if there is nothing to branch on; the image is undecided then.
LONGEST = 10_000
_LOWEST, _HIGHEST = np.float32(-np.inf), np.float32(np.inf)


@dataclass
class Box:
    """The images that are left in a branch, as bounds on all nodes, and bounds on a number t with own <= t <= rival."""

    low: Floats
    high: Floats
    least: np.float32 = _LOWEST
    most: np.float32 = _HIGHEST

    def copy(self) -> "Box":
        return Box(self.low.copy(), self.high.copy(), self.least, self.most)


@dataclass(frozen=True)
class Disjunction:
    """A node that must be at least `least`, by one of several connections: sign +1 or -1 for a difference."""

    least: np.float32
    connections: Ints
    signs: Ints


@dataclass(frozen=True)
class Found:
    """The result of a search."""

    robust: bool
    image: Floats | None
    """Values of the pixels in `Reduced.pixels` for which the rival is not below the class."""
    branches: int


def search(circuit: Reduced, start: Floats, branches: int, deadline: float) -> Found:
    """Search for an image for which the second output of a circuit is not below the first.

    Args:
        circuit: its two outputs are the logits of the label and of a rival.
        start: the pixels of the original image.
        branches: the largest number of branches.
        deadline: the value of `time.monotonic` at which the search ends without a result.
    """
    run = search_compiled if has_search() else search_plainly
    return run(circuit, start, branches, deadline)


def search_plainly(circuit: Reduced, start: Floats, branches: int, deadline: float) -> Found:
    """`search` in NumPy."""
    own, rival = circuit.outputs.tolist()
    return Search(circuit, own, rival, start).run(branches, deadline)


def search_compiled(circuit: Reduced, start: Floats, branches: int, deadline: float) -> Found:
    """`search` by the C++ kernel."""
    image = np.empty(len(circuit.pixels), dtype=np.float32)
    kinds = np.array(circuit.kinds, dtype=np.int64)
    whole = (kinds, circuit.starts, circuit.offsets, circuit.index)
    floats = (circuit.weight, circuit.low, circuit.high, start)
    own, rival = circuit.outputs.tolist()
    left = max(0.0, deadline - time.monotonic())
    verdict, used = run_search(whole, floats, image, own, rival, branches, left)
    return Found(verdict == "robust", image if verdict == "broken" else None, used)


class ContradictionError(Exception):
    """A branch contains no image."""


class Search:
    """The search for an image of a box for which the logit of `rival` is not below the logit of `own`."""

    def __init__(self, circuit: Reduced, own: int, rival: int, start: Floats) -> None:
        self.circuit, self.own, self.rival, self.start = circuit, own, rival, start
        self.stages = [_Stage(circuit, s) for s, kind in enumerate(circuit.kinds) if kind is not Kind.LEAF]

    def run(self, branches: int, deadline: float) -> Found:
        """Search until a result is known, or until the number of branches or the time is used up."""
        stack, count = [Box(self.circuit.low.copy(), self.circuit.high.copy())], 0
        while stack:
            if count >= branches or time.monotonic() > deadline:
                return Found(False, None, count)
            count += 1
            box = stack.pop()
            try:
                disjunctions = self._propagate(box)
            except ContradictionError:
                continue
            image = self._try(box)
            if image is not None:
                return Found(False, image, count)
            # Without open disjunctions and with a single t, every image of the box is one, unless LONGEST sweeps ended.
            if not disjunctions and box.least == box.most:
                return Found(False, None, count)
            stack += reversed(self._split(box, disjunctions))
        return Found(True, None, count)

    def _try(self, box: Box) -> Floats | None:
        """Return an image of the box for which the rival is not below, if one of a few images is such an image."""
        size = len(self.circuit.pixels)
        low, high = box.low[:size], box.high[:size]
        half = (low + (high - low) / 2).astype(np.float32)
        for wish in (self.start, half, low, high):
            image = np.minimum(np.maximum(wish, low), high)
            values = self.values(image)
            if values[self.rival] >= values[self.own]:
                return image
        return None

    def values(self, image: Floats) -> Floats:
        """Return the values of all nodes for one image of the box."""
        values = self.circuit.low.copy()
        values[: len(image)] = image
        for stage in self.stages:
            values[stage.nodes] = stage.bounds(values, values)[0]
        return values

    def _propagate(self, box: Box) -> list[Disjunction]:
        """Apply all rules until nothing changes; return the disjunctions that are left."""
        disjunctions: list[Disjunction] = []
        sweep, same = 0, False
        # After SWEEPS sweeps a branch is faster, if there is one.
        while not same and (sweep < SWEEPS or (sweep < LONGEST and not disjunctions and box.least == box.most)):
            sweep += 1
            before = box.low.copy(), box.high.copy(), box.least, box.most
            box.least, box.most = max(box.least, box.low[self.own]), min(box.most, box.high[self.rival])
            box.high[self.own] = min(box.high[self.own], box.most)
            box.low[self.rival] = max(box.low[self.rival], box.least)
            if box.least > box.most:
                raise ContradictionError
            disjunctions = []
            for stage in reversed(self.stages):
                disjunctions += stage.backwards(box.low, box.high)
            for stage in self.stages:
                stage.forwards(box.low, box.high)
            _check(box.low, box.high)
            same = bool((box.low == before[0]).all() and (box.high == before[1]).all())
            same = same and (box.least, box.most) == before[2:]
        return disjunctions

    def _split(self, box: Box, disjunctions: list[Disjunction]) -> list[Box]:
        """Return the branches of the disjunction with the fewest candidates, or halves of the interval of t."""
        if not disjunctions:
            half = middle(box.least, box.most)
            lower, upper = box.copy(), box
            lower.most, upper.least = half, np.nextafter(half, _HIGHEST)
            return [upper, lower]
        chosen = min(disjunctions, key=lambda one: len(one.connections))
        circuit, boxes = self.circuit, list[Box]()
        for k in range(len(chosen.connections)):
            branch = box.copy()
            # Candidate k is true, and those before it are false, so that the branches have no image in common.
            for j in range(k + 1):
                c, positive = chosen.connections[j], chosen.signs[j] > 0
                node, w = circuit.index[c], circuit.weight[c : c + 1]
                if j == k:
                    value = np.array([chosen.least])
                    if positive:
                        branch.low[node] = max(branch.low[node], smallest_minuend(w, value)[0])
                    else:
                        branch.high[node] = min(branch.high[node], largest_minuend(w, -value)[0])
                else:
                    value = np.nextafter(np.array([chosen.least]), _LOWEST)
                    if positive:
                        branch.high[node] = min(branch.high[node], largest_minuend(w, value)[0])
                    else:
                        branch.low[node] = max(branch.low[node], smallest_minuend(w, -value)[0])
            boxes.append(branch)
        return boxes


def _check(low: Floats, high: Floats) -> None:
    if not (low <= high).all():
        raise ContradictionError


class _Stage:
    """The rules of one stage of a circuit."""

    def __init__(self, circuit: Reduced, number: int) -> None:
        self.kind, start, end = circuit.kinds[number], circuit.starts[number], circuit.starts[number + 1]
        self.nodes = slice(start, end)
        self.first = circuit.offsets[start]
        own = slice(self.first, circuit.offsets[end])
        self.index, self.weight = circuit.index[own], circuit.weight[own]
        self.offsets = circuit.offsets[start:end] - self.first
        self.rows = np.repeat(np.arange(start, end), np.diff(circuit.offsets[start : end + 1]))

    def bounds(self, low: Floats, high: Floats) -> tuple[Floats, Floats]:
        below, above = low[self.index], high[self.index]
        if self.kind is Kind.DISTANCE:
            a, b = below - self.weight, above - self.weight
            below, above = np.maximum(np.maximum(a, -b), 0), np.maximum(np.abs(a), np.abs(b))
        if self.kind in (Kind.DISTANCE, Kind.MAXIMUM):
            return np.maximum.reduceat(below, self.offsets), np.maximum.reduceat(above, self.offsets)
        if self.kind is Kind.NEGATE:
            return -above, -below
        function = FUNCTIONS[self.kind]
        return function(below, self.weight), function(above, self.weight)

    def forwards(self, low: Floats, high: Floats) -> None:
        smallest, largest = self.bounds(low, high)
        np.maximum(low[self.nodes], smallest, out=low[self.nodes])
        np.minimum(high[self.nodes], largest, out=high[self.nodes])

    def backwards(self, low: Floats, high: Floats) -> list[Disjunction]:
        """Apply the bounds of the nodes to their inputs; return the disjunctions with several candidates."""
        _check(low[self.nodes], high[self.nodes])
        if self.kind is Kind.NEGATE:
            self._limit(low, high, -high[self.nodes], -low[self.nodes], slice(None))
        elif self.kind is Kind.MAXIMUM:
            self._limit(low, high, None, high[self.rows], slice(None))
            return self._disjunctions(low, high, high[self.index], None)
        elif self.kind is Kind.DISTANCE:
            a, b, most = low[self.index] - self.weight, high[self.index] - self.weight, high[self.rows]
            above, below = np.flatnonzero(b > most), np.flatnonzero(a < -most)
            self._limit(low, high, None, largest_minuend(self.weight[above], most[above]), above)
            self._limit(low, high, smallest_minuend(self.weight[below], -most[below]), None, below)
            a, b = low[self.index] - self.weight, high[self.index] - self.weight
            return self._disjunctions(low, high, b, -a)
        else:
            self._invert(low, high)
        return []

    def _invert(self, low: Floats, high: Floats) -> None:
        smallest, largest = self.bounds(low, high)
        least, most = low[self.nodes], high[self.nodes]
        _check(smallest, most)
        _check(least, largest)
        for where in (np.flatnonzero(largest > most),):
            index, w = self.index[where], self.weight[where]
            self._limit(low, high, None, largest_input(self.kind, w, most[where], low[index], high[index]), where)
        for where in (np.flatnonzero(smallest < least),):
            index, w = self.index[where], self.weight[where]
            self._limit(low, high, smallest_input(self.kind, w, least[where], low[index], high[index]), None, where)

    def _limit(self, low: Floats, high: Floats, least: Floats | None, most: Floats | None, where: Ints | slice) -> None:
        """Raise lower bounds and lower upper bounds of the inputs of some connections."""
        if most is not None:
            np.minimum.at(high, self.index[where], most)
        if least is not None:
            np.maximum.at(low, self.index[where], least)

    def _disjunctions(self, low: Floats, high: Floats, positive: Floats, negative: Floats | None) -> list[Disjunction]:
        """Apply "node >= low" where it has one candidate, and return the disjunctions with several.

        `positive`: the largest value of each connection; `negative`: the largest value of its negative.
        """
        attained = self.bounds(low, high)[0]
        demanded = np.flatnonzero(low[self.nodes] > attained)
        if not len(demanded):
            return []
        least, found = low[self.rows], list[Disjunction]()
        plus = positive >= least
        minus = np.zeros_like(plus) if negative is None else negative >= least
        ends = np.append(self.offsets, len(self.index))
        for node in demanded:
            own = slice(ends[node], ends[node + 1])
            connections = np.concatenate([np.flatnonzero(plus[own]), np.flatnonzero(minus[own])]) + ends[node]
            signs = np.repeat([1, -1], [plus[own].sum(), minus[own].sum()])
            if not len(connections):
                raise ContradictionError
            if len(connections) == 1:
                self._force(low, high, int(connections[0]), signs[0] > 0)
            else:
                slack = np.where(signs > 0, positive[connections], 0 if negative is None else negative[connections])
                order = np.argsort(-slack, kind="stable")
                found.append(
                    Disjunction(np.float32(least[connections[0]]), connections[order] + self.first, signs[order])
                )
        return found

    def _force(self, low: Floats, high: Floats, connection: int, positive: bool) -> None:
        own = slice(connection, connection + 1)
        least, node, w = low[self.rows[own]], self.index[connection], self.weight[own]
        if self.kind is Kind.MAXIMUM:
            low[node] = max(low[node], least[0])
        elif positive:
            low[node] = max(low[node], smallest_minuend(w, least)[0])
        else:
            high[node] = min(high[node], largest_minuend(w, -least)[0])
