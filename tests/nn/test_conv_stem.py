"""Nets with convolutional layers before the fully connected ones."""

import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from linfnet import attack, certify, compress, load, load_model
from linfnet.certificates import certify_images, decide
from linfnet.errors import ArgumentError, LinfnetError
from linfnet.export import verify_onnx, write_onnx
from linfnet.files import read_table, write_table
from linfnet.nn import Classifier, ConvStemNet, MeanShift, SparseNet, reestimate_means
from linfnet.recipes import load_recipe
from linfnet.systems import system_of


def small_net(shape: tuple[int, int, int] = (3, 8, 8), p: float = math.inf, convolutions: int = 2) -> ConvStemNet:
    torch.manual_seed(0)
    return ConvStemNet(
        shape, 4, (16, 16), channels=4 * shape[0], convolutions=convolutions, mean=0.4, std=0.5, p=p
    )  # fmt: skip


def random_net(shape: tuple[int, int, int] = (3, 8, 8)) -> ConvStemNet:
    """Return a net in eval mode with weights of the size of its inputs, so that all layers matter."""
    net = small_net(shape)
    with torch.no_grad():
        for layer in [*net.stem, *net.layers]:
            layer.weight.normal_()
    reestimate_means(net, [torch.rand(64, *shape)])
    return net.eval()


@pytest.mark.parametrize("convolutions", [1, 3])
def test_the_stem_is_initially_a_permutation_of_the_pixels(convolutions: int):
    net = small_net(convolutions=convolutions).train()
    for layer in net.stem:
        layer.weight.data[layer.weight > -10] = 0
    images = torch.rand(200, 3, 8, 8)
    with torch.no_grad():
        features, pixels = net.stem(images).flatten(1), images.flatten(1)
    gaps = (features - features.mean(0)).T[:, None] - (pixels - pixels.mean(0)).T[None]
    nearest = gaps.abs().amax(2).min(1)
    assert bool((nearest.values < 1e-5).all())
    assert torch.equal(nearest.indices.sort().values, torch.arange(192))


@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 7, 5), (2, 2, 3)], ids=str)
def test_bounds_contain_the_logits_of_all_images_of_a_box(shape: tuple[int, int, int]):
    net, images = random_net(shape), torch.rand(20, *shape)
    for size in (0.0, 0.01, 0.1):
        lower, upper = (images - size).clamp(min=0), (images + size).clamp(max=1)
        low, high = net.bounds(lower, upper)
        for _ in range(20):
            inside = torch.where(torch.rand_like(images) < 0.5, lower, upper)
            logits = net(inside)
            assert bool((low <= logits).all())
            assert bool((logits <= high).all())


def test_logits_change_at_most_as_fast_as_pixels():
    net = random_net().double()
    images = torch.rand(200, 3, 8, 8, dtype=torch.float64)
    for size in (1e-3, 0.05, 0.5):
        moved = (images + size * (torch.rand_like(images) * 2 - 1).sign()).clamp(0, 1)
        distance = (moved - images).flatten(1).abs().amax(1)
        change = (net(moved) - net(images)).abs().amax(1)
        assert bool((change <= net.lipschitz * distance * (1 + 1e-12)).all())
    assert change.max() > 0.1  # the net is not constant


def test_no_attack_breaks_a_certificate():
    net, images = random_net(), torch.rand(64, 3, 8, 8)
    proof = certify(net, images)
    assert bool((proof.radius > 0).any())
    for eps in (Fraction(1, 100), Fraction(1, 20)):
        found = attack(net, images, proof.prediction, eps)
        assert not bool((proof.at(eps) & found.success).any())


class Body(nn.Module):
    """The layers of a net as a module of a user."""

    def __init__(self, net: ConvStemNet) -> None:
        super().__init__()
        self.stem, self.layers = net.stem, net.layers

    def forward(self, x: Tensor) -> Tensor:
        return -self.layers(self.stem(x).flatten(1))


def test_certificates_are_those_of_the_same_wrapped_layers():
    net, images = random_net(), torch.rand(20, 3, 8, 8)
    wrapped = Classifier.wrap(Body(net), image_shape=(3, 8, 8), classes=4, mean=0.4, std=0.5).eval()
    ours, theirs = certify(net, images), certify(wrapped, images)
    assert torch.equal(net(images), wrapped(images))
    assert torch.equal(ours.radius, theirs.radius)
    eps = [Fraction(1, 100), Fraction(1, 20)]
    found, expected = (certify_images(each, [(images, ours.prediction)], eps) for each in (net, wrapped))
    assert torch.equal(found.radii["margin"], expected.radii["margin"])
    assert torch.equal(found.certified["interval"], expected.certified["interval"])


