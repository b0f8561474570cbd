"""The layers of which bounds are known, and their effect on boxes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from linfnet.bounds.boxes import Box
from linfnet.bounds.ramp import Ramp
from linfnet.errors import ArgumentError

Activation = nn.ReLU | Ramp
BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d
_KINDS = (nn.Linear, nn.Conv2d, nn.BatchNorm1d, nn.BatchNorm2d, nn.AvgPool2d, nn.Flatten, nn.ReLU, Ramp)
Layers = nn.Sequential | nn.ModuleList | Sequence[nn.Module]
"""A net: the layers are applied in turn. Sequential modules may be nested."""


@dataclass(frozen=True)
class ChannelScale:
    """What batch norm computes for fixed statistics: x * scale + shift, with one number [C] for each channel."""

    scale: Tensor
    shift: Tensor

    def along(self, dim: int, dims: int) -> tuple[Tensor, Tensor]:
        """Return scale and shift in a shape that has the channels at `dim` of `dims` dimensions."""
        shape = [-1 if each == dim else 1 for each in range(dims)]
        return self.scale.view(shape), self.shift.view(shape)


@dataclass(frozen=True)
class Window:
    """The windows of a convolution or of pooling, each number as (vertical, horizontal)."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int


def window_of(layer: nn.Conv2d | nn.AvgPool2d, channels: int) -> Window:
    """Return the windows of a layer whose inputs have this number of channels."""
    kernel, stride = pair(layer.kernel_size), pair(layer.stride)
    if isinstance(layer, nn.AvgPool2d):
        return Window(kernel, stride, (0, 0), (1, 1), channels)
    return Window(kernel, stride, pair(cast(tuple[int, int], layer.padding)), pair(layer.dilation), layer.groups)


def layers_of(net: Layers) -> list[nn.Module]:
    """Return the layers of a net in order, without nesting, or raise an error that names a layer without bounds.

    >>> [type(layer).__name__ for layer in layers_of(nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(4, 2))))]
    ['Flatten', 'Linear']
    """
    if isinstance(net, nn.Sequential):
        _check_unchanged(net, nn.Sequential)
    elif not isinstance(net, nn.ModuleList | Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ArgumentError(f"the net is a {type(net).__name__}; expected an nn.Sequential or a list of layers")
    found: list[nn.Module] = []
    for layer in net:
        if isinstance(layer, nn.Sequential):
            found += layers_of(layer)
        elif isinstance(layer, nn.Identity):
            _check_unchanged(layer, nn.Identity)
        else:
            _check(layer)
            found.append(layer)
    return found


def _check_unchanged(layer: nn.Module, kind: type[nn.Module]) -> None:
    """Raise an error if a layer may compute something else than its class in torch: bounds use only its tensors."""
    name = type(layer).__name__
    # A subclass such as that of a parametrization keeps these methods.
    for method in ("forward", "_conv_forward", "__call__", "_call_impl"):
        if getattr(type(layer), method, None) is not getattr(kind, method, None) or method in vars(layer):
            raise ArgumentError(
                f"the net has a layer {name} that overrides {method} of {kind.__name__}; expected it not to"
            )
    if layer._forward_hooks or layer._forward_pre_hooks:  # pyright: ignore[reportPrivateUsage]
        raise ArgumentError(
            f"the net has a layer {name} with a forward hook, which bounds cannot follow; remove it (the functions of "
            "torch.nn.utils.parametrizations need none, and torch.nn.utils.prune.remove ends pruning)"
        )
    if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:  # pyright: ignore[reportPrivateUsage]
        raise ArgumentError("a forward hook of all modules is registered, which bounds cannot follow; remove it")


def _check(layer: nn.Module) -> None:
    name = type(layer).__name__
    kind = next((each for each in _KINDS if isinstance(layer, each)), None)
    if kind is None:
        known = [each.__name__ for each in _KINDS]
        raise ArgumentError(
            f"the net has a layer {name}; bounds are implemented for {', '.join(known[:-1])} and {known[-1]}"
        )
    _check_unchanged(layer, kind)
    expected = ""
    if isinstance(layer, nn.Conv2d):
        if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
            expected = "zeros as padding, and its size as a number"
    elif isinstance(layer, nn.AvgPool2d):
        if layer.ceil_mode or layer.divisor_override is not None or _max(layer.padding):
            expected = "no padding, no ceil_mode and no divisor_override"
    elif isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) != (1, -1):
        expected = "start_dim=1 and end_dim=-1"
    if expected:
        raise ArgumentError(f"the net has the layer {layer}; expected {expected}")


def _max(size: int | tuple[int, ...]) -> int:
    return size if isinstance(size, int) else max(size)


def pair(size: int | tuple[int, ...]) -> tuple[int, int]:
    """Return an argument such as a stride as (vertical, horizontal)."""
    return (size, size) if isinstance(size, int) else cast(tuple[int, int], size)


def channel_scale(layer: BatchNorm, centre: Tensor | None) -> ChannelScale:
    """Return what batch norm computes: in training by the statistics of the unperturbed values `centre` [B, C, ...]."""
    mean, variance = layer.running_mean, layer.running_var
    if layer.training or mean is None or variance is None:
        if centre is None:
            raise ArgumentError("batch norm in training, or without running statistics, needs the unperturbed values")
        others = [dim for dim in range(centre.dim()) if dim != 1]
        variance, mean = torch.var_mean(centre, others, correction=0)
    scale = (variance + layer.eps).rsqrt()
    # The layer uses its weight and bias if it has them, whatever its attribute `affine` says.
    scale = scale if layer.weight is None else scale * layer.weight  # pyright: ignore[reportUnnecessaryComparison]
    shift = -mean * scale if layer.bias is None else layer.bias - mean * scale  # pyright: ignore[reportUnnecessaryComparison]
    return ChannelScale(scale, shift)


def through(layer: nn.Module, box: Box) -> Box:
    """Propagate a box through one layer. In training, batch norm uses the statistics of the unperturbed values."""
    if isinstance(layer, nn.Linear) and len(box.shape) != 1:
        # torch applies it to the last dimension; linear relaxation expects one number for each feature.
        raise ArgumentError(f"a Linear layer has inputs of shape {box.shape}; expected a Flatten layer before it")
    if isinstance(layer, nn.Conv2d | nn.AvgPool2d) and len(box.shape) != 3:
        raise ArgumentError(
            f"a {type(layer).__name__} layer has inputs of shape {box.shape}; expected images (C, H, W)"
        )
    if isinstance(layer, nn.ReLU):  # its `inplace` must not change the box, which other bounds read
        return Box(F.relu(box.lower), F.relu(box.upper), None if box.centre is None else F.relu(box.centre))
    plain = None if box.centre is None else layer(box.centre)
    if isinstance(layer, Ramp | nn.Flatten | nn.AvgPool2d):  # monotone
        return Box(layer(box.lower), layer(box.upper), plain)
    middle, reach = box.middle_and_reach
    if isinstance(layer, nn.Conv2d):
        weight, size = layer.weight.abs(), (layer.stride, layer.padding, layer.dilation, layer.groups)
        return Box.around(layer(middle), F.conv2d(reach, weight, None, *size), plain)  # pyright: ignore
    if isinstance(layer, nn.Linear):
        return Box.around(layer(middle), F.linear(reach, layer.weight.abs()), plain)
    if isinstance(layer, BatchNorm):
        scale, shift = channel_scale(layer, box.centre).along(1, middle.dim())
        return Box.around(torch.addcmul(shift, middle, scale), reach * scale.abs(), plain)
    raise ArgumentError(f"interval bounds are not implemented for {type(layer).__name__}")
