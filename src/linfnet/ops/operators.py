"""The definition of `torch.library` operators.

The low-level registration is used because `torch.library.custom_op` costs more time than a small layer.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_library = torch.library.Library("linfnet", "DEF")


def define(schema: str, call: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """Define an operator and return it.

    Args:
        schema: the name, the arguments and the results.
        call: computes the results on all devices.
        fake: returns results of the same shapes for tensors without data.
    """
    name = schema.split("(")[0]
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(name, call, "CompositeExplicitAutograd")
    torch.library.register_fake(f"linfnet::{name}", fake, lib=_library)
    return getattr(torch.ops.linfnet, name).default


def calling(method: str, get: Callable[[str], object]) -> Callable[..., Any]:
    """Return a function that calls a method of the implementation `get(impl)`; `impl` is the last argument."""

    def call(*arguments: Any) -> Any:
        return getattr(get(arguments[-1]), method)(*arguments[:-1])

    return call


def set_gradients(name: str, gradients: Callable[..., Any], save: Callable[..., None]) -> None:
    """Register the backward pass of an operator, and the function that saves tensors for it."""
    torch.library.register_autograd(f"linfnet::{name}", gradients, setup_context=save, lib=_library)


def refuse_second_gradients(name: str) -> None:
    """Let the operator NAME_backward raise an error if its gradients are needed."""

    def refuse(ctx: Any, *grads: Tensor | None) -> None:
        raise NotImplementedError(f"{name} has no second derivatives")

    torch.library.register_autograd(f"linfnet::{name}_backward", refuse, lib=_library)
