"""A net as a circuit: every number that the float32 program computes for an image, and what it is computed from.

The nodes are numbered in the order of the computation: first the pixels, then stage after stage. A node of a stage is a
maximum over its connections, or a monotone function of one earlier node:

    DISTANCE   max |fl(z - w)|        MAXIMUM   max z
    SUBTRACT   fl(z - w)              DIVIDE    fl(z / w), w > 0      MULTIPLY   fl(z * w), w > 0
    AT_LEAST   max(z, w)              AT_MOST   min(z, w)             NEGATE     -z

The node computes the same bits as the program. Constants are nodes without connections.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import torch
from torch import Tensor

from linfnet.nn.distance import DistanceModule
from linfnet.nn.normalization import Normalize
from linfnet.ops import linf_distance_bounds, sparse_linf_bounds


class Kind(IntEnum):
    """What the nodes of a stage compute; the numbers are those of csrc/search.cpp."""

    LEAF = 0
    DISTANCE = 1
    MAXIMUM = 2
    SUBTRACT = 3
    DIVIDE = 4
    MULTIPLY = 5
    AT_LEAST = 6
    AT_MOST = 7
    NEGATE = 8


@dataclass(frozen=True)
class Stage:
    """Nodes `start` to `start + size - 1`, which are all of one kind.

    With `offsets`, connection c from offsets[o] to offsets[o + 1] - 1 leads from node `start + o` to the earlier node
    index[c] and has the weight weight[c]. Without, node `start + o` has a connection with the weight weight[o, i] to
    every node index[i]: a dense layer.
    """

    kind: Kind
    start: int
    size: int
    index: Tensor
    """int64."""
    weight: Tensor
    """float32 [connections] or [size, inputs]; of a constant its value; zeros where the kind has no weight."""
    offsets: Tensor | None
    """int64 [size + 1], or None."""

    def bounds(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Return bounds [B, size] on the nodes, given bounds [B, start] on all earlier nodes."""
        if self.kind is Kind.LEAF:
            values = self.weight.expand(len(lower), -1)
            return values, values
        first = int(self.index.min())  # read only the nodes from the first input on
        low, high, index = lower[:, first:], upper[:, first:], self.index - first
        if self.kind is Kind.DISTANCE and self.offsets is not None:
            return sparse_linf_bounds(low, high, self.weight, index.int(), self.offsets.int())
        low, high = low[:, index], high[:, index]
        if self.kind is Kind.DISTANCE:
            return linf_distance_bounds(low, high, self.weight)
        if self.kind is Kind.MAXIMUM:
            return _segment_max(low, self.offsets), _segment_max(high, self.offsets)
        if self.kind is Kind.NEGATE:
            return -high, -low
        function = FUNCTIONS[self.kind]
        return function(low, self.weight), function(high, self.weight)


FUNCTIONS = {
    Kind.SUBTRACT: torch.sub,
    Kind.DIVIDE: torch.div,
    Kind.MULTIPLY: torch.mul,
    Kind.AT_LEAST: torch.maximum,
    Kind.AT_MOST: torch.minimum,
}


def _segment_max(values: Tensor, offsets: Tensor | None) -> Tensor:
    assert offsets is not None
    return torch.segment_reduce(values.t().contiguous(), "max", offsets=offsets, axis=0).t()


@dataclass
class Circuit:
    """The nodes of a net, built stage by stage; every method that adds a stage returns the numbers of its nodes."""

    pixels: int
    stages: list[Stage] = field(default_factory=list[Stage])
    outputs: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    """The nodes of the logits."""

    @property
    def nodes(self) -> int:
        return self.stages[-1].start + self.stages[-1].size if self.stages else self.pixels

    def constants(self, values: Tensor) -> Tensor:
        """Add nodes with fixed values [n]."""
        empty = torch.zeros(0, dtype=torch.int64)
        return self._add(Kind.LEAF, len(values), empty, values, torch.zeros(len(values) + 1, dtype=torch.int64))

    def unary(self, kind: Kind, inputs: Tensor, weight: Tensor | float = 0.0) -> Tensor:
        """Add a node for each input [n], with one weight each or one for all."""
        weights = torch.as_tensor(weight, dtype=torch.float32).cpu().expand(len(inputs)).contiguous()
        return self._add(kind, len(inputs), inputs, weights, torch.arange(len(inputs) + 1))

    def distance(self, inputs: Tensor, weight: Tensor) -> Tensor:
        """Add a dense distance layer with weights [outputs, inputs]."""
        return self._add(Kind.DISTANCE, len(weight), inputs, weight.detach(), None)

    def connected(self, kind: Kind, index: Tensor, weight: Tensor | None, offsets: Tensor) -> Tensor:
        """Add nodes with several connections each; `index` contains node numbers."""
        weights = torch.zeros(len(index)) if weight is None else weight.detach()
        return self._add(kind, len(offsets) - 1, index.long(), weights, offsets.long())

    def maximum(self, inputs: Tensor) -> Tensor:
        """Add a node for each row of inputs [n, k]: the largest of the k nodes."""
        rows, width = inputs.shape
        return self.connected(Kind.MAXIMUM, inputs.flatten(), None, torch.arange(rows + 1) * width)

    def finish(self, layer: DistanceModule, nodes: Tensor) -> Tensor:
        """Add the mean shift and the bias of a distance layer; `nodes` has the shape of its output for one image."""
        layer.check_vectors()
        for vector, negate in ((None if layer.shift is None else layer.shift.running_mean, 1), (layer.bias, -1)):
            if vector is not None:  # fl(z + b) = fl(z - (-b))
                values = negate * vector.detach()
                values = values.view(-1, *[1] * (nodes.dim() - 1)) if layer.dim == 1 else values
                weights = values.expand(nodes.shape).flatten()
                nodes = self.unary(Kind.SUBTRACT, nodes.flatten(), weights).view(nodes.shape)
        return nodes

    def normalized(self, normalize: Normalize, shape: Sequence[int]) -> Tensor:
        """Add the normalisation of the pixels; return the nodes in the shape of an image."""
        means = normalize.mean.view(-1, *[1] * (normalize.dims - 1)).expand(tuple(shape)).flatten()
        shifted = self.unary(Kind.SUBTRACT, torch.arange(self.pixels), means)
        return self.unary(Kind.DIVIDE, shifted, normalize.std).view(tuple(shape))

    def _add(self, kind: Kind, size: int, index: Tensor, weight: Tensor, offsets: Tensor | None) -> Tensor:
        start = self.nodes
        ends = None if offsets is None else offsets.cpu()
        self.stages.append(Stage(kind, start, size, index.cpu(), weight.detach().cpu(), ends))
        return torch.arange(start, start + size)

    @torch.no_grad()
    def bounds(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Return bounds [B, nodes] on all nodes for boxes of images [B, pixels], as `net.bounds` computes them."""
        low, high = (end.new_empty(len(end), self.nodes) for end in (lower, upper))
        low[:, : self.pixels], high[:, : self.pixels] = lower, upper
        for stage in self.stages:
            own = slice(stage.start, stage.start + stage.size)
            low[:, own], high[:, own] = stage.bounds(low[:, : stage.start], high[:, : stage.start])
        return low, high
