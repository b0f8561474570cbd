"""Training at small even p by matrix products of single float16 numbers, on a CPU (simt.py)."""

from collections.abc import Generator
from pathlib import Path

import pytest
import tensor_core_cases as cases
import torch
from kernel_steps import step
from pruned_cases import check_one_gradient
from simt import Emulator, needs_compiler
from test_cuda_emulated import tensor_core_products

from linfnet.ops.cuda import Cuda, half, tensor_core

pytestmark = [needs_compiler, pytest.mark.usefixtures("_enabled")]
SHAPE = (64, 96, 400)


@pytest.fixture
def _enabled(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Also expand small layers."""
    monkeypatch.setattr(tensor_core, "SMALLEST", 0)
    with half.training_in_float16():
        yield


@pytest.fixture(scope="session")
def kernels(libraries: Path) -> Cuda:
    return Cuda(Emulator(libraries))


@pytest.mark.parametrize("shape", [(200, 96, 784), (130, 1600, 64)], ids=str)
@pytest.mark.parametrize("p", [6.0, 8.0, 10.0, 12.0])
def test_distances_and_gradients(kernels: Cuda, p: float, shape: tuple[int, int, int]) -> None:
    cases.check_single(kernels, *cases.trained(shape, "cpu"), p)


@pytest.mark.parametrize("shape", [(64, 16, 4096), (64, 4096, 16)], ids=str)
def test_long_sums_that_are_truncated(
    kernels: Cuda, shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_core, "_products", tensor_core_products)
    cases.check_single(kernels, *cases.trained(shape, "cpu"), 8.0)


@pytest.mark.parametrize("p", [8.0, 12.0])
def test_slopes_of_rather_close_pairs(kernels: Cuda, p: float) -> None:
    cases.check_single(kernels, *cases.rather_close(SHAPE, "cpu"), p)


@pytest.mark.parametrize("draw", [cases.small_pair, cases.narrow])
def test_small_pairs_and_features(kernels: Cuda, draw: cases.Draw) -> None:
    cases.check_single(kernels, *draw(SHAPE, "cpu"), 8.0)


def test_equal_pairs(kernels: Cuda) -> None:
    x, w, grad = cases.trained(SHAPE, "cpu")
    w[7], w[9] = x[3], x[4] + 1e-3 * x[5]
    cases.check_single(kernels, x, w, grad, 8.0)
    assert kernels.forward_saving(x, w, 8.0)[0][3, 7] == 0


@pytest.mark.parametrize("draw", [cases.close, cases.crowd])
def test_layers_that_cancel_are_computed_in_float32(
    kernels: Cuda, draw: cases.Draw, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, w, grad = draw(SHAPE, "cpu")
    made, flag = cases.run(kernels, x, w, grad, 8.0)
    assert flag == 1
    monkeypatch.setattr(tensor_core, "SINGLE_POWERS", ())
    assert all(map(torch.equal, made, step(kernels, x, w, grad, 8.0)))


def test_layers_that_cancel_are_computed_by_other_kernels_in_float16(
    kernels: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(half, "SMALLEST", 0)
    x, w, grad = cases.close(SHAPE, "cpu")
    made, flag = cases.run(kernels, x, w, grad, 12.0)
    assert flag == 1
    monkeypatch.setattr(tensor_core, "SINGLE_POWERS", ())
    assert all(map(torch.equal, made, step(kernels, x, w, grad, 12.0)))


@pytest.mark.parametrize("factor", [2.0**-90, 2.0**90])
def test_the_scale_does_not_matter(kernels: Cuda, factor: float) -> None:
    cases.check_scale(kernels, *cases.trained(SHAPE, "cpu"), factor)


def test_nan_and_infinity_reach_the_output(kernels: Cuda) -> None:
    cases.check_nan_and_infinity(kernels, lambda: cases.trained((70, 96, 400), "cpu"))


def test_only_one_gradient(kernels: Cuda) -> None:
    check_one_gradient(kernels, *cases.trained((64, 64, 512), "cpu"), 8.0)
