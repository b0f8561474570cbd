"""Weighted sums of the largest distances: the kernels have the bits of the reference, and bounds enclose them."""

import itertools
import math
from collections.abc import Generator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from linfnet.errors import ArgumentError
from linfnet.nn.sorted import sorted_factors
from linfnet.ops import cpu, sorted_linf_bounds, sorted_linf_distance
from linfnet.ops.sorted import sorted_bounds, sorted_inference, sorted_saving

TEN = sorted_factors(0.7, 10)
SHAPES = ((1, 1, 10), (3, 5, 11), (2, 3, 16), (5, 33, 100), (33, 37, 257), (2, 3, 4200))

needs_kernels = pytest.mark.skipif(not cpu.sorts(), reason="the extension is not built")


@pytest.fixture(params=cpu.levels() or ("none",))
def level(request: pytest.FixtureRequest) -> Generator[str]:
    with cpu.use_level(request.param):
        yield request.param


def draw(shape: tuple[int, int, int], seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    n, out, features = shape
    return torch.randn(n, features, generator=generator), torch.randn(out, features, generator=generator)


def step_by_step(x: Tensor, w: Tensor, factors: tuple[float, ...]) -> np.ndarray:
    """The definition in NumPy, one float32 operation at a time: nothing can be fused."""
    sizes = np.sort(np.abs(x.numpy()[:, None] - w.numpy()[None]), axis=2)[:, :, ::-1]
    total = None
    for size, factor in reversed(list(zip(np.moveaxis(sizes, 2, 0), factors, strict=False))):
        term = size * np.float32(factor)
        total = term if total is None else total + term
    return total


def agree(x: Tensor, w: Tensor, factors: tuple[float, ...]) -> None:
    ours, theirs = (sorted_saving(x, w, list(factors), impl) for impl in ("cpu", "reference"))
    assert torch.equal(ours[0], theirs[0])
    assert torch.equal(ours[1], theirs[1])
    for impl in ("cpu", "reference"):
        assert torch.equal(sorted_linf_distance(x, w, factors, impl=impl), ours[0])
    assert np.array_equal(ours[0].numpy(), step_by_step(x, w, factors))
    box = (x - x.abs() * 0.1, x + x.abs() * 0.2 + 0.01)
    for a, b in zip(*(sorted_linf_bounds(*box, w, factors, impl=impl) for impl in ("cpu", "reference")), strict=True):
        assert torch.equal(a, b)


@needs_kernels
@pytest.mark.usefixtures("level")
class TestKernels:
    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    def test_bits_of_the_reference(self, shape: tuple[int, int, int]):
        agree(*draw(shape), TEN)

    @pytest.mark.parametrize("terms", [1, 2, 3, 7, 15, 16])
    def test_every_number_of_terms(self, terms: int):
        for features in (terms, terms + 1, 100):
            agree(*draw((4, 6, features), terms), sorted_factors(0.3, terms))

    @pytest.mark.parametrize("scale", [1e-44, 1e-38, 1e-20, 1e20, 1e37], ids=str)
    def test_tiny_and_huge_differences(self, scale: float):
        x, w = draw((4, 5, 70))
        agree(x * scale, w * scale, TEN)

    @pytest.mark.parametrize("features", [64, 65, 128, 700, 5000])
    def test_equal_differences_count_from_the_first(self, features: int):
        x, w = draw((3, 4, features))
        agree(torch.zeros_like(x), torch.ones_like(w), TEN)
        agree(x.sign(), w.sign(), TEN)
        x[:, 1::2], w[:, 1::2] = 3.0, 1.0
        x[0, -1] = 9.0
        agree(x.round(), w.round(), TEN)
        index = sorted_saving(torch.zeros(1, features), torch.ones(1, features), list(TEN), "cpu")[1]
        assert index.flatten().tolist() == list(range(10))

    def test_ascending_differences(self):
        """Every feature is larger than all before it."""
        x = torch.arange(1.0, 3001.0).repeat(2, 1)
        agree(x, torch.zeros(3, 3000), TEN)
        agree(x.flip(1), torch.zeros(3, 3000), TEN)

    @pytest.mark.parametrize("place", [0, 15, 16, 63, 64, 98])
    @pytest.mark.parametrize("poison", [math.nan, -math.nan, math.inf])
    def test_nan_and_infinity_reach_the_output(self, poison: float, place: int):
        x, w = draw((4, 5, 99))
        x[1, place] = poison
        y = sorted_linf_distance(x, w, TEN, impl="cpu")
        torch.testing.assert_close(y, sorted_linf_distance(x, w, TEN, impl="reference"), rtol=0, atol=0, equal_nan=True)
        assert (y[1].isnan() if math.isnan(poison) else y[1].isinf()).all()
        assert y[[0, 2, 3]].isfinite().all()
        for bounds in zip(
            *(sorted_linf_bounds(x - 0.1, x + 0.1, w, TEN, impl=impl) for impl in ("cpu", "reference")), strict=True
        ):
            torch.testing.assert_close(*bounds, rtol=0, atol=0, equal_nan=True)
            assert not bounds[0][1].isfinite().any()


@needs_kernels
def test_threads_and_the_batch_do_not_change_a_bit():
    x, w = draw((70, 80, 300))
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            results.append((*sorted_saving(x, w, list(TEN), "cpu"), *sorted_linf_bounds(x, x + 1, w, TEN, impl="cpu")))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))
    order = torch.randperm(70)
    assert torch.equal(sorted_linf_distance(x[order], w, TEN), results[0][0][order])
    assert torch.equal(torch.cat([sorted_linf_distance(row[None], w, TEN) for row in x]), results[0][0])
    assert torch.equal(sorted_linf_distance(x.view(7, 10, 300), w, TEN).view(70, 80), results[0][0])


