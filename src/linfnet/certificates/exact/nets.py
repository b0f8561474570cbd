"""The circuits of the nets of this library."""

import math

from torch import Tensor

from linfnet.certificates.exact.circuit import Circuit, Kind
from linfnet.errors import ArgumentError
from linfnet.nn import LinfNet, LpDistance, ProvenNet, SparseDistance, SparseNet


def circuit_of(net: ProvenNet) -> Circuit:
    """Return the circuit of a net of float32 at p = inf in eval mode."""
    if not isinstance(net, LinfNet | SparseNet):
        raise ArgumentError(f"the net is a {type(net).__name__}; expected a LinfNet or a SparseNet")
    circuit = Circuit(math.prod(net.image_shape))
    nodes = circuit.normalized(net.normalize, net.image_shape).flatten()
    for layer in net.layers:
        nodes = add_layer(circuit, layer, nodes)
    circuit.outputs = circuit.unary(Kind.NEGATE, nodes) if net.negate_logits else nodes
    return circuit


def add_layer(circuit: Circuit, layer: object, nodes: Tensor) -> Tensor:
    """Add a fully connected distance layer, dense or sparse, on nodes [inputs]."""
    if isinstance(layer, LpDistance):
        return circuit.finish(layer, circuit.distance(nodes, layer.weight))
    assert isinstance(layer, SparseDistance)
    index = nodes[layer.index.long().cpu()]
    return circuit.finish(layer, circuit.connected(Kind.DISTANCE, index, layer.weight, layer.offsets))
