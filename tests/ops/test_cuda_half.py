"""Training in float16: errors on a CPU (simt.py), and where these kernels are never used."""

import math
from collections.abc import Generator
from pathlib import Path

import dense_cases as dense
import pruned_cases as pruned
import pytest
import torch
from kernel_steps import step
from simt import Emulator, needs_compiler
from test_cuda_launches import Recorder
from torch import Tensor

from linfnet.ops import Reference
from linfnet.ops.cuda import Cuda, half, tensor_core
from linfnet.ops.cuda import pruned as lists
from linfnet.ops.cuda.nvrtc import Kernel

pytestmark = pytest.mark.usefixtures("_enabled")
REFERENCE = Reference()
SHAPES = [(40, 104, 300), (70, 64, 264), (33, 72, 140)]


@pytest.fixture
def _enabled(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Use the kernels also for small layers."""
    monkeypatch.setattr(half, "SMALLEST", 0)
    with half.training_in_float16():
        yield


@pytest.fixture(scope="session")
def kernels(libraries: Path) -> Cuda:
    return Cuda(Emulator(libraries))


def draw(shape: tuple[int, int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Draw a layer like those of a net: one weight of each output is -10, gradients have very different sizes."""
    n, out, features = shape
    torch.manual_seed(0)
    x, w, grad = 0.7 * torch.randn(n, features), torch.randn(out, features), torch.randn(n, out)
    outs = torch.arange(out)
    w[outs, outs % features] = -10.0
    return x, w, grad * torch.exp(2 * torch.randn(n, out))


def check(kernels: Cuda, x: Tensor, w: Tensor, grad: Tensor, p: float, *, most: float, share: float = 0.98) -> None:
    """Check the error of y relative to each pair (2^-9) and the error of the gradients in norm (`most`).

    The error of more than `share` of the elements must be at most a quarter of them.
    """
    y, *gradients = step(kernels, x, w, grad, p)
    exact_y = REFERENCE.forward(x.double(), w.double(), p)
    assert ((y - exact_y).abs() <= 2.0**-9 * exact_y).all()
    exact = REFERENCE.backward(grad.double(), x.double(), w.double(), exact_y, grad, p, True, True)
    for made, truth in zip(gradients, exact, strict=True):
        assert (made - truth).norm() <= most * truth.norm()
        large = truth.abs() > 1e-6 * truth.abs().amax(1, keepdim=True)
        assert ((made - truth).abs() <= 0.25 * truth.abs())[large].double().mean() > share


@needs_compiler
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("p", [12.0, 20.0, 28.0])
def test_errors_are_far_below_the_noise_of_a_batch(kernels: Cuda, p: float, shape: tuple[int, int, int]) -> None:
    check(kernels, *draw(shape), p, most=p * 2.0**-10)


@needs_compiler
def test_pairs_out_of_range_are_computed_in_float32(kernels: Cuda) -> None:
    x, w, grad = draw((70, 136, 264))
    w[7], w[9] = x[3], x[4] + 1e-4 * x[5]
    y, grad_x, grad_w = step(kernels, x, w, grad, 20.0)
    exact = REFERENCE.forward(x.double(), w.double(), 20.0)
    assert y[3, 7] == 0
    assert abs(y[4, 9] - exact[4, 9]) <= 1e-5 * exact[4, 9]
    wanted = REFERENCE.backward(grad.double(), x.double(), w.double(), exact, grad, 20.0, True, True)
    assert (grad_x[4] - wanted[0][4]).norm() <= 0.02 * wanted[0][4].norm()
    assert (grad_w[9] - wanted[1][9]).norm() <= 0.02 * wanted[1][9].norm()


@needs_compiler
@pytest.mark.parametrize("p", [16.0, 28.0])
def test_layers_out_of_range_are_computed_in_float32(kernels: Cuda, p: float) -> None:
    x, w, grad = draw((40, 104, 300))
    x[::2] *= 0.01
    w[:, 100:] *= 5
    w[:50] *= 0.01  # most distances are far from the estimate of their output
    plain = dense.REFERENCE.forward(x, w, p)
    y, *gradients = step(kernels, x, w, grad, p)
    assert ((y - plain).abs() <= 2.0**-9 * plain).all()
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


@needs_compiler
def test_lists_have_priority(kernels: Cuda) -> None:
    for draw_layer, exact in ((pruned.spiked, True), (pruned.crowded, False)):
        x, w, grad = draw_layer((40, 72, 320), "cpu")
        made = step(kernels, x, w, grad, 28.0)[0]
        truth = REFERENCE.forward(x.double(), w.double(), 28.0)
        error = ((made - truth) / truth).abs().max().item()
        assert error <= (1e-6 if exact else 2.0**-9)


def in_float16(kernel: Kernel) -> bool:
    return kernel.function.startswith("half_") or bool(dict(kernel.definitions).get("SINGLE"))


@pytest.mark.parametrize("p", [8.0, 10.0, 12.0, 28.0, 64.0, math.inf])
def test_only_training_at_finite_p_uses_float16(p: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Certificates are computed at p = infinity, accuracies by `forward`, bounds by `bounds`: always in float32."""
    monkeypatch.setattr(tensor_core, "SMALLEST", 0)
    x, w, grad = draw((130, 72, 512))
    recorder = Recorder()
    kernels = Cuda(recorder)
    kernels.forward(x, w, p)
    kernels.bounds(x, x, w)
    kernels.bounds_saving(x, x, w)
    assert not any(map(in_float16, recorder.kernels))
    y, saved = kernels.forward_saving(x, w, p)
    kernels.backward(grad, x, w, y, saved, p, True, True)
    assert any(map(in_float16, recorder.kernels)) == (p in (8.0, 10.0, 12.0, 28.0, 64.0))


def listed(shape: tuple[int, int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Draw a layer with short lists, and gradients of very different sizes."""
    x, w, grad = pruned.spiked(shape, "cpu")
    return x, w, grad * torch.exp(2 * torch.randn(grad.shape))


@needs_compiler
@pytest.mark.parametrize("shape", [(130, 72, 320), (300, 40, 260)], ids=str)
@pytest.mark.parametrize(
    ("p", "most", "share"), [(22.0, 0.03, 0.98), (28.0, 0.03, 0.98), (64.0, 0.06, 0.95), (128.0, 0.15, 0.9)]
)
def test_gradients_from_lists(kernels: Cuda, p: float, most: float, share: float, shape: tuple[int, int, int]) -> None:
    x, w, grad = listed(shape)
    check(kernels, x, w, grad, p, most=most, share=share)
    recorder = Recorder()
    step(Cuda(recorder), x, w, grad, p)
    assert {"half_listed_grad_w", "half_listed_grad_x"} <= set(recorder.functions)


@needs_compiler
@pytest.mark.parametrize("p", [24.0, 100.0, 130.0])
def test_lists_of_the_forward_alone_have_all_terms(kernels: Cuda, p: float) -> None:
    x, w, _ = pruned.spiked((70, 72, 320), "cpu")
    made = kernels.forward(x, w, p)
    with half.training_in_float16(False):
        assert torch.equal(made, kernels.forward(x, w, p))
        assert lists.cut(p, training=True) == lists.cut(p)


@needs_compiler
@pytest.mark.parametrize("p", [100.0, 130.0])
def test_shortened_lists(kernels: Cuda, p: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lists of the backward pass have exactly the features that reach the cut in some row."""
    x, w, grad = listed((140, 40, 300))
    x[3, 7], w[5] = 9.0, x[6]
    layer = lists.Pruned(Emulator(kernels._launcher._folder), x, w, p)  # pyright: ignore
    saved = layer.saved_like()
    y = layer.forward(saved)
    found = lists.Lists(saved, layer._lengths(saving=True))  # pyright: ignore[reportPrivateUsage]
    sizes = (x[:, None] - w).abs()
    reached = (sizes >= sizes.amax(2, keepdim=True) * torch.tensor(lists.cut(p, training=True))).any(0)
    rows = [found.entries.view(40, 300, 2)[o, :count, 0].tolist() for o, count in enumerate(found.counts.tolist())]
    assert rows == [reached[o].nonzero().flatten().tolist() for o in range(40)]
    made = torch.empty_like(x), torch.empty_like(w)
    layer.backward(grad, y, saved, made)
    monkeypatch.setattr(lists, "SHORTEN", False)
    whole = step(kernels, x, w, grad, p)
    assert torch.equal(y, whole[0])
    for a, b in zip(made, whole[1:], strict=True):
        assert (a - b).norm() <= 2.0 ** -lists.HALF_BITS[1] * p * b.norm()
        assert (a != 0).sum() < (b != 0).sum() or a is made[0]


@needs_compiler
def test_gradients_from_lists_out_of_range_are_computed_in_float32(
    kernels: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "SHORTEN", False)
    monkeypatch.setattr(lists, "HALF_BITS", [30 - math.log2(100)] * 2)

    def steps(x: Tensor, w: Tensor, grad: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        made = step(kernels, x, w, grad, 100.0)
        with half.training_in_float16(False):
            return made, step(kernels, x, w, grad, 100.0)

    x, w, grad = listed((130, 40, 320))
    w[7] = x[3]  # a distance of zero is in range
    made, plain = steps(x, w, grad)
    assert torch.equal(made[0], plain[0])
    assert not torch.equal(made[2], plain[2])
    assert all(torch.isfinite(gradient).all() for gradient in made)
    w[9] = x[4] + 1e-3 * x[5]
    for (row, column), number in (((0, 0), grad[0, 0].item()), ((4, 8), math.nan)):
        grad[row, column] = number
        made, plain = steps(x, w, grad)
        assert all(torch.equal(a.nan_to_num(7), b.nan_to_num(7)) for a, b in zip(made, plain, strict=True))


@pytest.mark.parametrize("p", [8.0, 12.0, 28.0])
def test_float16_is_off_by_default(p: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_core, "SMALLEST", 0)
    recorder = Recorder()
    kernels = Cuda(recorder)
    x, w, grad = draw((64, 72, 512))
    with half.training_in_float16(False):
        step(kernels, x, w, grad, p)
    assert not any(map(in_float16, recorder.kernels))
