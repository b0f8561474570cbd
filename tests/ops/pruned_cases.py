"""Inputs and checks for the pruned CUDA kernels (larger p), on a GPU or in the emulator."""

import math
from collections.abc import Callable

import dense_cases
import torch
from dense_cases import REFERENCE, ROUNDING, decoded_index, error
from torch import Tensor

from linfnet.ops.cuda import Cuda, pruned
from linfnet.ops.cuda.layout import ALIGNMENT, row_groups
from linfnet.ops.cuda.nvrtc import Launcher
from linfnet.ops.powers import PowerMode, power_mode


def spiked(shape: tuple[int, int, int], device: str = "cuda") -> tuple[Tensor, Tensor, Tensor]:
    """Return a layer as in a trained net: a few large weights of each output determine the distances."""
    n, out, features = shape
    torch.manual_seed(0)
    x, w, grad = torch.randn(n, features) / 2, torch.randn(out, features), torch.randn(n, out)
    indices = torch.rand(out, features).topk(6, 1).indices
    w.scatter_(1, indices, -9 + torch.randn(out, 6) / 2)
    return x.to(device), w.to(device), grad.to(device)


def far_out(shape: tuple[int, int, int], device: str = "cuda") -> tuple[Tensor, Tensor, Tensor]:
    """Return a layer with outliers: one row has a very small value in one feature, another a very large one."""
    x, w, grad = spiked(shape, device)
    x[0, 5], x[1, 6] = -9, 9
    return x, w, grad


def crowded(shape: tuple[int, int, int], device: str = "cuda") -> tuple[Tensor, Tensor, Tensor]:
    """Return a layer in which half of all differences are equal or close to the maximum."""
    n, out, features = shape
    torch.manual_seed(0)
    x, w = (torch.randn(rows, features).sign() + 1e-3 * torch.randn(rows, features) for rows in (n, out))
    return x.to(device), w.to(device), torch.randn(n, out).to(device)


def run(kernels: Cuda, x: Tensor, w: Tensor, grad: Tensor, p: float) -> tuple[tuple[Tensor, Tensor, Tensor], int]:
    """Return (y, grad_x, grad_w) and use_dense."""
    y, saved = kernels.forward_saving(x, w, p)
    assert torch.allclose(kernels.forward(x, w, p), y, rtol=8 * ROUNDING, atol=0, equal_nan=True)
    use_dense = int(saved[0])
    return (y, *kernels.backward(grad, x, w, y, saved, p, True, True)), use_dense


def check(kernels: Cuda, x: Tensor, w: Tensor, grad: Tensor, p: float, use_dense: int) -> None:
    """Allow twice the error of the float32 reference; gradients by chains add a rounding for each factor."""
    doubles = x.double(), w.double()
    exact_y = REFERENCE.forward(*doubles, p)
    exact = (exact_y, *REFERENCE.backward(grad.double(), *doubles, exact_y, grad, p, True, True))
    plain_y = REFERENCE.forward(x, w, p)
    plain = (plain_y, *REFERENCE.backward(grad, x, w, plain_y, grad, p, True, True))
    made, flag = run(kernels, x, w, grad, p)
    assert flag == use_dense
    by_products = p <= 64 or (power_mode(p) == PowerMode.SCALE_PER_PAIR and not use_dense)
    for name, ours, theirs, truth in zip(("y", "grad_x", "grad_w"), made, plain, exact, strict=True):
        of_gradient = (p + 4) * ROUNDING / 2 if by_products else p * 2 * ROUNDING * use_dense + ROUNDING
        slack = ROUNDING if name == "y" else of_gradient
        bound = 2 * error(theirs, truth) + slack
        assert error(ours, truth) <= bound, (name, error(ours, truth), bound)


def check_residual(kernels: Cuda, x: Tensor, w: Tensor, p: float) -> None:
    """Check the saved rounding error as for the dense kernels; it is saved transposed."""
    x, w = dense_cases.ties(x), dense_cases.ties(w)
    y, saved = kernels.forward_saving(x, w, p)
    (n, out), padded = y.shape, row_groups(len(x))[0]
    residual = saved[ALIGNMENT:][: out * padded].view(torch.float32).view(out, padded)[:, :n].t()
    dense_cases.check_residual(x, w, y, residual, p)


def check_one_gradient(kernels: Cuda, x: Tensor, w: Tensor, grad: Tensor, p: float) -> None:
    """Check that each gradient is the same whether or not the other is computed."""
    y, saved = kernels.forward_saving(x, w, p)
    both = kernels.backward(grad, x, w, y, saved, p, True, True)
    assert torch.equal(kernels.backward(grad, x, w, y, saved, p, True, False)[0], both[0])
    assert torch.equal(kernels.backward(grad, x, w, y, saved, p, False, True)[1], both[1])


def check_nan_and_infinity(kernels: Cuda, draw: Callable[[], tuple[Tensor, Tensor, Tensor]], p: float) -> None:
    """Check that NaN and infinity affect only the outputs and gradients that depend on them."""
    x, w, grad = draw()
    x[2, 3], x[5, 7] = math.nan, math.inf
    (y, grad_x, grad_w), _ = run(kernels, x, w, grad, p)
    assert y[2].isnan().all()
    assert y[5].isposinf().all()
    assert torch.isfinite(y[6:]).all()
    assert grad_x[2].isnan().all()
    assert grad_x[5, 7].isnan()
    if power_mode(p) == PowerMode.SCALE_PER_PAIR:  # finite differences have no slope if another one is infinite
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


def check_infinity(launcher: Launcher, x: Tensor, w: Tensor, use_dense: int) -> None:
    """Check distances, indices and signs bit by bit; w[3] is x[7]."""
    kernels = Cuda(launcher)
    x, w = dense_cases.ties(x), dense_cases.ties(w)
    w[3] = x[7]
    y, saved = kernels.forward_saving(x, w, math.inf)
    wanted_y, wanted_index = REFERENCE.forward_saving(x.cpu(), w.cpu(), math.inf)
    assert torch.equal(y.cpu(), wanted_y)
    assert torch.equal(kernels.forward(x, w, math.inf).cpu(), wanted_y)
    assert torch.equal(decoded_index(saved).cpu(), wanted_index)
    index = wanted_index.long().to(x.device)
    negative = x.gather(1, index) < w.t().gather(0, index)
    assert torch.equal(saved < 0, negative)
    assert pruned.Pruned(launcher, x, w, math.inf).lists().use_dense.item() == use_dense


def largest(shape: tuple[int, int, int], device: str = "cuda") -> tuple[Tensor, Tensor, Tensor]:
    """Return a layer with distances near the largest float."""
    x, w, grad = spiked(shape, device)
    return x * 2.0**123, w * 2.0**123, grad


def beyond(shape: tuple[int, int, int], device: str = "cuda") -> tuple[Tensor, Tensor, Tensor]:
    """Return a layer with distances for which no power of two is small enough."""
    x, w, grad = spiked(shape, device)
    factor = 0.9 * torch.finfo(torch.float32).max / (x.abs().max() + w.abs().max())
    return x * factor, w * factor, grad
