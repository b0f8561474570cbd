"""The program of a module as a list of operations: traced by torch.fx, run as it is, bounded, and measured."""

import copy
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self, TypeVar, cast

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate, map_arg

from linfnet.errors import ArgumentError
from linfnet.nn.nonexpansive import Nonexpansive, Rounding
from linfnet.nn.operations import (
    FUNCTIONS,
    METHODS,
    MODULES,
    Call,
    Operation,
    average_bounds,
    average_sizes,
    check_module,
)
from linfnet.nn.tracing import first_line, is_leaf, state_of, trace
from linfnet.nn.unchanged import RefusedError, check_layer, overridden

# What may be computed from constants, such as the sizes of a tensor: nothing random, nothing that changes a tensor.
_ARITHMETIC = (operator.add, operator.sub, operator.mul, operator.floordiv, operator.truediv, operator.neg, torch.neg)
_CONSTANT_FUNCTIONS: set[Any] = {getattr, operator.getitem, *_ARITHMETIC}
_CONSTANT_METHODS = {"size", "dim", "view", "reshape", "flatten", "unsqueeze", "abs", "neg"}


@dataclass(frozen=True)
class Interval:
    """Bounds on a tensor that depends on the images."""

    low: Tensor
    high: Tensor


@dataclass(frozen=True)
class Measured:
    """A tensor that depends on the images, and the rounded steps that led to it."""

    value: Tensor
    rounding: Rounding


Flow = Interval | Measured
F = TypeVar("F", Interval, Measured)


class Batch(int):
    """The number of samples. Results must not depend on it, so it may only be the first size of view and reshape."""


class Program:
    """The operations of a module in eval mode, as torch.fx traced them.

    Args:
        body: a module with one input; its modules must be in eval mode.
    """

    def __init__(self, body: nn.Module) -> None:
        self.body = nn.Sequential(body) if is_leaf(body) else body  # torch.fx does not trace a single layer
        self.graph = trace(self.body)
        code = self.graph.python_code("self")
        scope: dict[str, Any] = dict(code.globals)
        exec(code.src, scope)  # the function that torch.fx generated from the graph
        self._run = cast(Callable[[nn.Module, Tensor], Tensor], scope["forward"])
        self._traced = state_of(self.body)

    def of(self, body: nn.Module) -> Self:
        """Return the same operations for a copy of the body."""
        program = copy.copy(self)
        program.body = nn.Sequential(body) if is_leaf(body) else body
        program._traced = state_of(program.body)
        return program

    def is_current(self) -> bool:
        """Return whether the modules of the body and their attributes are those that were traced."""
        return state_of(self.body) == self._traced

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the names and tensors of all parameters and buffers that the operations use."""
        for node in self.graph.nodes:
            if node.op == "get_attr":
                yield str(node.target), operator.attrgetter(str(node.target))(self.body)
            if node.op == "call_module":
                module = self.body.get_submodule(str(node.target))
                yield from module.named_parameters(str(node.target))
                yield from module.named_buffers(str(node.target))

    def __call__(self, x: Tensor) -> Tensor:
        """Run the traced operations."""
        return self._run(self.body, x)

    def bounds(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Return bounds on the computed output over a box of inputs."""
        found = self._interpret(Interval(lower, upper))
        return found.low, found.high

    def measure(self, x: Tensor) -> tuple[Tensor, Rounding]:
        """Return the output and the rounded steps that led to it."""
        found = self._interpret(Measured(x, Rounding()))
        return found.value, found.rounding

    def _interpret(self, start: F) -> F:
        known: dict[fx.Node, Any] = {}
        batch, dtype = len(_shown(start)), _shown(start).dtype
        for node in self.graph.nodes:
            if node.op == "placeholder":
                known[node] = start if not known else node.args[0]
                continue
            arguments = map_arg(node.args, known.__getitem__)
            if node.op == "output":
                if not isinstance(arguments[0], type(start)):
                    raise ArgumentError("body returns something else than one tensor that depends on the images")
                return cast(F, arguments[0])
            try:
                known[node] = result = self._apply(node, arguments, map_arg(node.kwargs, known.__getitem__))
                if isinstance(result, Interval | Measured):
                    shown = _shown(result)
                    if not shown.dim() or len(shown) != batch or shown.dtype != dtype:
                        raise RefusedError(
                            f"its result has shape {tuple(shown.shape)} and {shown.dtype} for {batch} samples"
                        )
            except RefusedError as reason:
                raise ArgumentError(f"body contains {self._name(node)}, which cannot be certified: {reason}") from None
            except Exception as error:
                reason = first_line(error)
                raise ArgumentError(f"body contains {self._name(node)}, which raises an error: {reason}") from error
        raise AssertionError("a graph has an output")

    def _apply(self, node: fx.Node, arguments: Any, options: Any) -> Any:
        flows, batches = _find((arguments, options), (Interval, Measured)), _find((arguments, options), (Batch,))
        if node.op == "get_attr":
            return operator.attrgetter(str(node.target))(self.body)
        if node.op == "call_module":
            module = self.body.get_submodule(str(node.target))
            if len(flows) != 1 or len(arguments) != 1 or options:
                raise RefusedError("expected one input")
            return _apply_module(module, flows[0])
        method = node.op == "call_method"
        run: Callable[..., Any] = getattr(torch.Tensor, str(node.target)) if method else cast(Any, node.target)
        if not flows and not (node.target in _CONSTANT_METHODS if method else node.target in _CONSTANT_FUNCTIONS):
            raise RefusedError("it computes a constant in an unknown way; compute it in __init__ and register a buffer")
        if batches and not _may_use_batch(node, arguments, len(batches)):
            raise RefusedError(
                "its constant depends on the number of samples; expected x.size(0) only as the first size of view or "
                "reshape"
            )
        if not flows:
            return run(*arguments, **options)
        if (node.target == "size" or node.target == "dim") if method else node.target is getattr:
            name = (str(node.target),) if method else ()
            return _size(_shown(flows[0]), *name, *arguments[1:], **options)
        known = METHODS.get(str(node.target)) if method else FUNCTIONS.get(cast(Any, node.target))
        if known is None:
            raise RefusedError(_UNKNOWN)
        return _apply_operation(known, run, arguments, options, flows)

    def _name(self, node: fx.Node) -> str:
        if node.op == "call_module":
            module = self.body.get_submodule(str(node.target))
            return f"{type(module).__name__} ({node.target!r})"
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
        return f"the operation {name!r} (node {node.name!r} of its graph)"


