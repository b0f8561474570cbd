"""Larger p on a GPU: the features that can count against the float64 reference; dense kernels where too many can."""

import math
from collections.abc import Callable

import pytest
import test_cuda as dense
import torch
from kernel_steps import replayed_step, step
from torch import Tensor

from linfnet.ops import Reference
from linfnet.ops.cuda import pruned
from linfnet.ops.cuda.implementation import Cuda
from linfnet.ops.cuda.linf import decoded_index
from linfnet.ops.cuda.nvrtc import Launcher
from linfnet.ops.cuda.pruned_lists import rows_for

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

REFERENCE, KERNELS = Reference(), Cuda()
ROUNDING = 2.0**-23
POWERS = [pruned.SMALLEST_P, 28.0, 30.5, 64.0, 65.0, 112.5, 127.0, 128.0, 128.5, 224.0, 1000.0]
Draw = Callable[[tuple[int, int, int]], tuple[Tensor, Tensor, Tensor]]
SHAPES = [(32, 32, 256), (64, 128, 320), (33, 70, 515), (130, 197, 1100), (520, 40, 300)]


def spiked(shape: tuple[int, int, int], device: str = "cuda") -> tuple[Tensor, Tensor, Tensor]:
    """As in a trained net: a few weights of each output lie far out, and decide."""
    n, out, features = shape
    torch.manual_seed(0)
    x, w, grad = torch.randn(n, features) / 2, torch.randn(out, features), torch.randn(n, out)
    places = torch.rand(out, features).topk(6, 1).indices
    w.scatter_(1, places, -9 + torch.randn(out, 6) / 2)
    return x.to(device), w.to(device), grad.to(device)


def far_out(shape: tuple[int, int, int], device: str = "cuda") -> tuple[Tensor, Tensor, Tensor]:
    """One row lies far below the others in a feature, one far above in another: for them these features count."""
    x, w, grad = spiked(shape, device)
    x[0, 5], x[1, 6] = -9, 9
    return x, w, grad


def crowded(shape: tuple[int, int, int], device: str = "cuda") -> tuple[Tensor, Tensor, Tensor]:
    """Half of all differences attain the largest, or nearly."""
    n, out, features = shape
    torch.manual_seed(0)
    x, w = (torch.randn(rows, features).sign() + 1e-3 * torch.randn(rows, features) for rows in (n, out))
    return x.to(device), w.to(device), torch.randn(n, out).to(device)


def error(value: Tensor, exact: Tensor) -> float:
    """The largest deviation relative to the largest exact number."""
    assert torch.isfinite(value).all()
    return ((value.double() - exact).abs().max() / exact.abs().max()).item()


def run(kernels: Cuda, x: Tensor, w: Tensor, grad: Tensor, p: float) -> tuple[tuple[Tensor, Tensor, Tensor], int]:
    """(y, grad_x, grad_w) and the flag."""
    y, saved = kernels.forward_saving(x, w, p)
    assert torch.allclose(kernels.forward(x, w, p), y, rtol=8 * ROUNDING, atol=0, equal_nan=True)
    return (y, *kernels.backward(grad, x, w, y, saved, p, True, True)), int(pruned.flag_of(saved).item())


def check(kernels: Cuda, x: Tensor, w: Tensor, grad: Tensor, p: float, flag: int) -> None:
    """Twice the error of the float32 reference; gradients by chains add a rounding for each factor."""
    doubles = x.double(), w.double()
    exact_y = REFERENCE.forward(*doubles, p)
    exact = (exact_y, *REFERENCE.backward(grad.double(), *doubles, exact_y, grad, p, True, True))
    plain_y = REFERENCE.forward(x, w, p)
    plain = (plain_y, *REFERENCE.backward(grad, x, w, plain_y, grad, p, True, True))
    made, flagged = run(kernels, x, w, grad, p)
    assert flagged == flag
    by_products = p <= 64 or (pruned.powers(p) == pruned.PER_PAIR and not flag)
    for name, ours, theirs, truth in zip(("y", "grad_x", "grad_w"), made, plain, exact, strict=True):
        slack = (
            ROUNDING if name == "y" else (p + 4) * ROUNDING / 2 if by_products else p * 2 * ROUNDING * flag + ROUNDING
        )
        bound = 2 * error(theirs, truth) + slack
        assert error(ours, truth) <= bound, (name, error(ours, truth), bound)


