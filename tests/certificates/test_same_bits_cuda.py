"""Certificates on a GPU equal those on a CPU, bit for bit."""

import math
from collections.abc import Iterator
from fractions import Fraction

import pytest
import torch
from certificates.checks import error_bound
from certificates.exact import awkward_net, wrapped_net
from certificates.test_sort_net import awkward_net as awkward_sort_net

from linfnet.attacks import best_pgd
from linfnet.boxes import outer_box
from linfnet.certificates import certified_by_interval, certify_by_margin, certify_images
from linfnet.certificates.rounding import check_subnormals, forward_with_magnitudes
from linfnet.nn import LinfNet, SortNet
from linfnet.nn.label_margin import label_on_top
from linfnet.ops import linf_distance_bounds, lp_distance

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

SHAPES = [(1, 1, 1), (3, 5, 7), (65, 130, 33), (513, 129, 260), (96, 10, 1500), (33, 1, 784), (2, 257, 3073)]
EPSILONS = (Fraction(0), Fraction(1, 255), Fraction(1, 10), Fraction(3, 10))


@pytest.fixture(autouse=True)
def tensor_cores_allowed() -> Iterator[None]:
    """There are no matrix products that TF32 could affect: allowing it must not change any result."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def draw(shape: tuple[int, int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers of many magnitudes, including subnormal numbers and zeros of both signs."""
    n, out, features = shape
    generator = torch.Generator().manual_seed(n * out + features)
    x, w = torch.randn(n, features, generator=generator), torch.randn(out, features, generator=generator)
    for tensor in (x, w):
        kind = torch.randint(8, tensor.shape, generator=generator)
        tensor[kind == 0] *= 2.0**-140
        tensor[kind == 1] *= 2.0**60
        tensor[kind == 2] = 0.0
        tensor[kind == 3] = -0.0
    return x, w


def same(on_gpu: torch.Tensor, on_cpu: torch.Tensor) -> None:
    assert on_gpu.is_cuda
    assert on_gpu.dtype == on_cpu.dtype
    assert torch.equal(on_gpu.cpu(), on_cpu)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
def test_distances_and_their_bounds(shape: tuple[int, int, int]):
    x, w = draw(shape)
    same(lp_distance(x.cuda(), w.cuda(), math.inf), lp_distance(x, w, math.inf))
    lower, upper = x - x.abs() / 8, x + 0.25
    on_gpu = linf_distance_bounds(lower.cuda(), upper.cuda(), w.cuda())
    for end, expected in zip(on_gpu, linf_distance_bounds(lower, upper, w), strict=True):
        same(end, expected)
    tiny_x, tiny_w = x * 2.0**-146, w * 2.0**-146
    same(lp_distance(tiny_x.cuda(), tiny_w.cuda(), math.inf), lp_distance(tiny_x, tiny_w, math.inf))


def check_net(net: LinfNet | SortNet, images: torch.Tensor) -> None:
    """Logits, boxes, bounds, both certificates and all radii of a net, on both devices."""
    labels = net(images).argmax(1)
    certificate, expected_images = certify_by_margin(net, images), certify_images(net, [(images, labels)], EPSILONS)
    boxes = [outer_box(images, epsilon) for epsilon in EPSILONS]
    bounds = [net.bounds(*box) for box in boxes]
    certified = [certified_by_interval(net, images, labels, epsilon) for epsilon in EPSILONS]
    logits = net(images).detach()
    net.cuda()
    on_gpu = images.cuda()
    same(net(on_gpu).detach(), logits)
    theirs = certify_by_margin(net, on_gpu)
    for name in ("logits", "labels", "radii", "real_radii"):
        same(getattr(theirs, name), getattr(certificate, name))
    for row, epsilon in enumerate(EPSILONS):
        for ours, expected in zip(outer_box(on_gpu, epsilon), boxes[row], strict=True):
            same(ours, expected)
        for ours, expected in zip(net.bounds(*outer_box(on_gpu, epsilon)), bounds[row], strict=True):
            same(ours.detach(), expected.detach())
        same(certified_by_interval(net, on_gpu, labels.cuda(), epsilon), certified[row])
    theirs = certify_images(net, [(on_gpu, labels.cuda())], EPSILONS)
    same(theirs.predictions, expected_images.predictions)
    same(theirs.real_margin_radii, expected_images.real_margin_radii)
    for name in ("margin", "interval"):
        same(theirs.radii[name], expected_images.radii[name])
        same(theirs.certified[name], expected_images.certified[name])


@pytest.mark.parametrize("seed", range(6))
def test_awkward_nets(seed: int):
    net = awkward_net(seed, (1, 8, 40)[seed % 3], (3, 3, 5), hidden=(67, 33))
    images = torch.rand(37, 3, 3, 5, generator=torch.Generator().manual_seed(seed))
    images[0], images[1], images[2], images[3] = 0.0, -0.0, 1.0, 2.0**-140
    check_net(net, images)


@pytest.mark.parametrize("seed", range(5))
def test_awkward_sort_nets(seed: int):
    net = awkward_sort_net(seed, (1, 8, 40)[seed % 3], (3, 3, 5), hidden=(67, 33))
    images = torch.rand(37, 3, 3, 5, generator=torch.Generator().manual_seed(seed))
    images[0], images[1], images[2], images[3] = 0.0, -0.0, 1.0, 2.0**-140
    check_net(net, images)


def test_a_wide_sort_net():
    torch.manual_seed(0)
    net = SortNet((3, 16, 16), 10, (1031, 515), keep=0.85, mean=(0.49, 0.48, 0.45), std=0.2009).eval()
    check_net(net, torch.rand(131, 3, 16, 16))


def test_a_wide_net():
    torch.manual_seed(0)
    net = LinfNet((3, 16, 16), 10, (1031, 515), mean=(0.49, 0.48, 0.45), std=0.2009).eval()
    check_net(net, torch.rand(131, 3, 16, 16))


def test_the_packaged_net():
    net = LinfNet.load("mnist-small")
    generator = torch.Generator().manual_seed(0)
    images = (torch.randint(0, 256, (400, 1, 28, 28), generator=generator) / 255).float()
    # Mostly black, like digits.
    images *= torch.rand(400, 1, 28, 28, generator=generator) < 0.2
    check_net(net, images)


def test_subnormal_numbers_are_kept():
    check_subnormals(torch.float32, torch.device("cuda"))
    check_subnormals(torch.float64, torch.device("cuda"))


@pytest.mark.parametrize("seed", range(9))
def test_wrapped_nets(seed: int):
    """Quotients by numbers and averages may round differently on a GPU: the certificates hold for its program."""
    net = wrapped_net(seed, seed).cuda()
    images = torch.rand(50, *net.image_shape).cuda()
    low, high = net.bounds(*outer_box(images, Fraction(1, 50)))
    for _ in range(20):
        moved = (images + (2 * torch.rand_like(images) - 1).sign() / 51).clamp(0, 1)
        logits = net(moved)
        assert ((low <= logits) & (logits <= high)).all()
    found = certify_images(net, [(images, None)], steps=8)
    kept = found.best_radii > 0
    moved = best_pgd(net, images[kept], found.labels[kept], found.best_radii[kept].clamp(max=1), steps=20)
    assert label_on_top(net(moved), found.labels[kept]).all()
    run, on_cpu = forward_with_magnitudes(net, images), forward_with_magnitudes(net.cpu(), images.cpu())
    assert ((run.logits.cpu() - on_cpu.logits).abs().amax(1) <= error_bound(run) + error_bound(on_cpu)).all()
