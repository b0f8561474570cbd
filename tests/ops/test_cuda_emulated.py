"""Every CUDA kernel on a CPU (simt.py), with the tolerances of the tests that run on a GPU."""

import math
from collections.abc import Callable
from pathlib import Path

import dense_cases as dense
import pruned_cases as pruned
import pytest
import tensor_core_cases as expanded
import torch
from kernel_steps import step
from simt import LITTLE, Emulator, needs_compiler
from torch import Tensor

from linfnet.ops import Reference
from linfnet.ops.cuda import Cuda, dispatch, half, tensor_core
from linfnet.ops.cuda.dense import Dense

pytestmark = needs_compiler

CPU = "cpu"
REFERENCE = Reference()
Shape = tuple[int, int, int]
Drawn = tuple[Tensor, Tensor, Tensor]
# Shapes smaller than a tile, with partial tiles in all directions, with few outputs (the features are divided), and
# with several tiles of outputs.
SHAPES: list[Shape] = [(3, 5, 7), (65, 70, 44), (40, 10, 130), (21, 300, 69)]


@pytest.fixture(scope="session")
def emulator(libraries: Path) -> Emulator:
    return Emulator(libraries)


@pytest.fixture(scope="session")
def kernels(emulator: Emulator) -> Cuda:
    return Cuda(emulator)


def toward_zero(a: Tensor) -> Tensor:
    """Truncate float64 to float32."""
    near = a.float()
    return torch.where(near.double().abs() > a.abs(), torch.nextafter(near, torch.zeros_like(near)), near)


def tensor_core_products(a: Tensor, b: Tensor, into: Tensor | None = None) -> Tensor:
    """Multiply [B, m, k] and [B, k, n] like an H200: add 16 products and the sum so far at a time, each truncated below
    a quarter of the last bit of the largest; truncate their sum below its last bit."""
    total = torch.zeros(a.shape[0], a.shape[1], b.shape[2])
    for first in range(0, a.shape[2], 16):
        terms = slice(first, first + 16)
        products = a[:, :, terms, None].double() * b[:, None, terms].double()
        addends = torch.cat([products, total[:, :, None].double()], 2)
        _, exponent = torch.frexp(addends.abs().amax(2, keepdim=True))
        unit = torch.exp2(exponent.double() - 26)
        total = toward_zero((torch.trunc(addends / unit) * unit).sum(2))
    return total if into is None else into.copy_(total)


@pytest.fixture
def _products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also expand small layers, with products that are truncated as on a GPU."""
    monkeypatch.setattr(tensor_core, "SMALLEST", 0)
    monkeypatch.setattr(tensor_core, "_products", tensor_core_products)


@pytest.mark.parametrize("size", [1, 6, 7, 2051])
def test_the_largest_number_may_be_anywhere(emulator: Emulator, size: int) -> None:
    for index in {0, size // 2, size - 3, size - 2, size - 1} & set(range(size)):
        first, second = torch.rand(2, size).unbind()
        first[index], second[index] = -3.0, math.inf
        largest = Dense(emulator, first[None], second[None], 2.0).largest(first, second).view(torch.float32)
        assert largest.tolist() == [3.0, math.inf]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("p", [1.0, 8.0, 8.3, 28.0, 30.5, 200.5])
def test_distances_and_gradients(kernels: Cuda, p: float, shape: Shape) -> None:
    dense.check_against_reference(kernels, *dense.draw(shape, CPU), p)


@pytest.mark.parametrize("in_float16", [False, True])
@pytest.mark.parametrize("p", [6.0, 8.0, 8.3, 14.0, 24.0, 30.5, 200.5])
def test_few_outputs_and_many_rows(kernels: Cuda, p: float, in_float16: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such layers are computed with x and w exchanged."""
    monkeypatch.setattr(dispatch, "MANY_ROWS", 200)
    monkeypatch.setattr(half, "SMALLEST", 0)
    x, w, grad = dense.draw((333, 12, 48), CPU)
    assert dispatch.exchanges(x, w)
    assert not dispatch.exchanges(torch.empty((1 << 20) + 1, 1, device="meta"), w)
    assert kernels.saved_like(x, w, p).shape == kernels.forward_saving(x, w, p)[1].shape
    with half.training_in_float16(in_float16):
        if not (in_float16 and p in (14.0, 24.0)):
            dense.check_against_reference(kernels, x, w, grad, p)
            return
        made, exact = step(kernels, x, w, grad, p), step(REFERENCE, x.double(), w.double(), grad.double(), p)
    for ours, truth in zip(made, exact, strict=True):
        assert (ours - truth).norm() <= 0.01 * truth.norm()


