"""The tensors of a sparse layer in a file. No number is rounded: the file contains what the program computes with.

low      uint8 [connections, 3]: the low bytes of each weight, a float32 number in little-endian order; or [connections,
         1] if all weights are float16 numbers
high     uint8: the last bytes of all weights (sign and leading bits of the exponent), compressed by zlib
steps    uint8: for each connection the difference of its index to that of the previous connection of the neuron (of the
         first: its index); first the low bytes of all differences, then the next bytes, as many as the number of inputs
         needs; compressed by zlib
counts   [out], the number of connections of each neuron: uint16, or int32 if a neuron has more than 65,535
mean     [out] float32, only with a mean shift
bias     [out] float32, only with a bias

The sizes of the decompressed tensors follow from the sizes of the others, so that a file of n bytes never expands to
more than a small multiple of n. Files of earlier versions, without compression, have other tensors instead of the first
three:

weight   [connections] float32 or float16
gaps     uint8: the differences of the indices, where a byte of 255 adds 255 to the next byte
"""

import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from linfnet.errors import ArgumentError, LinfnetError
from linfnet.nn.sparse import SparseDistance, all_finite

_DTYPES = {
    "low": (torch.uint8,),
    "high": (torch.uint8,),
    "steps": (torch.uint8,),
    "weight": (torch.float32, torch.float16),
    "gaps": (torch.uint8,),
    "counts": (torch.uint16, torch.int32),
    "mean": (torch.float32,),
    "bias": (torch.float32,),
}
_MORE = 255  # in the gaps of an earlier version
_Bytes = npt.NDArray[np.uint8]


def packed(layer: SparseDistance) -> dict[str, Tensor]:
    """Return the tensors of a layer for a file, on the CPU."""
    weight = layer.weight.detach().cpu()
    half = weight.half()
    numbers = half.numpy().astype("<f2") if torch.equal(half.to(weight.dtype), weight) else weight.numpy().astype("<f4")
    planes = numbers.view(np.uint8).reshape(len(numbers), -1)
    counts, index = layer.offsets.cpu().diff(), layer.index.cpu().long()
    steps, first = index.diff(prepend=index.new_zeros(1)), layer.offsets.cpu().long()[:-1]
    steps[first] = index[first]
    step_planes = steps.numpy().astype("<u4").view(np.uint8).reshape(-1, 4)[:, : _step_bytes(layer.in_features)]
    found = {
        "low": torch.from_numpy(planes[:, :-1].copy()),
        "high": _compressed(planes[:, -1:]),
        "steps": _compressed(step_planes),
        "counts": counts.to(torch.uint16 if int(counts.max()) < 2**16 else torch.int32),
    }
    if layer.shift is not None:
        found["mean"] = layer.shift.running_mean.detach()
    if layer.bias is not None:
        found["bias"] = layer.bias.detach()
    return found