_UNKNOWN = (
    "it is not known to be 1-Lipschitz with bounded rounding errors; use distance layers, or a subclass of "
    "linfnet.nn.Nonexpansive"
)


def _shown(flow: Flow) -> Tensor:
    return flow.low if isinstance(flow, Interval) else flow.value


def _find(values: Any, kinds: tuple[type, ...]) -> list[Any]:
    found: list[Any] = []
    map_aggregate(values, lambda value: found.append(value) if isinstance(value, kinds) else None)
    return found


def _pick(values: Any, end: Callable[[Flow], Tensor]) -> Any:
    def pick(value: Any) -> Any:
        return end(value) if isinstance(value, Interval | Measured) else value

    return map_aggregate(values, pick)


def _apply_operation(
    known: Operation, run: Callable[..., Any], arguments: Any, options: Any, flows: list[Flow]
) -> Flow:
    call = Call(_pick(arguments, _shown), _pick(options, _shown), tuple(map(_shown, flows)))
    if "out" in options:
        raise RefusedError("it writes into another tensor; expected no option out")
    known.check(call)
    first = flows[0]
    if isinstance(first, Measured):
        output = run(*call.arguments, **call.options)
        rounding = Rounding.join(cast(Measured, flow).rounding for flow in flows)
        return Measured(output, rounding.then(known.sizes(output)))
    if known.bounds is not None:
        return Interval(*known.bounds(first.low, first.high))
    low = run(*call.arguments, **call.options)
    high = run(*_pick(arguments, _high), **_pick(options, _high))
    return Interval(high, low) if known.decreasing(call) else Interval(low, high)


def _high(flow: Flow) -> Tensor:
    return cast(Interval, flow).high


def _size(x: Tensor, name: str, dim: Any = None) -> Any:
    """Return x.size(), x.size(dim), x.shape, x.dim() or x.ndim, with the number of samples marked."""
    sizes = (Batch(len(x)), *x.shape[1:])
    if name not in ("size", "shape", "dim", "ndim"):
        raise RefusedError(f"the attribute {name!r} of a tensor is not known")
    if name in ("dim", "ndim"):
        return len(sizes)
    return sizes if dim is None else sizes[dim]


def _may_use_batch(node: fx.Node, arguments: Any, count: int) -> bool:
    if node.target is operator.getitem:  # x.shape[0], x.shape[1:]
        return isinstance(arguments[0], tuple) and isinstance(arguments[1], int | slice)
    if node.target not in ("view", "reshape", torch.reshape) or len(arguments) < 2:
        return False
    first = arguments[1][0] if isinstance(arguments[1], tuple | list) else arguments[1]
    return isinstance(first, Batch) and count == 1


def _apply_module(module: nn.Module, flow: Flow) -> Flow:
    x = _shown(flow)
    kind = next((known for known in type(module).__mro__ if known is Nonexpansive or known in MODULES), None)
    if kind is None:
        raise RefusedError(_UNKNOWN)
    if kind in MODULES and (changed := overridden(type(module), kind)):
        raise RefusedError(f"it overrides {changed} of {kind.__name__}")
    if x.dim() < 2:
        raise RefusedError(f"its input has shape {tuple(x.shape)}; expected [B, features]")
    if kind is Nonexpansive:
        own = cast(Nonexpansive, module)
        check_layer(own)
        if isinstance(flow, Interval):
            return Interval(*own.bounds(flow.low, flow.high))
        output, sizes = own.measure(flow.value)
        return Measured(output, flow.rounding.then(sizes))
    if kind is nn.AvgPool2d:
        pool = cast(nn.AvgPool2d, module)
        if isinstance(flow, Interval):
            return Interval(*average_bounds(pool, flow.low, flow.high))
        return Measured(pool(flow.value), flow.rounding.then(average_sizes(pool, flow.value)))
    check_module(module, x)
    return _apply_operation(MODULES[kind], module, (flow,), {}, [flow])