def check_rest(kernels: Cuda, x: Tensor, w: Tensor, p: float) -> None:
    """The same as of the dense kernels, kept turned."""
    x, w = dense.ties(x), dense.ties(w)
    y, saved = kernels.forward_saving(x, w, p)
    (n, out), padded = y.shape, rows_for(len(x)).padded
    rest = pruned.kept_of(saved, out * padded).view(out, padded)[:, :n].t()
    dense.check_rest(x, w, y, rest, p)


def check_one_gradient(kernels: Cuda, x: Tensor, w: Tensor, grad: Tensor, p: float) -> None:
    """Alone, each is the same as beside the other."""
    y, saved = kernels.forward_saving(x, w, p)
    both = kernels.backward(grad, x, w, y, saved, p, True, True)
    assert torch.equal(kernels.backward(grad, x, w, y, saved, p, True, False)[0], both[0])
    assert torch.equal(kernels.backward(grad, x, w, y, saved, p, False, True)[1], both[1])


def check_nan_and_infinity(kernels: Cuda, draw: Callable[[], tuple[Tensor, Tensor, Tensor]], p: float) -> None:
    """They reach the outputs and gradients they concern, and no others."""
    x, w, grad = draw()
    x[2, 3], x[5, 7] = math.nan, math.inf
    (y, grad_x, grad_w), _ = run(kernels, x, w, grad, p)
    assert y[2].isnan().all()
    assert y[5].isposinf().all()
    assert torch.isfinite(y[6:]).all()
    assert grad_x[2].isnan().all()
    assert grad_x[5, 7].isnan()
    if pruned.powers(p) == pruned.PER_PAIR:  # beside an infinite difference finite ones have no slope
        assert (grad_x[5].nan_to_num() == 0).all()
    assert torch.isfinite(grad_x[6:]).all()
    assert grad_w.isnan().all()
    x, w, grad = draw()
    grad[4, 8] = math.nan
    (_, grad_x, grad_w), _ = run(kernels, x, w, grad, p)
    assert grad_x[4].isnan().all()
    assert grad_w[8].isnan().all()
    assert torch.isfinite(grad_x[5:]).all()
    assert torch.isfinite(grad_w[9:]).all()


def check_infinity(launcher: Launcher, x: Tensor, w: Tensor, flag: int) -> None:
    """Distances, indices and signs bit by bit; w[3] is x[7]."""
    kernels = Cuda(launcher)
    x, w = dense.ties(x), dense.ties(w)
    w[3] = x[7]
    y, saved = kernels.forward_saving(x, w, math.inf)
    wanted_y, wanted_index = REFERENCE.forward_saving(x.cpu(), w.cpu(), math.inf)
    assert torch.equal(y.cpu(), wanted_y)
    assert torch.equal(kernels.forward(x, w, math.inf).cpu(), wanted_y)
    assert torch.equal(decoded_index(saved).cpu(), wanted_index)
    index = wanted_index.long().to(x.device)
    negative = x.gather(1, index) < w.t().gather(0, index)
    assert torch.equal(saved < 0, negative)
    assert pruned.maximum(launcher, x, w, index=False)[2].item() == flag


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("p", POWERS)
def test_few_features(p: float, shape: tuple[int, int, int]) -> None:
    check(KERNELS, *spiked(shape), p, flag=0)


def test_what_rounding_drops_is_kept() -> None:
    x, w, _ = spiked((64, 128, 320))
    check_rest(KERNELS, x, w, 28.0)


@pytest.mark.parametrize("p", [28.0, 100.0, 200.0])
def test_rows_far_out_on_either_side(p: float) -> None:
    check(KERNELS, *far_out((64, 128, 320)), p, flag=0)


@pytest.mark.parametrize("shape", SHAPES[:4], ids=str)
@pytest.mark.parametrize("p", POWERS)
def test_too_many_features_open_the_dense_kernels(p: float, shape: tuple[int, int, int]) -> None:
    check(KERNELS, *crowded(shape), p, flag=1)


def test_only_one_gradient() -> None:
    for p in (28.0, 100.0, 200.0):
        check_one_gradient(KERNELS, *spiked((64, 64, 512)), p)


