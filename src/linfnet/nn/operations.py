"""The operations that a wrapped net may consist of: what each does to bounds, and what it rounds.

An operation is *exact* if its results are inputs, negated inputs, constants, or maxima and minima of these.
docs/certificates.md contains the proofs. Every check raises `RefusedError` with a reason, to which the interpreter adds
the name of the operation.
"""

import builtins
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linfnet.nn.nonexpansive import largest
from linfnet.nn.unchanged import RefusedError

# Largest window of an average: its sum cannot overflow and its rounding error is at most (window + 2) roundings.
WINDOW = 1024


@dataclass(frozen=True)
class Call:
    """The arguments of an operation, in which the inputs that depend on the images are tensors."""

    arguments: tuple[Any, ...]
    options: Mapping[str, Any]
    inputs: tuple[Tensor, ...]
    """Those arguments that depend on the images, in order; each is [B, ...]."""

    def get(self, index: int, name: str, default: Any = None) -> Any:
        """Return an argument by its position (the tensor itself is argument 0) or name."""
        return self.arguments[index] if index < len(self.arguments) else self.options.get(name, default)

    @property
    def x(self) -> Tensor:
        return self.inputs[0]


Check = Callable[[Call], None]


@dataclass(frozen=True)
class Operation:
    """An operation that is monotone in floating point in all of its inputs together."""

    check: Check
    decreasing: Callable[[Call], bool] = lambda call: False
    rounds: bool = False
    """Whether each result is rounded once, as a sum is; a product may underflow as well."""
    underflows: bool = False
    bounds: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None
    """Bounds of an operation of one input that is not monotone."""

    def sizes(self, output: Tensor) -> list[Tensor]:
        """Return the magnitude [B] of the rounded step, if the operation rounds."""
        if not self.rounds:
            return []
        # The smallest normal number times the unit roundoff is the largest error of an underflow.
        return [largest(output) + torch.finfo(output.dtype).tiny] if self.underflows else [largest(output)]


def refuse_dim(x: Tensor, *dims: Any) -> None:
    """Raise an error if one of the dimensions counts the samples, or is not a number."""
    for dim in dims:
        if not isinstance(dim, int):
            raise RefusedError("it works on all dimensions; give a dimension of the features, such as 1")
        if dim % max(x.dim(), 1) == 0:
            raise RefusedError("it works on dimension 0, which counts the samples; use another dimension")


def _elementwise(call: Call) -> None:
    dims = {x.dim() for x in call.inputs}
    if len(dims) > 1:
        raise RefusedError("its inputs have different numbers of dimensions, so that samples may be mixed")
    if call.options.get("inplace"):
        raise RefusedError("it changes a tensor in place; use inplace=False")
    for value in (*call.arguments, *call.options.values()):
        if isinstance(value, Tensor) and not any(value is x for x in call.inputs):
            if value.dim() > call.x.dim() or (value.dim() == call.x.dim() and value.dim() and value.shape[0] != 1):
                raise RefusedError(f"its constant has shape {tuple(value.shape)}; expected one that all samples share")
            if value.dtype != call.x.dtype:
                raise RefusedError(f"its constant has dtype {value.dtype}; expected {call.x.dtype}")
            if not bool(value.isfinite().all()):
                raise RefusedError("its constant contains NaN or infinity")


def _shape(call: Call) -> None:
    if any(isinstance(value, torch.dtype) for value in (*call.arguments, *call.options.values())):
        raise RefusedError("it changes the dtype")
    # A number of samples that is a constant of the code would mix samples of larger batches.
    sizes = call.get(1, "shape", call.options.get("size"))
    first = sizes[0] if isinstance(sizes, tuple | list) and sizes else sizes
    if first != -1 and type(first) is int:
        raise RefusedError(f"its first size is {first}; expected x.size(0) or -1, for any number of samples")


def _flatten(call: Call) -> None:
    refuse_dim(call.x, call.get(1, "start_dim", 0))


