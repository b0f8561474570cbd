"""The certificates of SortNet hold for the floating-point program, whose sums of products round many times."""

import importlib.util
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from certificates.checks import check_errors, check_program, check_small_box
from certificates.exact import awkward, rationals
from hypothesis import given
from hypothesis import strategies as st

from linfnet import ops
from linfnet.boxes import inner_box
from linfnet.certificates import certify_by_margin, certify_images, exact_radius, interval_radius
from linfnet.errors import ArgumentError
from linfnet.nn import Classifier, LinfNet, LpDistance, SortDistance, SortNet, reestimate_means
from linfnet.nn.label_margin import margin

SEEDS = st.integers(0, 2**32 - 1)
KEEPS, TERMS = (0.85, 0.5, 0.15, 0.05, 0.97), (10, 2, 5, 16)


def awkward_net(
    seed: int, widest: int, shape: tuple[int, int, int] = (1, 1, 3), hidden: tuple[int, ...] = (7, 6)
) -> SortNet:
    """A small net whose weights, means and biases spread over 2^±widest."""
    generator = torch.Generator().manual_seed(seed)
    std = float(torch.rand((), generator=generator)) + 0.05
    keep, terms = KEEPS[seed % 5], TERMS[seed % 4]
    net = SortNet(shape, 3, hidden, keep=keep, terms=terms, mean=0.4, std=std, identity_init=False).eval()
    with torch.no_grad():
        for name, tensor in net.state_dict().items():
            if name != "scale":
                tensor.copy_(awkward(tuple(tensor.shape), generator, widest))
    return net


def factors_of(layer: LpDistance | SortDistance) -> tuple[float, ...]:
    return layer.factors if isinstance(layer, SortDistance) else (1.0,)


def step_by_step(net: SortNet, images: torch.Tensor) -> np.ndarray:
    """The program of docs/certificates.md in NumPy, one float32 operation at a time: nothing can be fused."""
    mean, std = net.normalize.mean.view(-1, 1, 1).numpy(), net.normalize.std.numpy()
    x = ((images.numpy() - mean) / std).reshape(len(images), -1)
    for layer in net.layers:
        sizes = np.sort(np.abs(x[:, None, :] - layer.weight.detach().numpy()[None]), axis=2)[:, :, ::-1]
        factors = np.array(factors_of(layer), dtype=np.float32)
        terms = [sizes[:, :, t] * factors[t] for t in range(len(factors))]
        x = terms.pop()
        while terms:
            x = x + terms.pop()
        if layer.shift is not None:
            x = x - layer.shift.running_mean.numpy()
        if layer.bias is not None:
            x = x + layer.bias.detach().numpy()
    return -x


class ExactNet:
    """A net with its own float constants, evaluated without rounding."""

    def __init__(self, net: SortNet) -> None:
        self.mean, self.std = Fraction(net.normalize.mean.item()), Fraction(net.normalize.std.item())
        self.layers = []
        for layer in net.layers:
            shift = layer.bias if layer.shift is None else -layer.shift.running_mean
            weights = [rationals(row) for row in layer.weight]
            self.layers.append((weights, list(map(Fraction, factors_of(layer))), rationals(shift)))

    def __call__(self, image: torch.Tensor) -> list[Fraction]:
        values = [(x - self.mean) / self.std for x in rationals(image)]
        for weights, factors, shifts in self.layers:
            sums = []
            for row, shift in zip(weights, shifts, strict=True):
                sizes = sorted((abs(x - w) for x, w in zip(values, row, strict=True)), reverse=True)
                sums.append(sum(f * size for f, size in zip(factors, sizes, strict=False)) + shift)
            values = sums
        return [-value for value in values]


@given(SEEDS, st.sampled_from([1, 8, 40, 120]))
def test_the_program_is_the_one_of_the_proof_to_the_bit(seed: int, widest: int):
    net = awkward_net(seed, widest, (1, 2, 3), hidden=(19, 35))
    images = torch.rand(7, 1, 2, 3, generator=torch.Generator().manual_seed(seed))
    images[0], images[1], images[2] = 0.0, -0.0, 2.0**-140
    expected = step_by_step(net, images)
    check_program(net, images, expected)
    assert np.array_equal(net.measure(images)[0].detach().numpy(), expected)
    with ops.default_implementation("reference"):
        assert np.array_equal(net(images).detach().numpy(), expected)


