"""SortNet + MLP: published recipes, a loss that equals its definition, dropout of features, and sound certificates."""

import math
from fractions import Fraction
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from systems.small import check_least_margin
from torch import Tensor

from benchmarks.outward import search
from linfnet import load, load_model
from linfnet.boxes import inner_box
from linfnet.errors import ArgumentError
from linfnet.nn import LpDistance, SortDistance, SortNet, reestimate_means
from linfnet.recipes import Recipe, load_recipe
from linfnet.systems import system_of
from linfnet.systems.hybrid import HybridNet
from linfnet.systems.sortnet_mlp import SortMlpNet, SortnetMlp
from linfnet.train import Trainer, step_state

SHAPE, HIDDEN = (1, 3, 3), (14, 12)


def small_net(seed: int = 0, keep: float = 0.6) -> SortMlpNet:
    torch.manual_seed(seed)
    net = SortMlpNet(SHAPE, 4, HIDDEN, 5, keep=keep, mean=0.4, std=0.5)
    reestimate_means(net, [torch.rand(40, *SHAPE)])
    return net.eval()


def test_recipes_are_the_published_ones():
    near, far = load_recipe("cifar10-2-sortnet-mlp"), load_recipe("cifar10-8-sortnet-mlp")
    eps = Fraction(11, 10)
    assert system_of(near) == SortnetMlp(keep=0.7, eps_train=eps * Fraction(2, 255))
    assert system_of(far) == SortnetMlp(keep=0.6, eps_train=eps * Fraction(8, 255))
    for recipe in (near, far):
        system = system_of(recipe)
        assert isinstance(system, SortnetMlp)
        assert (system.terms, system.group, system.hidden, system.identity_init) == (10, 32, 512, False)
        assert (system.mixing_start, system.mixing_end) == (1.0, 0.01)
        assert system.ramp * recipe.schedule.epochs[0] == 500
        assert (recipe.model.depth, recipe.model.width, recipe.schedule.epochs) == (5, 5120, (200, 2750, 50))
        assert (recipe.data.name, recipe.data.pad, recipe.data.flip) == ("cifar10", 3, True)
        optimizer = recipe.optimizer
        assert (optimizer.beta1, optimizer.beta2, optimizer.eps, optimizer.batch) == (0.9, 0.99, 1e-10, 512)
        assert (optimizer.lr, optimizer.scale_lr_factor, optimizer.scale_decay) == (0.02, 1.0, 0.02)
        assert optimizer.weight_decay == 0
    reported = [(each.reported.clean, each.reported.pgd, each.reported.certified) for each in (near, far)]
    assert reported == [(67.72, 57.83, 56.94), (54.13, 41.58, 39.99)]


def test_without_dropout_it_is_the_hybrid_net_bit_for_bit():
    net, plain = small_net(keep=1.0).train(), HybridNet(SHAPE, 4, HIDDEN, 5, mean=0.4, std=0.5)
    plain.load_state_dict({key: value for key, value in net.state_dict().items() if key != "scale"})
    images, labels = torch.rand(20, *SHAPE), torch.randint(4, (20,))
    for p in (8.0, math.inf):
        net.p = plain.p = p
        for run in (net, lambda x: net.head(net.dropped(x, 3, group=7))):
            logits, expected = run(images), plain(images)
            assert torch.equal(logits, expected)
            slopes = [
                torch.autograd.grad(out.sum(), list(own.layers.parameters()))
                for out, own in ((logits, net), (expected, plain))
            ]
            assert all(torch.equal(*pair) for pair in zip(*slopes, strict=True))
    net.eval(), plain.eval()
    assert torch.equal(net(images), plain(images))
    box = images - 0.1, images + 0.1
    assert torch.equal(net.least_margin(*box, labels), plain.least_margin(*box, labels))


