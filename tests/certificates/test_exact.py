"""The complete search gives the verdicts of brute force, for exact nets and for the floating-point program."""

import itertools
import math
import os
from fractions import Fraction

import numpy as np
import pytest
import torch
from certificates.exact import all_images, awkward_net, thinned, wrapped_net
from hypothesis import given, settings
from hypothesis import strategies as st

from linfnet.boxes import inner_box
from linfnet.certificates import certified_by_interval, certify, exact_radius
from linfnet.certificates.exact import decide
from linfnet.certificates.exact.circuit import FUNCTIONS, Kind
from linfnet.certificates.exact.nets import circuit_of
from linfnet.certificates.exact.reduced import reduce
from linfnet.certificates.exact.rules import FUNCTIONS as RULES
from linfnet.certificates.exact.rules import largest_input, largest_minuend, smallest_input, smallest_minuend
from linfnet.certificates.exact.search import Box, Search, search_compiled, search_plainly
from linfnet.data import set_info
from linfnet.epsilon import parse_epsilon
from linfnet.errors import ArgumentError
from linfnet.nn import Classifier, LinfNet, LpDistance, LpDistanceConv2d, MeanShift, Nonexpansive, SparseNet, WrappedNet
from linfnet.nn.label_margin import label_on_top
from linfnet.ops.search import has_search
from linfnet.recipes import load_recipe
from linfnet.systems import system_of

SEEDS = st.integers(0, 2**32 - 1)
# All numbers of an exact net are multiples of 1/8; the pixels of brute force are multiples of 1/16.
GRID = 8
IMAGES = 20


def grid_net(seed: int) -> LinfNet:
    """A small net whose constants are multiples of 1/8: float32 rounds nothing."""
    random = np.random.default_rng(seed)
    hidden = tuple(int(width) for width in random.integers(2, 12, random.integers(0, 4)))
    pixels = int(random.integers(1, 7))
    net = LinfNet(
        (1, 1, pixels), 3, hidden, mean=int(random.integers(0, 5)) / GRID, std=float(random.choice([1.0, 2.0])),
        hidden_bias=bool(seed % 2), mean_shift=seed % 3 > 0, negate_logits=seed % 5 > 0, identity_init=False,
    ).eval()  # fmt: skip
    with torch.no_grad():
        for name, tensor in net.state_dict().items():
            if name != "scale":
                tensor.copy_(torch.from_numpy(random.integers(-GRID, GRID + 1, tuple(tensor.shape)) / GRID))
    return net


def exact_logits(net: LinfNet | SparseNet, images: np.ndarray) -> np.ndarray:
    """Logits of images [n, pixels] in integers: images are in units of 1/16, the result in units of 1/64."""
    unit = 64
    mean, std = (int(Fraction(float(value)) * unit) for value in (net.normalize.mean[0], net.normalize.std))
    x = (4 * images - mean) * unit // std
    for layer in net.layers:
        weight = (layer.weight.detach().double() * unit).long().numpy()
        if isinstance(net, LinfNet):
            x = np.abs(x[:, None] - weight).max(2)
        else:
            size, ends = np.abs(x[:, layer.index.numpy()] - weight), layer.offsets.tolist()
            x = np.stack([size[:, a:b].max(1) for a, b in itertools.pairwise(ends)], 1)
        for vector, sign in ((None if layer.shift is None else layer.shift.running_mean, -1), (layer.bias, 1)):
            if vector is not None:
                x = x + sign * (vector.detach().double() * unit).long().numpy()
    return -x if net.negate_logits else x


def is_broken(net: LinfNet | SparseNet, image: np.ndarray, label: int, steps: int) -> bool:
    """Whether the label is not strictly on top for an image of the grid within steps / 16."""
    sides = [np.arange(max(0, pixel - steps), min(16, pixel + steps) + 1) for pixel in image]
    logits = exact_logits(net, np.stack(np.meshgrid(*sides, indexing="ij"), -1).reshape(-1, len(image)))
    others = np.delete(logits, label, 1).max(1)
    return bool((others >= logits[:, label]).any())


def check_witnesses(net: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor, found, eps: Fraction) -> None:
    for image, label, witness, broken in zip(images, labels, found.witness, found.broken, strict=True):
        if broken:
            change = [
                abs(Fraction(a) - Fraction(b))
                for a, b in zip(image.flatten().tolist(), witness.flatten().tolist(), strict=True)
            ]
            assert max(change) <= eps
            assert witness.min() >= 0
            assert witness.max() <= 1
            assert not label_on_top(net(witness[None]), label[None]).item()
        else:
            assert torch.equal(image, witness)