@pytest.mark.parametrize("widest", [0, 3, 12, 40, 120])
def test_the_error_bound_holds_in_rational_arithmetic(widest: int):
    tightest = 0.0
    for seed in range(20):
        net = awkward_net(seed, widest)
        exact, generator = ExactNet(net), torch.Generator().manual_seed(seed)
        ordinary, large = torch.rand(25, 1, 1, 3, generator=generator), awkward((25, 1, 1, 3), generator, widest)
        large[20:, 0, 0, 0] = net.normalize.mean + net.normalize.std * net.layers[0].weight[0, 0]  # cancels
        for inputs, pixels in ((ordinary, (0.0, 1.0)), (large, (large.min().item(), large.max().item()))):
            tightest = max(tightest, check_errors(net, exact, inputs, pixels))
    assert tightest > 0.02  # a bound far above all errors would not test its proof


def errors_in_steps(layer: SortDistance, x: torch.Tensor) -> torch.Tensor:
    """The errors [n, out] of a layer without mean and bias, divided by the error of one rounded step."""
    found, sizes = layer.measure(x)
    errors = torch.empty_like(found, dtype=torch.float64)
    for b, (row, size) in enumerate(zip(x, sizes[0].tolist(), strict=True)):
        for o, neuron in enumerate(layer.weight):
            distances = sorted(abs(i - w) for i, w in zip(rationals(row), rationals(neuron), strict=True))
            exact = sum(Fraction(f) * d for f, d in zip(layer.factors, reversed(distances), strict=False))
            errors[b, o] = float(abs(Fraction(found[b, o].item()) - exact) / (Fraction(size) / 2**24))
    assert (errors <= len(sizes)).all()
    return errors


@pytest.mark.parametrize("keep", KEEPS)
def test_a_sum_needs_more_than_one_rounded_step(keep: float):
    torch.manual_seed(0)
    layer = SortDistance(24, 1, keep=keep).eval()
    worst = max(errors_in_steps(layer, 1 + torch.rand(1, 24)).max().item() for _ in range(300))
    assert worst > (1.0 if keep < 0.9 else 0.6)


@pytest.mark.parametrize("scale", [2.0**-149, 2.0**-146, 2.0**-130])
def test_products_that_underflow(scale: float):
    """All products of subnormal numbers are rounded to multiples of 2^-149."""
    torch.manual_seed(0)
    layer = SortDistance(24, 30, keep=0.15).eval()
    with torch.no_grad():
        layer.weight.copy_(torch.randint(-40, 40, layer.weight.shape) * scale)
    errors_in_steps(layer, torch.randint(-40, 40, (10, 24)) * scale)


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("widest", [0, 1, 3])
def test_no_image_of_a_small_box_breaks_a_certificate(widest: int):
    reached, certified = 0.0, 0
    for seed in range(30):
        share, kept = check_small_box(awkward_net(seed, widest, (1, 1, 2)), seed)
        reached, certified = max(reached, share), certified + kept
    assert reached > 0.02
    assert certified > 10


@pytest.mark.parametrize("widest", [0, 3])
def test_no_random_image_breaks_a_certificate(widest: int):
    """Random corners and random images of the largest certified boxes, at the full radius."""
    tried = 0
    for seed in range(8):
        net = awkward_net(seed, widest, (1, 2, 3), hidden=(15, 12))
        generator = torch.Generator().manual_seed(seed)
        images = torch.rand(40, 1, 2, 3, generator=generator)
        found = certify_images(net, [(images, None)])
        radii, labels = found.best_radii.clamp(0, 1), found.labels
        low, high = inner_box(images, radii)
        hit = radii > 0
        tried += int(hit.sum())
        for step in range(60):
            share = torch.rand(images.shape, generator=generator)
            inside = torch.where(share < 0.5, low, high) if step % 2 else low + share * (high - low)
            inside = torch.minimum(torch.maximum(inside, low), high)
            assert bool((margin(net(inside), labels) > 0)[hit].all())
    assert tried > 100


