"""Even p by matrix products, on a GPU, against the reference in float64.

Tolerance: twice the error of the float32 reference, and what the expansion loses, pair by pair: a share of what it adds
up, sum (|x| + |w|)^p for a distance, sum |c| (|x| + |w|)^(p - 1) for an element of a gradient, none where a pair is not
expanded. The share is 2^-22 for the pairs of float16, 21 quarters of the last bit of the sum for every 16 terms (see
`tensor_core_products` in test_cuda_emulated.py), and 3 p roundings for powers and binomials; to it comes what lies
below the range of float16. What a distance is wrong by, its slopes are wrong by p - 1 times, and by p + 4 roundings of
their own (as in test_cuda.py).
"""

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from test_cuda_pruned import check_one_gradient
from torch import Tensor

from linfnet.ops import Reference
from linfnet.ops.cuda import pruned, tensor_core
from linfnet.ops.cuda.implementation import Cuda

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

REFERENCE, KERNELS = Reference(), Cuda()
SHAPES = [(64, 64, 64), (200, 96, 784), (512, 256, 3072), (130, 2048, 640)]


@pytest.fixture(autouse=True)
def _every_layer(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small layers and longer powers, too; what is not written shows as NaN."""
    monkeypatch.setattr(tensor_core, "SMALLEST", 0)
    monkeypatch.setattr(tensor_core, "POWERS", (8.0, 10.0, 14.0))
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def trained(shape: tuple[int, int, int], device: str = "cuda") -> tuple[Tensor, Tensor, Tensor]:
    """Like a layer of a net: one weight of each output far off, features of different widths."""
    n, out, features = shape
    torch.manual_seed(n)
    x = torch.randn(n, features) * torch.rand(features).mul(3).sub(3).exp2()
    w, grad = torch.randn(out, features), torch.randn(n, out) * torch.randn(n, out).mul(4).exp2()
    w[torch.arange(out), torch.arange(out) % features] = -10.0
    return x.to(device), w.to(device), grad.to(device)


def close(shape: tuple[int, int, int], device: str = "cuda") -> tuple[Tensor, Tensor, Tensor]:
    """Far from 0 and near each other: everything cancels."""
    x, w, grad = trained(shape, device)
    return 100 + x, 100 + w, grad


def run(kernels: Cuda, x: Tensor, w: Tensor, grad: Tensor, p: float) -> tuple[tuple[Tensor, Tensor, Tensor], int]:
    y, saved = kernels.forward_saving(x, w, p)
    return (y, *kernels.backward(grad, x, w, y, saved, p, True, True)), int(pruned.flag_of(saved).item())


def share(terms: int, p: float) -> float:
    """What a sum of so many terms may lose."""
    return 2.0**-22 + math.ceil(terms / 16) * (17 / 4 + 1) * 2.0**-23 + 3 * p * 2.0**-24


def part(terms: int) -> int:
    """How many terms are added up on the tensor cores at a time."""
    return terms // (tensor_core.chunks_of(terms) or 1)


def layer_top(x: Tensor, w: Tensor) -> Tensor:
    return torch.maximum(x.abs().max(), w.abs().max())


def expansions(x: Tensor, w: Tensor, y: Tensor, p: float) -> Tensor:
    """sum (|x| + |w|)^p / y^p of each pair; infinite where the sum is too small to be expanded."""
    pairs = zip(x.abs(), y, strict=True)
    found = torch.stack([((row + w.abs()) / of_row[:, None]).pow(p).sum(1) for row, of_row in pairs])
    return torch.where(y.pow(p) > tensor_core.LEAST_SUM / 2 * layer_top(x, w).pow(p), found, math.inf)


def distance_losses(x: Tensor, w: Tensor, y: Tensor, expansion: Tensor, p: float) -> Tensor:
    """By which part of itself each distance may be wrong: a p-th of what its sum loses, or nothing if not expanded."""
    below = x.shape[1] * 2.0**-36 * (layer_top(x, w) / y).pow(p)
    losses = (share(part(x.shape[1]), p) * expansion + below) / p
    return torch.where(expansion <= 2 * tensor_core.most_loss(p), losses, 0)


def feature_tops(a: Tensor, top: Tensor) -> Tensor:
    """No less than what the powers of each feature are scaled by."""
    return (2 * a.abs().amax(0)).clamp(min=2.0**-5 * float(top))


def gradient_losses(
    x: Tensor, w: Tensor, grad: Tensor, y: Tensor, expansion: Tensor, losses: Tensor, p: float
) -> tuple[Tensor, Tensor]:
    """What the elements of both gradients may be wrong by."""
    slopes = torch.where(expansion <= 2 * tensor_core.MOST_SLOPE_LOSS, grad.abs() * y.pow(1 - p), 0)
    top, below = layer_top(x, w), 2.0**-40
    of_x, of_w = torch.zeros_like(x), torch.zeros_like(w)
    coefficients = share(part(len(w)), p) * slopes + below * slopes.amax(1, keepdim=True)
    coefficients_w = share(3 * len(x), p) * slopes + below * slopes.amax(0)
    tops_w, tops_x = feature_tops(w, top), feature_tops(x, top)
    for row, a in enumerate(x):
        powers = (a.abs() + w.abs()).pow(p - 1)
        chain = ((a - w).abs() / y[row, :, None]).pow(p - 1).nan_to_num() * grad[row, :, None].abs()
        wrong = chain * ((p - 1) * losses[row, :, None] + (p + 4) * 2.0**-23)
        c, c_w, slope = coefficients[row, :, None], coefficients_w[row, :, None], below * slopes[row, :, None]
        of_x[row] = (c * powers + slope * (a.abs() + tops_w).pow(p - 1) + wrong).sum(0)
        of_w += c_w * powers + slope * (tops_x + w.abs()).pow(p - 1) + wrong
    return of_x, of_w


def check(kernels: Cuda, x: Tensor, w: Tensor, grad: Tensor, p: float, flag: int = 0) -> None:
    assert tensor_core.serves(x, w, p)
    wide = x.double(), w.double()
    exact_y = REFERENCE.forward(*wide, p)
    exact = REFERENCE.backward(grad.double(), *wide, exact_y, grad, p, True, True)
    plain_y = REFERENCE.forward(x, w, p)
    plain = REFERENCE.backward(grad, x, w, plain_y, grad, p, True, True)
    (y, *gradients), set_flag = run(kernels, x, w, grad, p)
    assert set_flag == flag
    expansion = expansions(*wide, exact_y, p)
    error, losses = (y - exact_y).abs(), distance_losses(*wide, exact_y, expansion, p)
    assert (error <= 2 * (plain_y - exact_y).abs().max() + losses * exact_y).all()
    # On average half of what a term can lose is lost.
    assert (error <= (2.0**-24 + losses / 2) * exact_y).double().mean() >= 0.5
    lost = gradient_losses(*wide, grad.double(), exact_y, expansion, losses, p)
    for ours, theirs, truth, most in zip(gradients, plain, exact, lost, strict=True):
        error, ordinary = (ours - truth).abs(), (theirs - truth).abs()
        assert (error <= 2 * ordinary + most).all()
        assert (error <= 2 * ordinary + most / 2).double().mean() >= 0.5
    assert torch.equal(kernels.forward(x, w, p), y)


def check_small_gradients(kernels: Cuda, x: Tensor, w: Tensor, grad: Tensor, p: float) -> None:
    """Adam divides every gradient by its own size: the smallest must be as right as the largest."""
    (_, *found), flag = run(kernels, x, w, grad, p)
    assert flag == 0
    y, saved = REFERENCE.forward_saving(x.double(), w.double(), p)
    exact = REFERENCE.backward(grad.double(), x.double(), w.double(), y, saved, p, True, True)
    for one, other in zip(found, exact, strict=True):
        error, size = (one.double() - other).abs() / other.abs(), other.abs() / other.abs().max()
        for least in (1e-2, 1e-4, 1e-6, 1e-8, 1e-10):
            band = error[(size >= least) & (size < 100 * least)]
            assert band.median() < 1e-5
            assert (band > 1e-3).double().mean() < 0.01
        assert torch.equal(one.sign()[size >= 1e-10].double(), other.sign()[size >= 1e-10])


@pytest.mark.parametrize("p", [8.0, 10.0])
def test_small_gradients_are_as_right_as_large_ones(p: float) -> None:
    check_small_gradients(KERNELS, *trained((200, 96, 784)), p)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("p", [8.0, 10.0, 14.0])
def test_distances_and_gradients(p: float, shape: tuple[int, int, int]) -> None:
    check(KERNELS, *trained(shape), p)


def check_cancelling_layer(
    kernels: Cuda, x: Tensor, w: Tensor, grad: Tensor, p: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dense kernels serve, as if there were no products."""
    made, flag = run(kernels, x, w, grad, p)
    assert flag == 1
    monkeypatch.setattr(tensor_core, "POWERS", ())
    dense = kernels.forward_saving(x, w, p)
    wanted = (dense[0], *kernels.backward(grad, x, w, *dense, p, True, True))
    assert all(torch.equal(a, b) for a, b in zip(made, wanted, strict=True))


@pytest.mark.parametrize("p", [8.0, 14.0])
def test_layers_that_cancel_open_the_dense_kernels(p: float, monkeypatch: pytest.MonkeyPatch) -> None:
    check_cancelling_layer(KERNELS, *close((96, 128, 512)), p, monkeypatch)


def check_cancelling_pairs(kernels: Cuda, x: Tensor, w: Tensor, grad: Tensor) -> None:
    w[7], w[9], w[11], w[-1] = x[3], x[4] + 1e-3 * x[5], x[6] + 0.1 * x[7], x[6] - 0.1 * x[7]
    w[13], grad[8, 13] = x[8] + 1e-6 * x[9], 64.0  # so close that the power of y leaves the float range
    check(kernels, x, w, grad, 8.0)
    y = kernels.forward(x, w, 8.0)
    exact = REFERENCE.forward(x.double(), w.double(), 8.0)
    assert y[3, 7] == 0
    for pair in ((4, 9), (8, 13)):
        assert (y - exact).abs()[pair] <= 2.0**-20 * exact[pair]


def test_single_pairs_that_cancel_are_summed_again() -> None:
    check_cancelling_pairs(KERNELS, *trained((128, 264, 512)))


def crowd(shape: tuple[int, int, int], device: str = "cuda") -> tuple[Tensor, Tensor, Tensor]:
    """A quarter of the rows and a quarter of the outputs are close to each other."""
    x, w, grad = trained(shape, device)
    x[::4] = x[0] + 0.01 * x[::4]
    w[::4] = x[0] + 0.01 * w[::4].clamp(min=-1)
    return x, w, grad


def test_many_close_pairs_open_the_dense_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    check_cancelling_layer(KERNELS, *crowd((64, 96, 784)), 8.0, monkeypatch)


def check_far_weight(kernels: Cuda, shape: tuple[int, int, int], device: str, p: float) -> None:
    """One weight far beyond all others sets the layer's scale; the other pairs must not drown in it."""
    x, w, grad = trained(shape, device)
    w.clamp_(min=-4)
    for size, flag in ((10.0, 0), (100.0, 1), (1e4, 1)):
        w[5, 7] = size
        check(kernels, x, w, grad, p, flag)


@pytest.mark.parametrize("p", [8.0, 10.0])
def test_a_weight_far_beyond_the_others(p: float) -> None:
    check_far_weight(KERNELS, (64, 96, 784), "cuda", p)


def small_pair(shape: tuple[int, int, int], device: str = "cuda") -> tuple[Tensor, Tensor, Tensor]:
    """One row and one output are near 0, in a layer of large numbers."""
    x, w, grad = trained(shape, device)
    x[7], w[5] = 0.02 * x[8], 0.02 * w[6].clamp(min=-4)
    return x, w, grad


@pytest.mark.parametrize("p", [8.0, 10.0])
def test_a_small_pair_among_large_ones(p: float) -> None:
    check(KERNELS, *small_pair((64, 96, 784)), p)


def rather_close(shape: tuple[int, int, int], device: str = "cuda") -> tuple[Tensor, Tensor, Tensor]:
    """Twelve pairs whose sums go 70 to 5,000 times (p = 8) into what the expansion adds up, and whose slopes count.

    Where their slopes are no longer expanded lies between: at 2 * MOST_SLOPE_LOSS.
    """
    x, w, grad = trained(shape, device)
    w.clamp_(min=-4)
    for place, ratio in enumerate(torch.linspace(1.7, 2.9, 12).tolist()):
        w[3 * place], grad[place, 3 * place] = (
            x[place] * (ratio - 1) / (ratio + 1),
            64.0,
        )  # (|x| + |w|) / |x - w| = ratio
    return x, w, grad


@pytest.mark.parametrize("p", [8.0, 10.0])
def test_slopes_of_rather_close_pairs(p: float) -> None:
    check(KERNELS, *rather_close((64, 96, 784)), p)


def even(shape: tuple[int, int, int], level: float, device: str = "cuda") -> tuple[Tensor, Tensor, Tensor]:
    """Features that are all alike: what they lose at the end of float16's range adds up. One weight sets the scale."""
    n, out, features = shape
    torch.manual_seed(0)
    x = (torch.rand(n, 1) + 0.5).mul(0.04 * level).repeat(1, features)
    w = (torch.rand(out, 1) + 1.5).mul(-0.04 * level).repeat(1, features)
    w[5, 7] = 1.001  # powers of the largest number lie as far below 1 as they can
    return x.to(device), w.to(device), torch.randn(n, out).to(device)


@pytest.mark.parametrize(("p", "level"), [(8.0, 1.8), (10.0, 2.6)])
def test_sums_little_above_the_least(p: float, level: float) -> None:
    check(KERNELS, *even((64, 96, 104), level), p)


def narrow(shape: tuple[int, int, int], device: str = "cuda") -> tuple[Tensor, Tensor, Tensor]:
    """Features that are wide in x and narrow in w, and the other way round."""
    x, w, grad = trained(shape, device)
    x[:, 11] *= 2.0**-30
    w[:, shape[2] - 1] = 2.0**-30 * w[:, 0]
    return x, w, grad


def test_features_narrow_on_one_side() -> None:
    check(KERNELS, *narrow((64, 96, 784)), 8.0)


def at_the_end(shape: tuple[int, int, int], exponent: int, device: str = "cuda") -> tuple[Tensor, Tensor, Tensor]:
    """Numbers around 2^exponent."""
    x, w, grad = trained(shape, device)
    return (x.double() * 2.0 ** (exponent - 4)).float(), (w.double() * 2.0 ** (exponent - 4)).float(), grad


@pytest.mark.parametrize("exponent", [-130, -140, 126])
def test_the_ends_of_the_float_range_are_for_the_dense_kernels(exponent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check_cancelling_layer(KERNELS, *at_the_end((64, 96, 784), exponent), 8.0, monkeypatch)


def check_scale(kernels: Cuda, x: Tensor, w: Tensor, grad: Tensor, factor: float) -> None:
    made, _ = run(kernels, x, w, grad, 8.0)
    scaled, flag = run(kernels, x * factor, w * factor, grad, 8.0)
    assert flag == 0
    assert torch.equal(scaled[0], made[0] * factor)
    assert all(torch.equal(a, b) for a, b in zip(scaled[1:], made[1:], strict=True))


@pytest.mark.parametrize("factor", [2.0**-90, 2.0**90])
def test_the_scale_does_not_matter(factor: float) -> None:
    check_scale(KERNELS, *trained((64, 96, 784)), factor)


def check_nan_and_infinity(kernels: Cuda, draw: Callable[[], tuple[Tensor, Tensor, Tensor]]) -> None:
    x, w, grad = draw()
    x[2, 3], x[5, 7] = math.nan, math.inf
    y, _, grad_w = run(kernels, x, w, grad, 8.0)[0]
    assert y[2].isnan().all()
    assert y[5].isposinf().all()
    assert torch.isfinite(y[6:]).all()
    assert grad_w.isnan().any()
    x, w, grad = draw()
    grad[4, 8] = math.nan
    _, grad_x, grad_w = run(kernels, x, w, grad, 8.0)[0]
    assert grad_x[4].isnan().all()
    assert grad_w[8].isnan().all()
    assert torch.isfinite(grad_x[5:]).all()
    assert torch.isfinite(grad_w[9:]).all()


def test_nan_and_infinity_reach_the_output() -> None:
    check_nan_and_infinity(KERNELS, lambda: trained((70, 96, 400)))


def test_only_one_gradient() -> None:
    check_one_gradient(KERNELS, *trained((64, 64, 512)), 8.0)


def test_two_runs_give_the_same_bits_and_a_graph_replays_them() -> None:
    x, w, grad = trained((512, 1024, 1024))
    first, second = (run(KERNELS, x, w, grad, 8.0)[0] for _ in range(2))
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
