"""Compare the sparse distances and gradients at a finite p with float64 results, as `test_cpu` for dense layers."""

import math
from collections.abc import Generator

import pytest
import torch
from test_sparse import Case, draw, same_bits
from torch import Tensor

from linfnet.errors import ArgumentError
from linfnet.ops import cpu, lp_distance, sparse_linf_distance, sparse_lp_distance, sparse_reference
from linfnet.ops.sparse_lp import power, power_backward

LEVELS = [f"cpu {name}" for name in cpu.levels()]
EXPONENTS = (1.0, 1.2, 1.5, 2.0, 3.0, 8.0, 16.0, 30.5, 32.0, 64.0, 200.0, 1000.0, 1e4, 1e6)
# n, in, out and the share of connections.
SHAPES = [
    (1, 1, 1, 1.0),
    (1, 300, 70, 0.3),
    (3, 64, 130, 0.02),
    (16, 40, 16, 0.2),
    (2, 2000, 3, 0.9),
    (53, 90, 49, 0.3),
]
UNIT = 2.0**-24


@pytest.fixture(params=["reference", *LEVELS])
def impl(request: pytest.FixtureRequest) -> Generator[str]:
    """Yield the name of an implementation; each level of the CPU kernels in turn."""
    name, _, level = request.param.partition(" ")
    if not level:
        yield name
        return
    with cpu.use_level(level):
        yield name