@pytest.mark.parametrize("seed", range(5))
def test_no_certified_sample_is_broken_by_an_attack(seed: int):
    path = Path(__file__).parents[2] / "benchmarks" / "soundness.py"
    spec = importlib.util.spec_from_file_location("soundness", path)
    campaign = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(campaign)
    plain = campaign.random_net(seed + 2)
    torch.manual_seed(seed)
    options = {"mean": plain.mean, "std": plain.std, "keep": KEEPS[seed], "terms": TERMS[seed % 4]}
    net = SortNet(plain.image_shape, plain.classes, (17, 14), **options)
    reestimate_means(net, [torch.rand(64, *net.image_shape)])
    attacked, broken, least = campaign.try_net(net.eval(), torch.rand(40, *net.image_shape), 5)
    assert attacked > 10
    assert broken == 0
    assert 0 < min(least.values()) < 1


def test_the_margin_radius_is_close_to_the_real_one():
    torch.manual_seed(0)
    net, images = SortNet((1, 4, 4), 5, (30, 30), keep=0.85, std=0.5), torch.rand(50, 1, 4, 4)
    reestimate_means(net, [images])
    certificate = certify_by_margin(net.eval(), images)
    assert bool((certificate.radii <= certificate.real_radii).all())
    assert bool((certificate.radii > certificate.real_radii - 2e-5).all())
    assert bool((interval_radius(net, images, certificate.labels) > certificate.radii - 2**-15).all())


def test_the_net_is_1_lipschitz_in_rational_arithmetic():
    for seed in range(10):
        net = awkward_net(seed, 2)
        exact = ExactNet(net)
        generator = torch.Generator().manual_seed(seed)
        a, b = torch.rand(2, 1, 1, 3, generator=generator)
        moved = max(abs(x - y) for x, y in zip(rationals(a), rationals(b), strict=True)) / exact.std
        assert max(abs(x - y) for x, y in zip(exact(a), exact(b), strict=True)) <= moved


def test_what_is_not_certified_is_refused():
    net, images = awkward_net(0, 1), torch.rand(2, 1, 1, 3)
    with pytest.raises(ArgumentError, match="the net is a SortNet; expected a LinfNet, a ConvStemNet, a SparseNet"):
        exact_radius(net, images, torch.tensor([0, 1]))
    body = torch.nn.Sequential(torch.nn.Flatten(), LpDistance(3, 8), SortDistance(8, 3, keep=0.8, bias=True))
    wrapped = Classifier.wrap(body.eval(), image_shape=(1, 1, 3), classes=3)
    labels = wrapped(images).argmax(1)
    radii = certify_by_margin(wrapped, images, labels).radii
    assert bool((interval_radius(wrapped, images, labels) > radii - 2**-15).all())
    with pytest.raises(ArgumentError, match="SortDistance"):
        exact_radius(wrapped, images, labels)
    plain = LinfNet((1, 1, 3), 3, (4,))
    plain.layers[1] = SortDistance(4, 3, keep=0.5)
    with pytest.raises(ArgumentError, match="not an LpDistance"):
        certify_by_margin(plain, images)
    with pytest.raises(ArgumentError, match="net computes in"):
        certify_by_margin(net.double(), images)


@pytest.mark.parametrize(("name", "value"), [("keep", -2.0), ("keep", 0.0), ("keep", math.nan), ("terms", 0)])
def test_a_layer_without_factors_is_refused(name: str, value: float):
    net = awkward_net(0, 1)
    setattr(net.layers[1], name, value)
    with pytest.raises(ArgumentError, match=f"{name} is {value:g}"):
        certify_by_margin(net, torch.rand(2, 1, 1, 3))


def test_a_net_in_training_is_certified_in_eval_mode():
    net, images = awkward_net(0, 1), torch.rand(5, 1, 1, 3)
    radii = certify_by_margin(net, images).radii
    net.train()
    net.p = 8.0
    assert torch.equal(certify_by_margin(net, images).radii, radii)
    with pytest.raises(ArgumentError, match="bounds need p = inf"):
        net.bounds(images, images)
