"""Inputs and checks for the CUDA kernels of sparse layers, on a GPU or in the emulator: bit by bit at infinity."""

import math

import torch
from dense_cases import error, slack
from torch import Tensor

from linfnet.ops import count_deciding
from linfnet.ops.cuda import SparseCuda, deciding
from linfnet.ops.cuda.nvrtc import Launcher
from linfnet.ops.sparse_reference import SparseReference

REFERENCE = SparseReference()
Csr = tuple[Tensor, Tensor, Tensor]


def connections(out: int, features: int, most: int, device: str = "cpu") -> Csr:
    """Return (weight, index, offsets): each neuron has 1 to `most` connections, the second one `features`."""
    generator = torch.Generator().manual_seed(out)
    counts = torch.randint(1, min(most, features) + 1, (out,), generator=generator)
    if out > 1:
        counts[1] = features
    rows = [torch.randperm(features, generator=generator)[:count].sort().values for count in counts.tolist()]
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]).int()
    weight = torch.randn(int(offsets[-1]), generator=generator)
    return weight.to(device), torch.cat(rows).int().to(device), offsets.to(device)


def draw(n: int, out: int, features: int, most: int = 40, device: str = "cpu") -> tuple[Tensor, Csr, Tensor]:
    """Return x, connections and a gradient. Multiples of 1/4, so that many connections attain a maximum."""
    torch.manual_seed(0)
    weight, index, offsets = connections(out, features, most, device)
    x, grad = torch.randn(n, features).to(device), torch.randn(n, out).to(device)
    return (x * 4).round() / 4, ((weight * 4).round() / 4, index, offsets), grad


def same(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...]) -> bool:
    """Whether all tensors have the same bits; the sign of zeros and the kind of NaN do not matter."""
    pairs = zip(ours, theirs, strict=True)
    return all(torch.equal((a.cpu() + 0).nan_to_num(-7), (b.cpu() + 0).nan_to_num(-7)) for a, b in pairs)