def test_few_outputs_and_many_rows_at_infinity(kernels: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "MANY_ROWS", 200)
    x, w, grad = dense.draw((333, 12, 48), CPU)
    w[-1] = x[-1]  # a distance of 0 has no slope
    y, *gradients = step(kernels, x, w, grad, math.inf)
    exact_y, *exact = step(REFERENCE, x.double(), w.double(), grad.double(), math.inf)
    assert torch.equal(y, exact_y.float())
    for ours, truth in zip(gradients, exact, strict=True):
        assert dense.error(ours, truth) <= 8 * dense.ROUNDING


@pytest.mark.parametrize("p", [2 - 1e-12, 9 - 2e-7, 10 - 1e-9, 64 - 1e-9])
def test_p_that_float32_takes_for_a_whole_number(kernels: Cuda, p: float) -> None:
    dense.check_against_reference(kernels, *dense.draw((65, 70, 44), CPU), p)


def test_long_sums_are_summed_in_runs(kernels: Cuda) -> None:
    """Check long sums at p = 1: the p-th root of a larger p would hide an error that grows with the length."""
    dense.check_against_reference(kernels, *dense.draw((3, 5, 12_000), CPU), 1.0)


def test_residuals_are_saved(kernels: Cuda) -> None:
    x, w = (dense.ties(a) for a in dense.draw((65, 70, 44), CPU)[:2])
    dense.check_residual(x, w, *kernels.forward_saving(x, w, 28.0), 28.0)
    pruned.check_residual(kernels, *pruned.spiked((33, 70, 259), CPU)[:2], 28.0)


@pytest.mark.parametrize("features", [130, 259])
def test_slopes_do_not_multiply_what_rounding_drops(kernels: Cuda, features: int) -> None:
    dense.check_exact_powers(kernels, *dense.exact_powers((40, 70, features), CPU), 64.0)


@pytest.mark.parametrize("p", [8.0, 8.3, 28.0, 30.5, 200.5])
def test_pairs_out_of_range_are_computed_exactly(kernels: Cuda, p: float) -> None:
    x, w, grad = dense.out_of_range((22, 35, 50), CPU)
    dense.check_against_reference(kernels, x, w, grad, p)
    dense.check_each_pair(kernels, x, w, p)
    assert kernels.forward(x, w, p)[3, 7] == 0


@pytest.mark.parametrize("p", [50.0, 60.5, 64.0])
def test_most_pairs_may_be_out_of_range(kernels: Cuda, p: float) -> None:
    """One output makes the layer's range too large for a single scale: special functions and scales per pair."""
    x, w, grad = dense.draw((65, 70, 44), CPU)
    w[3] *= 5
    dense.check_against_reference(kernels, x, w, grad, p)
    dense.check_each_pair(kernels, x, w, p)


@pytest.mark.parametrize("factor", [1e-30, 1e30])
def test_extreme_magnitudes(kernels: Cuda, factor: float) -> None:
    x, w, grad = dense.draw((20, 30, 50), CPU)
    dense.check_against_reference(kernels, x * factor, w * factor, grad * factor, 8.0)
    dense.check_against_reference(kernels, x * factor, w * factor, grad / factor, 8.0)


@pytest.mark.parametrize("p", [100.0, 200.5])
def test_distances_at_the_end_of_the_float_range(kernels: Cuda, p: float) -> None:
    dense.check_end_of_range(kernels, *dense.draw((20, 30, 50), CPU), p)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_infinity_is_bit_identical(kernels: Cuda, shape: Shape) -> None:
    x, w, grad = dense.draw(shape, CPU)
    dense.check_infinity(kernels, dense.ties(x), dense.ties(w), grad)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bounds_are_bit_identical(kernels: Cuda, shape: Shape) -> None:
    x, w, _ = dense.draw(shape, CPU)
    dense.check_bounds(kernels, x, w)


@pytest.mark.parametrize("p", [8.0, 30.5, math.inf])
def test_nan_and_infinity_reach_the_output(kernels: Cuda, p: float) -> None:
    x, w, _ = dense.draw((9, 70, 50), CPU)
    dense.check_nan_and_infinity(kernels, x, w, p)


def test_one_gradient_alone(kernels: Cuda) -> None:
    pruned.check_one_gradient(kernels, *dense.draw((20, 140, 70), CPU), 28.0)


