"""Large p on a GPU: the terms that count against the float64 reference, and the dense kernels where too many count."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from linfnet.ops import Reference
from linfnet.ops.cuda import large
from linfnet.ops.cuda.implementation import Cuda

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

REFERENCE, KERNELS = Reference(), Cuda()
ROUNDING = 2.0**-23
POWERS = [large.SMALLEST_P, 64.0, 112.5, 224.0, 1000.0]
Draw = Callable[[tuple[int, int, int]], tuple[Tensor, Tensor, Tensor]]
SHAPES = [(32, 32, 256), (64, 128, 320), (33, 70, 515), (130, 197, 1100)]


def sparse(shape: tuple[int, int, int], seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Heavy tails, as in a trained net: few differences come near the largest."""
    n, out, features = shape
    torch.manual_seed(seed)
    x, w, grad = torch.randn(n, features), torch.randn(out, features), torch.randn(n, out)
    return x.cuda(), (w * w.abs()).cuda(), grad.cuda()


def crowded(shape: tuple[int, int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Half of all differences attain the largest, or nearly."""
    n, out, features = shape
    torch.manual_seed(0)
    x, w = (torch.randn(rows, features).sign() + 1e-3 * torch.randn(rows, features) for rows in (n, out))
    return x.cuda(), w.cuda(), torch.randn(n, out).cuda()


def error(value: Tensor, exact: Tensor) -> float:
    """The largest deviation relative to the largest exact number."""
    assert torch.isfinite(value).all()
    return ((value.double() - exact).abs().max() / exact.abs().max()).item()


def run(x: Tensor, w: Tensor, grad: Tensor, p: float) -> tuple[tuple[Tensor, Tensor, Tensor], int]:
    """(y, grad_x, grad_w) and the flag."""
    y, saved = KERNELS.forward_saving(x, w, p)
    # Without lists to keep the pool may suffice where it else does not: then roundings differ.
    assert torch.allclose(KERNELS.forward(x, w, p), y, rtol=8 * ROUNDING, atol=0, equal_nan=True)
    return (y, *KERNELS.backward(grad, x, w, y, saved, p, True, True)), int(large.flag_of(saved).item())


def check(x: Tensor, w: Tensor, grad: Tensor, p: float, flag: int, chain: float = 0.0) -> None:
    """Twice the error of the float32 reference; `chain` adds roundings of the dense kernels, per unit of p."""
    doubles = x.double(), w.double()
    exact_y = REFERENCE.forward(*doubles, p)
    exact = (exact_y, *REFERENCE.backward(grad.double(), *doubles, exact_y, grad, p, True, True))
    plain_y = REFERENCE.forward(x, w, p)
    plain = (plain_y, *REFERENCE.backward(grad, x, w, plain_y, grad, p, True, True))
    made, flagged = run(x, w, grad, p)
    assert flagged == flag
    for name, ours, theirs, truth in zip(("y", "grad_x", "grad_w"), made, plain, exact, strict=True):
        bound = 2 * error(theirs, truth) + ROUNDING * (1 + chain * p)
        assert error(ours, truth) <= bound, (name, error(ours, truth), bound)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("p", POWERS)
def test_few_terms(p: float, shape: tuple[int, int, int]) -> None:
    check(*sparse(shape), p, flag=0)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("p", POWERS)
def test_too_many_terms_open_the_dense_kernels(p: float, shape: tuple[int, int, int]) -> None:
    sizes = large.lists(*shape, p)
    crowd = shape[0] * shape[1] * shape[2] // 2 > sizes.kept * large.PAGE
    check(*crowded(shape), p, flag=int(crowd), chain=2.0)


def test_a_list_that_overflows_after_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    shape, p = (64, 64, 512), 64.0
    wide = large.lists(*shape, p)
    narrow = replace(wide, kept=wide.patches)

    def lists(n: int, out: int, features: int, p: float) -> large.Lists:
        return narrow

    monkeypatch.setattr(large, "lists", lists)
    check(*sparse(shape), p, flag=1, chain=2.0)


def test_distances_relative_to_each_pair() -> None:
    x, w, grad = sparse((96, 96, 600))
    w[7] = x[3]
    w[9] = x[4] + 1e-4 * x[5]
    x[11] *= 50
    w[20] *= 1e-3
    x[20] *= 1e-3
    for factor in (1.0, 1e-30, 1e30):
        made, flag = run(x * factor, w * factor, grad * factor, 100.0)
        exact = REFERENCE.forward((x * factor).double(), (w * factor).double(), 100.0)
        assert flag == 0
        assert made[0][3, 7] == 0
        assert ((made[0].double() - exact).abs() <= 4 * ROUNDING * exact).all()
        assert all(torch.isfinite(part).all() for part in made)


def test_nan_and_infinity_reach_the_output() -> None:
    x, w, grad = sparse((70, 90, 400))
    x[2, 3], x[5, 7] = math.nan, math.inf
    (y, grad_x, grad_w), _ = run(x, w, grad, 128.0)
    assert y[2].isnan().all()
    assert y[5].isposinf().all()
    assert torch.isfinite(y[6:]).all()
    assert grad_x[2].isnan().all()
    assert grad_x[5, 7].isnan()
    assert torch.isfinite(grad_x[6:]).all()
    assert grad_w.isnan().all()
    grad[4, 8] = math.nan
    (_, grad_x, grad_w), _ = run(*sparse((70, 90, 400))[:2], grad, 128.0)
    assert grad_x[4].isnan().all()
    assert grad_w[8].isnan().all()
    assert torch.isfinite(grad_x[5:]).all()
    assert torch.isfinite(grad_w[9:]).all()


@pytest.mark.parametrize("draw", [sparse, crowded])
def test_two_runs_give_the_same_bits(draw: Draw) -> None:
    x, w, grad = draw((200, 300, 700))
    first, second = (run(x, w, grad, 64.0)[0] for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_many_rows_go_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w, _ = sparse((100, 64, 320))
    whole = KERNELS.forward(x, w, 80.0)
    monkeypatch.setattr(large, "MOST_PAIRS", 40 * 64)
    exact = REFERENCE.forward(x.double(), w.double(), 80.0)
    parts = KERNELS.forward(x, w, 80.0)
    assert torch.equal(parts[:80], whole[:80])
    assert ((parts.double() - exact).abs() <= 4 * ROUNDING * exact).all()


def test_unaligned_rows() -> None:
    whole, w, _ = sparse((40, 40, 512))
    shifted = torch.empty(whole.numel() + 1, device="cuda")[1:].view_as(whole).copy_(whole)
    assert shifted.data_ptr() % 16
    assert torch.equal(KERNELS.forward(shifted, w, 99.0), KERNELS.forward(whole, w, 99.0))


@pytest.mark.parametrize("draw", [sparse, crowded])
def test_a_graph_replays_the_step(draw: Draw) -> None:
    x, w, grad = draw((64, 80, 512))

    def step() -> tuple[Tensor, ...]:
        y, saved = KERNELS.forward_saving(x, w, 100.0)
        return (y, *KERNELS.backward(grad, x, w, y, saved, 100.0, True, True))

    wanted = step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(captured, wanted, strict=True))
