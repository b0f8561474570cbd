"""The CUDA kernels of sparse layers and the counts of deciding weights: emulated, and on a GPU where there is one."""

from pathlib import Path

import pytest
import sparse_cases as cases
import torch
from simt import LITTLE, MUCH, Emulator, needs_compiler
from torch import Tensor

from linfnet.errors import ArgumentError
from linfnet.ops import count_deciding, default_implementation, sparse_linf_bounds, sparse_linf_distance
from linfnet.ops.cuda import SparseCuda, deciding
from linfnet.ops.cuda.nvrtc import Launcher
from linfnet.ops.cuda.sparse import plan

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
# Rows of x: one, a part of a block, several blocks. Outputs: a part of a warp, several warps and parts.
SHAPES = [(1, 1, 1, 1), (1, 150, 40, 40), (2, 5, 7, 3), (3, 300, 33, 9), (5, 130, 64, 64), (21, 259, 100, 20)]


@pytest.fixture
def kernels(launcher: Launcher) -> SparseCuda:
    return SparseCuda(launcher)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_everything_is_bit_identical(kernels: SparseCuda, device: str, shape: tuple[int, int, int, int]) -> None:
    x, csr, grad = cases.draw(*shape, device=device)
    cases.check_distances(kernels, x, csr)
    cases.check_bounds(kernels, x, csr)
    cases.check_gradients(kernels, x, csr, grad)


def test_sums_have_the_order_of_the_reference(kernels: SparseCuda, device: str) -> None:
    """Check long sums of numbers of different sizes: in another order, they would have other bits."""
    x, (weight, index, offsets), grad = cases.draw(150, 140, 3, 2, device=device)
    cases.check_gradients(kernels, x, (weight, index, offsets), grad * torch.randn_like(grad).exp2())


def test_nan_and_infinity(kernels: SparseCuda, device: str) -> None:
    cases.check_nan_and_infinity(kernels, device)


def test_equal_numbers_have_no_slope(kernels: SparseCuda, device: str) -> None:
    x, (weight, index, offsets), grad = cases.draw(9, 40, 12, device=device)
    x[:], weight[:] = 0.5, 0.5
    y, decisive = kernels.forward_saving(x, weight, index, offsets)
    assert not y.any()
    assert torch.equal(decisive, offsets[:-1].expand_as(decisive))
    assert not any(gradient.any() for gradient in kernels.backward(grad, x, weight, index, decisive, True, True))


@pytest.mark.parametrize("p", [1.0, 1.2, 2.0, 3.0, 16.0, 30.5, 64.0, 200.0, 1e4])
def test_finite_p(kernels: SparseCuda, device: str, p: float) -> None:
    for shape in ((1, 1, 1, 1), (3, 70, 33, 9), (11, 130, 64, 64)):
        x, csr, grad = cases.draw(*shape, device=device)
        torch.manual_seed(1)
        x = torch.randn(x.shape).to(device)
        cases.check_power(kernels, x, csr, grad, p)
        for scale in (1e-42, 1e36):
            cases.check_power(kernels, x * scale, (csr[0] * scale, *csr[1:]), grad, p)


@pytest.mark.parametrize("p", [2.0, 30.5, 64.0])
def test_finite_p_with_nan_and_infinity(kernels: SparseCuda, device: str, p: float) -> None:
    cases.check_power_of_nan_and_infinity(kernels, p, device)


def test_equal_numbers_have_no_slope_at_a_finite_p(kernels: SparseCuda, device: str) -> None:
    x, (weight, index, offsets), grad = cases.draw(9, 40, 12, device=device)
    x[:], weight[:] = 0.5, 0.5
    for p in (1.0, 16.0, 30.5):
        y = kernels.power(x, weight, index, offsets, p)
        assert not any(t.any() for t in (y, *kernels.power_backward(grad, x, weight, index, offsets, y, p, True, True)))