def _step_bytes(inputs: int) -> int:
    """Return the number of bytes of the largest index."""
    return max(1, -(-(inputs - 1).bit_length() // 8))


def _compressed(columns: _Bytes) -> Tensor:
    """Return bytes [rows, columns], compressed column by column."""
    return torch.frombuffer(bytearray(zlib.compress(columns.T.tobytes(), 9)), dtype=torch.uint8)


def _decompressed(stored: Tensor, rows: int, columns: int) -> _Bytes | None:
    """Return the bytes [rows, columns], or None if the stored bytes do not contain exactly these."""
    size, reader = rows * columns, zlib.decompressobj()
    try:
        found = reader.decompress(stored.numpy().tobytes(), size + 1)  # reads no more than one byte too many
    except zlib.error:
        return None
    if len(found) != size or not reader.eof or reader.unused_data:
        return None
    return np.frombuffer(found, dtype=np.uint8).reshape(columns, rows).T


def unpacked(
    tensors: dict[str, Tensor], prefix: str, inputs: int, outputs: int, connections: int, source: Path
) -> SparseDistance:
    """Remove the tensors of a layer from those of a file, and return the layer; errors name the file."""
    found = {name: tensors.pop(prefix + name) for name in _DTYPES if prefix + name in tensors}
    _check_shapes(found, prefix, outputs, connections, source)
    earlier = "weight" in found
    counts = found["counts"].long()
    if bool((counts < 1).any()) or int(counts.sum()) != connections:
        raise LinfnetError(
            f"{source}: {prefix + 'counts'!r} has a sum of {int(counts.sum())} and a smallest number of "
            f"{int(counts.min())}; expected {connections}, and no neuron without connections"
        )
    weight = found["weight"].float() if earlier else _weights(found["low"], found["high"])
    steps = _steps_of_gaps(found["gaps"], connections) if earlier else _steps(found["steps"], connections, inputs)
    if weight is None:
        raise LinfnetError(f"{source}: {prefix + 'high'!r} does not contain the last bytes of {connections} weights")
    if steps is None:
        name = prefix + ("gaps" if earlier else "steps")
        raise LinfnetError(
            f"{source}: {name!r} does not contain the indices of {connections} connections to {inputs} inputs"
        )
    mean, bias = found.get("mean"), found.get("bias")
    for name, tensor in (("weight", weight), ("mean", mean), ("bias", bias)):
        if tensor is not None and not all_finite(tensor):
            raise LinfnetError(f"{source}: {prefix + name!r} contains NaN or infinity")
    ends, offsets = np.cumsum(steps.numpy()), np.concatenate([[0], np.cumsum(counts.numpy())])
    before = np.concatenate([[0], ends[offsets[1:-1] - 1]])
    index = torch.from_numpy(ends - np.repeat(before, counts.numpy()))
    try:
        return SparseDistance(weight, index, torch.from_numpy(offsets), inputs, mean=mean, bias=bias)
    except ArgumentError as error:
        raise LinfnetError(f"{source}: layer {prefix.rstrip('.')!r}: {error}") from None


def _check_shapes(found: dict[str, Tensor], prefix: str, outputs: int, connections: int, source: Path) -> None:
    expected = ("weight", "gaps", "counts") if "weight" in found else ("low", "high", "steps", "counts")
    for name in expected:
        if name not in found:
            raise LinfnetError(f"{source} lacks {prefix + name!r}: it belongs to another net")
    for name in sorted(found.keys() - {*expected, "mean", "bias"}):
        raise LinfnetError(f"{source} contains {prefix + name!r} beside {prefix + expected[0]!r}; expected one of them")
    rows = {"low": connections, "weight": connections, "counts": outputs, "mean": outputs, "bias": outputs}
    for name, tensor in found.items():
        if tensor.dtype not in _DTYPES[name]:
            kinds = " or ".join(map(str, _DTYPES[name]))
            raise LinfnetError(f"{source}: {prefix + name!r} has dtype {tensor.dtype}; expected {kinds}")
        shape = (rows.get(name, tensor.numel()),)
        if tuple(tensor.shape) not in ([(*shape, 3), (*shape, 1)] if name == "low" else [shape]):
            wanted = f"{rows.get(name, 'bytes')}{', 3' if name == 'low' else ''}"
            raise LinfnetError(
                f"{source}: {prefix + name!r} has shape {tuple(tensor.shape)}, the net expects [{wanted}]"
            )


def _weights(low: Tensor, high: Tensor) -> Tensor | None:
    """Return the weights as float32, or None if the compressed bytes do not contain one for each weight."""
    last = _decompressed(high, len(low), 1)
    if last is None:
        return None
    planes = np.concatenate([low.numpy(), last], axis=1)
    return torch.from_numpy(planes.view("<f2" if planes.shape[1] == 2 else "<f4")[:, 0].astype(np.float32))


def _steps(stored: Tensor, connections: int, inputs: int) -> Tensor | None:
    """Return the differences of the indices, or None if the compressed bytes do not contain them."""
    columns = _step_bytes(inputs)
    planes = _decompressed(stored, connections, columns) if columns <= 4 else None
    if planes is None:
        return None
    wide = np.zeros((connections, 4), dtype=np.uint8)
    wide[:, :columns] = planes
    return torch.from_numpy(wide.view("<u4")[:, 0].astype(np.int64))


def _steps_of_gaps(gaps: Tensor, connections: int) -> Tensor | None:
    """Return the differences of the indices in a file of an earlier version, or None if their number is another."""
    last = gaps < _MORE
    if int(last.sum()) != connections or not bool(last[-1]):
        return None
    return gaps.cumsum(0, dtype=torch.int64)[last].diff(prepend=torch.zeros(1, dtype=torch.int64))
