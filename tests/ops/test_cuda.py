"""The CUDA kernels against the reference in float64, on a GPU; test_cuda_emulated.py makes the same checks without.

Tolerance: twice the error of the float32 reference, and what the way of computing adds where the reference is exact by
luck (|d| / y = 1): p + 4 roundings for gradients by chains of multiplications; for the fraction of p, the documented
errors 2^-22 of log2 and exp2 by special functions; above the longest chain, p times that of log2.
"""

import math
import warnings

import pytest
import torch
from kernel_steps import replayed_step, step
from torch import Tensor

from linfnet.ops import Reference, default_implementation, linf_distance_bounds, lp_distance
from linfnet.ops.addition_chain import LARGEST_CHAINED
from linfnet.ops.cuda.implementation import Cuda
from linfnet.ops.cuda.linf import decoded_index

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

REFERENCE, KERNELS = Reference(), Cuda()
ROUNDING = 2.0**-23
FINITE = [1.0, 2.0, 3.0, 8.0, 12.0, 28.0, 64.0, 1.5, 8.3, 30.5, 200.3, 1000.0]
SHAPES = [(1, 1, 1), (3, 5, 7), (64, 64, 64), (65, 130, 33), (513, 129, 260), (96, 10, 1500), (1100, 70, 40)]