@pytest.mark.emulator
@needs_compiler
@pytest.mark.parametrize("features", [6000, 20_000, 45_000])
def test_wide_layers_in_little_shared_memory(libraries: Path, features: int) -> None:
    """Rows of which four fit (of bounds, two), of which only one fits, and that do not fit at all."""
    kernels = SparseCuda(Emulator(libraries, shared=LITTLE))
    x, csr, grad = cases.draw(9, 12, features)
    cases.check_distances(kernels, x, csr)
    cases.check_bounds(kernels, x, csr)
    cases.check_gradients(kernels, x, csr, grad)
    cases.check_power(kernels, x, csr, grad, 16.0)


@pytest.mark.emulator
@needs_compiler
@pytest.mark.parametrize("order", [1, 2])
def test_the_order_of_threads_does_not_matter(libraries: Path, order: int) -> None:
    kernels = SparseCuda(Emulator(libraries, order=order))
    x, csr, grad = cases.draw(13, 150, 50)
    cases.check_distances(kernels, x, csr)
    cases.check_bounds(kernels, x, csr)
    cases.check_gradients(kernels, x, csr, grad)
    usual, y = SparseCuda(Emulator(libraries)), kernels.power(x, *csr, 30.5)
    assert cases.same((y,), (usual.power(x, *csr, 30.5),))
    one, other = (k.power_backward(grad, x, *csr, y, 30.5, True, True) for k in (kernels, usual))
    assert cases.same(one, other)


@pytest.mark.parametrize(("n", "out"), [(0, 3), (3, 0), (0, 0)])
def test_nothing_is_launched_for_nothing(n: int, out: int) -> None:
    class NoLaunches(Launcher):
        def shared_memory(self, device: torch.device) -> int:
            return MUCH

    kernels, x = SparseCuda(NoLaunches()), torch.randn(n, 4)
    weight, index, offsets = torch.randn(out), torch.arange(out).int(), torch.arange(out + 1).int()
    y, decisive = kernels.forward_saving(x, weight, index, offsets)
    gradients = kernels.backward(y, x, weight, index, decisive, True, True)
    power = kernels.power(x, weight, index, offsets, 16.0)
    assert power.shape == (n, out)
    gradients = *gradients, *kernels.power_backward(power, x, weight, index, offsets, power, 16.0, True, True)
    assert [tuple(t.shape) for t in (y, *kernels.bounds(x, x, weight, index, offsets))] == [(n, out)] * 3
    assert not any(gradient.any() for gradient in gradients)


def test_connections_are_checked_when_they_are_new_or_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    checks: list[int] = []

    def check(index: Tensor, offsets: Tensor, features: int) -> None:
        checks.append(features)

    monkeypatch.setattr("linfnet.ops.cuda.sparse.check_connections", check)
    kernels, (_, index, offsets) = SparseCuda(), cases.connections(5, 7, 3)
    known = kernels._order  # pyright: ignore[reportPrivateUsage]
    for features in (7, 7, 9, 9, 7):
        known(index, offsets, features)
    assert checks == [7, 9, 7]
    known(index, offsets.clone(), 7)
    known(index, offsets, 7)
    index[0] = 1
    known(index, offsets, 7)
    known(index.clone(), offsets, 7)
    assert len(checks) == 7
    with torch.inference_mode():
        fresh = index.clone()
    for _ in range(2):
        assert torch.equal(known(fresh, offsets, 7), offsets.diff().argsort(descending=True, stable=True))
    assert len(checks) == 8


def test_wrong_connections_are_reported(kernels: SparseCuda, device: str) -> None:
    x, (weight, index, offsets), _ = cases.draw(3, 5, 7, device=device)
    with pytest.raises(ArgumentError, match="index has values"):
        kernels.forward(x[:, :3].contiguous(), weight, index, offsets)