def check_brute_force(seed: int) -> None:
    """Every comparison of an exact net is +-x_i +- x_j <= c: if it has a solution, it has one in multiples of 1/16."""
    dense = grid_net(seed)
    net = thinned(dense, seed) if seed % 2 else dense
    random = np.random.default_rng(seed + 1)
    pixels = 2 * random.integers(0, GRID + 1, (IMAGES, net.image_shape[2]))
    images = torch.from_numpy(pixels / 16).float().view(IMAGES, *net.image_shape)
    labels = net(images).argmax(1) if seed % 4 else torch.from_numpy(random.integers(0, 3, IMAGES))
    steps = 2 * int(random.integers(0, (5, 5, 5, 5, 3, 2, 2)[pixels.shape[1]]))
    found = decide(net, images, labels, Fraction(steps, 16))
    expected = [is_broken(net, image, int(label), steps) for image, label in zip(pixels, labels, strict=True)]
    assert found.broken.tolist() == expected
    assert not found.undecided.any()
    check_witnesses(net, images, labels, found, Fraction(steps, 16))


@pytest.mark.slow
@settings(max_examples=int(os.environ.get("LINFNET_EXACT_EXAMPLES", "60")), deadline=None)
@given(SEEDS)
def test_verdicts_equal_brute_force_on_exact_nets(seed: int):
    check_brute_force(seed)


