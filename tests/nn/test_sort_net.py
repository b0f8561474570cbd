"""SortNet: an l_inf-distance net without dropout, masks and their gradients, the expectation that test computes."""

import itertools
import math
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from linfnet.certificates import certify_by_margin, interval_radius
from linfnet.errors import ArgumentError, LinfnetError
from linfnet.files import read_table, write_table
from linfnet.nn import LinfNet, SortDistance, SortNet, means_at_infinity, reestimate_means
from linfnet.nn.input_dropout import Kept, draw_kept, kept_distances, mask_sources
from linfnet.nn.sorted import rounded_steps, sorted_factors
from linfnet.ops import default_implementation

SHAPE, HIDDEN = (1, 3, 3), (20, 24)


def small_net(keep: float, p: float = math.inf, seed: int = 0, **options: object) -> SortNet:
    torch.manual_seed(seed)
    return SortNet(SHAPE, 4, HIDDEN, keep=keep, mean=0.4, std=0.5, p=p, **options)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("p", [3.0, 8.0, math.inf])
@pytest.mark.parametrize("group", [0, 7])
def test_without_dropout_it_is_the_distance_net_bit_for_bit(p: float, group: int):
    net = small_net(1.0, p).train()
    torch.manual_seed(0)
    plain = LinfNet(SHAPE, 4, HIDDEN, mean=0.4, std=0.5, p=p).train()
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), plain.parameters(), strict=True))
    images, grad = torch.rand(20, *SHAPE), torch.randn(20, 4)
    for logits in (net.dropped(images, 5, group=group), net(images)):
        expected = plain(images)
        assert torch.equal(logits, expected)
        for ours, theirs in zip(
            torch.autograd.grad(logits, list(net.layers.parameters()), grad),
            torch.autograd.grad(expected, list(plain.layers.parameters()), grad),
            strict=True,
        ):
            assert torch.equal(ours, theirs)
    for a, b in zip(net.state_dict().values(), plain.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    net.p = plain.p = math.inf
    net.eval(), plain.eval()
    assert torch.equal(net(images), plain(images))
    box = images - 0.1, images + 0.1
    assert all(torch.equal(a, b) for a, b in zip(net.bounds(*box), plain.bounds(*box), strict=True))
    ours, theirs = certify_by_margin(net, images), certify_by_margin(plain, images)
    assert torch.equal(ours.radii, theirs.radii)
    assert torch.equal(interval_radius(net, images, ours.labels), interval_radius(plain, images, ours.labels))


def masked_logits(net: SortNet, images: Tensor, masks: list[Tensor], momentum: float) -> tuple[Tensor, list[Tensor]]:
    """Logits under dropout by dense layers: dropped inputs have no difference, dropped outputs are ignored.

    Args:
        net: the weights.
        images: [B, C, H, W].
        masks: [B, width] for each hidden layer, 1 where an output is kept.
        momentum: of the running means, which are returned as well.
    """
    x, kept, means = net.normalize(images).flatten(1), None, []
    for number, layer in enumerate(net.distance_layers()):
        sizes = (x.unsqueeze(1) - layer.weight).abs()
        if kept is not None:
            sizes = sizes * kept.unsqueeze(1)
        if math.isinf(layer.p):
            x = sizes.amax(2)
        else:
            largest = sizes.amax(2).detach()
            x = largest * (sizes / largest.unsqueeze(2)).pow(layer.p).sum(2).pow(1 / layer.p)
        if layer.shift is None:
            return -(x + layer.bias), means
        kept = masks[number]
        mean = (x * kept).sum(0) / kept.sum(0).clamp(min=1)
        means.append(layer.shift.running_mean.lerp(mean.detach(), kept.sum(0).clamp(max=1) * momentum))
        x = x - mean
    raise AssertionError


def check_step(p: float, group: int, samples: int, device: str) -> None:
    net = small_net(0.6, p).double().train().to(device)
    for layer in net.distance_layers()[:-1]:
        layer.shift.running_mean.normal_()
    images = torch.rand(samples, *SHAPE, dtype=torch.float64).to(device)
    size = group or samples
    sources, masks = mask_sources(9, torch.device(device)), []
    for width in HIDDEN:
        index = draw_kept(width, 0.6, -(-samples // size), *sources).index
        own = images.new_zeros(len(index), width).scatter(1, index, 1.0)
        masks.append(own.repeat_interleave(size, 0)[:samples])
    expected, means = masked_logits(net, images, masks, 0.1)
    grad = torch.randn_like(expected)
    parameters = list(net.layers.parameters())
    slopes = torch.autograd.grad(expected, parameters, grad)
    logits = net.dropped(images, 9, group=group)
    torch.testing.assert_close(logits, expected)
    for ours, theirs in zip(torch.autograd.grad(logits, parameters, grad), slopes, strict=True):
        torch.testing.assert_close(ours, theirs)
    for layer, mean in zip(net.distance_layers(), means, strict=False):
        torch.testing.assert_close(layer.shift.running_mean, mean)


@pytest.mark.parametrize("p", [3.0, 8.0, math.inf])
@pytest.mark.parametrize("group", [0, 5, 8, 20])
@pytest.mark.parametrize("samples", [20, 1])
def test_a_training_step_is_the_one_with_masks(p: float, group: int, samples: int):
    check_step(p, group, samples, "cpu")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_training_step_on_a_gpu():
    check_step(8.0, 8, 20, "cuda")
    net = small_net(0.7, 8.0).cuda().train()
    images = torch.rand(50, *SHAPE, device="cuda")
    steps = [torch.autograd.grad(net.dropped(images, 3).sum(), list(net.layers.parameters())) for _ in range(2)]
    assert all(torch.equal(*pair) for pair in zip(*steps, strict=True))


@pytest.mark.parametrize("impl", ["cpu", "reference"])
def test_gradients_of_a_masked_step_in_float32(impl: str):
    net, images = small_net(0.7, 8.0, identity_init=False).train(), torch.rand(9, *SHAPE)
    with default_implementation(impl):
        found = torch.autograd.grad(net.dropped(images, 1, group=4).square().sum(), list(net.layers.parameters()))
    net.double()
    logits = net.dropped(images.double(), 1, group=4)
    exact = torch.autograd.grad(logits.square().sum(), list(net.layers.parameters()))
    for ours, theirs in zip(found, exact, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-5 * theirs.abs().max().item())


def test_slopes_of_a_smaller_p():
    torch.manual_seed(0)
    net, images = SortNet(SHAPE, 4, (12,), keep=0.6, identity_init=False).train(), torch.rand(9, *SHAPE)
    values = net.dropped(images, 2)
    net.slopes_p = 4.0
    assert torch.equal(net.dropped(images, 2), values)
    layer, x = net.layers[1], torch.rand(9, 5, requires_grad=True)
    inputs = Kept(torch.tensor([[0, 2, 3, 7, 8]]), 12)

    def distances(p: float) -> Tensor:
        return kept_distances(x, layer.weight, inputs, None, 9, p)

    found, grad = layer.with_slopes(distances), torch.randn(9, 4)
    assert torch.equal(found, distances(math.inf))
    slopes = [torch.autograd.grad(each, (x, layer.weight), grad) for each in (found, distances(4.0))]
    assert all(torch.equal(*pair) for pair in zip(*slopes, strict=True))


def test_masks_have_the_published_distribution():
    """One binomial count for all groups, then an independent subset of this size for each group."""
    sources = mask_sources(0, torch.device("cpu"))
    sizes, total = [], torch.zeros(50)
    for _ in range(2000):
        kept = draw_kept(50, 0.8, 3, *sources)
        assert kept.index.shape == (3, kept.index.shape[1])
        assert bool((kept.index.diff(dim=1) > 0).all())
        sizes.append(kept.index.shape[1])
        total.index_add_(0, kept.index[0], torch.ones(kept.index.shape[1]))
    count = torch.tensor(sizes, dtype=torch.float64)
    # A binomial number has mean 40 and variance 8; five standard errors of the mean and of the variance.
    assert abs(count.mean().item() - 40) < 5 * math.sqrt(8 / 2000)
    assert abs(count.var().item() - 8) < 5 * 8 * math.sqrt(2 / 2000)
    assert bool(((total / 2000 - 0.8).abs() < 5 * math.sqrt(0.16 / 2000)).all())
    assert not torch.equal(kept.index[0], kept.index[1])
    assert draw_kept(3, 0.01, 1, *sources).index.shape[1] >= 1


def test_the_mean_of_many_dropout_passes_is_the_sorted_neuron():
    """Of one layer at p = inf: the maximum over the kept inputs, averaged, within five standard errors."""
    torch.manual_seed(0)
    layer = SortDistance(40, 6, keep=0.6).double()
    x = torch.randn(5, 40, dtype=torch.float64)
    sizes = (x.unsqueeze(1) - layer.weight).abs().detach()
    passes = 20_000
    kept = torch.rand(passes, 1, 1, 40, generator=torch.Generator().manual_seed(1)) < 0.6
    maxima = torch.stack([(sizes * mask).amax(2) for mask in kept.squeeze(1)])
    error = maxima.std(0) / math.sqrt(passes)
    # Ten terms have all but 0.4^10 = 1e-4 of the weight.
    assert bool(((maxima.mean(0) - layer(x)).abs() < 5 * error + 2e-4 * sizes.amax(2)).all())
    assert bool((layer(x) < 0.95 * sizes.amax(2)).any())


def test_the_mean_of_many_training_passes_is_the_sorted_net():
    """With one hidden layer and one mask for all samples, only the inputs of the last layer are dropped."""
    torch.manual_seed(0)
    net, images = SortNet(SHAPE, 4, (30,), keep=0.7, identity_init=False).train(), torch.rand(8, *SHAPE)
    with torch.no_grad():
        found = torch.stack([net.dropped(images, seed, group=0) for seed in range(3000)])
        reestimate_means(net, [images])
        logits = net.eval()(images)
    error = found.std(0) / math.sqrt(len(found))
    # Ten terms have all but 0.3^10 = 6e-6 of the weight.
    assert bool(((found.mean(0) - logits).abs() < 5 * error + 1e-4).all())
    assert bool((logits.abs() < found.abs().amax(0) - 20 * error).any())


@given(st.floats(0.01, 1.0), st.integers(1, 16))
def test_factors(keep: float, terms: int):
    factors = [Fraction(factor) for factor in sorted_factors(keep, terms)]
    rate = Fraction(keep)
    exact = [rate * (1 - rate) ** t / (1 - (1 - rate) ** terms) for t in range(terms)]
    assert sum(exact) == 1
    assert 1 - Fraction(terms, 2**24) <= sum(factors) <= 1
    for ours, theirs in itertools.zip_longest(factors, exact, fillvalue=Fraction(0)):
        assert theirs * (1 - Fraction(1, 2**22)) - Fraction(1, 2**140) <= ours <= theirs
    assert all(torch.tensor(float(factor)).double().item() == factor for factor in factors)
    assert 1 <= rounded_steps(sorted_factors(keep, terms)) <= terms + 3


@pytest.mark.parametrize("keep", [0.05, 0.15, 0.5, 0.62, 0.85, 0.97])
@pytest.mark.parametrize("terms", [2, 10, 16])
def test_the_steps_of_a_sum_satisfy_the_inequality_of_the_proof(keep: float, terms: int):
    """In rational arithmetic: all distances are 1, and every difference, product and sum is rounded up."""
    factors, up = [Fraction(factor) for factor in sorted_factors(keep, terms)], 1 + Fraction(1, 2**24)
    total = Fraction(0)
    for factor in reversed(factors):
        total = (total + factor * up * up) * up
    growth = total / sum(factors) - 1
    steps = rounded_steps(sorted_factors(keep, terms))
    underflow = terms * up**terms / 64 * (up - 1)
    assert 1 + growth <= up**steps
    assert 2 * (growth + underflow) / (1 - growth) <= steps * (up - 1) * (1 + up)


def test_finite_p_in_eval_mode_is_scaled():
    net = small_net(0.6, 8.0).eval()
    layer = net.distance_layers()[1]
    x = torch.randn(3, 20)
    expected = 0.6 ** (1 / 8) * torch.linalg.vector_norm(x.unsqueeze(1) - layer.weight, 8.0, dim=2)
    torch.testing.assert_close(layer(x), expected - layer.shift.running_mean)


def test_means_are_those_of_sorted_neurons_without_dropout():
    net, images = small_net(0.5, 8.0).train(), torch.rand(64, *SHAPE)
    for seed in range(5):
        net.dropped(images, seed)
    before = [layer.shift.running_mean.clone() for layer in net.distance_layers()[:-1]]
    batches = images.split(32)
    with means_at_infinity(net, lambda: batches):
        assert not net.training
        x, y = (net.normalize(batch).flatten(1) for batch in batches)
        for layer in net.distance_layers()[:-1]:
            x, y = layer._distance(x), layer._distance(y)
            torch.testing.assert_close(layer.shift.running_mean, (x.mean(0) + y.mean(0)) / 2)
            x, y = x - x.mean(0), y - y.mean(0)
    assert net.training
    assert net.p == 8.0
    assert all(layer.shift.training for layer in net.distance_layers()[:-1])
    for layer, mean in zip(net.distance_layers(), before, strict=False):
        assert torch.equal(layer.shift.running_mean, mean)


def test_an_image_has_the_same_logits_everywhere_in_every_batch():
    net, images = small_net(0.7), torch.rand(40, *SHAPE)
    reestimate_means(net, [images])
    net.eval()
    logits, order = net(images), torch.randperm(40)
    assert torch.equal(net(images[order]), logits[order])
    assert torch.equal(torch.cat([net(image[None]) for image in images]), logits)


def test_the_forward_pass_in_training_draws_new_masks():
    net, images = small_net(0.5).train(), torch.rand(40, *SHAPE)
    torch.manual_seed(3)
    first, second = net(images), net(images)
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(net(images), first)
    assert torch.equal(net.eval()(images), net(images))


def test_saved_and_loaded_it_is_the_same(tmp_path: Path):
    net, images = small_net(0.7, terms=6), torch.rand(10, *SHAPE)
    reestimate_means(net, [images])
    net.eval().save(tmp_path)
    again = SortNet.load(tmp_path)
    assert torch.equal(again(images), net(images))
    assert again.config() == net.config()
    assert (again.keep, again.terms, again.hidden) == (0.7, 6, HIDDEN)
    assert "SortNet" in (tmp_path / "README.md").read_text()
    assert torch.equal(certify_by_margin(again, images).radii, certify_by_margin(net, images).radii)
    with pytest.raises(LinfnetError, match="system 'sortnet'; expected 'linf'"):
        LinfNet.load(tmp_path)
    for key, value in (("keep", 2.0), ("terms", 17), ("terms", 2.5), ("keep", "much")):
        write_table(tmp_path / "config.json", {**net.config(), "class_names": [], key: value})
        with pytest.raises(LinfnetError, match="the config does not describe a net"):
            SortNet.load(tmp_path)
    config = read_table(tmp_path / "config.json") | {"keep": 0.7}
    del config["terms"]
    write_table(tmp_path / "config.json", config)
    with pytest.raises(LinfnetError, match="it lacks 'terms'"):
        SortNet.load(tmp_path)


@pytest.mark.parametrize("options", [{"keep": 0.0}, {"keep": 1.1}, {"keep": math.nan}, {"keep": 0.5, "terms": 0}])
def test_wrong_arguments(options: dict[str, float]):
    with pytest.raises(ArgumentError, match=r"(keep|terms) is"):
        SortDistance(10, 10, **options)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgumentError, match=r"(keep|terms) is"):
        SortNet(SHAPE, 4, (), **options)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgumentError, match="hidden is"):
        SortNet(SHAPE, 4, (3, 0), keep=0.5)
    with pytest.raises(ArgumentError, match="group is -1"):
        small_net(0.5).train().dropped(torch.rand(2, *SHAPE), 0, group=-1)
