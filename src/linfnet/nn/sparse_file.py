"""The tensors of a sparse layer in a file. No number is rounded: the file contains what the program computes with.

weight   [connections], float16 if all weights are float16 numbers, else float32
counts   [out], the number of connections of each neuron: uint16, or int32 if a neuron has more than 65,535
gaps     uint8: for each connection the difference of its index to that of the previous connection of the neuron (of the
         first: its index), where a byte of 255 adds 255 to the next byte
mean     [out] float32, only with a mean shift
bias     [out] float32, only with a bias
"""

from pathlib import Path

import torch
from torch import Tensor

from linfnet.errors import ArgumentError, LinfnetError
from linfnet.nn.sparse import SparseDistance

_MORE = 255
_DTYPES = {
    "weight": (torch.float32, torch.float16),
    "counts": (torch.uint16, torch.int32),
    "gaps": (torch.uint8,),
    "mean": (torch.float32,),
    "bias": (torch.float32,),
}


def packed(layer: SparseDistance) -> dict[str, Tensor]:
    """Return the tensors of a layer for a file, on the CPU."""
    weight = layer.weight.detach().cpu()
    half = weight.half()
    counts = layer.offsets.cpu().diff()
    found = {
        "weight": half if torch.equal(half.to(weight.dtype), weight) else weight,
        "counts": counts.to(torch.uint16 if int(counts.max()) < 2**16 else torch.int32),
        "gaps": _gaps(layer.index.cpu().long(), layer.offsets.cpu().long()),
    }
    if layer.shift is not None:
        found["mean"] = layer.shift.running_mean.detach()
    if layer.bias is not None:
        found["bias"] = layer.bias.detach()
    return found


def _gaps(index: Tensor, offsets: Tensor) -> Tensor:
    gaps = index.diff(prepend=index.new_zeros(1))
    gaps[offsets[:-1]] = index[offsets[:-1]]
    ends = (gaps // _MORE + 1).cumsum(0)  # each connection ends with one byte below 255
    coded = torch.full((int(ends[-1]),), _MORE, dtype=torch.uint8)
    coded[ends - 1] = (gaps % _MORE).to(torch.uint8)
    return coded


def unpacked(
    tensors: dict[str, Tensor], prefix: str, inputs: int, outputs: int, connections: int, source: Path
) -> SparseDistance:
    """Remove the tensors of a layer from those of a file, and return the layer; errors name the file."""
    found = {name: tensors.pop(prefix + name) for name in _DTYPES if prefix + name in tensors}
    for name in ("weight", "counts", "gaps"):
        if name not in found:
            raise LinfnetError(f"{source} lacks {prefix + name!r}: it belongs to another net")
    sizes = {"weight": connections, "counts": outputs, "mean": outputs, "bias": outputs}
    for name, tensor in found.items():
        if tensor.dtype not in _DTYPES[name]:
            expected = " or ".join(map(str, _DTYPES[name]))
            raise LinfnetError(f"{source}: {prefix + name!r} has dtype {tensor.dtype}; expected {expected}")
        if tensor.dim() != 1 or len(tensor) != sizes.get(name, len(tensor)):
            shape = sizes.get(name, "bytes")
            raise LinfnetError(
                f"{source}: {prefix + name!r} has shape {tuple(tensor.shape)}, the net expects [{shape}]"
            )
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise LinfnetError(f"{source}: {prefix + name!r} contains NaN or infinity")
    counts, gaps = found["counts"].long(), found["gaps"]
    last = gaps < _MORE
    if int(last.sum()) != connections or not bool(last[-1]):
        raise LinfnetError(f"{source}: {prefix + 'gaps'!r} does not contain the indices of {connections} connections")
    if bool((counts < 1).any()) or int(counts.sum()) != connections:
        raise LinfnetError(
            f"{source}: {prefix + 'counts'!r} has a sum of {int(counts.sum())} and a smallest number of "
            f"{int(counts.min())}; expected {connections}, and no neuron without connections"
        )
    offsets = counts.cumsum(0)
    ends = gaps.cumsum(0, dtype=torch.int64)[last]
    before = torch.cat([ends.new_zeros(1), ends[offsets[:-1] - 1]])
    index = ends - before.repeat_interleave(counts)
    offsets = torch.cat([offsets.new_zeros(1), offsets])
    try:
        return SparseDistance(
            found["weight"].float(), index, offsets, inputs, mean=found.get("mean"), bias=found.get("bias")
        )
    except ArgumentError as error:
        raise LinfnetError(f"{source}: layer {prefix.rstrip('.')!r}: {error}") from None
