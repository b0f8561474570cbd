"""The certificates of nets that lack connections hold for the floating-point program, as those of dense nets do."""

import importlib.util
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from certificates.checks import check_errors, check_program, check_small_box
from certificates.exact import ExactNet, awkward, awkward_net, thinned
from hypothesis import given
from hypothesis import strategies as st

from linfnet.certificates import certify_by_margin
from linfnet.errors import ArgumentError
from linfnet.nn import SparseNet

SEEDS = st.integers(0, 2**32 - 1)


def step_by_step(net: SparseNet, images: torch.Tensor) -> np.ndarray:
    """The program in NumPy, one float32 operation at a time: nothing can be fused."""
    x = ((images.numpy() - net.normalize.mean.view(-1, 1, 1).numpy()) / net.normalize.std.numpy()).reshape(
        len(images), -1
    )
    for layer in net.layers:
        size = np.abs(x[:, layer.index.numpy()] - layer.weight.detach().numpy())
        x = np.stack([size[:, a:b].max(1) for a, b in itertools.pairwise(layer.offsets.tolist())], 1)
        if layer.shift is not None:
            x = x - layer.shift.running_mean.numpy()
        if layer.bias is not None:
            x = x + layer.bias.detach().numpy()
    return -x if net.negate_logits else x


@given(SEEDS, st.sampled_from([1, 8, 40, 126]))
def test_the_program_is_the_one_of_the_proof_to_the_bit(seed: int, widest: int):
    net = thinned(awkward_net(seed, widest, (3, 1, 2), hidden=(19, 5)), seed)
    images = torch.rand(7, 3, 1, 2, generator=torch.Generator().manual_seed(seed))
    images[0], images[1], images[2] = 0.0, -0.0, 2.0**-140
    expected = step_by_step(net, images)
    check_program(net, images, expected)
    in_steps, rounding = net.measure(images)
    assert np.array_equal(in_steps.detach().numpy(), expected)
    with torch.no_grad():  # by the kernel that measures layers, if there is one
        by_kernel, measured = net.measure(images)
        one = [net.measure(image[None])[1].total() for image in images]
    assert np.array_equal(by_kernel.numpy(), expected)
    assert measured.steps == rounding.steps
    # The sum of the sizes is exact up to the order of the additions.
    torch.testing.assert_close(measured.total(), rounding.total(), rtol=2.0**-52 * rounding.steps, atol=0)
    assert torch.equal(torch.cat(one), measured.total())


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("widest", [0, 3, 12])
def test_rounding_errors_stay_below_their_bound(widest: int):
    tightest = 0.0
    for seed in range(25):
        net = thinned(awkward_net(seed, widest), seed)
        exact, generator = ExactNet(net), torch.Generator().manual_seed(seed)
        ordinary, large = torch.rand(30, 1, 1, 3, generator=generator), awkward((30, 1, 1, 3), generator, widest)
        for inputs, pixels in ((ordinary, (0.0, 1.0)), (large, (large.min().item(), large.max().item()))):
            tightest = max(tightest, check_errors(net, exact, inputs, pixels))
    assert tightest > 0.02


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("widest", [0, 1, 3])
def test_no_image_of_a_small_box_breaks_a_certificate(widest: int):
    reached, certified = 0.0, 0
    for seed in range(30):
        share, kept = check_small_box(thinned(awkward_net(seed, widest, (1, 1, 2)), seed), seed)
        reached, certified = max(reached, share), certified + kept
    assert reached > 0.05
    assert certified > 10


@pytest.mark.parametrize("seed", range(4))
def test_no_certified_sample_is_broken(seed: int):
    path = Path(__file__).parents[2] / "benchmarks" / "soundness.py"
    spec = importlib.util.spec_from_file_location("soundness", path)
    campaign = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(campaign)
    net = thinned(campaign.random_net(seed), seed, 0.4)
    attacked, broken, least = campaign.try_net(net, torch.rand(40, *net.image_shape), 5)
    assert attacked > 10
    assert broken == 0
    assert 0 < min(least.values()) < 1


def test_a_finite_p_and_other_precisions_are_refused():
    net, images = thinned(awkward_net(1, 1), 1), torch.rand(2, 1, 1, 3)
    net.p = 8.0
    radii = certify_by_margin(net, images).radii
    assert net.p == 8.0
    with pytest.raises(ArgumentError, match="bounds need p = inf"):
        net.bounds(images, images)
    net.p = torch.inf
    assert torch.equal(certify_by_margin(net, images).radii, radii)
    with pytest.raises(ArgumentError, match=r"net computes in torch\.float64"):
        certify_by_margin(net.double(), images)
