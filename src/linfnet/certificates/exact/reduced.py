"""The part of a circuit that matters for one image: small, because most connections cannot decide anything in a box."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from linfnet.certificates.exact.circuit import Circuit, Kind, Stage

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Reduced:
    """A circuit whose nodes and connections all can matter for some outputs and some images of a box.

    Nodes starts[s] to starts[s + 1] - 1 belong to stage s of kind kinds[s]; the first stage contains the pixels.
    Connections offsets[n] to offsets[n + 1] - 1 lead from node n to the earlier nodes in `index`.
    """

    kinds: tuple[Kind, ...]
    starts: Ints
    offsets: Ints
    index: Ints
    weight: Floats
    pixels: Ints
    """The pixel of each node of the first stage."""
    low: Floats
    high: Floats
    """Bounds on all nodes."""
    outputs: Ints
    """The nodes of the chosen logits."""


def reduce(circuit: Circuit, low: Floats, high: Floats, classes: Sequence[int]) -> Reduced:
    """Return the part of a circuit on which the logits of some classes depend, given bounds on all nodes.

    A connection of a maximum whose largest value is not above the smallest value of the maximum cannot change it, so it
    is left out; the connection that attains the smallest value remains.
    """
    needed = np.zeros(circuit.nodes, dtype=bool)
    outputs = circuit.outputs.numpy()[list(classes)]
    needed[outputs] = True
    parts: list[tuple[Kind, Ints, Ints, Ints, Floats]] = []  # kind, nodes, connections of each, index, weight
    for stage in reversed(circuit.stages):
        rows = np.flatnonzero(needed[stage.start : stage.start + stage.size])
        if not len(rows):
            continue
        counts, index, weight = _relevant(stage, rows, low, high)
        needed[index] = True
        parts.append((stage.kind, rows + stage.start, counts, index, weight))
    pixels = np.flatnonzero(needed[: circuit.pixels])
    none = np.zeros(0, dtype=np.int64)
    parts.append((Kind.LEAF, pixels, np.zeros(len(pixels), dtype=np.int64), none, none.astype(np.float32)))
    parts.reverse()
    kinds, nodes, counts, index, weight = zip(*parts, strict=True)
    chosen = np.concatenate(nodes)
    number = np.full(circuit.nodes, -1, dtype=np.int64)
    number[chosen] = np.arange(len(chosen))
    return Reduced(
        kinds=kinds,
        starts=np.cumsum([0, *map(len, nodes)]),
        offsets=np.concatenate([[0], np.cumsum(np.concatenate(counts))]),
        index=number[np.concatenate(index)],
        weight=np.concatenate(weight),
        pixels=pixels,
        low=low[chosen],
        high=high[chosen],
        outputs=number[outputs],
    )


def _relevant(stage: Stage, rows: Ints, low: Floats, high: Floats) -> tuple[Ints, Ints, Floats]:
    """Return for some nodes of a stage the number of connections that matter, and their inputs and weights."""
    inputs, weights = stage.index.numpy(), stage.weight.numpy()
    if stage.kind is Kind.LEAF:
        return np.zeros(len(rows), dtype=np.int64), inputs[:0], weights[:0]
    if stage.offsets is None:
        least = low[stage.start + rows][:, None]
        nearest, farthest = _literals(stage.kind, low[inputs], high[inputs], weights[rows])
        row, column = np.nonzero((farthest > least) | (nearest >= least))
        return np.bincount(row, minlength=len(rows)), inputs[column], weights[rows[row], column]
    offsets = stage.offsets.numpy()
    counts = offsets[rows + 1] - offsets[rows]
    ends = np.cumsum(counts)
    chosen = np.arange(ends[-1]) + np.repeat(offsets[rows] - ends + counts, counts)
    index, weight = inputs[chosen], weights[chosen]
    if stage.kind not in (Kind.DISTANCE, Kind.MAXIMUM):
        return counts, index, weight
    row = np.repeat(np.arange(len(rows)), counts)
    least = low[stage.start + rows][row]
    nearest, farthest = _literals(stage.kind, low[index], high[index], weight)
    kept = (farthest > least) | (nearest >= least)
    return np.bincount(row[kept], minlength=len(rows)), index[kept], weight[kept]


def _literals(kind: Kind, low: Floats, high: Floats, weight: Floats) -> tuple[Floats, Floats]:
    """Return the smallest and the largest value of connections with inputs between `low` and `high`."""
    if kind is Kind.MAXIMUM:
        return low, high
    below, above = low - weight, high - weight
    return np.maximum(np.maximum(below, -above), 0), np.maximum(np.abs(below), np.abs(above))