def test_means_are_those_of_channels():
    net = small_net(p=8.0).train()
    net(torch.rand(32, 3, 8, 8))
    assert [layer.shift.running_mean.shape for layer in net.stem] == [(12,), (12,)]
    assert bool((net.stem[0].shift.running_mean != 0).all())


def test_a_saved_net_is_loaded(tmp_path: Path):
    net = random_net()
    net.save(tmp_path)
    loaded, images = load_model(tmp_path), torch.rand(5, 3, 8, 8)
    assert isinstance(loaded, ConvStemNet)
    assert torch.equal(loaded(images), net(images))
    assert loaded.settings() == net.settings()


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("convolutions", 10**4, "convolutions is 10000; expected a whole number from 1 to 16"),
        ("channels", 0, "channels is 0; expected a whole number of at least 1"),
        ("channels", 4.5, "channels is 4.5; expected a whole number of at least 1"),
        ("channels", 13, r"'layers.0.weight'.* has shape"),
        ("hidden", [0], "expected a sequence of widths above 0"),
    ],
)
def test_a_changed_config_is_refused(key: str, value: object, complaint: str, tmp_path: Path):
    random_net().save(tmp_path)
    config = {name: each for name, each in read_table(tmp_path / "config.json").items() if name != "digest"}
    write_table(tmp_path / "config.json", {**config, key: value})
    with pytest.raises(LinfnetError, match=complaint):
        load_model(tmp_path)


@pytest.mark.parametrize("shape", [(3,), (3, 1, 8), (3, 8, 1)], ids=str)
def test_images_that_do_not_fit_are_refused(shape: tuple[int, ...]):
    with pytest.raises(ArgumentError, match=r"expected \(C, H, W\) with H and W of at least 2"):
        ConvStemNet(shape, 2, channels=4)


@pytest.mark.parametrize("channels", [4.0, "4", None, True])
def test_channels_are_whole_numbers(channels: Any):
    with pytest.raises(ArgumentError, match=r"channels is .*; expected a whole number of at least 1"):
        ConvStemNet((1, 8, 8), 2, channels=channels)


@pytest.mark.parametrize(
    ("replace", "complaint"),
    [
        (lambda net: net.stem.__setitem__(1, MeanShift(12, dim=1)), "a layer of the net is not an LpDistanceConv2d"),
        (lambda net: net.layers.__setitem__(1, MeanShift(16)), "a layer of the net is not an LpDistance;"),
        (lambda net: setattr(net, "layers", nn.Sequential()), "a layer of the net is not an LpDistance;"),
    ],
    ids=["stem", "layers", "empty"],
)
def test_a_replaced_layer_is_refused(replace: Callable[[ConvStemNet], None], complaint: str):
    net = random_net()
    replace(net)
    with pytest.raises(ArgumentError, match=complaint):
        certify(net, torch.rand(2, 3, 8, 8))


def test_exact_decisions_are_those_of_the_same_wrapped_layers():
    net, images = random_net((1, 4, 4)), torch.rand(6, 1, 4, 4)
    wrapped = Classifier.wrap(Body(net), image_shape=(1, 4, 4), classes=4, mean=0.4, std=0.5).eval()
    by_margin = certify(net, images)
    for eps in ("0.02", "0.1"):
        ours, theirs = (certify(each, images, eps=eps, method="exact") for each in (net, wrapped))
        assert torch.equal(ours.robust, theirs.robust)
        assert bool((ours.robust | ~by_margin.at(eps)).all())
        assert bool((ours.robust | ours.broken).all())


def test_methods_of_other_nets_refer_to_the_function():
    with pytest.raises(LinfnetError, match=r"a ConvStemNet is certified by a function: linfnet\.certify"):
        random_net().certified(torch.rand(1, 3, 8, 8), torch.tensor([0]), Fraction(1, 100))


