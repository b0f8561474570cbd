"""Compare the sparse distances of every implementation with dense computations, and the kernels with the reference."""

import math
from collections.abc import Generator
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from linfnet import ops
from linfnet.errors import ArgumentError
from linfnet.ops import (
    cpu,
    linf_distance_bounds,
    lp_distance,
    sparse_cpu,
    sparse_linf_bounds,
    sparse_linf_distance,
    sparse_linf_measured,
    sparse_reference,
)
from linfnet.ops.sparse import bounds_saving, distance_backward, distance_saving
from linfnet.ops.sparse_reference import choose_sparse

# Every instruction-set level is one implementation of the tests.
LEVELS = [f"cpu {name}" for name in cpu.levels()]
# n, in, out and the share of connections. Rows of one to thousands of connections, and blocks of one to many images.
SHAPES = [
    (1, 1, 1, 1.0),
    (1, 300, 70, 0.3),
    (2, 5000, 3, 0.9),
    (3, 64, 130, 0.02),
    (4, 50, 33, 0.3),
    (15, 17, 7, 0.5),
    (16, 40, 16, 0.2),
    (17, 784, 100, 0.05),
    (53, 90, 49, 0.3),
]


@dataclass
class Case:
    """Inputs, and connections both as compressed rows and as a dense matrix with a mask."""

    x: Tensor
    upper: Tensor
    grad: Tensor
    weight: Tensor
    index: Tensor
    offsets: Tensor
    mask: Tensor  # [out, in]

    @property
    def csr(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.weight, self.index, self.offsets

    def dense(self) -> Tensor:
        """Return the weights as a matrix; without a connection the weight is zero."""
        return torch.zeros(self.mask.shape, dtype=self.weight.dtype).masked_scatter(self.mask, self.weight)

    def number(self, feature: Tensor) -> Tensor:
        """Return the connections of the features [n, out]."""
        before = self.mask.int().cumsum(1).t().gather(0, feature) - 1
        return (self.offsets[:-1] + before).int()


def draw(
    n: int, features: int, out: int, share: float, *, seed: int = 0, grid: int = 0, dtype: torch.dtype = torch.float32
) -> Case:
    """Draw a case; with `grid`, all numbers are multiples of 1 / grid, so that there are ties and sums are exact."""
    generator = torch.Generator().manual_seed(seed + n * 10007 + out * 101 + features)

    def numbers(*shape: int) -> Tensor:
        values = torch.randn(*shape, generator=generator, dtype=dtype)
        return (values * grid).round() / grid if grid else values

    mask = torch.rand(out, features, generator=generator) < share
    mask[torch.arange(out), torch.randint(features, (out,), generator=generator)] = True
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), mask.sum(1).cumsum(0)]).int()
    weight = numbers(int(mask.sum()))
    x = numbers(n, features)
    return Case(x, x + numbers(n, features).abs(), numbers(n, out), weight, mask.nonzero()[:, 1].int(), offsets, mask)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same bits; all NaN are the same."""
    integer = {4: torch.int32, 8: torch.int64}[a.element_size()]
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(
        a.masked_fill(a.isnan(), 0).view(integer), b.masked_fill(b.isnan(), 0).view(integer)
    )


@pytest.fixture(params=["reference", *LEVELS])
def impl(request: pytest.FixtureRequest) -> Generator[str]:
    """Yield the name of an implementation; each level of the CPU kernels in turn."""
    name, _, level = request.param.partition(" ")
    if not level:
        yield name
        return
    with cpu.use_level(level):
        yield name


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("grid", [0, 2])
def test_agrees_with_a_dense_computation(shape: tuple[int, int, int, float], grid: int, impl: str):
    case = draw(*shape, grid=grid)
    sizes = (case.x[:, None] - case.dense()).abs().masked_fill(~case.mask, -1)
    # Among equal numbers, the first is the one with the largest rank from the end.
    order = torch.arange(sizes.shape[-1], 0, -1)
    first = ((sizes == sizes.amax(-1, keepdim=True)) * order).argmax(-1)
    y, decisive = distance_saving(case.x, *case.csr, impl)
    assert same_bits(y, sizes.amax(-1))
    assert torch.equal(decisive, case.number(first))
    assert same_bits(sparse_linf_distance(case.x, *case.csr, impl=impl), y)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
def test_gradients_agree_with_a_dense_computation(shape: tuple[int, int, int, float], impl: str):
    # On the grid, sums are exact: their order does not matter.
    case = draw(*shape, grid=4)
    x, weight = case.x.clone().requires_grad_(), case.weight.clone().requires_grad_()
    got = torch.autograd.grad(
        sparse_linf_distance(x, weight, case.index, case.offsets, impl=impl), (x, weight), case.grad
    )
    dense = case.dense().requires_grad_()
    sizes = (x.detach()[:, None] - dense.detach()).abs().masked_fill(~case.mask, -1)
    order = torch.arange(sizes.shape[-1], 0, -1)
    first = ((sizes == sizes.amax(-1, keepdim=True)) * order).argmax(-1)
    chosen = (x.gather(1, first) - dense.t().gather(0, first)).abs()
    grad_x, grad_dense = torch.autograd.grad(chosen, (x, dense), case.grad)
    assert torch.equal(got[0], grad_x)
    assert torch.equal(got[1], grad_dense[case.mask])


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("grid", [0, 2])
def test_bounds_agree_with_the_dense_bounds_of_each_neuron(shape: tuple[int, int, int, float], grid: int, impl: str):
    case = draw(*shape, grid=grid)
    got = sparse_linf_bounds(case.x, case.upper, *case.csr, impl=impl)
    saved = bounds_saving(case.x, case.upper, *case.csr, impl)
    dense = case.dense()
    for o in range(case.mask.shape[0]):
        own = case.mask[o]
        expected = linf_distance_bounds(case.x[:, own], case.upper[:, own], dense[o : o + 1, own], impl="reference")
        for ours, also, right in zip(got, saved[:2], expected, strict=True):
            assert same_bits(ours[:, o], right[:, 0] + 0.0)
            assert same_bits(also[:, o], ours[:, o])


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("grid", [0, 2])
def test_kernels_have_the_bits_of_the_reference(shape: tuple[int, int, int, float], grid: int, impl: str):
    case = draw(*shape, grid=grid, seed=1)

    def everything(name: str) -> list[Tensor]:
        y, decisive = distance_saving(case.x, *case.csr, name)
        gradients = distance_backward(case.grad, case.x, case.weight, case.index, decisive, True, True, name)
        return [y, decisive, *gradients, *bounds_saving(case.x, case.upper, *case.csr, name)]

    for ours, theirs in zip(everything(impl), everything("reference"), strict=True):
        assert same_bits(ours, theirs)


@pytest.mark.parametrize("n", [1, 9, 40])
def test_threads_do_not_change_a_bit(n: int, impl: str):
    case = draw(n, 600, 700, 0.4)  # large enough for several threads, even for one image
    before = torch.get_num_threads()
    results: list[list[Tensor]] = []
    try:
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            y, decisive = distance_saving(case.x, *case.csr, impl)
            gradients = distance_backward(case.grad, case.x, case.weight, case.index, decisive, True, True, impl)
            results.append([y, decisive, *gradients, *bounds_saving(case.x, case.upper, *case.csr, impl)])
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(same_bits(a, b) for a, b in zip(other, results[0], strict=True))


@pytest.mark.parametrize("n", [1, 20])
def test_all_connections_give_the_dense_layer(n: int, impl: str):
    case = draw(n, 65, 37, 1.0)
    w = case.weight.reshape(37, 65)
    assert same_bits(sparse_linf_distance(case.x, *case.csr, impl=impl), lp_distance(case.x, w))
    for ours, dense in zip(
        sparse_linf_bounds(case.x, case.upper, *case.csr, impl=impl),
        linf_distance_bounds(case.x, case.upper, w),
        strict=True,
    ):
        assert same_bits(ours, dense)


@pytest.mark.parametrize("n", [1, 5])
def test_the_first_of_equal_connections_receives_the_gradient(n: int, impl: str):
    x = torch.tensor([[1.0, -3.0, 3.0, 3.0]]).repeat(n, 1).requires_grad_()
    weight = torch.zeros(3, requires_grad=True)
    index, offsets = torch.tensor([1, 2, 3], dtype=torch.int32), torch.tensor([0, 3], dtype=torch.int32)
    sparse_linf_distance(x, weight, index, offsets, impl=impl).sum().backward()
    assert x.grad is not None
    assert weight.grad is not None
    assert x.grad.tolist() == [[0.0, -1.0, 0.0, 0.0]] * n
    assert weight.grad.tolist() == [n, 0.0, 0.0]


@pytest.mark.parametrize("n", [1, 5])
def test_zeros_of_both_signs(n: int, impl: str):
    x, weight = torch.tensor([[0.0, -0.0, 0.0, -0.0]]).repeat(n, 1), torch.tensor([-0.0, 0.0, 0.0, -0.0])
    index, offsets = torch.arange(4, dtype=torch.int32), torch.tensor([0, 1, 2, 4], dtype=torch.int32)
    y, decisive = distance_saving(x, weight, index, offsets, impl)
    bounds = bounds_saving(x, x, weight, index, offsets, impl)
    for result in (y, *bounds[:2]):
        assert same_bits(result, torch.zeros(n, 3))
    for connections in (decisive, *bounds[2:]):
        assert connections.tolist() == [[0, 1, 2]] * n
    grads = distance_backward(torch.ones(n, 3), x, weight, index, decisive, True, True, impl)
    assert not any(g.any() for g in grads)


@pytest.mark.parametrize("n", [1, 3, 20])
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 7, 99])
def test_nan_and_infinity_reach_the_output(place: int, poison: float, n: int, impl: str):
    case = draw(n, 100, 40, 0.4)
    reads = case.mask[:, place]
    assert reads.any()
    row = n // 2
    case.x[row, place] = case.upper[row, place] = poison
    y, decisive = distance_saving(case.x, *case.csr, impl)
    bounds = bounds_saving(case.x, case.upper, *case.csr, impl)
    for result, connection in ((y, decisive), (bounds[0], bounds[2]), (bounds[1], bounds[3])):
        hit = result[row, reads]
        assert bool(hit.isnan().all() if math.isnan(poison) else hit.isinf().all())
        assert (case.index[connection[row, reads].long()] == place).all()
        result[row, reads] = 0
        assert result.isfinite().all()
    # A NaN weight, and the difference of equal infinities, are NaN too.
    case.x[row, place] = case.upper[row, place] = math.inf
    case.weight[case.index == place] = math.inf if math.isinf(poison) else math.nan
    assert sparse_linf_distance(case.x, *case.csr, impl=impl)[row, reads].isnan().all()
    for bound in sparse_linf_bounds(case.x, case.upper, *case.csr, impl=impl):
        assert bound[row, reads].isnan().all()


def test_negative_nan_reaches_the_bounds(impl: str):
    for n in (1, 20):
        case = draw(n, 30, 20, 0.5)
        for box in (case.x, case.upper):
            lower, upper = case.x.clone(), case.upper.clone()
            (lower if box is case.x else upper)[:, 3] = -torch.tensor(math.nan)
            smallest, largest = sparse_linf_bounds(lower, upper, *case.csr, impl=impl)
            reads = case.mask[:, 3]
            assert torch.equal(smallest.isnan(), reads.expand(n, -1))
            assert torch.equal(largest.isnan(), reads.expand(n, -1))


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_what_is_not_finite_reaches_the_gradients_as_in_the_reference(poison: float, impl: str):
    def gradients(which: str, name: str) -> list[Tensor]:
        case = draw(9, 30, 40, 0.5)
        {"x": case.x, "grad": case.grad}[which][4, 5] = poison
        _, decisive = distance_saving(case.x, *case.csr, name)
        return list(distance_backward(case.grad, case.x, case.weight, case.index, decisive, True, True, name))

    for which in ("x", "grad"):
        for ours, theirs in zip(gradients(which, impl), gradients(which, "reference"), strict=True):
            assert torch.equal(ours.isfinite(), theirs.isfinite())


def test_empty_batches_and_layers(impl: str):
    case = draw(4, 6, 5, 0.5)
    x, weight = torch.zeros(0, 6, requires_grad=True), case.weight.requires_grad_()
    y = sparse_linf_distance(x, weight, case.index, case.offsets, impl=impl)
    assert y.shape == (0, 5)
    grad_x, grad_w = torch.autograd.grad(y.sum(), (x, weight))
    assert grad_x.shape == (0, 6)
    assert torch.equal(grad_w, torch.zeros_like(weight))
    assert [b.shape for b in sparse_linf_bounds(x, x, weight, case.index, case.offsets, impl=impl)] == [(0, 5)] * 2
    none = torch.zeros(0, requires_grad=True), torch.zeros(0, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    y = sparse_linf_distance(case.x.requires_grad_(), *none, impl=impl)
    assert y.shape == (4, 0)
    (grad_x,) = torch.autograd.grad(y.sum(), case.x)
    assert torch.equal(grad_x, torch.zeros(4, 6))


def test_leading_dimensions_and_layouts(impl: str):
    case = draw(24, 40, 9, 0.3)
    flat = sparse_linf_distance(case.x, *case.csr, impl=impl)
    assert torch.equal(
        sparse_linf_distance(case.x.reshape(2, 3, 4, 40), *case.csr, impl=impl), flat.reshape(2, 3, 4, 9)
    )
    assert torch.equal(sparse_linf_distance(case.x[0], *case.csr, impl=impl), flat[0])
    strided = [torch.stack([t, t], -1).flatten(-2)[..., ::2] for t in (case.x, *case.csr)]
    assert not any(t.is_contiguous() for t in strided)
    assert torch.equal(sparse_linf_distance(*strided, impl=impl), flat)
    column_major = case.x.t().contiguous().t()
    assert torch.equal(sparse_linf_distance(column_major, *case.csr, impl=impl), flat)
    weight = case.weight.clone().requires_grad_()
    grad = case.grad.t().contiguous().t()
    column_major = column_major.requires_grad_()
    y = sparse_linf_distance(column_major, weight, case.index, case.offsets, impl=impl)
    got = torch.autograd.grad(y, (column_major, weight), grad)
    x = case.x.clone().requires_grad_()
    y = sparse_linf_distance(x, weight, case.index, case.offsets, impl=impl)
    assert all(torch.equal(a, b) for a, b in zip(got, torch.autograd.grad(y, (x, weight), case.grad), strict=True))
    boxes = [sparse_linf_bounds(a, b, *case.csr, impl=impl) for a, b in ((case.x, case.upper), strided_box(case))]
    assert all(torch.equal(a, b) for a, b in zip(*boxes, strict=True))


def strided_box(case: Case) -> tuple[Tensor, Tensor]:
    return case.x.t().contiguous().t(), case.upper.t().contiguous().t()


def test_only_the_gradients_asked_for(impl: str):
    case = draw(6, 30, 20, 0.3)
    _, decisive = distance_saving(case.x, *case.csr, impl)
    arguments = (case.grad, case.x, case.weight, case.index, decisive)
    both = distance_backward(*arguments, True, True, impl)
    x_only, w_only = distance_backward(*arguments, True, False, impl), distance_backward(*arguments, False, True, impl)
    assert torch.equal(x_only[0], both[0])
    assert torch.equal(w_only[1], both[1])
    assert x_only[1].shape == w_only[0].shape == (0,)


def test_gradients_in_float64():
    case = draw(4, 6, 5, 0.5, dtype=torch.float64)
    x, upper, weight = (t.requires_grad_() for t in (case.x, case.upper, case.weight))
    connections = case.index, case.offsets
    assert torch.autograd.gradcheck(lambda a, w: sparse_linf_distance(a, w, *connections), (x, weight))
    assert torch.autograd.gradcheck(lambda a, b, w: sparse_linf_bounds(a, b, w, *connections), (x, upper, weight))


def test_bounds_gradients_are_the_same_for_all_implementations(impl: str):
    def gradients(name: str) -> tuple[Tensor, ...]:
        case = draw(20, 30, 17, 0.4, grid=2)
        inputs = [t.requires_grad_() for t in (case.x, case.upper, case.weight)]
        smallest, largest = sparse_linf_bounds(*inputs, case.index, case.offsets, impl=name)
        return torch.autograd.grad((smallest * case.grad + largest).sum(), inputs)

    assert all(torch.equal(a, b) for a, b in zip(gradients(impl), gradients("reference"), strict=True))


def test_second_gradients_are_refused():
    case = draw(2, 4, 3, 0.5)
    x = case.x.requires_grad_()
    grad = case.grad.requires_grad_()
    (slope,) = torch.autograd.grad(sparse_linf_distance(x, *case.csr), x, grad, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivatives"):
        slope.sum().backward()


@given(data=st.data(), n=st.integers(1, 20), features=st.integers(1, 40), out=st.integers(1, 20))
def test_random_connections(data: st.DataObject, n: int, features: int, out: int):
    rows = data.draw(
        st.lists(st.sets(st.integers(0, features - 1), min_size=1), min_size=out, max_size=out), label="rows"
    )
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32 - 1), label="seed"))
    index = torch.tensor([i for row in rows for i in sorted(row)], dtype=torch.int32)
    offsets = torch.tensor([0, *torch.tensor([len(row) for row in rows]).cumsum(0).tolist()], dtype=torch.int32)
    weight = torch.randn(len(index), generator=generator)
    lower = torch.randn(n, features, generator=generator)
    upper = lower + torch.rand(n, features, generator=generator)
    inside = torch.clamp(lower + (upper - lower) * torch.rand(n, features, generator=generator), lower, upper)
    y = sparse_linf_distance(inside, weight, index, offsets)
    smallest, largest = sparse_linf_bounds(lower, upper, weight, index, offsets)
    assert (smallest <= y).all()
    assert (y <= largest).all()
    for o, row in enumerate(rows):
        own = weight[offsets[o] : offsets[o + 1]]
        sizes = [
            max(abs(v - w) for v, w in zip(image[sorted(row)].tolist(), own.tolist(), strict=True)) for image in inside
        ]
        assert torch.equal(y[:, o], torch.tensor(sizes, dtype=torch.float64).float())
    point = sparse_linf_bounds(inside, inside, weight, index, offsets)
    assert all(same_bits(bound, y) for bound in point)


def test_float64_is_left_to_the_reference():
    case = draw(3, 20, 10, 0.3, dtype=torch.float64)
    assert sparse_linf_distance(case.x, *case.csr).dtype == torch.float64
    assert choose_sparse("cpu", torch.float64) == "reference"
    with pytest.raises(ArgumentError, match="impl='cpu' does not support"):
        sparse_linf_distance(case.x, *case.csr, impl="cpu")


def test_the_choice_of_an_implementation(monkeypatch: pytest.MonkeyPatch):
    preferred = "cpu" if cpu.levels() else "reference"
    with ops.default_implementation(None):
        assert choose_sparse("cpu", torch.float32) == preferred
    with ops.default_implementation("reference"):
        assert choose_sparse("cpu", torch.float32) == "reference"
    with pytest.raises(ArgumentError, match="impl is 'fast'; expected one of"):
        choose_sparse("cpu", torch.float32, "fast")
    # An extension that was built before the sparse kernels existed, or none.
    monkeypatch.setattr(sparse_cpu, "_kernels", None)
    with ops.default_implementation(None):
        assert choose_sparse("cpu", torch.float32) == "reference"


def test_the_reference_limits_its_memory(monkeypatch: pytest.MonkeyPatch):
    case = draw(13, 60, 50, 0.3)
    whole = sparse_linf_distance(case.x, *case.csr, impl="reference")
    monkeypatch.setattr(sparse_reference, "BLOCK_ELEMENTS", 50)
    monkeypatch.setattr(sparse_reference, "BLOCK_OUTS", 3)
    assert torch.equal(sparse_linf_distance(case.x, *case.csr, impl="reference"), whole)
    blocks = list(sparse_reference._blocks(13, case.index, case.offsets, 60))  # pyright: ignore[reportPrivateUsage]
    assert all((rows.stop - rows.start) * c.numel() <= max(50, c.numel()) for rows, _, c in blocks)
    assert max(c.shape[0] for _, _, c in blocks) == 3


def test_opcheck(impl: str):
    case = draw(4, 6, 5, 0.5)
    detached = case.x, *case.csr
    torch.library.opcheck(torch.ops.linfnet.sparse_linf_distance_inference.default, (*detached, impl))
    torch.library.opcheck(torch.ops.linfnet.sparse_linf_bounds_inference.default, (case.x, case.upper, *case.csr, impl))
    x, upper, weight = (t.clone().requires_grad_() for t in (case.x, case.upper, case.weight))
    csr = weight, case.index, case.offsets
    torch.library.opcheck(torch.ops.linfnet.sparse_linf_distance.default, (x, *csr, impl))
    torch.library.opcheck(torch.ops.linfnet.sparse_linf_bounds.default, (x, upper, *csr, impl))


def test_compiles_into_one_graph(impl: str):
    case = draw(4, 6, 6, 0.5)

    def loss(x: Tensor, weight: Tensor) -> Tensor:
        hidden = sparse_linf_distance(x, weight, case.index, case.offsets, impl=impl).tanh()
        return sparse_linf_distance(hidden, weight, case.index, case.offsets, impl=impl).sum()

    x, weight = case.x.requires_grad_(), case.weight.requires_grad_()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    expected = torch.autograd.grad(loss(x, weight), (x, weight))
    got = torch.autograd.grad(compiled(x, weight), (x, weight))
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


@pytest.mark.parametrize("n", [1, 20])
def test_connections_that_do_not_fit_are_refused(n: int, impl: str):
    x, weight = torch.zeros(n, 4), torch.zeros(20)
    index = torch.arange(20, dtype=torch.int32) % 4
    offsets = torch.tensor([0, 5, 20], dtype=torch.int32)
    wrong_index = [index.index_fill(0, torch.tensor(i), value) for i in (0, 9, 19) for value in (-1, 4, 2**31 - 1)]
    wrong_offsets = [[0, 0, 20], [0, 20, 20], [1, 5, 20], [0, 5, 19], [0, 5, 21], [0, -1, 20], [0, 25, 20]]
    for bad in wrong_index:
        with pytest.raises(ArgumentError, match="index"):
            sparse_linf_distance(x, weight, bad, offsets, impl=impl)
        with pytest.raises(ArgumentError, match="index"):
            sparse_linf_bounds(x, x, weight, bad, offsets, impl=impl)
    for bad in wrong_offsets:
        with pytest.raises(ArgumentError, match="offsets"):
            sparse_linf_distance(x, weight, index, torch.tensor(bad, dtype=torch.int32), impl=impl)


@pytest.mark.skipif(not cpu.levels(), reason="the extension is not built")
def test_the_kernels_refuse_decisive_connections_that_do_not_exist():
    x, weight, index = torch.zeros(3, 4), torch.zeros(5), torch.zeros(5, dtype=torch.int32)
    for bad in (-1, 5, 2**31 - 1):
        for need_x in (True, False):
            decisive = torch.full((3, 2), bad, dtype=torch.int32)
            with pytest.raises(ArgumentError, match="do not fit"):
                distance_backward(torch.ones(3, 2), x, weight, index, decisive, need_x, not need_x, "cpu")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": torch.zeros(2)}, r"weight has shape \(2,\) and index \(3,\); expected the same"),
        ({"weight": torch.zeros(3).double()}, "x has dtype torch.float32 and weight torch.float64; expected the same"),
        ({"index": torch.zeros(3).long()}, "index has dtype torch.int64 and offsets torch.int32; expected torch.int32"),
        ({"offsets": torch.zeros(1, 2, dtype=torch.int32)}, r"offsets has shape \(1, 2\); expected \[out \+ 1\]"),
        ({"x": torch.zeros(())}, r"x has shape \(\); expected \[\.\.\., in\]"),
        ({"x": torch.zeros(2, 4).half(), "weight": torch.zeros(3).half()}, "expected float32 or float64"),
        ({"x": torch.zeros(2, 4, device="meta")}, "x is on meta, weight on cpu"),
    ],
)
def test_wrong_arguments_are_named(change: dict[str, Tensor], message: str):
    arguments = {
        "x": torch.zeros(2, 4),
        "weight": torch.zeros(3),
        "index": torch.zeros(3, dtype=torch.int32),
        "offsets": torch.tensor([0, 3], dtype=torch.int32),
    }
    with pytest.raises(ArgumentError, match=message):
        sparse_linf_distance(**(arguments | change))


def test_boxes_of_two_shapes_are_refused():
    case = draw(3, 4, 2, 0.5)
    with pytest.raises(ArgumentError, match="lower has shape"):
        sparse_linf_bounds(case.x, case.upper[:2], *case.csr)


def measured_in_steps(case: Case, mean: Tensor | None, bias: Tensor | None) -> tuple[Tensor, list[Tensor]]:
    """Return the outputs and bounds on the magnitudes of the steps, one operation of torch at a time."""
    distance = y = sparse_linf_distance(case.x, *case.csr, impl="reference")
    if mean is not None:
        y = y - mean
    if bias is not None:
        y = y + bias
    sizes = [(y if mean is None else distance).abs().amax(1)]
    for term in (mean, bias):
        if term is not None:
            sizes.append(sizes[-1] + term.abs().amax())
    return y, sizes


@pytest.mark.skipif(not LEVELS, reason="no CPU kernels")
@pytest.mark.parametrize("level", cpu.levels())
@pytest.mark.parametrize(
    "shape", [*SHAPES, (1, 2000, 400, 0.4), (40, 2000, 400, 0.4)], ids=lambda s: "x".join(map(str, s))
)
@pytest.mark.parametrize("terms", ["", "mean", "bias", "mean bias"])
def test_measured_layers_have_the_bits_of_separate_steps(
    shape: tuple[int, int, int, float], level: str, terms: str, monkeypatch: pytest.MonkeyPatch
):
    case = draw(*shape)
    mean, bias = (case.grad[0] * size if name in terms else None for name, size in (("mean", 2), ("bias", 7)))
    expected, sizes = measured_in_steps(case, mean, bias)
    with cpu.use_level(level):
        for threads in (1, 4):
            monkeypatch.setattr(sparse_cpu, "threads_for", lambda n, connections, threads=threads: threads)
            found = sparse_linf_measured(case.x, [(*case.csr, mean, bias)])
            assert found is not None
            assert same_bits(found[0], expected)
            assert same_bits(found[1], torch.stack(sizes))


@pytest.mark.skipif(not LEVELS, reason="no CPU kernels")
@pytest.mark.parametrize("level", cpu.levels())
@pytest.mark.parametrize("n", [1, 20])
@pytest.mark.parametrize("value", [math.nan, -math.nan, math.inf, -math.inf])
def test_no_magnitude_hides_a_number_that_is_not_finite(value: float, n: int, level: str):
    for place in ("x", "weight", "mean", "bias"):
        case = draw(n, 40, 21, 0.3)
        terms = {"mean": case.grad[0].clone(), "bias": case.grad[-1].clone()}
        changed = {"x": case.x[:, int(case.index[0])], "weight": case.weight[:1], **terms}[place]
        changed[:1].fill_(value)
        expected, sizes = measured_in_steps(case, **terms)
        with cpu.use_level(level):
            found = sparse_linf_measured(case.x, [(*case.csr, terms["mean"], terms["bias"])])
        assert found is not None
        assert same_bits(found[0], expected)
        assert same_bits(found[1], torch.stack(sizes))
        assert not found[1][:, 0].sum().isfinite()


def test_what_the_measuring_kernel_refuses():
    case = draw(3, 20, 10, 0.3)
    with ops.default_implementation("reference"):
        assert sparse_linf_measured(case.x, [(*case.csr, None, None)]) is None
    assert sparse_linf_measured(case.x.double(), [(*case.csr, None, None)]) is None
    if not LEVELS:
        return
    with pytest.raises(ArgumentError, match=r"mean has shape \(9,\)"):
        sparse_linf_measured(case.x, [(*case.csr, torch.zeros(9), None)])
    with pytest.raises(ArgumentError, match=r"bias has shape .* dtype torch\.float64"):
        sparse_linf_measured(case.x, [(*case.csr, None, torch.zeros(10).double())])
    with pytest.raises(ArgumentError, match="weight"):
        sparse_linf_measured(case.x, [(case.weight.double(), case.index, case.offsets, None, None)])
    with pytest.raises(ArgumentError):  # an index that is too large
        sparse_linf_measured(case.x[:, :5], [(*case.csr, None, None)])