@pytest.fixture(autouse=True)
def poisoned() -> object:
    """Every tensor from torch.empty starts as NaN (or the largest integer): what is not written shows."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch.use_deterministic_algorithms(False)


def draw(shape: tuple[int, int, int], device: str = "cuda") -> tuple[Tensor, Tensor, Tensor]:
    n, out, features = shape
    torch.manual_seed(0)
    x, w, grad = torch.randn(n, features), torch.randn(out, features), torch.randn(n, out)
    return x.to(device), w.to(device), grad.to(device)


def ties(a: Tensor) -> Tensor:
    """Rounded so that many features attain the largest difference: the first must win."""
    return (a * 4).round() / 4


def out_of_range(shape: tuple[int, int, int], device: str = "cuda") -> tuple[Tensor, Tensor, Tensor]:
    """Pairs whose powers leave the float range; the distance of x[3] and w[7] is 0."""
    x, w, grad = draw(shape, device)
    w[7] = x[3]
    w[9] = x[4] + 1e-4 * x[5]
    x[11] *= 50
    w[20] *= 1e-3
    x[20] *= 1e-3
    return x, w, grad


def error(value: Tensor, exact: Tensor) -> float:
    """The largest deviation relative to the largest exact number."""
    assert torch.isfinite(value).all()
    return ((value.double() - exact).abs().max() / exact.abs().max().clamp_min(1e-300)).item()


def slack(name: str, p: float) -> float:
    fractional = 0.0 if p == math.floor(p) else 2.0**-21
    if name == "y":
        return ROUNDING + fractional / p
    return p * 2.0**-22 if p > LARGEST_CHAINED else (p + 4) * 2.0**-24 + 2 * fractional


def check_against_reference(kernels: Cuda, x: Tensor, w: Tensor, grad: Tensor, p: float) -> None:
    doubles = x.double(), w.double()
    exact_y = REFERENCE.forward(*doubles, p)
    exact = (exact_y, *REFERENCE.backward(grad.double(), *doubles, exact_y, grad, p, True, True))
    plain_y = REFERENCE.forward(x, w, p)
    plain = (plain_y, *REFERENCE.backward(grad, x, w, plain_y, grad, p, True, True))
    made = step(kernels, x, w, grad, p)
    for name, ours, theirs, truth in zip(("y", "grad_x", "grad_w"), made, plain, exact, strict=True):
        bound = 2 * error(theirs, truth) + slack(name, p)
        assert error(ours, truth) <= bound, (name, error(ours, truth), bound)
    assert torch.equal(kernels.forward(x, w, p), made[0])


def check_each_pair(kernels: Cuda, x: Tensor, w: Tensor, p: float) -> None:
    """Relative to each pair, not only to the largest."""
    exact = REFERENCE.forward(x.double(), w.double(), p)
    assert ((kernels.forward(x, w, p).double() - exact).abs() <= 8 * ROUNDING * exact).all()


def check_rest(x: Tensor, w: Tensor, y: Tensor, rest: Tensor, p: float) -> None:
    """What rounding y dropped is kept: with it most distances are several times nearer to the exact ones."""
    exact = REFERENCE.forward(x.double(), w.double(), p)
    before, after = ((value - exact).abs().median() for value in (y.double(), y.double() + rest))
    assert after <= before / 4


def exact_powers(shape: tuple[int, int, int], device: str = "cuda") -> tuple[Tensor, Tensor, Tensor]:
    """Differences of 0, 1, 2 and, some of the first forty, 8; each row has a gradient of one output of its own."""
    n, out, features = shape
    torch.manual_seed(0)
    x, w = torch.randint(2, (n, features)).float(), -torch.randint(2, (out, features)).float()
    x[:, :40] = 0
    w[:, :40] *= 8
    return x.to(device), w.to(device), torch.eye(n, out, device=device)


def check_exact_powers(kernels: Cuda, x: Tensor, w: Tensor, grad: Tensor, p: float) -> None:
    """Where differences are powers of two, slopes are wrong by what y^(1 - p) is: the 4 units of powf, 2 roundings.

    From a rounded y that would be up to (p - 1) / 2 units.
    """
    exact_y = REFERENCE.forward(x.double(), w.double(), p)
    exact = REFERENCE.backward(grad.double(), x.double(), w.double(), exact_y, grad, p, True, True)
    for ours, truth in zip(step(kernels, x, w, grad, p)[1:], exact, strict=True):
        counts = truth.abs() > 2.0**-10
        assert counts.sum() >= len(x)
        assert ((ours - truth).abs() <= 6 * ROUNDING * truth.abs())[counts].all()


def check_infinity(kernels: Cuda, x: Tensor, w: Tensor, grad: Tensor) -> None:
    """Distances and indices bit by bit, gradients within twice the error of the float32 reference."""
    if len(w) > 1:
        w[-1] = x[-1]  # a distance of 0 has no slope
    y, saved = kernels.forward_saving(x, w, math.inf)
    wanted_y, wanted_index = REFERENCE.forward_saving(x.cpu(), w.cpu(), math.inf)
    assert torch.equal(y.cpu(), wanted_y)
    assert torch.equal(kernels.forward(x, w, math.inf).cpu(), wanted_y)
    assert torch.equal(decoded_index(saved).cpu(), wanted_index)
    made = kernels.backward(grad, x, w, y, saved, math.inf, True, True)
    doubles = x.double().cpu(), w.double().cpu()
    exact = REFERENCE.backward(grad.double().cpu(), *doubles, wanted_y, wanted_index, math.inf, True, True)
    plain = REFERENCE.backward(grad.cpu(), x.cpu(), w.cpu(), wanted_y, wanted_index, math.inf, True, True)
    for ours, theirs, truth in zip(made, plain, exact, strict=True):
        assert error(ours.cpu(), truth) <= 2 * error(theirs, truth) + ROUNDING


def check_bounds(kernels: Cuda, x: Tensor, w: Tensor) -> None:
    """Bounds of boxes around x, and which features attain them, bit by bit."""
    lower, upper, w = ties(x - 0.1), ties(x + 0.1), ties(w)
    wanted = REFERENCE.bounds_saving(lower.cpu(), upper.cpu(), w.cpu())
    for ours, theirs in zip(kernels.bounds_saving(lower, upper, w), wanted, strict=True):
        assert torch.equal(ours.cpu(), theirs)
    for ours, theirs in zip(kernels.bounds(lower, upper, w), wanted[:2], strict=True):
        assert torch.equal(ours.cpu(), theirs)


def check_nan_and_infinity(kernels: Cuda, x: Tensor, w: Tensor, p: float) -> None:
    """They reach the outputs of their rows and no others."""
    x[2, 3], x[5, 7] = math.nan, math.inf
    y = kernels.forward(x, w, p)
    assert y[2].isnan().all()
    assert y[5].isposinf().all()
    assert torch.isfinite(y[6:]).all()
    if math.isinf(p):
        y, saved = kernels.forward_saving(x, w, p)
        assert (decoded_index(saved)[2] == 3).all()
        grad_x, grad_w = kernels.backward(torch.ones_like(y), x, w, y, saved, p, True, True)
        assert grad_x.isnan().nonzero().tolist() == [[2, 3]]
        assert grad_w.isnan().nonzero().tolist() == [[o, 3] for o in range(len(w))]


def check_end_of_range(kernels: Cuda, x: Tensor, w: Tensor, grad: Tensor, p: float) -> None:
    """Where the largest distance is near the largest float, gradients are those of small distances."""
    factor = 2.0 ** math.floor(math.log2(2.0**128 / REFERENCE.forward(x, w, p).max().item()))
    y, saved = kernels.forward_saving(x, w, p)
    wanted = kernels.backward(grad, x, w, y, saved, p, True, True)
    y, saved = kernels.forward_saving(x * factor, w * factor, p)
    made = kernels.backward(grad, x * factor, w * factor, y, saved, p, True, True)
    assert torch.isfinite(y).all()
    assert all(error(a, b.double()) <= 2 * slack("grad_x", p) for a, b in zip(made, wanted, strict=True))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("p", FINITE)
def test_distances_and_gradients(p: float, shape: tuple[int, int, int]) -> None:
    check_against_reference(KERNELS, *draw(shape), p)


def test_what_rounding_drops_is_kept() -> None:
    x, w = (ties(a) for a in draw((65, 130, 33))[:2])
    check_rest(x, w, *KERNELS.forward_saving(x, w, 28.0), 28.0)


@pytest.mark.parametrize("features", [130, 259])
def test_slopes_do_not_multiply_what_rounding_drops(features: int) -> None:
    check_exact_powers(KERNELS, *exact_powers((40, 70, features)), 64.0)


@pytest.mark.parametrize("p", FINITE)
def test_pairs_out_of_range_are_computed_exactly(p: float) -> None:
    x, w, grad = out_of_range((40, 70, 90))
    check_against_reference(KERNELS, x, w, grad, p)
    check_each_pair(KERNELS, x, w, p)
    assert KERNELS.forward(x, w, p)[3, 7] == 0


@pytest.mark.parametrize("p", [8.0, 30.5])
def test_extreme_magnitudes(p: float) -> None:
    x, w, grad = draw((20, 30, 50))
    for factor in (1e-30, 1e30):
        check_against_reference(KERNELS, x * factor, w * factor, grad * factor, p)
        check_against_reference(KERNELS, x * factor, w * factor, grad / factor, p)


@pytest.mark.parametrize("p", [100.0, 200.5])
def test_distances_at_the_end_of_the_float_range(p: float) -> None:
    check_end_of_range(KERNELS, *draw((20, 30, 50)), p)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_infinity_is_bit_identical(shape: tuple[int, int, int]) -> None:
    x, w, grad = draw(shape)
    check_infinity(KERNELS, ties(x), ties(w), grad)


def test_long_rows_scatter_without_shared_memory() -> None:
    x, w, grad = draw((5, 6, 50_000))
    y, saved = KERNELS.forward_saving(x, w, math.inf)
    made = KERNELS.backward(grad, x, w, y, saved, math.inf, True, True)
    wanted = REFERENCE.backward(grad, x, w, y, decoded_index(saved), math.inf, True, True)
    assert all(torch.allclose(a, b) for a, b in zip(made, wanted, strict=True))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bounds_are_bit_identical(shape: tuple[int, int, int]) -> None:
    x, w, _ = draw(shape)
    check_bounds(KERNELS, x, w)


@pytest.mark.parametrize("p", [8.0, 30.5, math.inf])
def test_nan_and_infinity_reach_the_output(p: float) -> None:
    x, w, _ = draw((70, 70, 50))
    check_nan_and_infinity(KERNELS, x, w, p)


@pytest.mark.parametrize("p", [8.0, 30.5, 64.0, math.inf])
def test_two_runs_give_the_same_bits(p: float) -> None:
    inputs = draw((300, 200, 700))
    first, second = (step(KERNELS, *inputs, p) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("p", [8.0, math.inf])
def test_unaligned_rows(p: float) -> None:
    whole, w, _ = draw((30, 40, 64))
    shifted = torch.empty(whole.numel() + 1, device="cuda")[1:].view_as(whole).copy_(whole)
    assert shifted.data_ptr() % 16
    assert torch.equal(KERNELS.forward(shifted, w, p), KERNELS.forward(whole, w, p))


@pytest.mark.parametrize("p", [8.0, 30.5, math.inf])
def test_a_graph_replays_the_step(p: float) -> None:
    inputs = draw((64, 80, 96))
    wanted = step(KERNELS, *inputs, p)
    assert all(torch.equal(a, b) for a, b in zip(replayed_step(KERNELS, *inputs, p), wanted, strict=True))


def test_autograd_uses_the_kernels() -> None:
    x, w, grad = draw((9, 11, 13))
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