@pytest.mark.slow
def test_verdicts_of_the_search_in_numpy_equal_brute_force(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("linfnet.certificates.exact.search.has_search", lambda: False)
    for seed in range(40):
        check_brute_force(seed)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(SEEDS, st.sampled_from([0, 3, 12]))
def test_verdicts_equal_all_float32_images_of_small_boxes(seed: int, widest: int):
    """Also where every operation rounds: 'robust' and 'broken' are about the bits that the program computes."""
    net = awkward_net(seed, widest, (1, 1, 2))
    net = thinned(net, seed) if seed % 2 else net
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(12, 1, 1, 2, generator=generator)
    images[0], images[1] = 0.0, 1.0
    images[2:4] = 2.0**-145
    for k, image in enumerate(images):
        eps = Fraction(12 * float(image.max()) / 2**24) if k not in (0, 2, 3) else Fraction(12, 2**149)
        every = all_images(image, eps)
        # Add a number to the bias of the rival, so that the margin is up to twice the change of a logit.
        logits = net(image[None])[0].detach()
        label, rival = logits.argsort(descending=True)[:2]
        change = (net(every).detach() - logits).abs().max()
        shift = (logits[label] - logits[rival] - change * k / 5) * (1 - 2 * net.negate_logits)
        net.layers[-1].bias.data[rival] += shift
        labels = label.expand(len(every))
        found = decide(net, image[None], label[None], eps)
        expected = not bool(label_on_top(net(every), labels).all())
        net.layers[-1].bias.data[rival] -= shift
        assert not found.undecided.any()
        assert found.broken.item() == expected


def random_case() -> tuple[LinfNet, torch.Tensor]:
    """A net and images of which some are decided by intervals and others are not."""
    torch.manual_seed(0)
    return LinfNet((1, 4, 4), 3, (40, 40), std=0.5, identity_init=False).eval(), torch.rand(30, 1, 4, 4)


def test_images_that_intervals_decide_are_not_searched():
    net, images = random_case()
    labels = net(images).argmax(1)
    found = decide(net, images, labels, "0.1")
    certified = certified_by_interval(net, images, labels, "0.1")
    assert found.robust[certified].all()
    assert not found.branches[certified].any()
    assert found.branches[~certified].any()


def test_a_budget_ends_the_search():
    """A label is undecided, and never called robust, if its search is not finished."""
    net, images = random_case()
    whole, short = decide(net, images, eps="0.2"), decide(net, images, eps="0.2", branches=1)
    assert not whole.undecided.any()
    assert short.undecided.any()
    assert (short.branches <= 1).all()
    assert not (short.robust & whole.broken).any()
    assert not (short.broken & whole.robust).any()


def test_a_witness_of_an_attack_ends_the_search():
    net, images = random_case()
    found = decide(net, images, eps="0.2")
    again = decide(net, images, eps="0.2", witness=found.witness)
    assert torch.equal(found.broken, again.broken)
    assert not again.branches[again.broken].any()
    # Images outside of the ball are not accepted as witnesses.
    assert torch.equal(
        decide(net, images, eps="0.01", witness=found.witness).broken, decide(net, images, eps="0.01").broken
    )


@pytest.mark.parametrize("eps", [None, "2", "-1"])
def test_an_epsilon_is_needed(eps: object):
    with pytest.raises(ArgumentError, match="eps"):
        decide(awkward_net(1, 3), torch.rand(1, 1, 1, 3), eps=eps)


def test_float64_nets_are_refused():
    with pytest.raises(ArgumentError, match=r"torch.float64; expected torch.float32"):
        decide(awkward_net(1, 3).double(), torch.rand(1, 1, 1, 3).double(), eps="0.1")


class Everything(torch.nn.Module):
    """Every operation that has a rule, on images [1, 4, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = LpDistanceConv2d(1, 4, 2, padding=1, groups=1, mean_shift=True, bias=True)
        self.grouped = LpDistanceConv2d(4, 2, 2, groups=2, stride=2)
        self.pool, self.shift, self.last = torch.nn.MaxPool2d(2, 1), MeanShift(2, dim=1), LpDistance(6, 3, bias=True)
        self.register_buffer("levels", torch.tensor([[0.3, 0.5]]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.relu6(torch.nn.functional.pad(x, (1, 0, 0, 1), value=0.25)) - 0.125
        y = self.shift(self.grouped(self.pool(self.conv(y[:, :, :4, 1:]))))
        flat = y.flatten(1).reshape(y.size(0), 2, -1)
        wide, narrow = flat.amax(2), flat.amin(2, keepdim=True).squeeze(2)
        parts = [torch.maximum(-wide, narrow) * -0.5, torch.minimum(wide + self.levels, 0.75 - narrow) / 2]
        third = torch.nn.functional.hardtanh(abs(narrow).clamp(max=0.9), 0.1, 0.8)
        return -self.last(torch.cat([*parts, torch.max(third, self.levels)], 1))


def wrapped(seed: int) -> WrappedNet:
    torch.manual_seed(seed)
    body = Everything().eval()
    with torch.no_grad():
        for tensor in body.state_dict().values():
            tensor.copy_(torch.randn(tensor.shape) / 2)
    return Classifier.wrap(body, image_shape=(1, 4, 4), classes=3, mean=0.4, std=0.5)


@pytest.mark.parametrize("seed", range(4))
def test_wrapped_nets_are_decided(seed: int):
    """The circuit computes the bits of the net; robust images survive attacks and witnesses break."""
    net, generator = wrapped(seed), torch.Generator().manual_seed(seed)
    circuit, images = circuit_of(net), torch.rand(20, 1, 4, 4, generator=generator)
    values = circuit.bounds(images.flatten(1), images.flatten(1))[0][:, circuit.outputs]
    assert torch.equal(values, net(images))
    labels = net(images).argmax(1)
    for eps in ("0.02", "0.1", "0.3"):
        found = decide(net, images, labels, eps)
        assert not found.undecided.any()
        check_witnesses(net, images, labels, found, parse_epsilon(eps))
        for image, label in zip(images[found.robust], labels[found.robust], strict=True):
            low, high = inner_box(image[None], parse_epsilon(eps))
            corners = torch.rand(500, 1, 4, 4, generator=generator).round() * (high - low) + low
            inside = torch.cat([corners, torch.rand(500, 1, 4, 4, generator=generator) * (high - low) + low])
            assert label_on_top(net(inside.clamp(low, high)), label.expand(1000)).all()


@settings(max_examples=15, deadline=None)
@given(SEEDS)
def test_wrapped_nets_equal_all_float32_images_of_small_boxes(seed: int):
    net = wrapped_net(seed - seed % 3, 3)  # vectors of two numbers
    image = torch.rand(1, 2, generator=torch.Generator().manual_seed(seed))
    label, eps = net(image).argmax(1), Fraction(6 * float(image.max()) / 2**24)
    every = all_images(image[0], eps)
    found = decide(net, image, label, eps)
    assert not found.undecided.any()
    assert found.robust.item() == bool(label_on_top(net(every), label.expand(len(every))).all())


class Halve(Nonexpansive):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / 2

    def bounds(self, lower: torch.Tensor, upper: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self(lower), self(upper)

    def measure(self, x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        return self(x), [self(x).abs().flatten(1).amax(1)]


@pytest.mark.parametrize("layer", [torch.nn.AvgPool2d(2), Halve()])
def test_operations_without_a_rule_are_named(layer: torch.nn.Module):
    body = torch.nn.Sequential(
        layer, torch.nn.Flatten(), LpDistance(4 if isinstance(layer, torch.nn.AvgPool2d) else 16, 2)
    )
    net = Classifier.wrap(body.eval(), image_shape=(1, 4, 4), classes=2)
    with pytest.raises(
        ArgumentError, match=rf"body contains {type(layer).__name__} \('0'\), which method 'exact' cannot"
    ):
        decide(net, torch.rand(1, 1, 4, 4), eps="0.1")


def test_exact_radii_are_between_proofs_and_witnesses():
    net, images = random_case()
    labels = torch.where(torch.arange(30) < 25, net(images).argmax(1), 0)
    found = exact_radius(net, images, labels, width="0.01")
    right = label_on_top(net(images), labels)
    assert (found.radius[~right] == -torch.inf).all()
    assert (found.broken_at[~right] == 0).all()
    assert not found.undecided.any()
    assert (found.broken_at - found.radius <= 0.01)[right].all()
    assert (found.radius >= certify(net, images, labels).radius).all()
    assert decide(net, images[right], labels[right], found.radius[right]).robust.all()
    broken = right & found.broken_at.isfinite()
    assert broken.any()
    assert not label_on_top(net(found.witness[broken]), labels[broken]).any()
    change = (found.witness - images).double().abs().flatten(1).amax(1)
    assert (change <= found.broken_at)[broken].all()


@pytest.mark.parametrize("compiled", [True, False])
def test_an_image_in_the_last_branch_is_found(compiled: bool, monkeypatch: pytest.MonkeyPatch):
    """The first branches of this net are empty, and no image breaks it that is tried before."""
    if not compiled:
        monkeypatch.setattr("linfnet.certificates.exact.search.has_search", lambda: False)
    torch.manual_seed(191)
    net = LinfNet((1, 1, 2), 3, (8,), std=0.5, identity_init=False).eval()
    image = torch.tensor([0.8177927732467651, 0.2998335361480713]).view(1, 1, 1, 2)
    witness = torch.tensor([0.5247809290885925, 0.5965802669525146]).view(1, 1, 1, 2)
    assert (image - witness).abs().max() < 0.3
    assert not label_on_top(net(witness), net(image).argmax(1)).item()
    found = decide(net, image, eps="0.3")
    assert found.broken.item()
    assert found.branches.item() > 1


def test_the_halves_of_an_interval_contain_all_its_numbers():
    net, images = random_case()
    circuit = circuit_of(net)
    low, high = (end.numpy()[0] for end in circuit.bounds(*inner_box(images[:1].flatten(1), Fraction(1, 5))))
    search = Search(reduce(circuit, low, high, (0, 1)), 0, 1, images[0].numpy())
    for ends in ((-1.0, 1.0), (1.0, 1.5), (1.0, 1.0 + 2**-23), (-(2.0**-149), 2.0**-149)):
        least, most = map(np.float32, ends)
        upper, lower = search._split(Box(low, high, least, most), [])
        assert (lower.least, upper.most) == (least, most)
        assert lower.least <= lower.most < upper.least <= upper.most
        assert np.nextafter(lower.most, upper.least) == upper.least


def test_inverses_are_exact():
    """The largest z with f(z) <= u, and the smallest with f(z) >= u, for numbers of all magnitudes."""
    random = np.random.default_rng(0)
    w, u = (np.ldexp(random.uniform(-2, 2, 3000), random.integers(-140, 100, 3000)).astype(np.float32) for _ in "wu")
    w[:1000], w[1000:2000] = u[:1000] * random.uniform(-2, 2, 1000), 0.0
    largest, smallest = largest_minuend(w, u), smallest_minuend(w, u)
    assert (largest - w <= u).all()
    assert (np.nextafter(largest, np.float32(np.inf)) - w > u).all()
    assert (smallest - w >= u).all()
    assert (np.nextafter(smallest, np.float32(-np.inf)) - w < u).all()
    w, low, high = np.full(3000, 0.7, np.float32), np.full(3000, -9.0, np.float32), np.full(3000, 9.0, np.float32)
    u = random.uniform(-6, 6, 3000).astype(np.float32)
    for kind in (Kind.SUBTRACT, Kind.DIVIDE, Kind.MULTIPLY):
        function = RULES[kind]
        largest, smallest = largest_input(kind, w, u, low, high), smallest_input(kind, w, u, low, high)
        assert (function(largest, w) <= u).all()
        assert ((function(np.nextafter(largest, np.float32(99)), w) > u) | (largest == high)).all()
        assert (function(smallest, w) >= u).all()
        assert ((function(np.nextafter(smallest, np.float32(-99)), w) < u) | (smallest == low)).all()


def test_a_circuit_that_computes_other_bits_is_refused(monkeypatch: pytest.MonkeyPatch):
    net = Classifier.wrap(torch.nn.Sequential(torch.nn.ReLU(), LpDistance(2, 2)).eval(), (2,), 2, mean=(0.5, 0.5))
    decide(net, torch.rand(3, 2), eps="0.1")
    monkeypatch.setitem(FUNCTIONS, Kind.AT_LEAST, torch.minimum)
    with pytest.raises(ArgumentError, match="body computes other bits than its rules"):
        decide(net, torch.rand(3, 2), eps="0.1")


@pytest.mark.parametrize("compiled", [True, False])
def test_overflow_is_never_robust(compiled: bool, monkeypatch: pytest.MonkeyPatch):
    """From 8 - 2^-21 to 8, every layer jumps to the next power of two, and the fifth to infinity."""
    if not compiled:
        monkeypatch.setattr("linfnet.certificates.exact.search.has_search", lambda: False)
    net = LinfNet((1, 1, 1), 2, (1,) * 5, std=1 / 8, mean_shift=False, identity_init=False).eval()
    largest = torch.finfo(torch.float32).max
    with torch.no_grad():
        for layer, exponent in zip(net.layers, (28, 53, 78, 103, 128), strict=False):
            layer.weight.fill_(-(2.0**exponent - 2.0 ** (exponent - 24)))
        net.layers[-1].weight.copy_(torch.tensor([[largest], [0.0]]))
    image = torch.full((1, 1, 1, 1), 1 - 2.0**-24)
    assert not decide(net, image, eps=Fraction(1, 2**20)).robust.any()


def test_certify_with_method_exact():
    net, images = random_case()
    found = certify(net, images, method="exact", eps="0.1")
    assert torch.equal(found.robust, decide(net, images, eps="0.1").robust)
    assert repr(found).startswith("Decided(30 images: ")
    with pytest.raises(ArgumentError, match=r"eps is 0.1 for method 'margin'; expected eps only with 'exact'"):
        certify(net, images, method="margin", eps=0.1)


@given(SEEDS)
@settings(max_examples=30, deadline=None)
def test_both_searches_agree(seed: int):
    """The search in NumPy and the kernel have the same verdicts."""
    if not has_search():
        pytest.skip("the kernels are not compiled")
    torch.manual_seed(seed)
    net = LinfNet((1, 3, 3), 3, (8, 8), std=0.5, identity_init=False).eval()
    image = torch.rand(1, 9)
    circuit = circuit_of(net)
    low, high = (end.numpy()[0] for end in circuit.bounds(*inner_box(image, Fraction(1, 5))))
    own = int(net(image.view(1, 1, 3, 3)).argmax())
    for rival in {0, 1, 2} - {own}:
        part = reduce(circuit, low, high, (own, rival))
        results = [
            run(part, image.numpy()[0][part.pixels], 5000, math.inf) for run in (search_plainly, search_compiled)
        ]
        assert results[0].robust == results[1].robust
        assert (results[0].image is None) == (results[1].image is None)
        assert all(result.robust or result.image is not None for result in results)


def test_the_search_in_numpy_decides_without_compiled_kernels(monkeypatch: pytest.MonkeyPatch):
    net, images = random_case()
    compiled = decide(net, images, eps="0.2")
    monkeypatch.setattr("linfnet.certificates.exact.search.has_search", lambda: False)
    plain = decide(net, images, eps="0.2")
    assert torch.equal(compiled.robust, plain.robust)
    assert torch.equal(compiled.broken, plain.broken)


@pytest.mark.parametrize("name", ["mnist-0.3-hybrid", "mnist-0.3-ibp", "cifar10-smoothing"])
def test_nets_of_other_systems_are_refused(name: str):
    recipe = load_recipe(name, ["model.width=16"])
    net = system_of(recipe).build(recipe, set_info(recipe.data.name))
    with pytest.raises(ArgumentError, match="expected an l_inf-distance net"):
        decide(net, torch.rand(1, *net.image_shape), eps="0.1")
