"""The circuit of a wrapped net: its traced operations, applied to the numbers of nodes instead of features.

An operation that only moves features runs on the numbers of their nodes; every other one adds stages to the circuit.
"""

import builtins
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate, map_arg

from linfnet.certificates.exact.circuit import Circuit, Kind
from linfnet.errors import ArgumentError
from linfnet.nn import LpDistance, LpDistanceConv2d, MeanShift, SparseDistance, WrappedNet
from linfnet.nn.normalization import along
from linfnet.nn.program import Program


@dataclass(frozen=True)
class Nodes:
    """A tensor that depends on the image, as the numbers of its nodes: int64 [1, ...]."""

    ids: Tensor


class NoRuleError(Exception):
    """The exact method has no rule for an operation."""


def add_body(circuit: Circuit, net: WrappedNet, start: Tensor) -> Tensor:
    """Add the operations of the body of a net to a circuit; return the nodes of the logits."""
    program, known = net.program(), dict[fx.Node, Any]()
    body = _Body(circuit, program)
    for node in program.graph.nodes:
        if node.op == "placeholder":
            known[node] = Nodes(start.unsqueeze(0)) if not known else node.args[0]
            continue
        arguments, options = (map_arg(part, known.__getitem__) for part in (node.args, node.kwargs))
        if node.op == "output":
            return cast(Nodes, arguments[0]).ids[0]
        try:
            known[node] = body.apply(node, arguments, options)
        except NoRuleError as reason:
            name = program._name(node)  # pyright: ignore[reportPrivateUsage]
            raise ArgumentError(f"body contains {name}, which method 'exact' cannot decide: {reason}") from None
    raise AssertionError("a graph has an output")


class _Body:
    def __init__(self, circuit: Circuit, program: Program) -> None:
        self.circuit, self.body = circuit, program.body

    def apply(self, node: fx.Node, arguments: Any, options: Any) -> Any:
        """Return the result of an operation: nodes, or a constant."""
        if node.op == "get_attr":
            return operator.attrgetter(str(node.target))(self.body)
        if node.op == "call_module":
            return Nodes(self._module(self.body.get_submodule(str(node.target)), arguments[0].ids))
        method = node.op == "call_method"
        run: Callable[..., Any] = getattr(torch.Tensor, str(node.target)) if method else cast(Any, node.target)
        if not _holds_nodes((arguments, options)):
            return run(*arguments, **options)
        name = str(node.target) if method else _NAMES.get(cast(Any, node.target), "")
        if name in _MOVES or node.target is getattr:
            found = run(*_ids(arguments), **_ids(options))
            return Nodes(found) if isinstance(found, Tensor) else found
        rule = _RULES.get(name)
        if rule is None:
            raise NoRuleError("it has no rule")
        return Nodes(rule(self.circuit, *arguments, **options))

    def _module(self, module: nn.Module, ids: Tensor) -> Tensor:
        circuit = self.circuit
        if type(module) in (LpDistance, SparseDistance):
            rows = [add_layer(circuit, module, row) for row in ids.reshape(-1, ids.shape[-1])]
            return torch.stack(rows).view(*ids.shape[:-1], -1)
        if type(module) is LpDistanceConv2d:
            return add_convolution(circuit, module, ids)
        if type(module) is MeanShift:
            means = along(module.running_mean, module.dim, ids).expand(ids.shape)
            return _unary(circuit, Kind.SUBTRACT, ids, means)
        if isinstance(module, nn.Flatten | nn.Unflatten):
            return module(ids)
        if isinstance(module, nn.Identity | nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d | nn.AlphaDropout):
            return ids
        if isinstance(module, nn.ReLU):
            return _unary(circuit, Kind.AT_LEAST, ids, 0.0)
        if isinstance(module, nn.Hardtanh):  # also ReLU6
            return _clamp(circuit, Nodes(ids), module.min_val, module.max_val)
        if isinstance(module, nn.MaxPool2d):
            sizes = (module.kernel_size, module.stride, module.padding, module.dilation)
            return _max_pool(circuit, Nodes(ids), *sizes, ceil_mode=module.ceil_mode)
        raise NoRuleError("it has no rule")


def add_layer(circuit: Circuit, layer: object, nodes: Tensor) -> Tensor:
    """Add a fully connected distance layer, dense or sparse, on nodes [inputs]."""
    if isinstance(layer, LpDistance):
        return circuit.finish(layer, circuit.distance(nodes, layer.weight))
    assert isinstance(layer, SparseDistance)
    index = nodes[layer.index.long().cpu()]
    return circuit.finish(layer, circuit.connected(Kind.DISTANCE, index, layer.weight, layer.offsets))