def on_cpu(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(tensor.cpu() for tensor in tensors)


def check_distances(kernels: SparseCuda, x: Tensor, csr: Csr) -> None:
    wanted = REFERENCE.forward_saving(*on_cpu(x, *csr))
    assert same(kernels.forward_saving(x, *csr), wanted)
    assert same((kernels.forward(x, *csr),), wanted[:1])


def check_bounds(kernels: SparseCuda, x: Tensor, csr: Csr) -> None:
    box = x - 0.25, x + 0.5
    wanted = REFERENCE.bounds_saving(*on_cpu(*box, *csr))
    assert same(kernels.bounds_saving(*box, *csr), wanted)
    assert same(kernels.bounds(*box, *csr), wanted[:2])
    point = kernels.bounds(x, x, *csr)
    assert same(point, (kernels.forward(x, *csr),) * 2)


def check_gradients(kernels: SparseCuda, x: Tensor, csr: Csr, grad: Tensor) -> None:
    weight, index, _ = csr
    decisive = REFERENCE.forward_saving(*on_cpu(x, *csr))[1].to(x.device)
    wanted = REFERENCE.backward(*on_cpu(grad, x, weight, index, decisive), True, True)
    assert same(kernels.backward(grad, x, weight, index, decisive, True, True), wanted)
    for need_x, need_w in ((True, False), (False, True), (False, False)):
        made = kernels.backward(grad, x, weight, index, decisive, need_x, need_w)
        assert same(made, (wanted[0] if need_x else torch.empty(0), wanted[1] if need_w else torch.empty(0)))


def check_nan_and_infinity(kernels: SparseCuda, device: str = "cpu") -> None:
    x, csr, grad = draw(11, 20, 30, device=device)
    x[2, 3], x[5, 7], x[6, 8] = math.nan, math.inf, -math.inf
    csr[0][4], csr[0][9] = math.inf, math.nan
    check_distances(kernels, x, csr)
    check_gradients(kernels, x, csr, grad)
    grad[3, 4], grad[4, 5] = math.nan, math.inf
    check_gradients(kernels, x, csr, grad)
    wanted = REFERENCE.bounds_saving(*on_cpu(x - 1, x + 1, *csr))
    assert same(kernels.bounds_saving(x - 1, x + 1, *csr), wanted)


def check_power(kernels: SparseCuda, x: Tensor, csr: Csr, grad: Tensor, p: float) -> None:
    """Check distances and gradients at a finite p against float64, with the tolerance of the dense kernels."""
    doubles = tuple(t.double() if t.is_floating_point() else t for t in on_cpu(x, *csr))
    exact_y = REFERENCE.power(*doubles, p)
    exact = exact_y, *REFERENCE.power_backward(grad.double().cpu(), *doubles, exact_y, p, True, True)
    singles = on_cpu(x, *csr)
    plain_y = REFERENCE.power(*singles, p)
    plain = plain_y, *REFERENCE.power_backward(grad.cpu(), *singles, plain_y, p, True, True)
    y = kernels.power(x, *csr, p)
    made = y, *kernels.power_backward(grad, x, *csr, y, p, True, True)
    for name, ours, theirs, truth in zip(("y", "grad_x", "grad_w"), on_cpu(*made), plain, exact, strict=True):
        bound = 2 * error(theirs, truth) + slack(name, p)
        assert error(ours, truth) <= bound, (name, error(ours, truth), bound)
    for need_x, need_w in ((True, False), (False, True), (False, False)):
        parts = kernels.power_backward(grad, x, *csr, y, p, need_x, need_w)
        assert same(parts, (made[1] if need_x else torch.empty(0), made[2] if need_w else torch.empty(0)))
    # The results of a row do not depend on the other rows.
    for rows in (slice(1), slice(1, 3), slice(len(x) // 2, None)):
        part = kernels.power(x[rows].clone(), *csr, p)
        assert same((part,), (y[rows],))
        part = kernels.power_backward(grad[rows].clone(), x[rows].clone(), *csr, part, p, True, False)
        assert same(part[:1], (made[1][rows],))


def check_power_of_nan_and_infinity(kernels: SparseCuda, p: float, device: str = "cpu") -> None:
    x, csr, grad = draw(11, 20, 30, device=device)
    x[2, 3], x[5, 7], x[6, 8] = math.nan, math.inf, -math.inf
    csr[0][4], csr[0][9], grad[3, 4] = math.inf, math.nan, math.nan
    singles, y = on_cpu(x, *csr), kernels.power(x, *csr, p)
    wanted = REFERENCE.power(*singles, p)
    wanted = wanted, *REFERENCE.power_backward(grad.cpu(), *singles, wanted, p, True, True)
    for ours, theirs in zip((y, *kernels.power_backward(grad, x, *csr, y, p, True, True)), wanted, strict=True):
        assert torch.equal(ours.cpu().isnan(), theirs.isnan())
        assert torch.equal(ours.cpu().isinf(), theirs.isinf())


def counts(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Return the counts of `count_deciding` from all differences at once."""
    difference = (x[:, None] - w).abs()
    first, second = torch.zeros(2, *w.shape, dtype=torch.int32, device=w.device)
    for count in (first, second):
        largest = difference.max(-1, keepdim=True).indices
        for row in largest[..., 0]:
            count[torch.arange(len(w), device=w.device), row] += 1
        difference.scatter_(-1, largest, -1.0)
    return first, second


def check_counts_of_reference(x: Tensor, w: Tensor) -> None:
    first, second, alone = torch.ones(3, *w.shape, dtype=torch.int32, device=w.device)
    count_deciding(x, w, first, second)
    count_deciding(x, w, alone)
    wanted = counts(x, w)
    assert same((first - 1, second - 1, alone - 1), (*wanted, wanted[0]))


def every_sparse_path(launcher: Launcher, device: str = "cpu") -> None:
    """Run every kernel of sparse layers, with all numbers of rows per block, and the counts."""
    kernels = SparseCuda(launcher)
    for n, features in ((1, 30), (2, 30), (3, 30), (9, 31), (9, 45_000)):
        x, csr, grad = draw(n, 70, features, device=device)
        y, decisive = kernels.forward_saving(x, *csr)
        kernels.forward(x, *csr)
        kernels.bounds(x, x + 1, *csr)
        kernels.bounds_saving(x, x + 1, *csr)
        kernels.backward(grad, x, *csr[:2], decisive, True, True)
        kernels.power_backward(grad, x, *csr, kernels.power(x, *csr, 16.0), 16.0, True, True)
        deciding.count(launcher, x, y.new_zeros(5, features), *decisive.new_zeros(2, 5, features))
