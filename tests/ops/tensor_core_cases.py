"""Inputs and checks for even p by matrix products, against the reference in float64.

Tolerance: twice the error of the float32 reference, plus the error of the expansion of each expanded pair. This error
is relative to the sum of the absolute values of the terms: sum (|x| + |w|)^p for a distance and
sum |c| (|x| + |w|)^(p - 1) for an element of a gradient. The relative error is 2^-22 for the pairs of float16, 21
quarters of the last bit of the sum for every 16 terms (see `tensor_core_products` in test_cuda_emulated.py), and 3 p
roundings for powers and binomials; numbers below the range of float16 add to it. The error of a distance is multiplied
by p - 1 in its slopes, which add p + 4 roundings (as in dense_cases.py).
"""

import math
from collections.abc import Callable

import pytest
import torch
from dense_cases import REFERENCE
from torch import Tensor

from linfnet.ops.cuda import Cuda, tensor_core

Draw = Callable[[tuple[int, int, int], str], tuple[Tensor, Tensor, Tensor]]


def trained(shape: tuple[int, int, int], device: str = "cuda") -> tuple[Tensor, Tensor, Tensor]:
    """Return a typical layer: one weight of each output is far from the others, and features have different ranges."""
    n, out, features = shape
    torch.manual_seed(n)
    x = torch.randn(n, features) * torch.rand(features).mul(3).sub(3).exp2()
    w, grad = torch.randn(out, features), torch.randn(n, out) * torch.randn(n, out).mul(4).exp2()
    w[torch.arange(out), torch.arange(out) % features] = -10.0
    return x.to(device), w.to(device), grad.to(device)


def close(shape: tuple[int, int, int], device: str = "cuda") -> tuple[Tensor, Tensor, Tensor]:
    """Return x and w far from 0 and close to each other: all pairs cancel."""
    x, w, grad = trained(shape, device)
    return 100 + x, 100 + w, grad


def run(kernels: Cuda, x: Tensor, w: Tensor, grad: Tensor, p: float) -> tuple[tuple[Tensor, Tensor, Tensor], int]:
    y, saved = kernels.forward_saving(x, w, p)
    use_dense = int(saved[0])
    return (y, *kernels.backward(grad, x, w, y, saved, p, True, True)), use_dense


def share(terms: int, p: float) -> float:
    """Return the largest relative error of a sum with this number of terms."""
    return 2.0**-22 + math.ceil(terms / 16) * (17 / 4 + 1) * 2.0**-23 + 3 * p * 2.0**-24


def part(terms: int) -> int:
    """Return the number of terms per sum on the tensor cores."""
    return terms // (tensor_core.chunks_of(terms) or 1)


def layer_top(x: Tensor, w: Tensor) -> Tensor:
    return torch.maximum(x.abs().max(), w.abs().max())


def expansions(x: Tensor, w: Tensor, y: Tensor, p: float) -> Tensor:
    """Return sum (|x| + |w|)^p / y^p of each pair; infinite if the sum is too small to be expanded."""
    pairs = zip(x.abs(), y, strict=True)
    found = torch.stack([((row + w.abs()) / of_row[:, None]).pow(p).sum(1) for row, of_row in pairs])
    return torch.where(y.pow(p) > tensor_core.LEAST_SUM / 2 * layer_top(x, w).pow(p), found, math.inf)


def distance_losses(x: Tensor, w: Tensor, y: Tensor, expansion: Tensor, p: float) -> Tensor:
    """Return the relative error of each distance: that of its sum divided by p, or 0 if it is not expanded."""
    below = x.shape[1] * 2.0**-36 * (layer_top(x, w) / y).pow(p)
    losses = (share(part(x.shape[1]), p) * expansion + below) / p
    return torch.where(expansion <= 2 * tensor_core.most_loss(p), losses, 0)


def feature_tops(a: Tensor, top: Tensor) -> Tensor:
    """Return an upper bound on the scale of the powers of each feature."""
    return (2 * a.abs().amax(0)).clamp(min=2.0**-5 * float(top))