def test_little_shared_memory_changes_no_bit(emulator: Emulator, libraries: Path) -> None:
    drawn = dense.draw((40, 10, 130), CPU)
    much, little = (step(Cuda(launcher), *drawn, 200.5) for launcher in (emulator, Emulator(libraries, shared=LITTLE)))
    assert all(torch.equal(a, b) for a, b in zip(much, little, strict=True))


def test_long_rows_scatter_without_shared_memory(kernels: Cuda) -> None:
    x, w, grad = dense.draw((3, 4, 41_000), CPU)
    dense.check_infinity(kernels, dense.ties(x), dense.ties(w), grad)


@pytest.mark.parametrize("p", [8.0, math.inf])
def test_unaligned_rows(kernels: Cuda, p: float) -> None:
    x, w, _ = dense.draw((30, 40, 64), CPU)
    shifted = torch.empty(x.numel() + 1)[1:].view_as(x).copy_(x)
    assert torch.equal(kernels.forward(shifted, w, p), kernels.forward(x, w, p))


# 520 rows are divided into several groups.
@pytest.mark.parametrize(
    ("p", "shape"),
    [*((p, (33, 70, 259)) for p in (28.0, 30.5, 100.0, 112.5, 128.5, 200.5)), (100.0, (520, 32, 256))],
    ids=str,
)
def test_lists(kernels: Cuda, p: float, shape: Shape) -> None:
    pruned.check(kernels, *pruned.spiked(shape, CPU), p, use_dense=0)


@pytest.mark.parametrize("p", [28.0, 100.0, 200.5])
def test_many_small_terms_count(kernels: Cuda, p: float) -> None:
    """One weight of each output decides; sixty others add about 2^-20 of its term each, too much to be dropped."""
    n, out, features = 33, 40, 259
    torch.manual_seed(0)
    x, w, grad = 0.02 * torch.randn(n, features), torch.randn(out, features), torch.randn(n, out)
    w[:, :61] = -8 * 2 ** (-20 / p)
    w[:, 0] = -8
    pruned.check(kernels, x, w, grad, p, use_dense=0)


@pytest.mark.parametrize("p", [28.0, 200.5])
def test_rows_far_out_on_either_side(kernels: Cuda, p: float) -> None:
    pruned.check(kernels, *pruned.far_out((33, 40, 259), CPU), p, use_dense=0)


@pytest.mark.parametrize("p", [28.0, 100.0, 200.5])
def test_too_long_lists_open_the_dense_kernels(kernels: Cuda, p: float) -> None:
    pruned.check(kernels, *pruned.crowded((33, 40, 259), CPU), p, use_dense=1)


@pytest.mark.parametrize("p", [28.0, 100.0, 200.5])
def test_distances_near_the_largest_float(kernels: Cuda, p: float) -> None:
    pruned.check(kernels, *pruned.largest((33, 40, 259), CPU), p, use_dense=int(p > 128))


def test_the_largest_distances_are_for_the_dense_kernels(kernels: Cuda) -> None:
    pruned.check(kernels, *pruned.beyond((33, 40, 259), CPU), 128.0, use_dense=1)


def test_a_pair_out_of_range_opens_the_dense_kernels(kernels: Cuda) -> None:
    x, w, grad = pruned.spiked((33, 40, 259), CPU)
    w[5] = x[6] + 1e-6
    pruned.check(kernels, x, w, grad, 28.0, use_dense=1)
    w[5] = x[6]
    pruned.check(kernels, x, w, grad, 28.0, use_dense=0)


@pytest.mark.parametrize("p", [100.0, 200.5])
def test_lists_with_nan_and_infinity(kernels: Cuda, p: float) -> None:
    pruned.check_nan_and_infinity(kernels, lambda: pruned.spiked((33, 40, 259), CPU), p)


@pytest.mark.parametrize("p", [28.0, 100.0, 200.5])
def test_one_gradient_alone_from_lists(kernels: Cuda, p: float) -> None:
    pruned.check_one_gradient(kernels, *pruned.spiked((33, 40, 259), CPU), p)


@pytest.mark.parametrize(
    ("draw", "shape"),
    [(pruned.spiked, (33, 70, 259)), (pruned.spiked, (520, 32, 256)), (pruned.crowded, (33, 40, 259))],
)
def test_lists_at_infinity_are_bit_identical(
    emulator: Emulator, shape: Shape, draw: Callable[[Shape, str], Drawn]
) -> None:
    x, w, _ = draw(shape, CPU)
    pruned.check_infinity(emulator, x, w, use_dense=int(draw is pruned.crowded))


