"""The CUDA kernels of weighted sums of the largest distances: emulated, and on a GPU where there is one."""

import math
from pathlib import Path

import pytest
import torch
from simt import LITTLE, Emulator
from torch import Tensor

from linfnet.nn.sorted import sorted_factors
from linfnet.ops import default_implementation, sorted_linf_bounds, sorted_linf_distance
from linfnet.ops.cuda import sorted as kernels
from linfnet.ops.cuda.nvrtc import Launcher
from linfnet.ops.sorted import sorted_saving

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
TEN = list(sorted_factors(0.7, 10))
SHAPES = [(1, 1, 10), (3, 40, 33), (33, 5, 64), (35, 34, 131)]


def draw(shape: tuple[int, int, int], device: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(sum(shape))
    n, out, features = shape
    drawn = torch.randn(n, features, generator=generator), torch.randn(out, features, generator=generator)
    return drawn[0].to(device), drawn[1].to(device)


def check(launcher: Launcher, x: Tensor, w: Tensor, factors: list[float]) -> None:
    """Check that distances, features and bounds have the bits of the reference."""
    y, expected = sorted_saving(x, w, factors, "reference")
    index = torch.empty_like(expected)
    assert torch.equal(kernels.distance(launcher, x, w, factors, index), y)
    assert torch.equal(index, expected)
    assert torch.equal(kernels.distance(launcher, x, w, factors, None), y)
    box = x - x.abs() * 0.1, x + x.abs() * 0.2
    bounds = sorted_linf_bounds(*box, w, factors, impl="reference")
    assert all(torch.equal(a, b) for a, b in zip(kernels.bounds(launcher, *box, w, factors), bounds, strict=True))


@pytest.mark.emulator
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bits_of_the_reference(launcher: Launcher, device: str, shape: tuple[int, int, int]):
    x, w = draw(shape, device)
    check(launcher, x, w, TEN)
    check(launcher, x * 1e-43, w * 1e-43, TEN)
    check(launcher, x.round(), w.round(), TEN)  # many equal differences


@pytest.mark.emulator
@pytest.mark.parametrize("terms", [2, 16])
def test_other_numbers_of_terms(launcher: Launcher, device: str, terms: int):
    check(launcher, *draw((5, 6, terms), device), list(sorted_factors(0.3, terms)))
    check(launcher, *draw((5, 6, 70), device), list(sorted_factors(0.3, terms)))


@pytest.mark.emulator
def test_rows_that_are_not_aligned(launcher: Launcher, device: str):
    x, w = draw((9, 8, 64), device)
    shifted = torch.empty(x.numel() + 1, device=device)[1:].view_as(x).copy_(x)
    assert shifted.data_ptr() % 16
    check(launcher, shifted, w, TEN)


@pytest.mark.emulator
def test_nan_and_infinity(launcher: Launcher, device: str):
    x, w = draw((4, 5, 50), device)
    x[1, 7], x[2, 49] = -math.nan, math.inf
    y, index = sorted_saving(x, w, TEN, "reference")
    torch.testing.assert_close(kernels.distance(launcher, x, w, TEN, index), y, rtol=0, atol=0, equal_nan=True)
    assert y[1].isnan().all()
    bounds = kernels.bounds(launcher, x - 1, x + 1, w, TEN)
    for ours, theirs in zip(bounds, sorted_linf_bounds(x - 1, x + 1, w, TEN, impl="reference"), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


@pytest.mark.emulator
def test_gradients_are_added_in_order(launcher: Launcher, device: str, libraries: Path):
    generator = torch.Generator().manual_seed(0)
    index = torch.randint(13, (6, 300), generator=generator, dtype=torch.int32).to(device)
    flow = torch.randn(6, 300, generator=generator).to(device)
    expected = flow.new_zeros(6, 13).scatter_add_(1, index.long(), flow)
    found = kernels.scatter_add(launcher, index, flow, 13)
    torch.testing.assert_close(found, expected)
    assert torch.equal(kernels.scatter_add(launcher, index, flow, 13), found)
    if device == "cpu":  # rows that do not fit into shared memory
        long = kernels.scatter_add(Emulator(libraries, shared=LITTLE), index, flow, 40_000)
        torch.testing.assert_close(long[:, :13], expected)
        assert not long[:, 13:].any()


@pytest.mark.gpu
@needs_gpu
def test_autograd_uses_the_kernels():
    x, w = (each.requires_grad_() for each in draw((20, 30, 100), "cuda"))
    grad = torch.randn(20, 30, device="cuda")
    ours = torch.autograd.grad(sorted_linf_distance(x, w, TEN), (x, w), grad)
    again = torch.autograd.grad(sorted_linf_distance(x, w, TEN), (x, w), grad)
    with default_implementation("reference"):
        theirs = torch.autograd.grad(sorted_linf_distance(x, w, TEN), (x, w), grad)
    for a, b, c in zip(ours, again, theirs, strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, c)