def gradient_losses(
    x: Tensor, w: Tensor, grad: Tensor, y: Tensor, expansion: Tensor, losses: Tensor, p: float
) -> tuple[Tensor, Tensor]:
    """Return the largest errors of the elements of both gradients."""
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


def check(kernels: Cuda, x: Tensor, w: Tensor, grad: Tensor, p: float, use_dense: int = 0) -> None:
    assert tensor_core.supports(x, w, p)
    wide = x.double(), w.double()
    exact_y = REFERENCE.forward(*wide, p)
    exact = REFERENCE.backward(grad.double(), *wide, exact_y, grad, p, True, True)
    plain_y = REFERENCE.forward(x, w, p)
    plain = REFERENCE.backward(grad, x, w, plain_y, grad, p, True, True)
    (y, *gradients), flag = run(kernels, x, w, grad, p)
    assert flag == use_dense
    expansion = expansions(*wide, exact_y, p)
    error, losses = (y - exact_y).abs(), distance_losses(*wide, exact_y, expansion, p)
    assert (error <= 2 * (plain_y - exact_y).abs().max() + losses * exact_y).all()
    # The average error of a term is half of the largest error.
    assert (error <= (2.0**-24 + losses / 2) * exact_y).double().mean() >= 0.5
    lost = gradient_losses(*wide, grad.double(), exact_y, expansion, losses, p)
    for ours, theirs, truth, most in zip(gradients, plain, exact, lost, strict=True):
        error, ordinary = (ours - truth).abs(), (theirs - truth).abs()
        assert (error <= 2 * ordinary + most).all()
        assert (error <= 2 * ordinary + most / 2).double().mean() >= 0.5
    assert torch.equal(kernels.forward(x, w, p), y)


def check_single(kernels: Cuda, x: Tensor, w: Tensor, grad: Tensor, p: float) -> None:
    """Check the errors of powers of one float16 number.

    They may be 0.1 % of each distance and 2 % of the gradients in norm; less than 0.5 % of the signs may be wrong.
    """
    (y, *gradients), flag = run(kernels, x, w, grad, p)
    assert flag == 0
    exact_y = REFERENCE.forward(x.double(), w.double(), p)
    exact = REFERENCE.backward(grad.double(), x.double(), w.double(), exact_y, grad, p, True, True)
    assert ((y - exact_y).abs() <= 1e-3 * exact_y).all()
    for made, truth in zip(gradients, exact, strict=True):
        assert (made - truth).norm() <= 0.02 * truth.norm()
        assert (made.sign() != truth.sign()).double().mean() < 0.005


def check_small_gradients(kernels: Cuda, x: Tensor, w: Tensor, grad: Tensor, p: float) -> None:
    """Check small gradients: Adam divides every gradient by its size, so they must be as accurate as large ones."""
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


