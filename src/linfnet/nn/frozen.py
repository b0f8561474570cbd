"""Copies of modules that share their tensors: evaluating such a copy changes nothing that other threads use."""

import math
from typing import Any, TypeVar, cast

from torch import nn

from linfnet.nn.distance import DistanceModule

M = TypeVar("M", bound=nn.Module)

# The tables of a module whose changes must not affect a copy: tensors, and hooks of the forward pass.
_TABLES = (
    "_parameters",
    "_buffers",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)


def frozen_copy(module: M) -> M:
    """Return a copy at p = inf in eval mode with the same parameters and buffers.

    Changes of p, of the mode, of hooks or of parts of the original, for example by another thread, do not affect the
    copy, and the other way round. Changes of the values of a parameter affect both.
    """
    return cast(M, _copy(module, {}))


def _copy(module: nn.Module, known: dict[int, nn.Module]) -> nn.Module:
    if id(module) in known:  # a module may occur several times
        return known[id(module)]
    known[id(module)] = copy = module.__new__(type(module))
    own: dict[str, Any] = copy.__dict__
    own.update(vars(module))
    own.update({name: own[name].copy() for name in _TABLES})
    own["_modules"] = {name: None if part is None else _copy(part, known) for name, part in own["_modules"].items()}
    own["training"] = False
    if isinstance(module, DistanceModule):
        own["_p"] = math.inf
    return copy
