"""The program of a module as a list of operations: traced by torch.fx, run as it is, bounded, and measured."""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate, map_arg

from linfnet.errors import ArgumentError
from linfnet.nn.distance import LpDistance, LpDistanceConv2d
from linfnet.nn.nonexpansive import Nonexpansive, Rounding
from linfnet.nn.normalization import MeanShift
from linfnet.nn.operations import (
    FUNCTIONS,
    METHODS,
    MODULES,
    Call,
    Operation,
    RefusedError,
    average_bounds,
    average_sizes,
    check_module,
)
from linfnet.nn.sparse import SparseDistance

# What may be computed from constants, such as the sizes of a tensor: nothing random, nothing that changes a tensor.
_ARITHMETIC = (operator.add, operator.sub, operator.mul, operator.floordiv, operator.truediv, operator.neg, torch.neg)
_CONSTANT_FUNCTIONS: set[Any] = {getattr, operator.getitem, *_ARITHMETIC}
_CONSTANT_METHODS = {"size", "dim", "view", "reshape", "flatten", "unsqueeze", "abs", "neg"}
_SIZES = {"shape", "ndim"}
# Attributes of every module, which do not change what is traced, and types that are compared by value.
_INTERNAL = frozenset(vars(nn.Module()))
_PLAIN = (int, float, str, tuple, list, dict, set)


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


def _is_leaf(module: nn.Module) -> bool:
    containers = nn.Sequential | nn.ModuleList | nn.ModuleDict
    return isinstance(module, Nonexpansive) or (
        module.__module__.startswith("torch.nn") and not isinstance(module, containers)
    )


def _state(body: nn.Module) -> list[Any]:
    """Return what the traced operations depend on: the modules, and the attributes of those with own code.

    Tracing replaces functions of torch for all threads for a moment, so it is not repeated without need.
    """
    found: list[Any] = []
    for module in body.modules():
        found += (module, vars(module).get("forward"))
        if not _is_leaf(module):
            for name, value in vars(module).items():
                if name not in _INTERNAL:
                    found += (name, repr(value) if isinstance(value, _PLAIN) else id(value))
    return found


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return _is_leaf(m)

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, Tensor) and not any(a is part for part in (*self.root.parameters(), *self.root.buffers())):
            raise ArgumentError(
                "its forward pass uses a tensor that is neither a parameter nor a buffer of it; use register_buffer"
            )
        return super().create_arg(a)


class Program:
    """The operations of a module in eval mode, as torch.fx traced them.

    Args:
        body: a module with one input; its modules must be in eval mode.
    """

    def __init__(self, body: nn.Module) -> None:
        self.body = body
        for name, module in body.named_modules():
            if "forward" in vars(module):  # torch.fx traces the method of the class
                where = f"{type(module).__name__} ({name!r})" if name else type(body).__name__
                raise ArgumentError(f"forward of {where} in the body was replaced; expected the method of its class")
        try:
            self.graph = _Tracer().trace(body)
        except ArgumentError as error:
            raise ArgumentError(f"body is a {type(body).__name__} that cannot be certified: {error}") from None
        except Exception as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ArgumentError(
                f"body is a {type(body).__name__} that torch.fx cannot trace ({reason}); expected the same operations "
                "for all inputs, without conditions or loops that depend on values or on the batch size"
            ) from error
        inputs = [node for node in self.graph.nodes if node.op == "placeholder"]
        if str(inputs[0].target).startswith("*") or any(not node.args for node in inputs[1:]):
            raise ArgumentError(f"forward of {type(body).__name__} has several inputs; expected one, the images")
        code = self.graph.python_code("self")
        scope: dict[str, Any] = dict(code.globals)
        exec(code.src, scope)  # the function that torch.fx generated from the graph
        self._run = cast(Callable[[nn.Module, Tensor], Tensor], scope["forward"])
        self._traced = _state(body)
        self._alive = [dict(vars(module)) for module in self.body.modules()]  # their ids are not used again

    def is_current(self) -> bool:
        """Return whether the modules of the body and their attributes are those that were traced."""
        return _state(self.body) == self._traced

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
            except (RuntimeError, TypeError, IndexError) as error:
                reason = str(error).splitlines()[0]
                raise ArgumentError(f"body contains {self._name(node)}, which raises an error: {reason}") from error
        raise AssertionError("a graph has an output")

    def _apply(self, node: fx.Node, arguments: Any, options: Any) -> Any:
        flows: list[Flow] = []

        def collect(value: Any) -> Any:
            if isinstance(value, Interval | Measured):
                flows.append(value)
            return value

        map_aggregate((arguments, options), collect)
        if node.op == "get_attr":
            return operator.attrgetter(str(node.target))(self.body)
        if node.op == "call_module":
            module = self.body.get_submodule(str(node.target))
            if len(flows) != 1 or len(arguments) != 1 or options:
                raise RefusedError("expected one input")
            return _apply_module(module, flows[0])
        method = node.op == "call_method"
        run: Callable[..., Any] = getattr(torch.Tensor, str(node.target)) if method else cast(Any, node.target)
        if not flows:
            if not (node.target in _CONSTANT_METHODS if method else node.target in _CONSTANT_FUNCTIONS):
                raise RefusedError(
                    "it computes a constant in an unknown way; compute it in __init__ and register a buffer"
                )
            return run(*arguments, **options)
        if (node.target == "size" or node.target == "dim") if method else node.target is getattr:
            if not method and arguments[1] not in _SIZES:
                raise RefusedError(f"the attribute {arguments[1]!r} of a tensor is not known")
            return run(_shown(flows[0]), *arguments[1:], **options)
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


def _apply_module(module: nn.Module, flow: Flow) -> Flow:
    x = _shown(flow)
    kind = next((known for known in type(module).__mro__ if known is Nonexpansive or known in MODULES), None)
    if kind is None:
        raise RefusedError(_UNKNOWN)
    if kind in MODULES and type(module).forward is not kind.forward:
        raise RefusedError(f"its forward pass is not that of {kind.__name__}")
    if x.dim() < 2:
        raise RefusedError(f"its input has shape {tuple(x.shape)}; expected [B, features]")
    if kind is Nonexpansive:
        own = cast(Nonexpansive, module)
        _check_overridden(own)
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


def _check_overridden(module: Nonexpansive) -> None:
    """Raise an error if a subclass of a layer of this library changes the layer but not its bounds."""
    layers = (LpDistance, LpDistanceConv2d, MeanShift, SparseDistance)
    layer = next((known for known in type(module).__mro__ if known in layers), None)
    parts = ("forward", "bounds", "measure", "_distance", "_distance_bounds", "_finish")
    changed = {part for part in parts if layer and getattr(type(module), part, None) is not getattr(layer, part, None)}
    if changed and not changed >= {"forward", "bounds", "measure"}:
        raise RefusedError(
            f"it overrides {min(changed)}; expected forward, bounds and measure to be overridden together"
        )
