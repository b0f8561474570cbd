"""Compare the C++ kernels with float64 results, on every instruction-set level of this machine.

Tolerance: twice the error of the float32 reference, where this error is taken as at least the rounding error of one
difference d: 2^-24 in a distance, and p times that in a slope (|d| / y)^(p-1).
"""

import math
from collections.abc import Generator

import pytest
import torch
from torch import Tensor

from linfnet.errors import ArgumentError
from linfnet.ops import cpu, linf_distance_bounds, lp_distance
from linfnet.ops.api import lp_distance_backward, lp_distance_inference, lp_distance_saving

pytestmark = pytest.mark.skipif(not cpu.levels(), reason="the extension is not built")

EXPONENTS = (1.0, 1.5, 2.0, 3.0, 8.0, 12.0, 28.0, 30.5, 64.0, 200.0, 1000.0, 1e4, math.inf)
SHAPES = ((1, 1, 1), (3, 1, 63), (1, 10, 3), (5, 33, 100), (33, 37, 257), (2, 3, 1030), (12, 13, 1030))
UNIT = 2.0**-24


@pytest.fixture(params=cpu.levels() or ("none",))
def level(request: pytest.FixtureRequest) -> Generator[str]:
    with cpu.use_level(request.param):
        yield request.param


def random_pair(shape: tuple[int, int, int], seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    n, out, features = shape
    x, w = (torch.randn(rows, features, generator=generator) for rows in (n, out))
    return x, w, torch.randn(n, out, generator=generator)


def run(impl: str, x: Tensor, w: Tensor, grad: Tensor, p: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return (y, grad_x, grad_w) in float64."""
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    y = lp_distance(x, w, p, impl=impl)
    y.backward(grad)
    assert x.grad is not None
    assert w.grad is not None
    return y.detach().double(), x.grad.double(), w.grad.double()


def assert_close(x: Tensor, w: Tensor, grad: Tensor, p: float) -> None:
    exact = run("reference", x.double(), w.double(), grad.double(), p)
    ours, theirs = run("cpu", x, w, grad, p), run("reference", x, w, grad, p)
    if p == math.inf:
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
        return
    for name, a, b, e in zip(("y", "grad_x", "grad_w"), ours, theirs, exact, strict=True):
        size = e.abs().amax()
        floor = UNIT * (1 if name == "y" else p) * size + 2.0**-149
        allowed = 2 * torch.maximum((b - e).abs().amax(), floor)
        assert (a - e).abs().amax() <= allowed, name
    # Check each distance, not only the largest error.
    relative = ((ours[0] - exact[0]).abs() / exact[0].clamp(min=2.0**-126)).amax()
    other = ((theirs[0] - exact[0]).abs() / exact[0].clamp(min=2.0**-126)).amax()
    assert relative <= 2 * max(float(other), UNIT)


@pytest.mark.parametrize("p", EXPONENTS)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.usefixtures("level")
def test_values_and_gradients(shape: tuple[int, int, int], p: float) -> None:
    assert_close(*random_pair(shape), p)


@pytest.mark.parametrize("p", [*range(1, 34)])
@pytest.mark.usefixtures("level")
def test_every_small_integer(p: int) -> None:
    assert_close(*random_pair((6, 9, 70), seed=p), float(p))


@pytest.mark.parametrize("p", EXPONENTS)
@pytest.mark.parametrize("scale", [1e-42, 1e-36, 1e-12, 1e15, 1e36], ids=str)
@pytest.mark.usefixtures("level")
def test_denormal_and_huge_differences(scale: float, p: float) -> None:
    x, w, grad = random_pair((5, 9, 70))
    assert_close(x * scale, w * scale, grad, p)


@pytest.mark.parametrize("p", EXPONENTS)
@pytest.mark.usefixtures("level")
def test_scales_mixed_in_one_call(p: float) -> None:
    x, w, grad = random_pair((9, 17, 70))
    x[::2] *= 1e-20
    w[::3] *= 1e-25
    x[5], w[7] = x[5] * 1e18, w[7] * 1e20
    assert_close(x, w, grad, p)


@pytest.mark.parametrize("p", EXPONENTS)
@pytest.mark.usefixtures("level")
def test_equal_rows_have_distance_and_gradient_zero(p: float) -> None:
    x, _, grad = random_pair((4, 4, 40))
    x[1] = x[0]
    y, grad_x, grad_w = run("cpu", x, x.clone(), grad, p)
    assert torch.equal(y.diagonal(), torch.zeros(4).double())
    assert y[0, 1] == 0
    assert grad_x.isfinite().all()
    assert grad_w.isfinite().all()
    same = torch.ones(2, 40)
    assert all((g == 0).all() for g in run("cpu", same, same, torch.ones(2, 2), p))


@pytest.mark.parametrize("p", [2.0, 3.0, 8.0, 30.5, 200.0, math.inf])
@pytest.mark.parametrize("poison", [math.nan, math.inf], ids=str)
@pytest.mark.parametrize("place", [0, 15, 16, 68], ids=str)
@pytest.mark.usefixtures("level")
def test_nan_and_infinity_reach_the_output(p: float, poison: float, place: int) -> None:
    x, w, _ = random_pair((6, 7, 69))
    x[4, place] = poison
    w[2, 3] = poison
    y = lp_distance(x, w, p, impl="cpu")
    torch.testing.assert_close(y, lp_distance(x, w, p, impl="reference"), equal_nan=True)
    assert (y[4].isnan() if math.isnan(poison) else y[4].isinf()).all()
    x[4, place], w[2, place] = math.inf, math.inf
    assert lp_distance(x, w, p, impl="cpu")[4, 2].isnan()


@pytest.mark.usefixtures("level")
def test_first_of_equal_coordinates_wins() -> None:
    x, w = torch.zeros(3, 1100), torch.zeros(2, 1100)
    x[0, [7, 9, 600]] = 2.0
    x[1, [600, 1099]] = -3.0
    index = lp_distance_saving(x, w, math.inf, "cpu")[1]
    assert index.tolist() == [[7, 7], [600, 600], [0, 0]]


@pytest.mark.parametrize("shape", [*SHAPES, (0, 3, 5), (3, 0, 5), (2, 3, 0)], ids=lambda s: "x".join(map(str, s)))
@pytest.mark.usefixtures("level")
def test_bounds_have_the_bits_of_the_reference(shape: tuple[int, int, int]) -> None:
    x, w, grad = random_pair(shape)
    lower, upper = x - x.abs() * 0.1, x + 0.2
    results: list[list[Tensor]] = []
    for impl in ("cpu", "reference"):
        inputs = [t.clone().requires_grad_() for t in (lower, upper, w)]
        bounds = linf_distance_bounds(*inputs, impl=impl)
        without = linf_distance_bounds(lower, upper, w, impl=impl)
        assert all(torch.equal(a, b) for a, b in zip(bounds, without, strict=True))
        gradients = torch.autograd.grad(bounds, inputs, (grad, grad))
        results.append([*bounds, *gradients])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("place", [0, 20, 68])
@pytest.mark.usefixtures("level")
def test_bounds_show_nan(place: int) -> None:
    x, w, _ = random_pair((4, 5, 69))
    lower, upper = x - 0.1, x + 0.1
    upper[1, place] = -math.nan
    lower[2, place], w[3, place] = -math.inf, -math.inf
    for ours, theirs in zip(
        linf_distance_bounds(lower, upper, w, impl="cpu"),
        linf_distance_bounds(lower, upper, w, impl="reference"),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
        assert ours[1].isnan().all()
        assert ours[2, 3].isnan()


@pytest.mark.parametrize("p", [1.0, 8.0, 28.0, 30.5, 200.0, math.inf])
def test_threads_do_not_change_a_bit(p: float) -> None:
    x, w, grad = random_pair((134, 140, 450))  # large enough for 7 threads
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            results.append(run("cpu", x, w, grad, p))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("p", [40.0, 300.0])
@pytest.mark.parametrize("few", [True, False], ids=["few large terms", "many large terms"])
@pytest.mark.usefixtures("level")
def test_both_sides_of_the_sparsity_switch(few: bool, p: float) -> None:
    x, w, grad = random_pair((10, 70, 600))
    if few:
        w[:, 5::97] += 10.0
    else:
        x, w = x.sign() * (1 + x.abs() * 1e-3), torch.zeros_like(w)
    assert_close(x, w, grad, p)


@pytest.mark.parametrize("p", [1.5, 8.0, 200.0, math.inf])
def test_only_the_gradients_asked_for(p: float) -> None:
    x, w, grad = random_pair((6, 7, 50))
    y, saved = lp_distance_saving(x, w, p, "cpu")
    both = lp_distance_backward(grad, x, w, y, saved, p, True, True, "cpu")
    for need_x, need_w in ((True, False), (False, True)):
        grad_x, grad_w = lp_distance_backward(grad, x, w, y, saved, p, need_x, need_w, "cpu")
        assert torch.equal(grad_x, both[0] if need_x else torch.empty(0))
        assert torch.equal(grad_w, both[1] if need_w else torch.empty(0))


@pytest.mark.parametrize("p", [2.0, 30.5, math.inf])
@pytest.mark.parametrize("shape", [(0, 4, 5), (3, 0, 5), (3, 4, 0)], ids=lambda s: "x".join(map(str, s)))
def test_empty_tensors(shape: tuple[int, int, int], p: float) -> None:
    x, w, grad = random_pair(shape)
    y, grad_x, grad_w = run("cpu", x, w, grad, p)
    assert (y.shape, grad_x.shape, grad_w.shape) == ((shape[0], shape[1]), x.shape, w.shape)
    assert not any(t.any() for t in (y, grad_x, grad_w))


def test_strided_tensors() -> None:
    x, w, _ = random_pair((8, 6, 20))
    strided = lp_distance_inference(x[::2, ::2], w[:, ::2], 8.0, "cpu")
    assert torch.equal(strided, lp_distance(x[::2, ::2].contiguous(), w[:, ::2].contiguous(), 8.0, impl="cpu"))


@pytest.mark.parametrize("p", [8.0, 30.5, math.inf])
def test_opcheck(p: float) -> None:
    x, w, grad = random_pair((3, 4, 20))
    y, saved = lp_distance_saving(x, w, p, "cpu")
    leaves = x.clone().requires_grad_(), w.clone().requires_grad_()
    torch.library.opcheck(lp_distance_inference, (x, w, p, "cpu"))
    torch.library.opcheck(lp_distance_saving, (*leaves, p, "cpu"))
    torch.library.opcheck(lp_distance_backward, (grad, x, w, y, saved, p, True, True, "cpu"))


@pytest.mark.parametrize("p", [8.0, 30.5, math.inf])
def test_compiles_into_one_graph(p: float) -> None:
    x, w, _ = random_pair((3, 4, 20))

    def distance(x: Tensor, w: Tensor) -> Tensor:
        return lp_distance(x * 2, w, p, impl="cpu").relu()

    compiled = torch.compile(distance, fullgraph=True, backend="aot_eager")
    leaf = w.clone().requires_grad_()
    assert torch.equal(compiled(x, leaf), distance(x, w))
    compiled(x, leaf).sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.any()


def test_elementary_functions_keep_their_stated_errors(level: str) -> None:
    """log2 within 2 units in the last place of its result on (0, 1], exp2 within 1.5, the root within 2.5."""
    a = torch.logspace(-37, 0, 40001, dtype=torch.float64).float()
    near = 1 - torch.logspace(-7, -0.5, 10001, dtype=torch.float64).float()
    t = -torch.logspace(-6, 2.1, 40001, dtype=torch.float64).float()
    s = torch.logspace(-25, 35, 40001, dtype=torch.float64).float()
    cases = [(0, a, 1.0, 2.0), (0, near, 1.0, 2.0), (1, t, 1.0, 1.5)]
    cases += [(2, s, p, 2.5) for p in (1.0, 3.0, 7.0, 30.5, 200.0)]
    # The plain level rounds each product of a polynomial once more.
    slack = 2.0 if level == "plain" else 1.0
    for which, argument, p, ulps in cases:
        exact = argument.double()
        exact = (exact.log2(), exact.exp2(), exact ** (1 / p))[which]
        error = ((cpu.elementary(which, argument, p).double() - exact).abs() / exact.abs().clamp(min=2.0**-126)).amax()
        assert error <= slack * ulps * 2.0**-23, (which, p, float(error) * 2**23)


def test_a_level_that_is_not_here_is_refused() -> None:
    with pytest.raises(ArgumentError, match="level is 'AMX'"), cpu.use_level("AMX"):
        pass
    assert cpu.status().startswith(f"CPU kernels: {cpu.levels()[0]}")


def test_float64_is_left_to_the_reference() -> None:
    x, w, _ = random_pair((2, 3, 4))
    with pytest.raises(ArgumentError, match="does not support"):
        lp_distance(x.double(), w.double(), impl="cpu")
    assert lp_distance(x.double(), w.double()).dtype == torch.float64