def _one_dim(call: Call) -> None:
    refuse_dim(call.x, call.get(1, "dim"))


def _new_dim(call: Call) -> None:
    dim = call.get(1, "dim")
    if not isinstance(dim, int) or dim % (call.x.dim() + 1) == 0:
        raise RefusedError("it adds a dimension before the samples; use another dim")


def _two_dims(call: Call) -> None:
    refuse_dim(call.x, call.get(1, "dim0"), call.get(2, "dim1"))


def _permute(call: Call) -> None:
    dims = call.get(1, "dims")
    first = dims[0] if isinstance(dims, tuple | list) else dims
    if first % call.x.dim() != 0:
        raise RefusedError("it moves dimension 0, which counts the samples")


def _reduce(call: Call) -> None:
    dims = call.get(1, "dim", ())
    refuse_dim(call.x, *(dims if isinstance(dims, tuple | list) and dims else (dims,)))


def _join(call: Call) -> None:
    tensors = call.get(0, "tensors")
    if len(tensors) != len(call.inputs):
        raise RefusedError("it joins constants with features; join features only")
    refuse_dim(call.x, call.get(1, "dim", call.options.get("axis", 0)))


def _stack(call: Call) -> None:
    if len(call.get(0, "tensors")) != len(call.inputs):
        raise RefusedError("it joins constants with features; join features only")
    _new_dim(call)


def _index(call: Call) -> None:
    index = call.get(1, "")
    parts = cast(tuple[Any, ...], index if isinstance(index, tuple) else (index,))
    known = all(part is None or part is ... or type(part) in (int, slice) for part in parts)
    # x[..., 2] leaves dimension 0 unless there is a number or a slice for every dimension.
    after = sum(type(part) in (int, slice) for part in parts)
    if not known or not (parts[0] == slice(None) or (parts[0] is ... and after < call.x.dim())):
        raise RefusedError("expected an index such as x[:, 2:5] or x[..., 2]: all samples, then numbers and slices")


def _pad(call: Call) -> None:
    sizes = call.get(1, "pad")
    if len(sizes) > 2 * (call.x.dim() - 1):
        raise RefusedError("it pads dimension 0, which counts the samples")
    _finite_numbers(call)


def _finite_numbers(call: Call) -> None:
    for value in (*call.arguments, *call.options.values()):
        if isinstance(value, float) and not math.isfinite(value):
            raise RefusedError(f"its constant is {value}; expected a finite number")


def _clamp(call: Call) -> None:
    _elementwise(call)
    _finite_numbers(call)


def _pool(call: Call) -> None:
    if call.x.dim() < 3:
        raise RefusedError(f"its input has shape {tuple(call.x.shape)}; expected [B, C, ...]")
    if call.options.get("return_indices"):
        raise RefusedError("it returns indices; use return_indices=False")


def _dropout(call: Call) -> None:
    if call.get(2, "training", True):
        raise RefusedError("dropout is active; expected training=self.training and a net in eval mode")


def _of_two(call: Call) -> None:
    if call.options or len(call.arguments) != 2 or not isinstance(call.arguments[1], Tensor):
        raise RefusedError("expected two tensors; for the largest or smallest feature use x.amax(1) or x.amin(1)")
    _elementwise(call)


def _nothing(call: Call) -> None:
    pass


def _shift(call: Call) -> None:
    if len(call.inputs) > 1:
        raise RefusedError(
            "the sum or difference of two branches is 2-Lipschitz; use torch.maximum, torch.minimum, or a distance "
            "layer of torch.cat"
        )
    if call.options or len(call.arguments) != 2:
        raise RefusedError("expected two terms and no options such as alpha")
    _clamp(call)


def _scale(call: Call) -> None:
    """A product with a number of magnitude at most 1."""
    _number_beside(call, lambda size: 2**-100 <= size <= 1, "from -1 to 1, not 0: larger ones are not 1-Lipschitz")


