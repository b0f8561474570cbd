"""Copies of modules that share their tensors: evaluating such a copy changes nothing that other threads use."""

import math
from collections import OrderedDict
from typing import Any, TypeVar, cast

from torch import nn

from linfnet.nn.distance import DistanceModule

M = TypeVar("M", bound=nn.Module)

# The tables of a module whose changes must not affect a copy: tensors, and hooks of the forward pass.
_TENSORS, _HOOKS = ("_parameters", "_buffers"), ("_forward_hooks", "_forward_pre_hooks")


def frozen_copy(module: M) -> M:
    """Return a copy at p = inf in eval mode with the same parameters and buffers.

    Changes of p, of the mode, of hooks or of parts of the original, for example by another thread, do not affect the
    copy, and the other way round. Changes of the values of a parameter affect both.
    """
    return cast(M, _copy(module, {}))


def without_gradients(copy: M) -> M:
    """Let the parameters of a frozen copy need no gradients, and return it; those of the original are not affected.

    Gradients of the weights would take as long as those of the images.
    """
    for module in copy.modules():
        own: dict[str, nn.Parameter | None] = vars(module)["_parameters"]
        own |= {
            name: nn.Parameter(part.detach(), requires_grad=False) for name, part in own.items() if part is not None
        }
    return copy


def _copy(module: nn.Module, known: dict[int, nn.Module]) -> nn.Module:
    if id(module) in known:  # a module may occur several times
        return known[id(module)]
    known[id(module)] = copy = module.__new__(type(module))
    own: dict[str, Any] = copy.__dict__
    own.update(vars(module))
    for name in _TENSORS:
        own[name] = dict(own[name])
    for name in _HOOKS:
        own[name] = OrderedDict(own[name])
    own["_modules"] = {name: None if part is None else _copy(part, known) for name, part in own["_modules"].items()}
    own["training"] = False
    if isinstance(module, DistanceModule):
        own["_p"] = math.inf
    return copy