def run(impl: str, case: Case, p: float, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Return (y, grad_x, grad_weight) in float64."""
    x, weight = (t.to(dtype, copy=True).requires_grad_() for t in (case.x, case.weight))
    y = sparse_lp_distance(x, weight, case.index, case.offsets, p, impl=impl)
    y.backward(case.grad.to(dtype))
    assert x.grad is not None
    assert weight.grad is not None
    return y.detach().double(), x.grad.double(), weight.grad.double()


def assert_close(case: Case, p: float, impl: str) -> None:
    """Check against float64: twice the error of the float32 reference, as for the dense kernels in `test_cpu`."""
    exact = run("reference", case, p, torch.float64)
    ours, theirs = run(impl, case, p), run("reference", case, p)
    for name, a, b, e in zip(("y", "grad_x", "grad_w"), ours, theirs, exact, strict=True):
        floor = UNIT * (1 if name == "y" else p) * e.abs().amax() + 2.0**-149
        assert (a - e).abs().amax() <= 2 * torch.maximum((b - e).abs().amax(), floor), name
    relative, other = (((y - exact[0]).abs() / exact[0].clamp(min=2.0**-126)).amax() for y in (ours[0], theirs[0]))
    assert relative <= 2 * max(float(other), UNIT)


@pytest.mark.parametrize("p", EXPONENTS)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
def test_values_and_gradients(shape: tuple[int, int, int, float], p: float, impl: str) -> None:
    assert_close(draw(*shape), p, impl)


@pytest.mark.parametrize("p", EXPONENTS)
@pytest.mark.parametrize("scale", [1e-42, 1e-36, 1e-12, 1e15, 1e36], ids=str)
def test_denormal_and_huge_differences(scale: float, p: float, impl: str) -> None:
    case = draw(5, 70, 20, 0.4)
    case.x *= scale
    case.weight *= scale
    assert_close(case, p, impl)


@pytest.mark.parametrize("p", EXPONENTS)
def test_scales_mixed_in_one_call(p: float, impl: str) -> None:
    case = draw(19, 70, 30, 0.4)
    case.x[::2] *= 1e-20
    case.x[1::4] *= 1e-35
    case.weight[::3] *= 1e-25
    case.weight[: case.offsets[10]] *= 1e-12
    case.x[5] *= 1e35
    assert_close(case, p, impl)


@pytest.mark.parametrize("p", [2.0, 16.0, 64.0, 100.5])
def test_all_connections_give_the_dense_layer(p: float, impl: str) -> None:
    case = draw(20, 65, 37, 1.0)
    ours = run(impl, case, p)
    x, w = case.x.double().requires_grad_(), case.weight.reshape(37, 65).double().requires_grad_()
    y = lp_distance(x, w, p)
    for a, b in zip(ours, (y, *torch.autograd.grad(y, (x, w), case.grad.double())), strict=True):
        torch.testing.assert_close(
            a, b.detach().reshape(a.shape), rtol=0, atol=1e-6 * p * float(b.detach().abs().max())
        )


@pytest.mark.parametrize("p", [1.0, 2.0, 16.0, 64.0, 30.5, 200.0])
def test_the_batch_and_the_threads_do_not_change_a_bit(p: float, impl: str) -> None:
    case = draw(40, 600, 700, 0.4)
    case.x[3] *= 1e-36  # a distance that cannot be scaled like those of the other images
    case.grad[7, 5] = math.nan
    before = torch.get_num_threads()
    results: list[tuple[Tensor, Tensor, Tensor]] = []
    try:
        for threads in (1, 2, 3, 7) if impl == "cpu" else (1,):
            torch.set_num_threads(threads)
            results.append(run(impl, case, p))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(same_bits(a, b) for a, b in zip(other, results[0], strict=True))
    if impl == "reference":
        return
    for rows in ([3], [7, 3], [30, 31, 32, 33], list(range(39, 0, -2))):
        part = Case(case.x[rows], case.upper, case.grad[rows], case.weight, case.index, case.offsets, case.mask)
        y, grad_x, _ = run(impl, part, p)
        assert same_bits(y, results[0][0][rows])
        assert same_bits(grad_x, results[0][1][rows])


@pytest.mark.parametrize("p", [2.0, 16.0, 64.0, 30.5])
@pytest.mark.parametrize("rows", [1, 2])
def test_one_image_has_the_bits_of_a_batch(p: float, rows: int, impl: str) -> None:
    """Few images are computed in another way; neurons with one, many, repeated and unordered connections."""
    if impl == "reference":
        return
    torch.manual_seed(0)
    counts = torch.tensor([1, 2, 15, 16, 17, 31, 33, 200, 700, *[5] * 30])
    index = torch.cat([torch.randint(90, (count,)) for count in counts]).int()
    offsets = torch.cat([torch.zeros(1), counts.cumsum(0)]).int()
    weight, x = torch.randn(len(index)), torch.randn(20, 90)
    x[0, 3], x[1], weight[index == 7] = math.inf, x[1] * 1e-37, 1e30
    for values in (weight, weight * 1e-37):
        y = power(x, values, index, offsets, p, impl)
        grad = torch.randn_like(y)
        grads, _ = power_backward(grad, x, values, index, offsets, y, p, True, False, impl)
        for row in range(0, 20, rows):
            part = slice(row, row + rows)
            own = power(x[part], values, index, offsets, p, impl)
            assert same_bits(own, y[part])
            got, _ = power_backward(grad[part], x[part], values, index, offsets, own, p, True, False, impl)
            assert same_bits(got, grads[part])


@pytest.mark.parametrize("p", EXPONENTS)
@pytest.mark.parametrize("n", [1, 18])
def test_equal_numbers_have_distance_and_gradient_zero(n: int, p: float, impl: str) -> None:
    case = draw(n, 30, 20, 0.5)
    case.x[:], case.weight[:] = 0.5, 0.5
    assert not any(result.any() for result in run(impl, case, p))


@pytest.mark.parametrize("p", [2.0, 16.0, 30.5, 64.0, 200.0])
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("which", ["x", "weight", "grad"])
def test_what_is_not_finite_appears_as_in_the_reference(which: str, poison: float, p: float, impl: str) -> None:
    case = draw(19, 30, 40, 0.5)
    {"x": case.x, "weight": case.weight[None], "grad": case.grad}[which][0 if which == "weight" else 4, 5] = poison
    ours, theirs = run(impl, case, p), run("reference", case, p)
    assert same_bits(ours[0].masked_fill(ours[0].isfinite(), 0), theirs[0].masked_fill(theirs[0].isfinite(), 0))
    assert all(torch.equal(a.isfinite(), b.isfinite()) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("p", [1.5, 16.0])
def test_only_the_gradients_asked_for(p: float, impl: str) -> None:
    case = draw(6, 30, 20, 0.3)
    arguments = (case.grad, case.x, *case.csr, power(case.x, *case.csr, p, impl), p)
    both = power_backward(*arguments, True, True, impl)
    for need_x, need_w in ((True, False), (False, True), (False, False)):
        grad_x, grad_w = power_backward(*arguments, need_x, need_w, impl)
        assert torch.equal(grad_x, both[0] if need_x else torch.empty(0))
        assert torch.equal(grad_w, both[1] if need_w else torch.empty(0))


def test_many_samples_in_the_weight_gradients(impl: str) -> None:
    assert_close(draw(1100, 12, 9, 0.5), 16.0, impl)


def test_infinity_is_the_maximum(impl: str) -> None:
    case = draw(9, 30, 20, 0.3)
    expected = sparse_linf_distance(case.x, *case.csr, impl=impl)
    assert same_bits(sparse_lp_distance(case.x, *case.csr, impl=impl), expected)


def test_empty_batches_and_layers(impl: str) -> None:
    case = draw(4, 6, 5, 0.5)
    x, weight = torch.zeros(0, 6, requires_grad=True), case.weight.requires_grad_()
    y = sparse_lp_distance(x, weight, case.index, case.offsets, 16.0, impl=impl)
    grad_x, grad_w = torch.autograd.grad(y.sum(), (x, weight))
    assert (y.shape, grad_x.shape) == ((0, 5), (0, 6))
    assert torch.equal(grad_w, torch.zeros_like(weight))
    none = torch.zeros(0, requires_grad=True), torch.zeros(0, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    y = sparse_lp_distance(case.x.requires_grad_(), *none, 16.0, impl=impl)
    assert y.shape == (4, 0)
    assert torch.equal(torch.autograd.grad(y.sum(), case.x)[0], torch.zeros(4, 6))


def test_leading_dimensions_and_layouts(impl: str) -> None:
    case = draw(24, 40, 9, 0.3)
    flat = sparse_lp_distance(case.x, *case.csr, 16.0, impl=impl)
    many = sparse_lp_distance(case.x.reshape(2, 3, 4, 40), *case.csr, 16.0, impl=impl)
    assert torch.equal(many, flat.reshape(2, 3, 4, 9))
    strided = [torch.stack([t, t], -1).flatten(-2)[..., ::2] for t in (case.x, *case.csr)]
    assert torch.equal(sparse_lp_distance(*strided, 16.0, impl=impl), flat)
    assert torch.equal(power(*strided, 16.0, impl), flat)


@pytest.mark.parametrize("p", [1.0, 2.5, 8.0])
def test_gradients_in_float64(p: float) -> None:
    case = draw(4, 6, 5, 0.5, dtype=torch.float64)
    x, weight = case.x.requires_grad_(), case.weight.requires_grad_()
    assert torch.autograd.gradcheck(lambda a, w: sparse_lp_distance(a, w, case.index, case.offsets, p), (x, weight))


def test_second_gradients_are_refused() -> None:
    case = draw(2, 4, 3, 0.5)
    x, grad = case.x.requires_grad_(), case.grad.requires_grad_()
    (slope,) = torch.autograd.grad(sparse_lp_distance(x, *case.csr, 8.0), x, grad, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivatives"):
        slope.sum().backward()


def test_the_reference_limits_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    case = draw(13, 60, 50, 0.3)
    whole = run("reference", case, 8.0)
    monkeypatch.setattr(sparse_reference, "BLOCK_ELEMENTS", 3 * len(case.weight))
    torch.testing.assert_close(run("reference", case, 8.0), whole, rtol=1e-5, atol=1e-6)


def test_operators(impl: str) -> None:
    case = draw(4, 6, 5, 0.5)
    x, weight = case.x.clone().requires_grad_(), case.weight.clone().requires_grad_()
    torch.library.opcheck(power, (x, weight, case.index, case.offsets, 16.0, impl))
    y = power(case.x, *case.csr, 16.0, impl)
    torch.library.opcheck(power_backward, (case.grad, case.x, *case.csr, y, 16.0, True, True, impl))


@pytest.mark.parametrize("n", [1, 20])
def test_connections_that_do_not_fit_are_refused(n: int, impl: str) -> None:
    x, weight, index = torch.zeros(n, 4), torch.zeros(20), torch.arange(20, dtype=torch.int32) % 4
    offsets = torch.tensor([0, 5, 20], dtype=torch.int32)
    y, bad = torch.zeros(n, 2), index.index_fill(0, torch.tensor(19), 4)
    with pytest.raises(ArgumentError, match="index"):
        sparse_lp_distance(x, weight, bad, offsets, 16.0, impl=impl)
    with pytest.raises(ArgumentError, match="index"):
        power_backward(y, x, weight, bad, offsets, y, 16.0, True, True, impl)
    with pytest.raises(ArgumentError, match="offsets"):
        sparse_lp_distance(x, weight, index, offsets.flip(0), 16.0, impl=impl)
    with pytest.raises(ArgumentError, match=r"p is 0\.5"):
        sparse_lp_distance(x, weight, index, offsets, 0.5)