def _quotient(call: Call) -> None:
    _number_beside(call, lambda size: 1 <= size <= 2**100, "of magnitude 1 or more: smaller ones are not 1-Lipschitz")
    if not isinstance(call.arguments[0], Tensor):
        raise RefusedError("it divides by features, which is not 1-Lipschitz")


def _number_beside(call: Call, allowed: Callable[[float], bool], expected: str) -> None:
    if len(call.inputs) > 1:
        raise RefusedError("it multiplies or divides two branches, which is not 1-Lipschitz")
    if call.options or len(call.arguments) != 2:
        raise RefusedError("expected no options such as rounding_mode")
    other = call.arguments[1 if call.arguments[0] is call.x else 0]
    if isinstance(other, Tensor):
        raise RefusedError("it multiplies or divides by a tensor; use a Python number, which training cannot change")
    if not allowed(abs(float(other))):
        raise RefusedError(f"the number is {other}; expected a number {expected}")


def _negative(call: Call) -> bool:
    return float(call.arguments[1 if isinstance(call.arguments[0], Tensor) else 0]) < 0


def _absolute_bounds(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    return torch.maximum(torch.maximum(lower, -upper), torch.zeros_like(lower)), torch.maximum(lower.abs(), upper.abs())


_ELEMENTWISE, _CLAMP, _POOL = Operation(_elementwise), Operation(_clamp), Operation(_pool)
_SAME, _DROPOUT, _SHAPE = Operation(_nothing), Operation(_dropout), Operation(_shape)
_FLATTEN, _REDUCE, _ONE_DIM = Operation(_flatten), Operation(_reduce), Operation(_one_dim)
_OF_TWO = Operation(_of_two)
_NEGATION = Operation(_elementwise, decreasing=lambda call: True)
_ABSOLUTE = Operation(_elementwise, bounds=_absolute_bounds)
_SUM = Operation(_shift, rounds=True)
_DIFFERENCE = Operation(_shift, rounds=True, decreasing=lambda call: call.arguments[0] is not call.x)
_PRODUCT = Operation(_scale, rounds=True, underflows=True, decreasing=_negative)
_QUOTIENT = Operation(_quotient, rounds=True, underflows=True, decreasing=_negative)

METHODS: dict[str, Operation] = {
    "flatten": _FLATTEN, "reshape": _SHAPE, "view": _SHAPE, "unflatten": _ONE_DIM, "squeeze": _ONE_DIM,
    "unsqueeze": Operation(_new_dim), "transpose": Operation(_two_dims), "permute": Operation(_permute),
    "contiguous": _SAME, "clone": _SAME, "relu": _ELEMENTWISE, "clamp": _CLAMP, "clip": _CLAMP,
    "clamp_min": _CLAMP, "clamp_max": _CLAMP, "maximum": _ELEMENTWISE, "minimum": _ELEMENTWISE,
    "amax": _REDUCE, "amin": _REDUCE, "neg": _NEGATION, "abs": _ABSOLUTE, "add": _SUM, "sub": _DIFFERENCE,
    "mul": _PRODUCT, "div": _QUOTIENT, "max": _OF_TWO, "min": _OF_TWO, "float": _SAME,
}  # fmt: skip
"""Operations that are called as methods of a tensor, and as functions of torch of the same name."""

FUNCTIONS: dict[Callable[..., Any], Operation] = {
    **{getattr(torch, name): rule for name, rule in METHODS.items() if hasattr(torch, name)},
    operator.neg: _NEGATION, operator.add: _SUM, operator.sub: _DIFFERENCE, operator.mul: _PRODUCT,
    operator.truediv: _QUOTIENT, operator.getitem: Operation(_index), builtins.abs: _ABSOLUTE, operator.abs: _ABSOLUTE,
    torch.cat: Operation(_join), torch.concat: Operation(_join), torch.stack: Operation(_stack),
    F.relu: _ELEMENTWISE, F.relu6: _ELEMENTWISE, F.hardtanh: _CLAMP, F.dropout: _DROPOUT, F.pad: Operation(_pad),
    cast(Any, F.max_pool1d): _POOL, cast(Any, F.max_pool2d): _POOL, cast(Any, F.max_pool3d): _POOL,
    torch.max_pool1d: _POOL, torch.max_pool2d: _POOL, torch.max_pool3d: _POOL,
    cast(Any, F.adaptive_max_pool1d): _POOL, cast(Any, F.adaptive_max_pool2d): _POOL,
}  # fmt: skip

MODULES: dict[type[nn.Module], Operation] = {
    nn.Identity: _SAME, nn.ReLU: _ELEMENTWISE, nn.ReLU6: _ELEMENTWISE, nn.Hardtanh: _ELEMENTWISE,
    nn.MaxPool1d: _POOL, nn.MaxPool2d: _POOL, nn.MaxPool3d: _POOL,
    nn.AdaptiveMaxPool1d: _POOL, nn.AdaptiveMaxPool2d: _POOL,
    nn.ZeroPad2d: _POOL, nn.ReplicationPad2d: _POOL, nn.ReflectionPad2d: _POOL,
    nn.Flatten: _SAME, nn.Unflatten: _SAME, nn.AvgPool2d: _SAME,
    **dict.fromkeys((nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout), _SAME),
}  # fmt: skip
"""Modules of torch that consist of one such operation, in eval mode; `average_bounds` belongs to `AvgPool2d`."""


def check_module(module: nn.Module, x: Tensor) -> None:
    """Raise an error if the settings of a module of torch exclude it from the proofs."""
    if getattr(module, "inplace", False) and not isinstance(module, nn.Dropout):
        raise RefusedError("it changes a tensor in place; use inplace=False")
    if getattr(module, "return_indices", False):
        raise RefusedError("it returns indices; use return_indices=False")
    if isinstance(module, nn.Flatten):
        refuse_dim(x, module.start_dim)
    if isinstance(module, nn.Unflatten):
        refuse_dim(x, module.dim)
    if isinstance(module, nn.Hardtanh) and not (math.isfinite(module.min_val) and math.isfinite(module.max_val)):
        raise RefusedError("its limits are not finite")


def _window(pool: nn.AvgPool2d, x: Tensor) -> int:
    if pool.divisor_override is not None or x.dim() != 4:
        raise RefusedError("expected an input [B, C, H, W] and no divisor_override")
    size = pool.kernel_size
    window = size**2 if isinstance(size, int) else math.prod(size)
    if window > WINDOW:
        raise RefusedError(f"its window has {window} numbers; expected at most {WINDOW}")
    return window


def average_bounds(pool: nn.AvgPool2d, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Return bounds on averages, moved outwards by a bound on the rounding errors in every order of summation."""
    window, info = _window(pool, lower), torch.finfo(lower.dtype)
    sizes = (pool.kernel_size, pool.stride, pool.padding)
    reach = F.max_pool2d(torch.maximum(lower.abs(), upper.abs()), *sizes, ceil_mode=pool.ceil_mode)
    slack = reach * ((window + 3) * info.eps) + 4 * info.tiny  # eps is twice the unit roundoff
    fixed = F.max_pool2d((upper != lower).to(lower.dtype), *sizes, ceil_mode=pool.ceil_mode) == 0
    low, high = pool(lower), pool(upper)
    down, up = lower.new_tensor(-math.inf), lower.new_tensor(math.inf)
    below = torch.nextafter(low - slack, down).nan_to_num(-math.inf, -math.inf, -math.inf)
    above = torch.nextafter(high + slack, up).nan_to_num(math.inf, math.inf, math.inf)
    return torch.where(fixed, low, below), torch.where(fixed, high, above)


def average_sizes(pool: nn.AvgPool2d, x: Tensor) -> list[Tensor]:
    """Return one magnitude [B] for each rounding of an average, with two for the division."""
    return [largest(x) + torch.finfo(x.dtype).tiny] * (_window(pool, x) + 2)
