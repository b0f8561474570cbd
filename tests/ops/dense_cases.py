"""Inputs and checks for the dense CUDA kernels against the reference in float64, on a GPU or in the emulator.

Tolerance: twice the error of the float32 reference, plus the error of the method, since the reference may be exact by
chance (|d| / y = 1). This is p + 4 roundings for gradients by chains of multiplications, the documented errors 2^-22 of
log2 and exp2 for the fraction of p, and p times the error of log2 for p above the longest chain.
"""

import math

import torch
from kernel_steps import step
from torch import Tensor

from linfnet.ops import Reference
from linfnet.ops.cuda import Cuda
from linfnet.ops.powers import LARGEST_CHAINED

REFERENCE = Reference()
ROUNDING = 2.0**-23


def decoded_index(saved: Tensor) -> Tensor:
    """Return the index of the maximum from the data saved by the forward pass at infinity: the lower 31 bits."""
    return saved & 0x7FFFFFFF


def draw(shape: tuple[int, int, int], device: str = "cuda") -> tuple[Tensor, Tensor, Tensor]:
    n, out, features = shape
    torch.manual_seed(0)
    x, w, grad = torch.randn(n, features), torch.randn(out, features), torch.randn(n, out)
    return x.to(device), w.to(device), grad.to(device)


def ties(a: Tensor) -> Tensor:
    """Round so that many features attain the largest difference: the index must be the first of them."""
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
    """Return the largest deviation, relative to the largest exact number."""
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
    """Check the error of each pair relative to its distance, not to the largest distance."""
    exact = REFERENCE.forward(x.double(), w.double(), p)
    assert ((kernels.forward(x, w, p).double() - exact).abs() <= 8 * ROUNDING * exact).all()


def check_residual(x: Tensor, w: Tensor, y: Tensor, residual: Tensor, p: float) -> None:
    """Check the saved rounding error of y: adding it makes most distances several times more accurate."""
    exact = REFERENCE.forward(x.double(), w.double(), p)
    before, after = ((value - exact).abs().median() for value in (y.double(), y.double() + residual))
    assert after <= before / 4


def exact_powers(shape: tuple[int, int, int], device: str = "cuda") -> tuple[Tensor, Tensor, Tensor]:
    """Differences of 0, 1, 2 and, in some of the first forty features, 8; each row has the gradient of one output."""
    n, out, features = shape
    torch.manual_seed(0)
    x, w = torch.randint(2, (n, features)).float(), -torch.randint(2, (out, features)).float()
    x[:, :40] = 0
    w[:, :40] *= 8
    return x.to(device), w.to(device), torch.eye(n, out, device=device)


def check_exact_powers(kernels: Cuda, x: Tensor, w: Tensor, grad: Tensor, p: float) -> None:
    """Check slopes of differences that are powers of two: only y^(1 - p) has errors, 4 units of powf and 2 roundings.

    With a rounded y, the error would be up to (p - 1) / 2 units.
    """
    exact_y = REFERENCE.forward(x.double(), w.double(), p)
    exact = REFERENCE.backward(grad.double(), x.double(), w.double(), exact_y, grad, p, True, True)
    for ours, truth in zip(step(kernels, x, w, grad, p)[1:], exact, strict=True):
        counts = truth.abs() > 2.0**-10
        assert counts.sum() >= len(x)
        assert ((ours - truth).abs() <= 6 * ROUNDING * truth.abs())[counts].all()


def check_infinity(kernels: Cuda, x: Tensor, w: Tensor, grad: Tensor) -> None:
    """Check distances and indices bit by bit, and gradients within twice the error of the float32 reference."""
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
    """Check the bounds of boxes around x, and the features that attain them, bit by bit."""
    lower, upper, w = ties(x - 0.1), ties(x + 0.1), ties(w)
    wanted = REFERENCE.bounds_saving(lower.cpu(), upper.cpu(), w.cpu())
    for ours, theirs in zip(kernels.bounds_saving(lower, upper, w), wanted, strict=True):
        assert torch.equal(ours.cpu(), theirs)
    for ours, theirs in zip(kernels.bounds(lower, upper, w), wanted[:2], strict=True):
        assert torch.equal(ours.cpu(), theirs)


def check_nan_and_infinity(kernels: Cuda, x: Tensor, w: Tensor, p: float) -> None:
    """Check that NaN and infinity affect only the outputs of their rows."""
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
    """Check that gradients are the same for small distances and for distances near the largest float."""
    factor = 2.0 ** math.floor(math.log2(2.0**128 / REFERENCE.forward(x, w, p).max().item()))
    y, saved = kernels.forward_saving(x, w, p)
    wanted = kernels.backward(grad, x, w, y, saved, p, True, True)
    y, saved = kernels.forward_saving(x * factor, w * factor, p)
    made = kernels.backward(grad, x * factor, w * factor, y, saved, p, True, True)
    assert torch.isfinite(y).all()
    assert all(error(a, b.double()) <= 2 * slack("grad_x", p) for a, b in zip(made, wanted, strict=True))