# A row fifty times as large puts features of all outputs on the lists: dense kernels, with the bound of test_cuda.py.
@pytest.mark.parametrize(("spread", "roundings"), [(1.5, 4), (50.0, 8)])
@pytest.mark.parametrize("p", [32.0, 100.0, 200.0])
def test_distances_relative_to_each_pair(p: float, spread: float, roundings: int) -> None:
    x, w, grad = spiked((96, 96, 600))
    w[7] = x[3]
    w[9] = x[4] + 1e-4 * x[5]
    x[11] *= spread
    w[20] *= 1e-3
    x[20] *= 1e-3
    for factor in (1.0, 1e-30, 1e30):
        made, _ = run(KERNELS, x * factor, w * factor, grad * factor, p)
        exact = REFERENCE.forward((x * factor).double(), (w * factor).double(), p)
        assert made[0][3, 7] == 0
        assert ((made[0].double() - exact).abs() <= roundings * ROUNDING * exact).all()
        assert all(torch.isfinite(part).all() for part in made), factor


@pytest.mark.parametrize("p", [28.0, 64.0, 100.0, 200.0])
@pytest.mark.parametrize("factor", [1e-30, 1e30])
def test_gradients_of_any_magnitude(p: float, factor: float) -> None:
    x, w, grad = spiked((64, 70, 512))
    w[5] *= 0.1
    check(KERNELS, x, w, grad * factor, p, flag=0)
    check(KERNELS, x * factor, w * factor, grad / factor, p, flag=0)
    w[5] = x[6] + 1e-6  # out of range for a chain of products: dense kernels
    check(KERNELS, x * factor, w * factor, grad * factor, p, flag=int(p <= 64))


def largest(shape: tuple[int, int, int], device: str = "cuda") -> tuple[Tensor, Tensor, Tensor]:
    """Distances near the largest of all floats."""
    x, w, grad = spiked(shape, device)
    return x * 2.0**123, w * 2.0**123, grad


@pytest.mark.parametrize("p", [28.0, 100.0, 200.0])
def test_distances_near_the_largest_float(p: float) -> None:
    check(KERNELS, *largest((64, 70, 512)), p, flag=int(p > 128))


def beyond(shape: tuple[int, int, int], device: str = "cuda") -> tuple[Tensor, Tensor, Tensor]:
    """Distances for which no power of two is small enough."""
    x, w, grad = spiked(shape, device)
    factor = 0.9 * torch.finfo(torch.float32).max / (x.abs().max() + w.abs().max())
    return x * factor, w * factor, grad


def test_the_largest_distances_are_for_the_dense_kernels() -> None:
    check(KERNELS, *beyond((64, 70, 512)), 128.0, flag=1)


def test_a_pair_out_of_range_opens_the_dense_kernels() -> None:
    x, w, grad = spiked((64, 64, 512))
    w[5] = x[6] + 1e-6
    check(KERNELS, x, w, grad, 32.0, flag=1)
    w[5] = x[6]
    check(KERNELS, x, w, grad, 32.0, flag=0)


@pytest.mark.parametrize("p", [128.0, 200.0])
def test_nan_and_infinity_reach_the_output(p: float) -> None:
    check_nan_and_infinity(KERNELS, lambda: spiked((70, 90, 400)), p)


@pytest.mark.parametrize("p", [32.0, 64.0, 100.0, 200.0])
@pytest.mark.parametrize("draw", [spiked, crowded])
def test_two_runs_give_the_same_bits(draw: Draw, p: float) -> None:
    inputs = draw((200, 300, 700))
    first, second = (step(KERNELS, *inputs, p) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("draw", [spiked, crowded])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_infinity_is_bit_identical(shape: tuple[int, int, int], draw: Draw) -> None:
    x, w, _ = draw(shape)
    check_infinity(Launcher(), x, w, flag=int(draw is crowded))


def test_many_rows_go_in_parts() -> None:
    x, w, _ = spiked((1500, 64, 320))
    exact = REFERENCE.forward(x.double(), w.double(), 80.0)
    assert ((KERNELS.forward(x, w, 80.0).double() - exact).abs() <= 4 * ROUNDING * exact).all()


def test_unaligned_rows() -> None:
    whole, w, _ = spiked((40, 40, 512))
    shifted = torch.empty(whole.numel() + 1, device="cuda")[1:].view_as(whole).copy_(whole)
    assert shifted.data_ptr() % 16
    assert torch.equal(KERNELS.forward(shifted, w, 99.0), KERNELS.forward(whole, w, 99.0))


@pytest.mark.parametrize("p", [32.0, 100.0, 200.0])
@pytest.mark.parametrize("draw", [spiked, crowded])
def test_a_graph_replays_the_step(draw: Draw, p: float) -> None:
    inputs = draw((64, 80, 512))
    wanted = step(KERNELS, *inputs, p)
    assert all(torch.equal(a, b) for a, b in zip(replayed_step(KERNELS, *inputs, p), wanted, strict=True))