@pytest.mark.parametrize("impl", ["cpu", "reference"])
def test_gradients(impl: str):
    """They are those of the definition in plain torch, in float64 for the reference and in float32 for the kernels."""
    x, w = draw((4, 5, 30))
    x, w = (x, w) if impl == "cpu" else (x.double(), w.double())
    inputs = x.requires_grad_(), w.requires_grad_()
    y = sorted_linf_distance(*inputs, TEN, impl=impl)
    grad = torch.randn_like(y)
    largest = (x.unsqueeze(1) - w).abs().sort(dim=-1, descending=True).values[..., :10]
    expected = torch.autograd.grad((largest * largest.new_tensor(TEN)).sum(-1), inputs, grad)
    for ours, theirs in zip(torch.autograd.grad(y, inputs, grad), expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert torch.equal(y, sorted_linf_distance(x.detach(), w.detach(), TEN, impl=impl))
    (only,) = torch.autograd.grad(sorted_linf_distance(x, w.detach(), TEN, impl=impl), x, grad)
    torch.testing.assert_close(only, expected[0])


def test_gradients_by_differences():
    x, w = draw((3, 4, 20))
    arguments = x.double().requires_grad_(), w.double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x, w: sorted_linf_distance(x, w, TEN), arguments)


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.05, 0.5, 0.9]), st.integers(1, 6))
def test_bounds_enclose_every_corner_in_floating_point(seed: int, keep: float, terms: int):
    generator = torch.Generator().manual_seed(seed)
    factors = sorted_factors(keep, terms)
    w = torch.randn(7, 6, generator=generator) * 10.0 ** torch.randint(-3, 4, (7, 6), generator=generator)
    lower = torch.randn(1, 6, generator=generator)
    upper = lower + torch.rand(1, 6, generator=generator) * 1e-6
    upper[:, 0] += 1.0
    smallest, largest = sorted_linf_bounds(lower, upper, w, factors)
    choice = torch.tensor(list(itertools.product([False, True], repeat=6)))
    inside = torch.cat([torch.where(choice, upper, lower), lower + torch.rand(50, 6, generator=generator) * 1e-7])
    y = sorted_linf_distance(torch.minimum(inside, upper), w, factors)
    assert bool((smallest <= y).all())
    assert bool((y <= largest).all())
    same = sorted_linf_bounds(lower, lower, w, factors)
    assert torch.equal(same[0], sorted_linf_distance(lower, w, factors))
    assert torch.equal(same[0], same[1])


def test_wrong_arguments():
    x, w = draw((2, 3, 4))
    with pytest.raises(ArgumentError, match="factors has 5 numbers; expected from 1 to 4 for 4 inputs"):
        sorted_linf_distance(x, w, [0.2] * 5)
    with pytest.raises(ArgumentError, match="factors has 0 numbers"):
        sorted_linf_distance(x, w, [])
    with pytest.raises(ArgumentError, match="factors has 17 numbers; expected from 1 to 16"):
        sorted_linf_distance(torch.ones(1, 40), torch.ones(1, 40), [0.01] * 17)
    for factors in ([-0.1, 1.0], [1.5], [math.nan]):
        with pytest.raises(ArgumentError, match="expected numbers from 0 to 1"):
            sorted_linf_distance(x, w, factors)
    with pytest.raises(ArgumentError, match="x has shape"):
        sorted_linf_distance(x[:, :3], w, [1.0])
    with pytest.raises(ArgumentError, match="expected the same"):
        sorted_linf_bounds(x, x[:1], w, [1.0])


def test_empty_batches():
    x, w = draw((0, 3, 12))
    assert sorted_linf_distance(x, w, TEN).shape == (0, 3)
    assert sorted_linf_bounds(x, x, w, TEN)[0].shape == (0, 3)
    leaf = x.clone().requires_grad_()
    sorted_linf_distance(leaf, w, TEN).sum().backward()
    assert leaf.grad.shape == x.shape


@pytest.mark.parametrize("impl", ["cpu", "reference"])
def test_opcheck(impl: str):
    x, w = draw((3, 4, 20))
    leaves = x.clone().requires_grad_(), w.clone().requires_grad_()
    torch.library.opcheck(sorted_inference, (x, w, list(TEN), impl))
    torch.library.opcheck(sorted_saving, (*leaves, list(TEN), impl))
    torch.library.opcheck(sorted_bounds, (x, x + 1, w, list(TEN), impl))