def test_features_are_the_inputs_of_the_last_layer_of_a_sortnet():
    """A SortNet whose last layer would not drop its inputs: the same masks before it, all features after it."""
    net, images = small_net().train(), torch.rand(10, *SHAPE)
    features = net.dropped(images, 7, group=4)
    assert features.shape == (10, HIDDEN[-1])
    torch.testing.assert_close(features.mean(0), torch.zeros(HIDDEN[-1]), atol=1e-5, rtol=0)
    short = SortNet(SHAPE, HIDDEN[-1], HIDDEN[:1], keep=0.6, mean=0.4, std=0.5, p=math.inf).train()
    short.layers[0].load_state_dict(net.layers[0].state_dict())
    with torch.no_grad():
        short.layers[1].weight.copy_(net.layers[1].weight)
    distances = -short.dropped(images, 7, group=4)
    torch.testing.assert_close(features, distances - distances.mean(0))
    assert torch.equal(net.dropped(images, 7, group=4), features)
    assert not torch.equal(net.dropped(images, 8, group=4), features)
    torch.manual_seed(1)
    first = net(images)
    assert not torch.equal(net(images), first)
    assert torch.equal(net.eval()(images), net(images))


def test_means_are_those_without_dropout():
    net, images = small_net().train(), torch.rand(30, *SHAPE)
    reestimate_means(net, [images])
    x = net.normalize(images).flatten(1)
    for layer in net.distance_layers():
        x = layer._distance_at(x, math.inf)
        torch.testing.assert_close(layer.shift.running_mean, x.mean(0))
        x = x - x.mean(0)


def small(*changes: str) -> Recipe:
    return load_recipe("cifar10-8-sortnet-mlp", ["epochs=[20, 60, 20]", *changes])


@pytest.mark.parametrize("epoch", [0, 10, 20, 30, 50, 80, 99])
def test_the_loss_is_its_definition(epoch: int):
    recipe, net, steps = small("system.group=0"), small_net().train(), 4
    system, state = system_of(recipe), step_state(recipe, steps * epoch, steps)
    assert isinstance(system, SortnetMlp)
    with torch.no_grad():
        net.scale.fill_(1.7)
    images, labels = torch.rand(30, *SHAPE), torch.randint(4, (30,))
    loss, logits = system.loss(recipe, net, images, labels, state)
    features = net.dropped(images, recipe.run.seed + epoch * 2**20, group=0)
    torch.testing.assert_close(logits, net.head(features))
    # eps rises within 50 epochs: the fourth power for 20 epochs, then a line with the same slope there.
    line = 20**4 + 4 * 20**3 * (epoch - 20)
    share = min((epoch**4 if epoch < 20 else line) / (20**4 + 4 * 20**3 * 30), 1.0)
    radius = share * 8.8 / 255 / 0.5
    mixing = 0.01 ** min(max((epoch - 20) / 60, 0.0), 1.0)
    assert system.eps(recipe, state) == pytest.approx(share * 8.8 / 255)
    first, last = net.first.weight / math.sqrt(HIDDEN[-1]), net.last.weight / math.sqrt(5)
    middle = features @ first.T + net.first.bias
    reach = radius * first.abs().sum(1)
    low, high = torch.tanh(middle - reach), torch.tanh(middle + reach)
    expected = mixing * F.cross_entropy(1.7 * logits, labels)
    for row in range(30):
        label = int(labels[row])
        if int(logits[row].argmax()) != label:
            continue
        slopes = last[label] - last
        least = (
            torch.where(slopes > 0, slopes * low[row], slopes * high[row]).sum(1) + net.last.bias[label] - net.last.bias
        )
        others = [least[other] for other in range(4) if other != label]
        expected = expected + (1 - torch.stack(others).min()).clamp(min=0) / 30
    torch.testing.assert_close(loss, expected)


