"""Checks that the modules of a certified net run the code that was analysed.

A method can be replaced in a subclass or on an instance, and a part of a layer by another module. Everything that is
not known to be harmless is refused.
"""

import inspect
import sys
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import lru_cache

from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from linfnet.errors import ArgumentError
from linfnet.nn.nonexpansive import Nonexpansive, name_in
from linfnet.nn.normalization import MeanShift


class RefusedError(ArgumentError):
    """The reason why a module or an operation has no certificate."""


# Names that a subclass may define: they do not change what a module computes.
_HARMLESS = frozenset((
    "__init__", "__doc__", "__module__", "__qualname__", "__dict__", "__weakref__", "__annotations__",
    "__annotate__", "__annotate_func__", "__annotations_cache__", "__conditional_annotations__", "__firstlineno__",
    "__static_attributes__", "__parameters__", "__orig_bases__", "__repr__", "__init_subclass__", "__subclasshook__",
    "__abstractmethods__", "_abc_impl", "extra_repr",
))  # fmt: skip
# What a subclass of a net may change: it does not affect the logits.
LABELS = frozenset(
    ("system", "certificate_names", "arithmetic", "cheap", "describe", "settings", "config", "from_config", "save")
)
# Types of most attributes, whose values are neither callable nor tensors.
_PLAIN = frozenset((bool, int, float, str, type(None), set, dict, OrderedDict))
_CALLS = ("__call__", "_wrapped_call_impl", "_call_impl", "__getattr__", "__getattribute__")


def library_class(kind: type) -> type | None:
    """Return the first class of this library among a class and its base classes."""
    for each in kind.__mro__:
        if each.__module__.startswith("linfnet.") and (
            getattr(sys.modules.get(each.__module__), each.__name__, None) is each
        ):
            return each
    return None


def overridden(kind: type, base: type, allowed: frozenset[str] = frozenset()) -> str | None:
    """Return the first attribute of a class that a subclass changes, other than harmless ones, or None."""
    if kind is base:
        return None
    return _first_changed(kind, base, (name for name in dir(base) if name not in _HARMLESS | allowed)) or next(
        # A property can replace a parameter or another attribute of an instance.
        (
            name
            for each in kind.__mro__
            if each not in base.__mro__
            for name, value in vars(each).items()
            if name not in _HARMLESS and hasattr(type(value), "__set__")
        ),
        None,
    )


def _first_changed(kind: type, base: type, names: Iterable[str]) -> str | None:
    static = inspect.getattr_static
    return next((name for name in names if static(kind, name, None) is not static(base, name, None)), None)


@lru_cache(maxsize=1024)
def _methods(kind: type) -> frozenset[str]:
    """Return the names of the methods and properties of a class."""
    parts = (part for each in kind.__mro__ for part in vars(each).items())
    return frozenset(name for name, value in parts if callable(value) or hasattr(value, "__get__"))


def check_global_hooks() -> None:
    """Raise an error if a hook is registered that torch calls for every module."""
    if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:  # pyright: ignore[reportPrivateUsage]
        raise ArgumentError("a forward hook of all modules is registered, which may change results; remove it")


def check_hooks(net: nn.Module, modules: Sequence[nn.Module]) -> None:
    """Raise an error if a module of a net has a forward hook, or an attribute that replaces a method of its class.

    Args:
        net: a net.
        modules: `modules_of(net)`.
    """
    check_global_hooks()
    check_instances(net, modules)
    for module in modules:
        if module._forward_hooks or module._forward_pre_hooks:  # pyright: ignore[reportPrivateUsage]
            where = f"module {name!r}" if (name := name_in(net, module)) else "net"
            raise ArgumentError(f"the {where} has a forward hook, which may change its output; remove it to certify")


def check_tensors(net: nn.Module, modules: Iterable[nn.Module]) -> None:
    """Raise an error if a parameter or buffer is an instance of a subclass of Tensor, which may define its operations.

    Args:
        net: a net.
        modules: `modules_of(net)`.
    """
    for module in modules:
        own = vars(module)
        for name, part in (*own["_parameters"].items(), *own["_buffers"].items()):
            if part is not None and type(part) not in (Tensor, nn.Parameter):
                where = f"{child}.{name}" if (child := name_in(net, module)) else name
                raise ArgumentError(
                    f"{where} of the net is a {type(part).__name__}, which may define its own operations; expected a "
                    "Tensor or Parameter"
                )


def check_instances(root: nn.Module, modules: Iterable[nn.Module], what: str = "") -> None:
    """Raise an error if an attribute of one of the modules of a module replaces a method of its class.

    Args:
        root: a net, or a module that error messages call `what`.
        modules: `modules_of(root)`.
        what: by default the name of a child of the net.
    """
    for module in modules:
        names, own = _methods(type(module)), vars(module)
        for parts in (own, own["_parameters"], own["_buffers"], own["_modules"]):
            if names.isdisjoint(parts):
                continue
            kind, name = type(module).__name__, name_in(root, module)
            child, rest = (what, name) if what else name.partition(".")[::2]
            where = f"{kind} ({rest!r}) in the {child}" if rest else f"{kind} in the {child}"
            where = where if child else f"the net, a {kind},"
            raise ArgumentError(
                f"{min(names & parts.keys())} of {where} was replaced; expected the method of its class"
            )


def check_layer(module: Nonexpansive, *, parts: bool = True) -> None:
    """Raise an error if a layer, with its parts, does not run the code of its class in this library.

    A subclass of `Nonexpansive` itself declares by its class that its methods are correct.
    """
    kind = type(module)
    base = library_class(kind) or Nonexpansive
    if base is Nonexpansive:
        if changed := _first_changed(kind, base, _CALLS):
            raise RefusedError(f"it overrides {changed}; expected only forward, bounds and measure to be overridden")
        return
    if changed := overridden(kind, base):
        raise RefusedError(
            f"it overrides {changed} of {base.__name__}; expected a subclass of linfnet.nn.Nonexpansive that defines "
            "forward, bounds and measure"
        )
    for name, child in vars(module)["_modules"].items():
        if child is None:
            continue
        if name != "shift" or type(child) is not MeanShift:
            raise RefusedError(
                f"its part {name!r} is a {type(child).__name__}; expected no part or a MeanShift 'shift'"
            )
        if parts:
            check_layer(child)
    own = vars(module)
    if _PLAIN.issuperset(map(type, own.values())):
        return
    for name, value in own.items():
        if type(value) not in _PLAIN and (callable(value) or isinstance(value, Tensor)):
            raise RefusedError(f"its attribute {name!r} is a {type(value).__name__}; expected a number, or a parameter")
