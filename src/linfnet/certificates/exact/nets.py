"""The circuits of the nets of this library."""

import math
from typing import cast

import torch

from linfnet.certificates.exact.circuit import Circuit, Kind
from linfnet.certificates.exact.wrapped import add_body, add_convolution, add_layer
from linfnet.errors import ArgumentError
from linfnet.nn import ConvStemNet, LinfNet, LpDistanceConv2d, ProvenNet, SparseNet, WrappedNet


@torch.no_grad()
def circuit_of(net: ProvenNet) -> Circuit:
    """Return the circuit of a net of float32 at p = inf in eval mode."""
    circuit = Circuit(math.prod(net.image_shape))
    nodes = circuit.normalized(net.normalize, net.image_shape)
    if isinstance(net, WrappedNet):
        circuit.outputs = add_body(circuit, net, nodes)
        _check_same(circuit, net)
        divisions = [stage for stage in circuit.stages if stage.kind is Kind.DIVIDE]
        if len(divisions) > 1 and net.normalize.std.device.type != "cpu":  # the first one is the normalisation
            raise ArgumentError("body divides by a number, which a GPU may round differently; expected a net on a CPU")
    elif isinstance(net, LinfNet | SparseNet | ConvStemNet):
        stem = None if isinstance(net, LinfNet) else net.stem
        for layer in cast(list[LpDistanceConv2d], [*(stem or ())]):
            nodes = add_convolution(circuit, layer, nodes.unsqueeze(0))[0]
        nodes = nodes.flatten()
        for layer in net.layers:
            nodes = add_layer(circuit, layer, nodes)
        circuit.outputs = circuit.unary(Kind.NEGATE, nodes) if net.negate_logits else nodes
    else:
        raise ArgumentError(
            f"the net is a {type(net).__name__}; expected a LinfNet, a ConvStemNet, a SparseNet or a wrapped net"
        )
    return circuit


def _check_same(circuit: Circuit, net: ProvenNet) -> None:
    """Raise an error if the circuit does not compute the bits of the net on this device."""
    pixels = torch.arange(7 * circuit.pixels) * 0.618 % 1  # numbers in no order
    images = pixels.view(7, -1)
    logits = circuit.bounds(images, images)[0][:, circuit.outputs]
    expected = net(images.view(7, *net.image_shape).to(net.normalize.std.device)).cpu()
    if not torch.equal(logits, expected):
        raise ArgumentError("body computes other bits than its rules, so method 'exact' cannot decide it; use interval")
