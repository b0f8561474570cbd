"""A distance layer that has only some of the connections of a dense layer."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from linfnet.errors import ArgumentError
from linfnet.nn.distance import DistanceModule
from linfnet.ops import sparse_linf_bounds, sparse_lp_distance


class SparseDistance(DistanceModule):
    """Compute u_o(x) = max |x_i - w_oi| over the connections (o, i) of each neuron o; 1-Lipschitz in l_inf.

    The connections of neuron o are numbers offsets[o] to offsets[o + 1] - 1. The mean and the bias are applied as in
    `LpDistance`, so the outputs are equal to those of a dense layer bit for bit if the connections include the largest
    |x_i - w_oi| of each neuron. At a finite p, which only attacks use, the l_p norm over the connections is computed.

    Args:
        weight: float [connections].
        index: integers [connections]: the input of each connection, in ascending order within a neuron.
        offsets: integers [out_features + 1], ascending from 0 to the number of connections; no neuron is empty.
        in_features: size of the last dimension of the input.
        mean: [out_features], subtracted from the distances, or None.
        bias: [out_features], added after the mean was subtracted, or None.

    >>> layer = SparseDistance(torch.tensor([0.0, 1.0, 5.0]), torch.tensor([0, 2, 1]), torch.tensor([0, 2, 3]), 3)
    >>> layer(torch.tensor([[2.0, 4.0, 0.0]])).detach()
    tensor([[2., 1.]])
    """

    index: Tensor
    offsets: Tensor

    def __init__(
        self,
        weight: Tensor,
        index: Tensor,
        offsets: Tensor,
        in_features: int,
        *,
        mean: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> None:
        check_connections(weight, index, offsets, in_features)
        features = len(offsets) - 1
        for name, vector in (("mean", mean), ("bias", bias)):
            if vector is not None and vector.shape != (features,):
                raise ArgumentError(f"{name} has shape {tuple(vector.shape)}; expected [{features}]")
        weight = weight.detach().clone()
        super().__init__(weight, features, -1, math.inf, bias is not None, mean is not None)
        self.in_features, self.out_features = in_features, features
        self.register_buffer("index", index.to(weight.device, torch.int32).clone())
        self.register_buffer("offsets", offsets.to(weight.device, torch.int32).clone())
        if self.shift is not None and mean is not None:
            self.shift.running_mean = mean.detach().to(weight, copy=True)
        if self.bias is not None and bias is not None:
            self.bias.data = bias.detach().to(weight, copy=True)

    @property
    def features(self) -> int:
        return len(self.offsets) - 1

    @property
    def connections(self) -> int:
        """The number of connections."""
        return len(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs [..., out_features] for x [..., in_features]."""
        return self._finish(self._distance(x))

    def certifiable_tensors(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
        """Return weight, index, offsets, mean and bias, or raise an error unless at p = inf and in eval mode."""
        self._check_certifiable("magnitudes", x)
        shift = self.shift
        return self.weight, self.index, self.offsets, None if shift is None else shift.running_mean, self.bias

    def _distance_at(self, x: Tensor, p: float) -> Tensor:
        if x.dim() == 0 or x.shape[-1] != self.in_features:
            raise ArgumentError(f"x has shape {tuple(x.shape)}; expected [..., {self.in_features}]")
        return sparse_lp_distance(x, self.weight, self.index, self.offsets, p)

    def _distance_bounds(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        for name, end in (("lower", lower), ("upper", upper)):
            if end.dim() == 0 or end.shape[-1] != self.in_features:
                raise ArgumentError(f"{name} has shape {tuple(end.shape)}; expected [..., {self.in_features}]")
        return sparse_linf_bounds(lower, upper, self.weight, self.index, self.offsets)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, connections={self.connections}, bias={self.bias is not None}"


def remove_unread(layers: Sequence[SparseDistance]) -> list[SparseDistance]:
    """Return the layers of a net without the hidden neurons that no neuron of the next layer reads.

    The outputs of the net are the same bit for bit. The neurons that remain keep their order.
    """
    found: list[SparseDistance] = []
    read = torch.ones(layers[-1].out_features, dtype=torch.bool, device=layers[-1].weight.device)
    for layer, first in zip(reversed(layers), [*[False] * (len(layers) - 1), True], strict=True):
        neurons, counts = read, layer.offsets.long().diff()
        chosen = neurons.repeat_interleave(counts)
        index, inputs = layer.index[chosen].long(), layer.in_features
        if not first:
            read = torch.zeros(inputs, dtype=torch.bool, device=index.device)
            read[index] = True
            index, inputs = (read.cumsum(0) - 1)[index], int(read.sum())
        offsets = torch.cat([counts.new_zeros(1), counts[neurons].cumsum(0)])
        mean = None if layer.shift is None else layer.shift.running_mean[neurons]
        bias = None if layer.bias is None else layer.bias[neurons]
        found.append(SparseDistance(layer.weight[chosen], index, offsets, inputs, mean=mean, bias=bias))
    return found[::-1]


def check_connections(weight: Tensor, index: Tensor, offsets: Tensor, in_features: int) -> None:
    """Raise an error if the tensors do not describe the connections of a layer with `in_features` inputs."""
    for name, tensor in (("weight", weight), ("index", index), ("offsets", offsets)):
        if tensor.dim() != 1:
            raise ArgumentError(f"{name} has shape {tuple(tensor.shape)}; expected one dimension")
        if tensor.is_floating_point() != (name == "weight") or tensor.dtype == torch.bool or tensor.is_complex():
            raise ArgumentError(
                f"{name} has dtype {tensor.dtype}; expected {'floats' if name == 'weight' else 'integers'}"
            )
    if len(offsets) < 2 or int(offsets[0]) != 0 or int(offsets[-1]) != len(weight) or len(index) != len(weight):
        ends = [int(end) for end in offsets[[0, -1]]] if len(offsets) else []
        raise ArgumentError(
            f"offsets run from {ends[0] if ends else None} to {ends[-1] if ends else None}, and there are "
            f"{len(weight)} weights and {len(index)} indices; expected offsets from 0 to the number of connections"
        )
    if not 0 < in_features < 2**31 or len(weight) >= 2**31:
        raise ArgumentError(f"the layer has {in_features} inputs and {len(weight)} connections; expected below 2^31")
    # NumPy: on a busy machine the threads of torch would take many times as long.
    ends, inputs = offsets.cpu().numpy().astype(np.int64), index.cpu().numpy()
    counts = np.diff(ends)
    if (counts < 1).any():
        neuron = int((counts < 1).argmax())
        raise ArgumentError(f"neuron {neuron} has {counts[neuron]} connections; expected at least one")
    outside = (inputs < 0) | (inputs >= in_features)
    if outside.any():
        raise ArgumentError(f"index contains {inputs[outside][0]}; expected numbers from 0 to {in_features - 1}")
    ascending = inputs[1:] > inputs[:-1]
    ascending[ends[1:-1] - 1] = True  # between two neurons
    if not ascending.all():
        raise ArgumentError("index is not in ascending order within each neuron, or a connection occurs twice")
    if not all_finite(weight):
        raise ArgumentError("weight contains NaN or infinity")


def all_finite(tensor: Tensor) -> bool:
    """Return whether a tensor contains neither NaN nor infinity."""
    numbers = tensor.detach().cpu()
    # NumPy has no bfloat16.
    return bool(np.isfinite((numbers.float() if numbers.dtype == torch.bfloat16 else numbers).numpy()).all())
