"""Which weights of a layer decide its outputs at p = infinity: counts over a batch."""

import math

import torch
from torch import Tensor

from linfnet.errors import ArgumentError
from linfnet.ops.cuda import deciding as cuda
from linfnet.ops.cuda.nvrtc import Launcher
from linfnet.ops.implementations import choose, get
from linfnet.ops.reference import blocks
from linfnet.ops.sparse import check_sparse
from linfnet.ops.sparse_reference import choose_sparse, get_sparse


def _check(x: Tensor, w: Tensor, counts: dict[str, Tensor | None]) -> None:
    if x.dim() != 2 or w.dim() != 2 or x.shape[1] != w.shape[1]:
        raise ArgumentError(
            f"x has shape {tuple(x.shape)} and w {tuple(w.shape)}; expected [n, in] and [out, in] with the same in"
        )
    if x.dtype != w.dtype or x.device != w.device:
        raise ArgumentError(f"x is {x.dtype} on {x.device} and w {w.dtype} on {w.device}; expected the same")
    for name, count in counts.items():
        if count is None:
            continue
        if count.shape != w.shape or count.dtype != torch.int32 or count.device != w.device:
            raise ArgumentError(
                f"{name} has shape {tuple(count.shape)} and is {count.dtype} on {count.device}; expected "
                f"{tuple(w.shape)}, {torch.int32} on {w.device}"
            )
        if not count.is_contiguous():
            raise ArgumentError(f"{name} has strides {count.stride()}; expected a contiguous tensor")


def _add(counts: Tensor, index: Tensor) -> None:
    """Add 1 to counts[o, index[b, o]] for every row b and output o."""
    counts.scatter_add_(1, index.t().long(), torch.ones_like(counts[:1, :1]).expand(index.shape[::-1]))


@torch.no_grad()
def count_deciding(
    x: Tensor, w: Tensor, first: Tensor, second: Tensor | None = None, *, impl: str | None = None
) -> None:
    """Count how often each weight attains the largest |x - w| of an output, and how often the second largest.

    Of equal differences, the first in the row counts as larger. At p = infinity, a net that has only the weights with
    counts above 0 in `first` has the same outputs for the counted batches.

    Args:
        x: [n, in], the inputs of the layer; float32 or float64, without NaN.
        w: [out, in], the weights; of the same dtype and device.
        first: int32 [out, in]; increased by the number of rows of x for which the weight attains the largest.
        second: the same for the second largest; None if not needed, which takes less time on a CPU. Not changed if
            in = 1.
        impl: as in `lp_distance`.

    >>> first, second = torch.zeros(2, 1, 3, dtype=torch.int32)
    >>> count_deciding(torch.tensor([[3.0, 0.0, 1.0], [0.0, 2.0, 2.0]]), torch.zeros(1, 3), first, second)
    >>> first, second
    (tensor([[1, 1, 0]], dtype=torch.int32), tensor([[0, 0, 2]], dtype=torch.int32))
    """
    _check(x, w, {"first": first, "second": second})
    name = choose(x.device.type, x.dtype, impl)
    if 0 in (x.shape[0], *w.shape):
        return
    x, w = x.contiguous(), w.contiguous()
    if name == "cuda":
        cuda.count(Launcher(), x, w, first, second)
        return
    # On a CPU, both implementations save the index of the largest; others may save something else.
    saving = name if name in ("cpu", "reference") else "reference"
    decisive = get(saving).forward_saving(x, w, math.inf)[1]
    _add(first, decisive)
    if second is None or w.shape[1] == 1:
        return
    for rows, outs in blocks(x, w):
        difference = (x[rows, None] - w[outs]).abs_()
        difference.scatter_(-1, decisive[rows, outs, None].long(), -1.0)
        _add(second[outs], difference.argmax(-1))


@torch.no_grad()
def count_deciding_sparse(
    x: Tensor, weight: Tensor, index: Tensor, offsets: Tensor, first: Tensor, *, impl: str | None = None
) -> None:
    """Count how often each connection of a sparse layer attains the largest |x - weight| of an output.

    Args:
        x: [n, in], the inputs of the layer; float32 or float64, without NaN.
        weight, index, offsets, impl: as in `sparse_linf_distance`.
        first: int32 [connections]; increased by the number of rows of x for which the connection is the first that
            attains the largest.

    >>> weight, first = torch.zeros(3), torch.zeros(3, dtype=torch.int32)
    >>> index, offsets = torch.tensor([0, 2, 1], dtype=torch.int32), torch.tensor([0, 2, 3], dtype=torch.int32)
    >>> count_deciding_sparse(torch.tensor([[3.0, 0.0, 1.0], [0.0, 2.0, 2.0]]), weight, index, offsets, first)
    >>> first
    tensor([1, 1, 2], dtype=torch.int32)
    """
    check_sparse("x", x, weight, index, offsets)
    if x.dim() != 2 or first.shape != weight.shape or first.dtype != torch.int32 or first.device != weight.device:
        raise ArgumentError(
            f"x has shape {tuple(x.shape)}, and first has shape {tuple(first.shape)} and is {first.dtype} on "
            f"{first.device}; expected [n, in], and {tuple(weight.shape)}, {torch.int32} on {weight.device}"
        )
    chosen = get_sparse(choose_sparse(x.device.type, x.dtype, impl))
    tensors = (x.contiguous(), weight.contiguous(), index.contiguous(), offsets.contiguous())
    decisive = chosen.forward_saving(*tensors)[1].flatten().long()
    first += decisive.bincount(minlength=len(first)).to(first.dtype)