def add_convolution(circuit: Circuit, layer: LpDistanceConv2d, ids: Tensor) -> Tensor:
    """Add a convolutional distance layer on nodes [1, C, H, W]."""
    zero = circuit.constants(torch.zeros(1)) if layer.padding else ids.flatten()[:1]
    # Numbers of nodes are exact in float64. Outside of the image, unfold has zeros.
    columns = F.unfold(ids.double() + 1, layer.kernel_size, padding=layer.padding, stride=layer.stride)[0].long() - 1
    groups = torch.where(columns < 0, zero, columns).t().unflatten(1, (layer.groups, -1)).unbind(1)
    found: list[Tensor] = []
    for patches, weight in zip(groups, layer.weight.chunk(layer.groups), strict=True):
        found.append(torch.stack([circuit.distance(patch, weight) for patch in patches], 1))
    rows, width = ((size + 2 * layer.padding - layer.kernel_size) // layer.stride + 1 for size in ids.shape[2:])
    return circuit.finish(layer, torch.cat(found).view(-1, rows, width)).unsqueeze(0)


def _holds_nodes(values: Any) -> bool:
    found: list[bool] = []
    map_aggregate(values, lambda value: found.append(True) if isinstance(value, Nodes) else None)
    return bool(found)


def _ids(values: Any) -> Any:
    return map_aggregate(values, lambda value: value.ids if isinstance(value, Nodes) else value)


def _unary(circuit: Circuit, kind: Kind, ids: Tensor, weight: Tensor | float = 0.0) -> Tensor:
    """Add a stage of one node for each pair of an input and a weight, which are broadcast."""
    weights = torch.as_tensor(weight, dtype=torch.float32).detach().cpu()
    inputs, weights = torch.broadcast_tensors(ids, weights)
    return circuit.unary(kind, inputs.flatten(), weights.flatten()).view(inputs.shape)


def _add(circuit: Circuit, a: Any, b: Any) -> Tensor:
    nodes, other = (a, b) if isinstance(a, Nodes) else (b, a)
    return _unary(circuit, Kind.SUBTRACT, nodes.ids, -_constant(other))  # fl(z + b) = fl(z - (-b))


def _subtract(circuit: Circuit, a: Any, b: Any) -> Tensor:
    if isinstance(a, Nodes):
        return _unary(circuit, Kind.SUBTRACT, a.ids, _constant(b))
    return _negate(circuit, Nodes(_unary(circuit, Kind.SUBTRACT, b.ids, _constant(a))))


def _multiply(circuit: Circuit, a: Any, b: Any) -> Tensor:
    nodes, other = (a, b) if isinstance(a, Nodes) else (b, a)
    return _signed(circuit, Kind.MULTIPLY, nodes.ids, float(other))


def _divide(circuit: Circuit, a: Nodes, b: float) -> Tensor:
    return _signed(circuit, Kind.DIVIDE, a.ids, float(b))


def _signed(circuit: Circuit, kind: Kind, ids: Tensor, factor: float) -> Tensor:
    scaled = _unary(circuit, kind, ids, abs(factor))
    return _negate(circuit, Nodes(scaled)) if factor < 0 else scaled


def _negate(circuit: Circuit, x: Nodes) -> Tensor:
    return _unary(circuit, Kind.NEGATE, x.ids)


def _absolute(circuit: Circuit, x: Nodes) -> Tensor:
    """|z| is the distance of z from 0."""
    flat = x.ids.flatten()
    return circuit.connected(Kind.DISTANCE, flat, None, torch.arange(len(flat) + 1)).view(x.ids.shape)


def _relu(circuit: Circuit, x: Nodes, inplace: bool = False) -> Tensor:
    return _unary(circuit, Kind.AT_LEAST, x.ids, 0.0)


def _clamp(circuit: Circuit, x: Nodes, *limits: Any, **options: Any) -> Tensor:
    """min(max(x, low), high); the limits are positional or called min and max."""
    low, high = (*limits, *(None,) * (2 - len(limits)))
    ids = x.ids
    for kind, limit in ((Kind.AT_LEAST, options.get("min", low)), (Kind.AT_MOST, options.get("max", high))):
        ids = ids if limit is None else _unary(circuit, kind, ids, _constant(limit))
    return ids


def _clamp_max(circuit: Circuit, x: Nodes, *limit: Any, **options: Any) -> Tensor:
    return _clamp(circuit, x, None, *limit, **options)


def _relu6(circuit: Circuit, x: Nodes, inplace: bool = False) -> Tensor:
    return _clamp(circuit, x, 0.0, 6.0)


def _hardtanh(circuit: Circuit, x: Nodes, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    return _clamp(circuit, x, min_val, max_val)


def _maximum(circuit: Circuit, a: Any, b: Any) -> Tensor:
    if isinstance(a, Nodes) and isinstance(b, Nodes):
        one, two = torch.broadcast_tensors(a.ids, b.ids)
        return circuit.maximum(torch.stack([one.flatten(), two.flatten()], 1)).view(one.shape)
    nodes, other = (a, b) if isinstance(a, Nodes) else (b, a)
    return _unary(circuit, Kind.AT_LEAST, nodes.ids, _constant(other))


def _minimum(circuit: Circuit, a: Any, b: Any) -> Tensor:
    """min(a, b) = -max(-a, -b)."""
    one, two = (Nodes(_negate(circuit, x)) if isinstance(x, Nodes) else -_constant(x) for x in (a, b))
    return _negate(circuit, Nodes(_maximum(circuit, one, two)))


def _amax(circuit: Circuit, x: Nodes, dim: Any = (), keepdim: bool = False) -> Tensor:
    dims = sorted(d % x.ids.dim() for d in (dim if isinstance(dim, tuple | list) else (dim,)))
    others = [d for d in range(x.ids.dim()) if d not in dims]
    shape = [x.ids.shape[d] for d in others]
    found = circuit.maximum(x.ids.permute(*others, *dims).reshape(-1, _size(x.ids, dims))).view(shape)
    for d in dims if keepdim else ():
        found = found.unsqueeze(d)
    return found


def _amin(circuit: Circuit, x: Nodes, dim: Any = (), keepdim: bool = False) -> Tensor:
    return _negate(circuit, Nodes(_amax(circuit, Nodes(_negate(circuit, x)), dim, keepdim)))


def _size(ids: Tensor, dims: list[int]) -> int:
    total = 1
    for d in dims:
        total *= ids.shape[d]
    return total


def _pad(circuit: Circuit, x: Nodes, pad: Any, mode: str = "constant", value: float | None = None) -> Tensor:
    if mode != "constant":
        return F.pad(x.ids.double(), pad, mode=mode).long()  # the numbers are exact in float64
    fill = int(circuit.constants(torch.tensor([float(value or 0.0)])))
    return F.pad(x.ids, pad, value=fill)


def _max_pool(
    circuit: Circuit,
    x: Nodes,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor:
    if ceil_mode or x.ids.dim() != 4:
        raise NoRuleError("expected an input [B, C, H, W] and ceil_mode=False")
    size, step, edge, gap = (
        (value, value) if isinstance(value, int) else tuple(value)
        for value in (kernel_size, stride or kernel_size, padding, dilation)
    )
    channels = x.ids[0].unsqueeze(1).double() + 1
    windows = F.unfold(channels, size, dilation=gap, padding=edge, stride=step).long() - 1  # [C, window, positions]
    windows = windows.transpose(1, 2).reshape(-1, windows.shape[1])
    # Pixels outside of the image do not count: they are replaced by a pixel of the window that is inside.
    windows = torch.where(windows < 0, windows.amax(1, keepdim=True), windows)
    rows, columns = ((x.ids.shape[2 + d] + 2 * edge[d] - gap[d] * (size[d] - 1) - 1) // step[d] + 1 for d in (0, 1))
    return circuit.maximum(windows).view(1, -1, rows, columns)


def _same(circuit: Circuit, x: Nodes, *arguments: Any, **options: Any) -> Tensor:
    return x.ids


def _constant(value: Any) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float32).detach().cpu()


# Operations that move features: they run on the numbers of the nodes.
_MOVES = {
    *("flatten", "reshape", "view", "unflatten", "squeeze", "unsqueeze", "transpose", "permute", "contiguous", "clone"),
    *("getitem", "cat", "concat", "stack", "size", "dim"),
}

_RULES: dict[str, Callable[..., Tensor]] = {
    "add": _add, "sub": _subtract, "mul": _multiply, "div": _divide, "neg": _negate, "abs": _absolute,
    "relu": _relu, "relu6": _relu6, "hardtanh": _hardtanh, "clamp": _clamp, "clip": _clamp,
    "clamp_min": _clamp, "clamp_max": _clamp_max,
    "maximum": _maximum, "minimum": _minimum, "max": _maximum, "min": _minimum, "amax": _amax, "amin": _amin,
    "pad": _pad, "max_pool2d": _max_pool, "dropout": _same, "float": _same,
}  # fmt: skip

_NAMES: dict[Any, str] = {
    **{getattr(torch, name): name for name in (*_RULES, *_MOVES) if hasattr(torch, name)},
    operator.neg: "neg", operator.add: "add", operator.sub: "sub", operator.mul: "mul", operator.truediv: "div",
    operator.getitem: "getitem", builtins.abs: "abs", operator.abs: "abs", F.relu: "relu", F.relu6: "relu6",
    F.hardtanh: "hardtanh", F.dropout: "dropout", F.pad: "pad", cast(Any, F.max_pool2d): "max_pool2d",
}  # fmt: skip