def test_misclassified_samples_have_no_gradient_of_the_hinge():
    recipe = small("system.mixing_start=0", "system.mixing_end=0")
    net, system = small_net(keep=1.0).train(), system_of(recipe)
    images, labels = torch.rand(30, *SHAPE), torch.randint(4, (30,))
    gradients: list[Tensor] = []
    head = net.head

    def kept(features: Tensor) -> Tensor:
        features.retain_grad()
        gradients.append(features)
        return head(features)

    net.head = kept  # type: ignore
    loss, logits = system.loss(recipe, net, images, labels, step_state(recipe, 200, 4))
    loss.backward()
    moved = gradients[0].grad.abs().sum(1) > 0
    right = logits.argmax(1) == labels
    assert 0 < int(right.sum()) < 30
    assert torch.equal(moved, right)


@given(st.integers(0, 1000))
def test_no_image_in_the_ball_has_a_smaller_margin(seed: int):
    net = small_net(seed)
    images, labels, epsilon = torch.rand(6, *SHAPE), torch.randint(4, (6,)), Fraction(1, 10)
    check_least_margin(net, *inner_box(images, epsilon), labels)


@pytest.mark.parametrize("keep", [0.3, 0.7])
def test_no_certified_image_is_broken_in_any_order_of_summation(keep: float):
    found = [search(seed, keep) for seed in range(1, 60, 2)]
    assert sum(certified for certified, _ in found) > 150
    assert sum(broken for _, broken in found) == 0


def test_changed_layers_are_refused():
    net, images = small_net(), torch.rand(2, *SHAPE)
    net.layers[1] = LpDistance(14, 12, mean_shift=True).eval()
    with pytest.raises(ArgumentError, match=r"layers.1 of the net is a LpDistance; expected a SortDistance"):
        net.certified(images, torch.tensor([0, 1]), Fraction(1, 100))
    net = small_net()
    net.layers[0] = SortDistance(9, 14, keep=0.6, mean_shift=True).eval()
    with pytest.raises(ArgumentError, match=r"layers.0 of the net is a SortDistance; expected a LpDistance"):
        net.certified(images, torch.tensor([0, 1]), Fraction(1, 100))
    net = small_net()
    net.layers[1].keep = 2.0
    with pytest.raises(ArgumentError, match="keep is 2"):
        net.certified(images, torch.tensor([0, 1]), Fraction(1, 100))


@pytest.mark.parametrize("options", [{"keep": 0.0}, {"keep": 0.5, "terms": 17}])
def test_wrong_arguments(options: dict[str, float]):
    with pytest.raises(ArgumentError, match=r"(keep|terms) is"):
        SortMlpNet(SHAPE, 4, HIDDEN, 5, **options)  # type: ignore
    with pytest.raises(ArgumentError, match="expected widths above 0"):
        SortMlpNet(SHAPE, 4, (), 5, keep=0.5)


def test_the_mlp_decays_and_distances_do_not():
    sizes = ("width=8", "depth=2", "system.name=sortnet-mlp")
    recipe = load_recipe("digits", [*sizes, "lr=0.02", "scale_lr_factor=1", "optimizer.eps=1e9", "scale_decay=0.5"])
    trainer = Trainer(recipe, load("digits").first(100), None, torch.device("cpu"))
    before = {name: value.clone() for name, value in trainer.net.named_parameters()}
    trainer.net.train()
    trainer._step(0, *next(trainer.batches.epoch(0)))  # with a huge eps, Adam's steps vanish
    for name, value in trainer.net.named_parameters():
        share = 1.0 if name.startswith("layers") else 1 - 0.02 * 0.5
        torch.testing.assert_close(value, before[name] * share)


def test_saved_and_loaded_it_is_the_same(tmp_path: Path):
    net, images = small_net(), torch.rand(10, *SHAPE)
    net.save(tmp_path)
    again = load_model(tmp_path)
    assert isinstance(again, SortMlpNet)
    assert torch.equal(again(images), net(images))
    assert again.config() == net.config()
    assert "SortNet + MLP" in (tmp_path / "README.md").read_text()
