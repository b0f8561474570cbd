"""The pruned CUDA kernels on a GPU, and the dense kernels where the lists are too long; see pruned_cases.py."""

from collections.abc import Callable

import pruned_cases as cases
import pytest
import torch
from dense_cases import REFERENCE, ROUNDING
from kernel_steps import replayed_step, step
from torch import Tensor

from linfnet.ops.cuda import Cuda, pruned
from linfnet.ops.cuda.nvrtc import Launcher

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
KERNELS = Cuda()
POWERS = [pruned.SMALLEST_P, 28.0, 30.5, 64.0, 65.0, 112.5, 127.0, 128.0, 128.5, 224.0, 1000.0]
Draw = Callable[[tuple[int, int, int]], tuple[Tensor, Tensor, Tensor]]
SHAPES = [(32, 32, 256), (64, 128, 320), (33, 70, 515), (130, 197, 1100), (520, 40, 300)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("p", POWERS)
def test_few_features(p: float, shape: tuple[int, int, int]) -> None:
    cases.check(KERNELS, *cases.spiked(shape), p, use_dense=0)


def test_residuals_are_saved() -> None:
    x, w, _ = cases.spiked((64, 128, 320))
    cases.check_residual(KERNELS, x, w, 28.0)


@pytest.mark.parametrize("p", [28.0, 100.0, 200.0])
def test_rows_far_out_on_either_side(p: float) -> None:
    cases.check(KERNELS, *cases.far_out((64, 128, 320)), p, use_dense=0)


@pytest.mark.parametrize("shape", SHAPES[:4], ids=str)
@pytest.mark.parametrize("p", POWERS)
def test_too_many_features_open_the_dense_kernels(p: float, shape: tuple[int, int, int]) -> None:
    cases.check(KERNELS, *cases.crowded(shape), p, use_dense=1)


def test_only_one_gradient() -> None:
    for p in (28.0, 100.0, 200.0):
        cases.check_one_gradient(KERNELS, *cases.spiked((64, 64, 512)), p)


# A row that is fifty times as large makes the lists of all outputs long: the dense kernels compute the layer.
@pytest.mark.parametrize(("spread", "roundings"), [(1.5, 4), (50.0, 8)])
@pytest.mark.parametrize("p", [32.0, 100.0, 200.0])
def test_distances_relative_to_each_pair(p: float, spread: float, roundings: int) -> None:
    x, w, grad = cases.spiked((96, 96, 600))
    w[7] = x[3]
    w[9] = x[4] + 1e-4 * x[5]
    x[11] *= spread
    w[20] *= 1e-3
    x[20] *= 1e-3
    for factor in (1.0, 1e-30, 1e30):
        made, _ = cases.run(KERNELS, x * factor, w * factor, grad * factor, p)
        exact = REFERENCE.forward((x * factor).double(), (w * factor).double(), p)
        assert made[0][3, 7] == 0
        assert ((made[0].double() - exact).abs() <= roundings * ROUNDING * exact).all()
        assert all(torch.isfinite(part).all() for part in made), factor


@pytest.mark.parametrize("p", [28.0, 64.0, 100.0, 200.0])
@pytest.mark.parametrize("factor", [1e-30, 1e30])
def test_gradients_of_any_magnitude(p: float, factor: float) -> None:
    x, w, grad = cases.spiked((64, 70, 512))
    w[5] *= 0.1
    cases.check(KERNELS, x, w, grad * factor, p, use_dense=0)
    cases.check(KERNELS, x * factor, w * factor, grad / factor, p, use_dense=0)
    w[5] = x[6] + 1e-6  # out of range for a chain of products: dense kernels
    cases.check(KERNELS, x * factor, w * factor, grad * factor, p, use_dense=int(p <= 64))


@pytest.mark.parametrize("p", [28.0, 100.0, 200.0])
def test_distances_near_the_largest_float(p: float) -> None:
    cases.check(KERNELS, *cases.largest((64, 70, 512)), p, use_dense=int(p > 128))


def test_the_largest_distances_are_for_the_dense_kernels() -> None:
    cases.check(KERNELS, *cases.beyond((64, 70, 512)), 128.0, use_dense=1)


def test_a_pair_out_of_range_opens_the_dense_kernels() -> None:
    x, w, grad = cases.spiked((64, 64, 512))
    w[5] = x[6] + 1e-6
    cases.check(KERNELS, x, w, grad, 32.0, use_dense=1)
    w[5] = x[6]
    cases.check(KERNELS, x, w, grad, 32.0, use_dense=0)


@pytest.mark.parametrize("p", [128.0, 200.0])
def test_nan_and_infinity_reach_the_output(p: float) -> None:
    cases.check_nan_and_infinity(KERNELS, lambda: cases.spiked((70, 90, 400)), p)


@pytest.mark.parametrize("p", [32.0, 64.0, 100.0, 200.0])
@pytest.mark.parametrize("draw", [cases.spiked, cases.crowded])
def test_two_runs_give_the_same_bits(draw: Draw, p: float) -> None:
    inputs = draw((200, 300, 700))
    first, second = (step(KERNELS, *inputs, p) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("draw", [cases.spiked, cases.crowded])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_infinity_is_bit_identical(shape: tuple[int, int, int], draw: Draw) -> None:
    x, w, _ = draw(shape)
    cases.check_infinity(Launcher(), x, w, use_dense=int(draw is cases.crowded))


def test_many_rows_go_in_parts() -> None:
    x, w, _ = cases.spiked((1500, 64, 320))
    exact = REFERENCE.forward(x.double(), w.double(), 80.0)
    assert ((KERNELS.forward(x, w, 80.0).double() - exact).abs() <= 4 * ROUNDING * exact).all()


def test_unaligned_rows() -> None:
    whole, w, _ = cases.spiked((40, 40, 512))
    shifted = torch.empty(whole.numel() + 1, device="cuda")[1:].view_as(whole).copy_(whole)
    assert shifted.data_ptr() % 16
    assert torch.equal(KERNELS.forward(shifted, w, 99.0), KERNELS.forward(whole, w, 99.0))


@pytest.mark.parametrize("p", [32.0, 100.0, 200.0])
@pytest.mark.parametrize("draw", [cases.spiked, cases.crowded])
def test_a_graph_replays_the_step(draw: Draw, p: float) -> None:
    inputs = draw((64, 80, 512))
    wanted = step(KERNELS, *inputs, p)
    assert all(torch.equal(a, b) for a, b in zip(replayed_step(KERNELS, *inputs, p), wanted, strict=True))
