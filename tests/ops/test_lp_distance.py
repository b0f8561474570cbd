"""Compare every implementation on this machine with the definition of the operation in float64."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from linfnet import ops
from linfnet.errors import ArgumentError
from linfnet.ops import linf_distance_bounds, lp_distance
from linfnet.ops import reference as reference_module
from linfnet.ops.implementations import KERNELS, get

PS = [1.0, 1.5, 2.0, 3.0, 8.0, 30.5, 200.0, 1000.0, 1e4, math.inf]
SHAPES = [
    (1, 1, 1),
    (3, 63, 100),
    (63, 3, 257),
    (100, 257, 1),
    (1, 100, 63),
    (257, 1, 3),
    (5, 7, 257),
    (0, 4, 5),
    (4, 0, 5),
]
IMPLEMENTATIONS = [name for name in ops.names() if get(name).supports("cpu", torch.float32)]


def draw(n: int, out: int, features: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n * 10007 + out * 101 + features)
    return (
        torch.randn(n, features, generator=generator, dtype=dtype),
        torch.randn(out, features, generator=generator, dtype=dtype),
    )


def definition(x: Tensor, w: Tensor, p: float) -> Tensor:
    """Return the distances by the formula in float64; all results are compared with it."""
    size = (x.double()[:, None] - w.double()[None]).abs()
    if math.isinf(p):
        return size.amax(-1)
    largest = size.amax(-1, keepdim=True)
    return (largest * ((size / largest.clamp(min=1e-300)) ** p).sum(-1, keepdim=True) ** (1 / p)).squeeze(-1)


def allowed(x: Tensor, w: Tensor, p: float, exact: Tensor) -> Tensor:
    """Return twice the largest error of the float32 reference on these inputs, plus an ulp of the result."""
    plain = lp_distance(x, w, p, impl="reference").double()
    return 2 * (plain - exact).abs().max() + torch.finfo(torch.float32).eps * exact.abs()


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("p", PS)
def test_agrees_with_float64(p: float, shape: tuple[int, int, int], impl: str):
    x, w = draw(*shape)
    y = lp_distance(x, w, p, impl=impl)
    assert y.shape == shape[:2]
    if y.numel():
        exact = definition(x, w, p)
        assert ((y.double() - exact).abs() <= allowed(x, w, p, exact)).all()


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, 8.0, 13.0])
def test_equal_terms_do_not_add_up_their_rounding(p: float, impl: str):
    for features in (257, 784, 5120):
        x, w = torch.full((9, features), 0.7), torch.zeros(4, features)
        exact = definition(x, w, p)
        assert ((lp_distance(x, w, p, impl=impl).double() - exact).abs() <= allowed(x, w, p, exact)).all()


@pytest.mark.parametrize("p", PS)
def test_the_float32_reference_itself_is_good(p: float):
    x, w = draw(31, 17, 257)
    exact = definition(x, w, p)
    # A rounding each for difference, quotient, power (p times the quotient's, divided by p again), sum, root, product.
    bound = (6 + math.log2(257)) * torch.finfo(torch.float32).eps * exact
    assert ((lp_distance(x, w, p, impl="reference").double() - exact).abs() <= bound).all()


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 8.0, 30.5, math.inf])
def test_gradients_in_float64(p: float):
    x, w = (t.requires_grad_() for t in draw(4, 3, 5, torch.float64))
    assert torch.autograd.gradcheck(lambda a, b: lp_distance(a, b, p, impl="reference"), (x, w))


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    "shape", [(3, 63, 100), (63, 3, 257), (1, 1, 1), (17, 5, 33)], ids=lambda s: "x".join(map(str, s))
)
@pytest.mark.parametrize("p", PS)
def test_gradients_agree_with_float64(p: float, shape: tuple[int, int, int], impl: str):
    x, w = draw(*shape)
    flow = torch.randn(shape[:2], generator=torch.Generator().manual_seed(0))

    def gradients(a: Tensor, b: Tensor, name: str) -> tuple[Tensor, ...]:
        a, b = a.clone().requires_grad_(), b.clone().requires_grad_()
        return torch.autograd.grad(lp_distance(a, b, p, impl=name), (a, b), flow.to(a.dtype))

    exact = gradients(x.double(), w.double(), "reference")
    for got, plain, right in zip(gradients(x, w, impl), gradients(x, w, "reference"), exact, strict=True):
        error = 2 * (plain.double() - right).abs().max() + torch.finfo(torch.float32).eps * right.abs().max()
        assert ((got.double() - right).abs() <= error).all()


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_zero_where_x_equals_w(impl: str):
    for p in (1.0, 1.5, 2.0, 8.0, 200.0, math.inf):
        w = torch.tensor([[1.0, 2.0, 3.0]], requires_grad=True)
        x = torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 5.0]], requires_grad=True)
        y = lp_distance(x, w, p, impl=impl)
        assert y.tolist() == [[0.0], [2.0]]
        y.sum().backward()
        assert x.grad is not None
        assert w.grad is not None
        assert x.grad.tolist() == [[0.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
        assert w.grad.tolist() == [[0.0, 0.0, -1.0]]


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_at_infinity_the_first_largest_coordinate_receives_the_gradient(impl: str):
    x = torch.tensor([[1.0, -3.0, 3.0, 3.0]], requires_grad=True)
    lp_distance(x, torch.zeros(1, 4), math.inf, impl=impl).backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[0.0, -1.0, 0.0, 0.0]]


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("p", [1.0, 2.0, 8.0, 30.5, 1e4, math.inf])
@pytest.mark.parametrize("size", [1e-45, 1e-38, 1e-30, 1e30, 3e38])
def test_neither_overflow_nor_underflow(p: float, size: float, impl: str):
    x, w = torch.full((1, 3), size), torch.zeros(1, 3)
    x[0, 1] = 0
    exact = definition(x, w, p)
    if exact.max() < torch.finfo(torch.float32).max:
        tolerance = 8 * torch.finfo(torch.float32).eps * exact + torch.finfo(torch.float32).smallest_normal * 2**-23
        assert ((lp_distance(x, w, p, impl=impl).double() - exact).abs() <= tolerance).all()


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("p", PS)
@pytest.mark.parametrize("place", [0, 5, 63, 99])
def test_nan_reaches_the_output(p: float, place: int, impl: str):
    x, w = draw(3, 4, 100)
    x[1, place] = math.nan
    y = lp_distance(x, w, p, impl=impl)
    assert y[1].isnan().all()
    assert y[[0, 2]].isfinite().all()
    assert lp_distance(w, x, p, impl=impl)[:, 1].isnan().all()


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("p", [1.5, 7.3, 8.0, 13.0, 30.5, 200.0, 1e4])
def test_what_is_not_finite_reaches_the_gradients(p: float, value: float, impl: str):
    def poisoned(which: str, name: str) -> list[list[bool]]:
        x, w = draw(9, 11, 70)
        flow = torch.ones(9, 11)
        {"x": x, "w": w, "grad": flow}[which][4, 5] = value
        x, w = x.requires_grad_(), w.requires_grad_()
        return [(~g.isfinite()).tolist() for g in torch.autograd.grad(lp_distance(x, w, p, impl=name), (x, w), flow)]

    for which in ("x", "w", "grad"):
        assert poisoned(which, impl) == poisoned(which, "reference"), which


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("p", [1.01, 1.1, 1.25, 1e6, 1e8])
def test_extreme_p(p: float, impl: str):
    x, w = (t.requires_grad_() for t in draw(9, 11, 70))
    exact = torch.autograd.grad(lp_distance(x.double(), w.double(), p).sum(), (x, w))
    plain = torch.autograd.grad(lp_distance(x, w, p, impl="reference").sum(), (x, w))
    got = torch.autograd.grad(lp_distance(x, w, p, impl=impl).sum(), (x, w))
    for ours, reference, right in zip(got, plain, exact, strict=True):
        allowed = 2 * (reference - right).abs().max() + torch.finfo(torch.float32).eps * right.abs().max()
        assert ((ours - right).abs() <= allowed).all()


def test_second_gradients_are_refused_in_words():
    x, w = (t.requires_grad_() for t in draw(2, 3, 4, torch.float64))
    (slope,) = torch.autograd.grad(lp_distance(x, w, 3.0).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivatives"):
        slope.sum().backward()


def test_leading_dimensions_and_layouts():
    x, w = draw(24, 5, 7)
    flat = lp_distance(x, w, 3.0)
    assert torch.equal(lp_distance(x.reshape(2, 3, 4, 7), w, 3.0), flat.reshape(2, 3, 4, 5))
    assert torch.equal(lp_distance(x[0], w, 3.0), flat[0])
    assert torch.equal(lp_distance(x.t().contiguous().t(), w.t().contiguous().t(), 3.0), flat)
    assert lp_distance(torch.zeros(2, 0, 7), w).shape == (2, 0, 5)
    assert lp_distance(torch.zeros(3, 0), torch.zeros(2, 0)).tolist() == [[0.0, 0.0]] * 3


def test_memory_is_bounded_by_blocks(monkeypatch: pytest.MonkeyPatch):
    x, w = draw(13, 11, 9)
    whole = {p: lp_distance(x, w, p, impl="reference") for p in (3.0, math.inf)}
    sizes: list[int] = []
    plain = reference_module._difference

    def watched(a: Tensor, b: Tensor) -> Tensor:
        result = plain(a, b)
        sizes.append(result.numel())
        return result

    monkeypatch.setattr(reference_module, "BLOCK_ELEMENTS", 50)
    monkeypatch.setattr(reference_module, "_difference", watched)
    for p, y in whole.items():
        # Vector and scalar code round powers differently: results may differ by one or two ulps.
        torch.testing.assert_close(lp_distance(x, w, p, impl="reference"), y, rtol=4 * torch.finfo(y.dtype).eps, atol=0)
        a, b = x.clone().requires_grad_(), w.clone().requires_grad_()
        lp_distance(a, b, p, impl="reference").sum().backward()
    linf_distance_bounds(x, x + 1, w, impl="reference")
    assert max(sizes) <= 50


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("p", [8.0, 30.5, math.inf])
def test_opcheck(p: float, impl: str):
    x, w = (t.requires_grad_() for t in draw(4, 3, 5))
    torch.library.opcheck(torch.ops.linfnet.lp_distance.default, (x, w, p, impl))
    torch.library.opcheck(torch.ops.linfnet.lp_distance_inference.default, (x.detach(), w.detach(), p, impl))


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_opcheck_bounds(impl: str):
    x, w = (t.requires_grad_() for t in draw(4, 3, 5))
    upper = (x.detach() + 0.5).requires_grad_()
    torch.library.opcheck(torch.ops.linfnet.linf_distance_bounds.default, (x, upper, w, impl))
    arguments = (x.detach(), upper.detach(), w.detach(), impl)
    torch.library.opcheck(torch.ops.linfnet.linf_distance_bounds_inference.default, arguments)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_compiles_without_a_graph_break_for_changing_p(impl: str):
    def loss(x: Tensor, w: Tensor, p: float) -> Tensor:
        return lp_distance(lp_distance(x, w, p, impl=impl).tanh(), w[:, :3], p, impl=impl).sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for p in (8.0, 9.5, math.inf, 12.0):
        x, w = (t.requires_grad_() for t in draw(4, 3, 5))
        expected = torch.autograd.grad(loss(x, w, p), (x, w))
        got = torch.autograd.grad(compiled(x, w, p), (x, w))
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@given(seed=st.integers(0, 2**32 - 1), width=st.floats(0, 2))
def test_bounds_enclose_every_point_and_are_attained(impl: str, seed: int, width: float):
    generator = torch.Generator().manual_seed(seed)
    x, w = torch.randn(5, 4, generator=generator), torch.randn(6, 4, generator=generator)
    lower, upper = x - width * torch.rand(5, 4, generator=generator), x + width * torch.rand(5, 4, generator=generator)
    smallest, largest = linf_distance_bounds(lower, upper, w, impl=impl)
    for _ in range(10):
        inside = torch.clamp(lower + (upper - lower) * torch.rand(5, 4, generator=generator), lower, upper)
        y = lp_distance(inside, w, impl=impl)
        assert (smallest <= y).all()
        assert (y <= largest).all()
    for b in range(5):
        for o in range(6):
            nearest = torch.clamp(w[o], lower[b], upper[b])
            farthest = torch.where((upper[b] - w[o]).abs() >= (lower[b] - w[o]).abs(), upper[b], lower[b])
            assert lp_distance(nearest[None], w[o : o + 1]).item() == smallest[b, o].item()
            assert lp_distance(farthest[None], w[o : o + 1]).item() == largest[b, o].item()


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_bounds_of_a_point_are_its_distance_bit_for_bit(impl: str):
    x, w = draw(33, 17, 65)
    smallest, largest = linf_distance_bounds(x, x, w, impl=impl)
    assert torch.equal(smallest, lp_distance(x, w, impl="reference"))
    assert torch.equal(largest, smallest)


def test_gradients_of_the_bounds():
    x, w = (t.requires_grad_() for t in draw(4, 3, 5, torch.float64))
    upper = (x.detach() + torch.rand(4, 5, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(linf_distance_bounds, (x, upper, w))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(2, 3), torch.zeros(4, 5)), r"x has shape \(2, 3\); expected \[\.\.\., 5\]"),
        ((torch.zeros(2, 3), torch.zeros(3)), r"w has shape \(3,\); expected \[out, in\]"),
        ((torch.zeros(2, 3), torch.zeros(4, 3).double()), "x has dtype torch.float32 and w torch.float64"),
        ((torch.zeros(2, 3).half(), torch.zeros(4, 3).half()), "expected float32 or float64"),
        ((torch.zeros(2, 3), torch.zeros(4, 3), 0.5), "p is 0.5; expected a number >= 1"),
        ((torch.zeros(2, 3), torch.zeros(4, 3), math.nan), "p is nan"),
        ((torch.zeros(2, 3), torch.zeros(4, 3), "8"), "p is '8'; expected a number"),
    ],
)
def test_wrong_arguments_are_named(arguments: tuple, message: str):
    with pytest.raises(ArgumentError, match=message):
        lp_distance(*arguments)


def test_unknown_implementation():
    with pytest.raises(ArgumentError, match="impl is 'fast'; expected one of cpu, cuda, reference"):
        lp_distance(torch.zeros(2, 3), torch.zeros(4, 3), impl="fast")
    with pytest.raises(ArgumentError, match="lower has shape"):
        linf_distance_bounds(torch.zeros(2, 3), torch.zeros(3, 3), torch.zeros(4, 3))


def test_an_implementation_can_be_registered_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KERNELS, "_entries", dict(KERNELS._entries))  # pyright: ignore[reportPrivateUsage]

    @KERNELS.register("doubled")
    class Doubled(ops.Reference):
        def forward(self, x: Tensor, w: Tensor, p: float) -> Tensor:
            return 2 * super().forward(x, w, p)

    x, w = draw(3, 4, 5)
    assert ops.names()[0] == "doubled"
    assert torch.equal(lp_distance(x, w, 2.0), 2 * lp_distance(x, w, 2.0, impl="reference"))
    with pytest.raises(ArgumentError, match="'doubled' is already registered"):
        KERNELS.register("doubled")(Doubled)