@pytest.mark.usefixtures("_products")
@pytest.mark.parametrize(("p", "shape"), [(10.0, (65, 40, 104)), (8.0, (66, 24, 1552)), (8.0, (64, 1552, 8))], ids=str)
def test_matrix_products(kernels: Cuda, p: float, shape: Shape) -> None:
    expanded.check(kernels, *expanded.trained(shape, CPU), p)


@pytest.mark.usefixtures("_products")
@pytest.mark.parametrize("p", [6.0, 8.0, 10.0])
def test_small_gradients_are_as_right_as_large_ones(kernels: Cuda, p: float) -> None:
    expanded.check_small_gradients(kernels, *expanded.trained((64, 40, 104), CPU), p)


@pytest.mark.usefixtures("_products")
def test_features_narrow_on_one_side(kernels: Cuda) -> None:
    expanded.check(kernels, *expanded.narrow((64, 40, 104), CPU), 8.0)


@pytest.mark.usefixtures("_products")
@pytest.mark.parametrize("p", [6.0, 8.0, 10.0])
def test_slopes_of_rather_close_pairs(kernels: Cuda, p: float) -> None:
    expanded.check(kernels, *expanded.rather_close((64, 40, 104), CPU), p)


@pytest.mark.usefixtures("_products")
@pytest.mark.parametrize(("p", "level"), [(8.0, 1.8), (10.0, 2.6)])
def test_sums_little_above_the_least(kernels: Cuda, p: float, level: float) -> None:
    expanded.check(kernels, *expanded.even((64, 40, 104), level, CPU), p)


@pytest.mark.parametrize("p", [6.0, 8.0, 10.0])
def test_what_a_pair_may_lose_at_worst(p: float) -> None:
    """The tolerances follow the constants of the expansion: with larger ones, worse kernels would pass."""
    share = expanded.share(tensor_core.MOST_TERMS, p)
    assert share * 2 * tensor_core.most_loss(p) / p <= 2.5e-4  # of a distance
    assert share * (2 * tensor_core.MOST_SLOPE_LOSS) ** (1 - 1 / p) <= 1e-2  # of a slope
    assert 2.0**-36 / tensor_core.LEAST_SUM <= 2.0**-20  # of a sum, for each feature


@pytest.mark.usefixtures("_products")
def test_layers_that_cancel_open_the_dense_kernels(kernels: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    expanded.check_cancelling_layer(kernels, *expanded.close((64, 40, 104), CPU), 8.0, monkeypatch)


@pytest.mark.usefixtures("_products")
def test_single_pairs_that_cancel_are_summed_again(kernels: Cuda) -> None:
    expanded.check_cancelling_pairs(kernels, *expanded.trained((64, 264, 104), CPU))


@pytest.mark.usefixtures("_products")
def test_many_close_pairs_open_the_dense_kernels(kernels: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    expanded.check_cancelling_layer(kernels, *expanded.crowd((64, 40, 104), CPU), 8.0, monkeypatch)


@pytest.mark.usefixtures("_products")
@pytest.mark.parametrize("p", [6.0, 8.0, 10.0])
def test_a_weight_far_beyond_the_others(kernels: Cuda, p: float) -> None:
    expanded.check_far_weight(kernels, (64, 40, 104), CPU, p)


@pytest.mark.usefixtures("_products")
@pytest.mark.parametrize("p", [6.0, 8.0, 10.0])
def test_a_small_pair_among_large_ones(kernels: Cuda, p: float) -> None:
    expanded.check(kernels, *expanded.small_pair((64, 40, 104), CPU), p)


@pytest.mark.usefixtures("_products")
@pytest.mark.parametrize("exponent", [-130, -140, 126])
def test_the_ends_of_the_float_range_are_for_the_dense_kernels(
    kernels: Cuda, exponent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = expanded.at_the_end((64, 40, 104), exponent, CPU)
    expanded.check_cancelling_layer(kernels, *drawn, 8.0, monkeypatch)


@pytest.mark.usefixtures("_products")
@pytest.mark.parametrize("factor", [2.0**-90, 2.0**90])
def test_the_scale_does_not_matter(kernels: Cuda, factor: float) -> None:
    expanded.check_scale(kernels, *expanded.trained((64, 40, 104), CPU), factor)


@pytest.mark.usefixtures("_products")
def test_matrix_products_with_nan_and_infinity(kernels: Cuda) -> None:
    expanded.check_nan_and_infinity(kernels, lambda: expanded.trained((64, 40, 104), CPU))


@pytest.mark.usefixtures("_products")
def test_one_gradient_alone_by_matrix_products(kernels: Cuda) -> None:
    pruned.check_one_gradient(kernels, *expanded.trained((64, 40, 104), CPU), 8.0)
