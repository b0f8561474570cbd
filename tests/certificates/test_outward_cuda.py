"""Bounds of nets with matrix products contain what a GPU computes."""

from fractions import Fraction

import pytest
import torch
from torch import nn

from benchmarks.outward import awkward_net
from linfnet.boxes import inner_box, outer_box
from linfnet.certificates import certified_by_interval, outward
from linfnet.errors import ArgumentError
from linfnet.nn.label_margin import margin
from linfnet.systems.hybrid import HybridNet
from linfnet.systems.ibp import IbpNet

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.fixture(autouse=True)
def _any_order() -> None:
    """Let cuBLAS choose any order of summation."""
    torch.use_deterministic_algorithms(False)


def test_tanh_is_within_its_error():
    for start in range(0, 0x42000000, 2**24):
        x = torch.arange(start, start + 2**24, 7, dtype=torch.int32, device="cuda").view(torch.float32)
        for values in (x, -x):
            low, high = outward.bounds([nn.Tanh()], values, values)
            computed = values.tanh().double()
            assert bool(((low <= computed) & (computed <= high)).all())


def large_net(system: str) -> HybridNet | IbpNet:
    torch.manual_seed(0)
    if system == "hybrid":
        return HybridNet((3, 32, 32), 10, (512, 512), 512, mean=0.4, std=0.2).eval()
    net = IbpNet((3, 32, 32), 10, "cnn7", True, mean=0.4, std=0.2)
    net(torch.rand(20, 3, 32, 32))  # statistics of batch norm
    return net.eval()


@pytest.mark.parametrize("case", ["hybrid", "ibp", *range(40)])
@torch.no_grad()
def test_margins_are_above_their_bounds_on_both_devices(case: str | int):
    net = awkward_net(case) if isinstance(case, int) else large_net(case)
    source = torch.Generator().manual_seed(0)
    images = torch.rand(20, *net.image_shape, generator=source)
    labels = net(images).argmax(1)
    box = outer_box(images, Fraction(1, 1000))
    expected = net.least_margin(*box, labels)
    on_gpu = net.cuda()
    bound = on_gpu.least_margin(*(end.cuda() for end in box), labels.cuda()).cpu()
    low, high = inner_box(images, Fraction(1, 1000))
    for _ in range(5):
        moved = torch.where(torch.rand(low.shape, generator=source) < 0.5, low, high)
        gap = margin(on_gpu(moved.cuda()).double().cpu(), labels)
        assert bool(((gap >= bound) | bound.isnan()).all())
        assert bool(((gap >= expected) | expected.isnan()).all())


def test_tf32_is_refused():
    net, images, labels = awkward_net(1).cuda(), torch.rand(2, 1, 1, 2), torch.tensor([0, 1])
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with pytest.raises(ArgumentError, match="products of float32 numbers may have a lower precision"):
            certified_by_interval(net, images, labels, Fraction(1, 100))
    finally:
        torch.set_float32_matmul_precision(before)
