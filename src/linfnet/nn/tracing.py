"""The operations of a module as a graph, by torch.fx, and what the graph depends on."""

import types
from typing import Any

import torch
from torch import Tensor, fx, nn

from linfnet.errors import ArgumentError
from linfnet.nn.nonexpansive import Nonexpansive, modules_of
from linfnet.nn.unchanged import check_instances

# Attributes of every module, which do not change what is traced, and types that are compared by value.
_INTERNAL = frozenset(vars(nn.Module()))
_PLAIN = (int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_OPAQUE = (nn.Module, Tensor, type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType)
# How far the attributes of objects are compared: self.settings.block.factor has depth 3.
_DEPTH = 4


class _Same:
    """An object that is compared by identity, and that is not deleted before the comparison."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value

    __hash__ = None  # pyright: ignore[reportAssignmentType]


def is_leaf(module: nn.Module) -> bool:
    """Return whether a module is one operation of the graph."""
    containers = nn.Sequential | nn.ModuleList | nn.ModuleDict
    return isinstance(module, Nonexpansive) or (
        type(module).__module__.startswith("torch.nn") and not isinstance(module, containers)
    )


def _contents(value: Any, depth: int = _DEPTH) -> Any:
    if isinstance(value, _PLAIN):
        return type(value), repr(value)
    if depth and isinstance(value, tuple | list | set | frozenset):
        return type(value), [_contents(part, depth - 1) for part in value]  # pyright: ignore
    if depth and isinstance(value, dict):
        return [(_contents(key, depth - 1), _contents(part, depth - 1)) for key, part in value.items()]  # pyright: ignore
    if depth and not isinstance(value, _OPAQUE) and hasattr(value, "__dict__"):
        return _Same(value), _contents(vars(value), depth - 1)
    return _Same(value)


def state_of(body: nn.Module) -> list[Any]:
    """Return what the graph depends on: the modules with their names, and the attributes of those with own code.

    Tracing replaces functions of torch for all threads for a moment, so it is not repeated without need.
    """
    found: list[Any] = []
    for path, module in body.named_modules(remove_duplicate=False):
        found += (path, _Same(module), _Same(type(module)))
        if not is_leaf(module):
            found += ((name, _contents(value)) for name, value in vars(module).items() if name not in _INTERNAL)
    return found


class _Tracer(fx.Tracer):
    # Buffers are inputs of the graph, as parameters are: their values may change.
    proxy_buffer_attributes = True

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return is_leaf(m)

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, Tensor) and not any(a is part for part in (*self.root.parameters(), *self.root.buffers())):
            raise ArgumentError(
                "its forward pass uses a tensor that is neither a parameter nor a buffer of it; use register_buffer"
            )
        return super().create_arg(a)


def trace(body: nn.Module) -> fx.Graph:
    """Return the operations of a module, or raise an error if torch.fx cannot find them."""
    check_instances(body, modules_of(body), "body")  # torch.fx traces the methods of the classes
    kind = type(body).__name__
    try:
        graph, again = _Tracer().trace(body), _Tracer().trace(body)
    except ArgumentError as error:
        raise ArgumentError(f"body is a {kind} that cannot be certified: {error}") from None
    except Exception as error:
        reason = "len(x); use x.size(0)" if "'len'" in str(error) else first_line(error)
        raise ArgumentError(
            f"body is a {kind} that torch.fx cannot trace ({reason}); expected the same operations "
            "for all inputs, without conditions or loops that depend on values or on the batch size"
        ) from error
    if _operations(graph) != _operations(again):
        raise ArgumentError(f"body is a {kind} whose forward pass does not always do the same, such as random.random()")
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    if str(inputs[0].target).startswith("*") or any(not node.args for node in inputs[1:]):
        raise ArgumentError(f"forward of {kind} has several inputs; expected one, the images")
    return graph


def _operations(graph: fx.Graph) -> list[Any]:
    return [(node.op, node.target, repr(node.args), repr(node.kwargs)) for node in graph.nodes]


def first_line(error: Exception) -> str:
    """Return the first line of the message of an error, or its class if there is no message."""
    return (str(error).splitlines() or [type(error).__name__])[0]
