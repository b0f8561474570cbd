"""Even p by matrix products, on a GPU; see tensor_core_cases.py."""

from collections.abc import Iterator

import pytest
import tensor_core_cases as cases
import torch
from pruned_cases import check_one_gradient
from torch import Tensor

from linfnet.ops.cuda import Cuda, half, tensor_core

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
KERNELS = Cuda()
SHAPES = [(64, 64, 64), (200, 96, 784), (512, 256, 3072), (130, 2048, 640)]


@pytest.fixture(autouse=True)
def _every_layer(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Also expand small layers and larger powers; uninitialised memory is NaN."""
    monkeypatch.setattr(tensor_core, "SMALLEST", 0)
    monkeypatch.setattr(tensor_core, "POWERS", (6.0, 8.0, 10.0, 14.0))
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("p", [6.0, 8.0, 10.0])
def test_small_gradients_are_as_right_as_large_ones(p: float) -> None:
    cases.check_small_gradients(KERNELS, *cases.trained((200, 96, 784)), p)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("p", [6.0, 8.0, 10.0, 14.0])
def test_distances_and_gradients(p: float, shape: tuple[int, int, int]) -> None:
    cases.check(KERNELS, *cases.trained(shape), p)


@pytest.mark.parametrize("shape", [*SHAPES[1:], (256, 128, 5120)], ids=str)
@pytest.mark.parametrize("p", [6.0, 8.0, 10.0, 12.0])
def test_training_in_float16(p: float, shape: tuple[int, int, int]) -> None:
    with half.training_in_float16():
        cases.check_single(KERNELS, *cases.trained(shape), p)


@pytest.mark.parametrize("p", [8.0, 14.0])
def test_layers_that_cancel_open_the_dense_kernels(p: float, monkeypatch: pytest.MonkeyPatch) -> None:
    cases.check_cancelling_layer(KERNELS, *cases.close((96, 128, 512)), p, monkeypatch)


def test_single_pairs_that_cancel_are_summed_again() -> None:
    cases.check_cancelling_pairs(KERNELS, *cases.trained((128, 264, 512)))


def test_many_close_pairs_open_the_dense_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    cases.check_cancelling_layer(KERNELS, *cases.crowd((64, 96, 784)), 8.0, monkeypatch)


@pytest.mark.parametrize("p", [8.0, 10.0])
def test_a_weight_far_beyond_the_others(p: float) -> None:
    cases.check_far_weight(KERNELS, (64, 96, 784), "cuda", p)


@pytest.mark.parametrize("p", [8.0, 10.0])
def test_a_small_pair_among_large_ones(p: float) -> None:
    cases.check(KERNELS, *cases.small_pair((64, 96, 784)), p)


@pytest.mark.parametrize("p", [8.0, 10.0])
def test_slopes_of_rather_close_pairs(p: float) -> None:
    cases.check(KERNELS, *cases.rather_close((64, 96, 784)), p)


@pytest.mark.parametrize(("p", "level"), [(8.0, 1.8), (10.0, 2.6)])
def test_sums_little_above_the_least(p: float, level: float) -> None:
    cases.check(KERNELS, *cases.even((64, 96, 104), level), p)


def test_features_narrow_on_one_side() -> None:
    cases.check(KERNELS, *cases.narrow((64, 96, 784)), 8.0)


@pytest.mark.parametrize("exponent", [-130, -140, 126])
def test_the_ends_of_the_float_range_are_for_the_dense_kernels(exponent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cases.check_cancelling_layer(KERNELS, *cases.at_the_end((64, 96, 784), exponent), 8.0, monkeypatch)


@pytest.mark.parametrize("factor", [2.0**-90, 2.0**90])
def test_the_scale_does_not_matter(factor: float) -> None:
    cases.check_scale(KERNELS, *cases.trained((64, 96, 784)), factor)


def test_nan_and_infinity_reach_the_output() -> None:
    cases.check_nan_and_infinity(KERNELS, lambda: cases.trained((70, 96, 400)))


def test_only_one_gradient() -> None:
    check_one_gradient(KERNELS, *cases.trained((64, 64, 512)), 8.0)


def test_two_runs_give_the_same_bits_and_a_graph_replays_them() -> None:
    x, w, grad = cases.trained((512, 1024, 1024))
    first, second = (cases.run(KERNELS, x, w, grad, 8.0)[0] for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))

    def step() -> tuple[Tensor, ...]:
        y, saved = KERNELS.forward_saving(x, w, 8.0)
        return (y, *KERNELS.backward(grad, x, w, y, saved, 8.0, True, True))

    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(captured, first, strict=True))