def test_the_recipe_selects_channels_and_convolutions():
    recipe = load_recipe("mnist-cpu-conv-stem", ["data.name=digits", "model.width=8", "system.convolutions=3"])
    net = system_of(recipe).build(recipe, load("digits").info)
    assert isinstance(net, ConvStemNet)
    assert (net.stem.channels, net.stem.convolutions, net.layers[0].in_features) == (4, 3, 64)
    recipe = load_recipe("mnist-cpu-conv-stem", ["data.name=digits", "system.channels=9"])
    assert system_of(recipe).build(recipe, load("digits").info).stem.channels == 9


@pytest.fixture(scope="module")
def images() -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(1)
    return torch.rand(300, 3, 8, 8, generator=source), torch.randint(4, (300,), generator=source)


@pytest.fixture(scope="module")
def small(images: tuple[Tensor, Tensor]) -> SparseNet:
    return compress(random_net(), images, eps=Fraction(1, 50), passes=1, check=images).net


def test_compressed_counted_images_have_identical_logits(small: SparseNet, images: tuple[Tensor, Tensor]):
    net = random_net()
    assert torch.equal(small(images[0]), net(images[0]))
    assert sum(layer.connections for layer in small.layers) < sum(layer.weight.numel() for layer in net.layers)
    ours, theirs = certify(small, images[0]), certify(net, images[0])
    assert torch.equal(ours.prediction, theirs.prediction)
    assert bool((ours.radius > 0).any())
    torch.testing.assert_close(ours.radius, theirs.radius, rtol=1e-4, atol=1e-6)
    with torch.no_grad():
        roundings = [each.measure(images[0])[1] for each in (net, small)]
    assert roundings[0].steps == roundings[1].steps
    assert bool((roundings[1].total() >= 0.9 * roundings[0].total()).all())  # neurons that are not read are left out


def test_a_compressed_net_is_saved_and_loaded(small: SparseNet, images: tuple[Tensor, Tensor], tmp_path: Path):
    small.save(tmp_path)
    loaded = load_model(tmp_path)
    assert torch.equal(loaded(images[0]), small(images[0]))
    assert small.saved_size() == (tmp_path / "model.safetensors").stat().st_size
    assert "2 convolutional layers" in loaded.describe()
    again = compress(loaded, images, eps=Fraction(1, 50), at_least=3, passes=1, check=images)
    assert sum(again.after.connections) < sum(again.before.connections)
    config = read_table(tmp_path / "config.json")
    for changes in ({"channels": 10**9}, {"channels": 13}, {"channels": "many"}, {"convolutions": 3}):
        write_table(tmp_path / "config.json", {**config, **changes})
        with pytest.raises(LinfnetError):
            load_model(tmp_path)
    for key in ("channels", "convolutions"):
        write_table(tmp_path / "config.json", {name: value for name, value in config.items() if name != key})
        with pytest.raises(LinfnetError):
            load_model(tmp_path)


def test_no_image_in_a_ball_leaves_the_bounds_of_a_compressed_net(small: SparseNet, images: tuple[Tensor, Tensor]):
    x = images[0][:20]
    lower, upper = (x - 0.05).clamp(min=0), (x + 0.05).clamp(max=1)
    low, high = small.bounds(lower, upper)
    for _ in range(20):
        logits = small(torch.where(torch.rand_like(x) < 0.5, lower, upper))
        assert bool(((low <= logits) & (logits <= high)).all())


def test_attacks_and_the_exact_method_on_a_compressed_net(small: SparseNet, images: tuple[Tensor, Tensor]):
    x, eps = images[0][:30], Fraction(1, 20)
    proof = certify(small, x)
    found = decide(small, x, proof.prediction, eps)
    assert bool((proof.at(eps) <= found.robust).all())
    assert not bool((found.robust & attack(small, x, proof.prediction, eps).success).any())
    assert bool(found.robust.any())
    assert bool(found.broken.any())


@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 7, 5)], ids=str)
def test_onnx_files_are_equal_bit_for_bit(shape: tuple[int, int, int], tmp_path: Path):
    net, images = random_net(shape), torch.rand(20, *shape)
    labels = torch.randint(4, (20,))
    small = compress(net, (images, labels), passes=1, check=(images, labels)).net
    for number, each in enumerate((net, small)):
        write_onnx(each, tmp_path / f"{number}.onnx")
        verify_onnx(each, tmp_path / f"{number}.onnx", torch.rand(20, *shape))
