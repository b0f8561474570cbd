"""What a kernel must offer to stand behind `lp_distance`, and the table of those that do."""

import contextlib
from collections.abc import Generator
from typing import Protocol

import torch
from torch import Tensor

from linfnet.errors import ArgumentError


class Implementation(Protocol):
    """One way to compute the distances. All tensors are contiguous 2-D matrices of one dtype on one device.

    x: [n, in], w: [out, in], y and grad: [n, out]; p is a finite float >= 1 or `math.inf`.
    """

    @property
    def name(self) -> str:
        """How users ask for it (`impl="reference"`)."""
        ...

    def serves(self, device_type: str, dtype: torch.dtype) -> bool:
        """Whether it runs on this kind of device with this dtype, on this machine, now."""
        ...

    def forward(self, x: Tensor, w: Tensor, p: float) -> Tensor:
        """Distances alone: y."""
        ...

    def forward_saving(self, x: Tensor, w: Tensor, p: float) -> tuple[Tensor, Tensor]:
        """(y, saved): what `saved` holds is the implementation's own business (at infinity: which coordinate won)."""
        ...

    def saved_like(self, x: Tensor, w: Tensor, p: float) -> Tensor:
        """An uninitialised tensor of the shape, dtype and device of `saved`; must work on fake tensors."""
        ...

    def backward(
        self, grad: Tensor, x: Tensor, w: Tensor, y: Tensor, saved: Tensor, p: float, need_x: bool, need_w: bool
    ) -> tuple[Tensor, Tensor]:
        """(grad_x, grad_w); one that is not needed is an empty tensor of shape [0]."""
        ...

    def bounds(self, lower: Tensor, upper: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """(smallest, largest) infinity distance over the box [lower, upper]."""
        ...

    def bounds_saving(self, lower: Tensor, upper: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(smallest, largest, index of the first coordinate that attains each; both int32 [n, out])."""
        ...


_table: dict[str, Implementation] = {}
_default: str | None = None


def register(implementation: Implementation) -> None:
    """Add an implementation; those registered later are preferred where they serve."""
    _table[implementation.name] = implementation


def names() -> tuple[str, ...]:
    """All registered implementations, the preferred first."""
    return tuple(reversed(_table))


def get(name: str) -> Implementation:
    """The implementation of that name, or an error that lists the names."""
    try:
        return _table[name]
    except KeyError:
        raise ArgumentError(f"impl is {name!r}; known are {', '.join(names())}") from None


def serves(name: str, device_type: str, dtype: torch.dtype) -> bool:
    """Whether the implementation of that name runs on this kind of device with this dtype."""
    return get(name).serves(device_type, dtype)


def choose(device_type: str, dtype: torch.dtype, name: str | None = None) -> str:
    """The name of the implementation that serves tensors of this kind: the one asked for, or the preferred one."""
    wanted = name if name is not None else _default
    if wanted is not None:
        if get(wanted).serves(device_type, dtype):
            return wanted
        if name is not None:
            raise ArgumentError(f"impl={name!r} does not serve {dtype} on {device_type} on this machine")
    for candidate in reversed(_table.values()):
        if candidate.serves(device_type, dtype):
            return candidate.name
    raise ArgumentError(f"x has dtype {dtype} on {device_type}; wanted float32 or float64")


@contextlib.contextmanager
def default_implementation(name: str | None) -> Generator[None]:
    """Prefer an implementation wherever it serves, for the length of a `with` block.

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
