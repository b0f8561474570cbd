"""The dense CUDA kernels on a GPU; test_cuda_emulated.py makes the same checks (dense_cases.py) without one."""

import math
import warnings

import dense_cases as cases
import pytest
import torch
from dense_cases import REFERENCE, decoded_index
from kernel_steps import replayed_step, step

from linfnet.ops import default_implementation, linf_distance_bounds, lp_distance
from linfnet.ops.cuda import Cuda
from linfnet.ops.cuda.dispatch import exchanges

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
KERNELS = Cuda()
FINITE = [1.0, 2.0, 3.0, 8.0, 12.0, 28.0, 64.0, 1.5, 8.3, 30.5, 200.3, 1000.0]
SHAPES = [(1, 1, 1), (3, 5, 7), (64, 64, 64), (65, 130, 33), (513, 129, 260), (96, 10, 1500), (1100, 70, 40)]


@pytest.fixture(autouse=True)
def poisoned() -> object:
    """Tensors from torch.empty start as NaN (or the largest integer), so that missing writes are detected."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("p", FINITE)
def test_distances_and_gradients(p: float, shape: tuple[int, int, int]) -> None:
    cases.check_against_reference(KERNELS, *cases.draw(shape), p)


@pytest.mark.parametrize("features", [48, 108])
@pytest.mark.parametrize("p", FINITE)
def test_few_outputs_and_many_rows(p: float, features: int) -> None:
    x, w, grad = cases.draw((5000, 12, features))
    assert exchanges(x, w)
    cases.check_against_reference(KERNELS, x, w, grad, p)


def test_residuals_are_saved() -> None:
    x, w = (cases.ties(a) for a in cases.draw((65, 130, 33))[:2])
    cases.check_residual(x, w, *KERNELS.forward_saving(x, w, 28.0), 28.0)


@pytest.mark.parametrize("features", [130, 259])
def test_slopes_do_not_multiply_what_rounding_drops(features: int) -> None:
    cases.check_exact_powers(KERNELS, *cases.exact_powers((40, 70, features)), 64.0)


@pytest.mark.parametrize("p", FINITE)
def test_pairs_out_of_range_are_computed_exactly(p: float) -> None:
    x, w, grad = cases.out_of_range((40, 70, 90))
    cases.check_against_reference(KERNELS, x, w, grad, p)
    cases.check_each_pair(KERNELS, x, w, p)
    assert KERNELS.forward(x, w, p)[3, 7] == 0


@pytest.mark.parametrize("p", [8.0, 30.5])
def test_extreme_magnitudes(p: float) -> None:
    x, w, grad = cases.draw((20, 30, 50))
    for factor in (1e-30, 1e30):
        cases.check_against_reference(KERNELS, x * factor, w * factor, grad * factor, p)
        cases.check_against_reference(KERNELS, x * factor, w * factor, grad / factor, p)


@pytest.mark.parametrize("p", [100.0, 200.5])
def test_distances_at_the_end_of_the_float_range(p: float) -> None:
    cases.check_end_of_range(KERNELS, *cases.draw((20, 30, 50)), p)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_infinity_is_bit_identical(shape: tuple[int, int, int]) -> None:
    x, w, grad = cases.draw(shape)
    cases.check_infinity(KERNELS, cases.ties(x), cases.ties(w), grad)


def test_long_rows_scatter_without_shared_memory() -> None:
    x, w, grad = cases.draw((5, 6, 50_000))
    y, saved = KERNELS.forward_saving(x, w, math.inf)
    made = KERNELS.backward(grad, x, w, y, saved, math.inf, True, True)
    wanted = REFERENCE.backward(grad, x, w, y, decoded_index(saved), math.inf, True, True)
    assert all(torch.allclose(a, b) for a, b in zip(made, wanted, strict=True))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bounds_are_bit_identical(shape: tuple[int, int, int]) -> None:
    x, w, _ = cases.draw(shape)
    cases.check_bounds(KERNELS, x, w)


@pytest.mark.parametrize("p", [8.0, 30.5, math.inf])
def test_nan_and_infinity_reach_the_output(p: float) -> None:
    x, w, _ = cases.draw((70, 70, 50))
    cases.check_nan_and_infinity(KERNELS, x, w, p)


@pytest.mark.parametrize("p", [8.0, 30.5, 64.0, math.inf])
def test_two_runs_give_the_same_bits(p: float) -> None:
    inputs = cases.draw((300, 200, 700))
    first, second = (step(KERNELS, *inputs, p) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("p", [8.0, math.inf])
def test_unaligned_rows(p: float) -> None:
    whole, w, _ = cases.draw((30, 40, 64))
    shifted = torch.empty(whole.numel() + 1, device="cuda")[1:].view_as(whole).copy_(whole)
    assert shifted.data_ptr() % 16
    assert torch.equal(KERNELS.forward(shifted, w, p), KERNELS.forward(whole, w, p))


@pytest.mark.parametrize("p", [8.0, 30.5, math.inf])
def test_a_graph_replays_the_step(p: float) -> None:
    inputs = cases.draw((64, 80, 96))
    wanted = step(KERNELS, *inputs, p)
    assert all(torch.equal(a, b) for a, b in zip(replayed_step(KERNELS, *inputs, p), wanted, strict=True))


def test_autograd_uses_the_kernels() -> None:
    x, w, grad = cases.draw((9, 11, 13))
    x.requires_grad_()
    w.requires_grad_()
    lp_distance(x, w, 8.0).backward(grad)
    ours = x.grad, w.grad
    x.grad = w.grad = None
    with default_implementation("reference"):
        lp_distance(x, w, 8.0).backward(grad)
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(ours, (x.grad, w.grad), strict=True))
    smallest, largest = linf_distance_bounds(x - 0.1, x + 0.1, w, impl="cuda")
    assert (smallest <= largest).all()