@pytest.mark.parametrize("n", [1, 2, 7, 8, 500, 512, 600, 10_000])
@pytest.mark.parametrize("features", [10, 3072, 5120, 20_000, 100_000])
def test_plans_fit_the_device(n: int, features: int) -> None:
    for shared in (LITTLE, MUCH):
        (groups, parts, _), rows = plan(n, 5120, 4 * features, shared, 132)
        assert (groups - 1) * rows < n <= groups * rows
        assert rows == 1 or rows * 4 * features <= shared
        assert rows < 2 * n
        assert 1 <= parts <= 40
        assert groups >= 132 or groups * parts >= 66 or parts == 40


@pytest.mark.parametrize("shape", [(1, 1, 1), (70, 3, 2), (65, 70, 44), (3, 130, 67), (130, 65, 16)], ids=str)
def test_deciding_weights_are_counted(launcher: Launcher, device: str, shape: tuple[int, int, int]) -> None:
    n, out, features = shape
    torch.manual_seed(0)
    x, w = ((torch.randn(rows, features, device=device) * 4).round() / 4 for rows in (n, out))
    first, second, alone = torch.ones(3, out, features, dtype=torch.int32, device=device)
    deciding.count(launcher, x, w, first, second)
    deciding.count(launcher, x, w, alone, None)
    wanted_first, wanted_second = cases.counts(x, w)
    assert torch.equal(first - 1, wanted_first)
    assert torch.equal(alone - 1, wanted_first)
    assert torch.equal(second - 1, wanted_second if features > 1 else torch.zeros_like(second))


@pytest.mark.parametrize("impl", [None, "reference"])
@pytest.mark.parametrize("shape", [(7, 5, 2), (30, 20, 16)], ids=str)
def test_deciding_weights_are_counted_on_a_cpu(
    shape: tuple[int, int, int], impl: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("linfnet.ops.reference.BLOCK_ELEMENTS", 100)
    torch.manual_seed(0)
    x, w = ((torch.randn(rows, shape[2]) * 4).round() / 4 for rows in shape[:2])
    with default_implementation(impl):
        cases.check_counts_of_reference(x, w)
        cases.check_counts_of_reference(x.double(), w.double())


def test_counts_must_fit_the_layer() -> None:
    x, w, count = torch.randn(3, 4), torch.randn(5, 4), torch.zeros(5, 4, dtype=torch.int32)
    for wrong in (count.long(), count[:4], count.t().contiguous().t()):
        with pytest.raises(ArgumentError, match="second has"):
            count_deciding(x, w, count, wrong)
    with pytest.raises(ArgumentError, match=r"x has shape \(3, 3\) and w \(5, 4\)"):
        count_deciding(x[:, :3], w, count)
    with pytest.raises(ArgumentError, match="expected the same"):
        count_deciding(x.double(), w, count)
    count_deciding(x[:0], w, count, count.clone())
    assert not count.any()


@pytest.mark.gpu
@needs_gpu
def test_autograd_and_graphs_on_a_gpu() -> None:
    x, (weight, index, offsets), grad = cases.draw(500, 300, 700, device="cuda")
    results: list[tuple[Tensor, ...]] = []
    for device in ("cuda", "cpu"):
        inputs = [tensor.detach().to(device).requires_grad_() for tensor in (x, weight)]
        csr = inputs[1], index.to(device), offsets.to(device)
        y = sparse_linf_distance(inputs[0], *csr, impl="cuda" if device == "cuda" else None)
        y.backward(grad.to(device))
        bounds = sparse_linf_bounds(inputs[0] - 0.1, inputs[0] + 0.1, *csr)
        results.append((y, *(a.grad for a in inputs), *bounds))  # pyright: ignore[reportArgumentType]
    assert cases.same(*results)
    kernels, graph = SparseCuda(), torch.cuda.CUDAGraph()
    wanted = kernels.forward_saving(x, weight, index, offsets)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        y, decisive = kernels.forward_saving(x, weight, index, offsets)
        gradients = kernels.backward(grad, x, weight, index, decisive, True, True)
    graph.replay()
    torch.cuda.synchronize()
    assert cases.same((y, decisive, *gradients), (*wanted, *results[0][1:3]))
