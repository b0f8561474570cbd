"""The interface of an implementation of `lp_distance`, and the table of implementations.

A module outside the package can add an implementation with the decorator `@KERNELS.register("name")` on a class.
"""

import contextlib
from collections.abc import Callable, Generator
from typing import Protocol

import torch
from torch import Tensor

from linfnet.errors import ArgumentError
from linfnet.registry import Registry


class Implementation(Protocol):
    """Computes distances and gradients. All tensors are contiguous matrices of one dtype on one device.

    x: [n, in], w: [out, in], y and grad: [n, out]; p is a finite float >= 1 or `math.inf`.
    """

    def supports(self, device_type: str, dtype: torch.dtype) -> bool:
        """Whether this machine can run the implementation on this type of device with this dtype."""
        ...

    def forward(self, x: Tensor, w: Tensor, p: float) -> Tensor:
        """Return the distances y."""
        ...

    def forward_saving(self, x: Tensor, w: Tensor, p: float) -> tuple[Tensor, Tensor]:
        """Return (y, saved); `saved` contains what `backward` of the same implementation needs."""
        ...

    def saved_like(self, x: Tensor, w: Tensor, p: float) -> Tensor:
        """Return an uninitialised tensor with the shape, dtype and device of `saved`; must support fake tensors."""
        ...

    def backward(
        self, grad: Tensor, x: Tensor, w: Tensor, y: Tensor, saved: Tensor, p: float, need_x: bool, need_w: bool
    ) -> tuple[Tensor, Tensor]:
        """Return (grad_x, grad_w); a gradient that is not needed has shape [0]."""
        ...

    def bounds(self, lower: Tensor, upper: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """Return the smallest and the largest infinity distance over the box [lower, upper]."""
        ...

    def bounds_saving(self, lower: Tensor, upper: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the results of `bounds` and, for each, the first feature that attains it (int32 [n, out])."""
        ...


def gradients_like(x: Tensor, w: Tensor, need_x: bool, need_w: bool) -> tuple[Tensor, Tensor]:
    """Return uninitialised, contiguous gradients; a gradient that is not needed is empty."""
    return x.new_empty(x.shape if need_x else (0,)), w.new_empty(w.shape if need_w else (0,))


def bounds_like(lower: Tensor, w: Tensor, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
    """Return two uninitialised tensors [n, out] for the bounds or, with dtype int32, for their indices."""
    shape = lower.shape[0], w.shape[0]
    return lower.new_empty(shape, dtype=dtype), lower.new_empty(shape, dtype=dtype)


# Each class is instantiated once. If several support a tensor, the one that was registered last is preferred.
KERNELS: Registry[Callable[[], Implementation]] = Registry("impl")
_instances: dict[str, Implementation] = {}
_default: str | None = None


def names() -> tuple[str, ...]:
    """Return the names of all registered implementations, the preferred one first."""
    return tuple(reversed(tuple(KERNELS)))


def get(name: str) -> Implementation:
    """Return the implementation with this name; raise an error that lists the names if there is none."""
    if name not in _instances:  # not functools.cache, which torch.compile does not trace
        _instances[name] = KERNELS[name]()
    return _instances[name]


def choose(device_type: str, dtype: torch.dtype, name: str | None = None) -> str:
    """Return the name of the implementation for such tensors: the requested or the first that supports them."""
    requested = name if name is not None else _default
    if requested is not None:
        if get(requested).supports(device_type, dtype):
            return requested
        if name is not None:
            raise ArgumentError(f"impl={name!r} does not support {dtype} on {device_type} on this machine")
    for candidate in names():
        if get(candidate).supports(device_type, dtype):
            return candidate
    raise ArgumentError(f"x has dtype {dtype} on {device_type}; expected float32 or float64")


@contextlib.contextmanager
def default_implementation(name: str | None) -> Generator[None]:
    """Within a `with` block, prefer an implementation wherever it supports the tensors.

    >>> with default_implementation("reference"):
    ...     choose("cpu", torch.float32)
    'reference'
    """
    global _default
    if name is not None:
        get(name)
    previous, _default = _default, name
    try:
        yield
    finally:
        _default = previous