def check_cancelling_layer(
    kernels: Cuda, x: Tensor, w: Tensor, grad: Tensor, p: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the dense kernels compute the layer, with the same results as without matrix products."""
    made, flag = run(kernels, x, w, grad, p)
    assert flag == 1
    monkeypatch.setattr(tensor_core, "POWERS", ())
    dense = kernels.forward_saving(x, w, p)
    wanted = (dense[0], *kernels.backward(grad, x, w, *dense, p, True, True))
    assert all(torch.equal(a, b) for a, b in zip(made, wanted, strict=True))


def check_cancelling_pairs(kernels: Cuda, x: Tensor, w: Tensor, grad: Tensor) -> None:
    w[7], w[9], w[11], w[-1] = x[3], x[4] + 1e-3 * x[5], x[6] + 0.1 * x[7], x[6] - 0.1 * x[7]
    w[13], grad[8, 13] = x[8] + 1e-6 * x[9], 64.0  # so close that the power of y leaves the float range
    check(kernels, x, w, grad, 8.0)
    y = kernels.forward(x, w, 8.0)
    exact = REFERENCE.forward(x.double(), w.double(), 8.0)
    assert y[3, 7] == 0
    for pair in ((4, 9), (8, 13)):
        assert (y - exact).abs()[pair] <= 2.0**-20 * exact[pair]


def crowd(shape: tuple[int, int, int], device: str = "cuda") -> tuple[Tensor, Tensor, Tensor]:
    """Return a layer in which a quarter of the rows and of the outputs are close to each other."""
    x, w, grad = trained(shape, device)
    x[::4] = x[0] + 0.01 * x[::4]
    w[::4] = x[0] + 0.01 * w[::4].clamp(min=-1)
    return x, w, grad


def check_far_weight(kernels: Cuda, shape: tuple[int, int, int], device: str, p: float) -> None:
    """One weight far larger than all others sets the layer's scale; the other pairs must stay accurate."""
    x, w, grad = trained(shape, device)
    w.clamp_(min=-4)
    for size, use_dense in ((10.0, 0), (100.0, 1), (1e4, 1)):
        w[5, 7] = size
        check(kernels, x, w, grad, p, use_dense)


def small_pair(shape: tuple[int, int, int], device: str = "cuda") -> tuple[Tensor, Tensor, Tensor]:
    """One row and one output are near 0, in a layer of large numbers."""
    x, w, grad = trained(shape, device)
    x[7], w[5] = 0.02 * x[8], 0.02 * w[6].clamp(min=-4)
    return x, w, grad


def rather_close(shape: tuple[int, int, int], device: str = "cuda") -> tuple[Tensor, Tensor, Tensor]:
    """Return twelve pairs whose slopes matter and whose expansions sum to 70 to 5,000 times the result (at p = 8).

    This range includes 2 * MOST_SLOPE_LOSS, the limit above which slopes are not expanded.
    """
    x, w, grad = trained(shape, device)
    w.clamp_(min=-4)
    for row, ratio in enumerate(torch.linspace(1.7, 2.9, 12).tolist()):
        w[3 * row] = x[row] * (ratio - 1) / (ratio + 1)  # (|x| + |w|) / |x - w| = ratio
        grad[row, 3 * row] = 64.0
    return x, w, grad


def even(shape: tuple[int, int, int], level: float, device: str = "cuda") -> tuple[Tensor, Tensor, Tensor]:
    """Return equal features, whose errors near the end of the float16 range accumulate; one weight sets the scale."""
    n, out, features = shape
    torch.manual_seed(0)
    x = (torch.rand(n, 1) + 0.5).mul(0.04 * level).repeat(1, features)
    w = (torch.rand(out, 1) + 1.5).mul(-0.04 * level).repeat(1, features)
    w[5, 7] = 1.001  # powers of the scaled maximum are as small as possible
    return x.to(device), w.to(device), torch.randn(n, out).to(device)


def narrow(shape: tuple[int, int, int], device: str = "cuda") -> tuple[Tensor, Tensor, Tensor]:
    """Features with a wide range in x and a narrow one in w, and vice versa."""
    x, w, grad = trained(shape, device)
    x[:, 11] *= 2.0**-30
    w[:, shape[2] - 1] = 2.0**-30 * w[:, 0]
    return x, w, grad


def at_the_end(shape: tuple[int, int, int], exponent: int, device: str = "cuda") -> tuple[Tensor, Tensor, Tensor]:
    """Numbers around 2^exponent."""
    x, w, grad = trained(shape, device)
    return (x.double() * 2.0 ** (exponent - 4)).float(), (w.double() * 2.0 ** (exponent - 4)).float(), grad


def check_scale(kernels: Cuda, x: Tensor, w: Tensor, grad: Tensor, factor: float) -> None:
    made, _ = run(kernels, x, w, grad, 8.0)
    scaled, flag = run(kernels, x * factor, w * factor, grad, 8.0)
    assert flag == 0
    assert torch.equal(scaled[0], made[0] * factor)
    assert all(torch.equal(a, b) for a, b in zip(scaled[1:], made[1:], strict=True))


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
