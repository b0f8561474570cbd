"""CAP and COLT: losses are bounds or attacks within relaxations of the first layers."""

from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from systems.small import check_least_margin, digits, state_at
from torch import nn

from linfnet.bounds import Box, backward_boxes, margin_bounds, smallest_margin
from linfnet.boxes import inner_box
from linfnet.data import load
from linfnet.errors import ArgumentError
from linfnet.recipes import Recipe, load_recipe
from linfnet.systems import system_of
from linfnet.systems.cap import CapNet
from linfnet.systems.colt import Colt, ColtNet, Region, attacked, ends_of_relus
from linfnet.systems.convolutional import ConvNet
from linfnet.systems.system import step_source


def small_net(kind: type[ConvNet]) -> ConvNet:
    torch.manual_seed(0)
    return kind((1, 8, 8), 10, "small", False, mean=0.3, std=0.4).eval()


@pytest.mark.parametrize("kind", [CapNet, ColtNet])
def test_no_image_in_the_ball_has_a_smaller_margin(kind: type[ConvNet]):
    net, (images, labels) = small_net(kind), digits()
    lower, upper = inner_box(images, Fraction(1, 20))
    found = check_least_margin(net, lower, upper, labels, slack=1e-5)
    with torch.no_grad():
        ends = net.normalize.bounds(lower, upper)
        plain = smallest_margin(margin_bounds(net.body, *ends, labels, "fast-lin"), labels)
    assert bool((found >= plain - 1e-6).all())


def test_the_better_of_two_bounds_counts():
    net, (images, labels) = small_net(ColtNet), digits()
    box = net.box_around(images, 0.5)
    with torch.no_grad():
        bounds = [margin_bounds(net.body, *box.ends, labels, method) for method in ("fast-lin", "crown")]
        assert bool((smallest_margin(bounds[0], labels) <= 0).all())
        torch.testing.assert_close(net.margins(box, labels), torch.maximum(*bounds))
    assert all(bool((one > other + 1e-3).any()) for one, other in (bounds, bounds[::-1]))


def test_cap_takes_the_cross_entropy_of_the_worst_case():
    recipe = load_recipe("mnist-cpu-cap", {"data.name": "digits", "schedule.epochs": [2, 4, 4]})
    system, net, (images, labels) = system_of(recipe), small_net(CapNet), digits()
    plain, logits = system.loss(recipe, net, images, labels, state_at(recipe, 1.0))
    torch.testing.assert_close(plain, F.cross_entropy(net(images), labels))
    torch.testing.assert_close(logits, net(images))
    for epoch, eps in ((3.0, 0.025), (6.0, 0.1)):
        worst = system.loss(recipe, net, images, labels, state_at(recipe, epoch))[0]
        ends = net.normalize.bounds((images - eps).clamp(min=0), (images + eps).clamp(max=1))
        expected = F.cross_entropy(-margin_bounds(net.body, *ends, labels, "fast-lin"), labels)
        torch.testing.assert_close(worst, expected)


def region_after(net: ConvNet, box: Box, stage: int) -> tuple[Region, nn.Sequential]:
    ends = [index + 1 for index, layer in enumerate(net.body) if isinstance(layer, nn.ReLU)]
    end = ends[stage - 1] if stage else 0
    return Region.after(net.body[:end], backward_boxes(net.body[:end], box, "parallel")), nn.Sequential(*net.body[end:])


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_the_region_contains_what_the_net_computes(stage: int):
    """Each image of the ball has numbers in [-1, 1] that give its values after the first layers."""
    net, (images, _) = small_net(ColtNet), digits()
    box = net.box_around(images, 0.1)
    region, _ = region_after(net, box, stage)
    inside = torch.lerp(box.lower, box.upper, torch.rand_like(box.lower))
    middle, reach = box.middle_and_reach
    numbers = [((inside - middle) / reach.clamp(min=1e-9)).clamp(-1, 1)]
    values, index = inside, 0
    for layer in region.layers:
        if isinstance(layer, nn.ReLU):
            slope, offset = region.slopes[index], region.offsets[index]
            index += 1
            needed = 2 * (layer(values) - slope * values) / offset.clamp(min=1e-9) - 1
            assert bool(((needed >= -1.001) & (needed <= 1.001))[offset > 1e-4].all())
            numbers.append(needed.clamp(-1, 1))
        values = layer(values)
    torch.testing.assert_close(region.point(numbers), values, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_the_attack_stays_in_the_region_and_below_the_bound(stage: int):
    net, (images, labels) = small_net(ColtNet), digits()
    box = net.box_around(images, 0.1, centre=False)
    region, rest = region_after(net, box, stage)
    sources = [torch.Generator().manual_seed(0) for _ in range(3)]
    start = F.cross_entropy(rest(attacked(region, rest, labels, 0, 0.25, sources[0])), labels)
    found = F.cross_entropy(rest(attacked(region, rest, labels, 8, 0.25, sources[1])), labels)
    worst = -margin_bounds(net.body, box.lower, box.upper, labels, "fast-lin")
    assert start < found < F.cross_entropy(worst, labels)
    point = attacked(region, rest, labels, 8, 0.25, sources[2])
    assert F.cross_entropy(rest(point), labels) == found


def test_stages_of_colt():
    recipe = load_recipe("mnist-cpu-colt", {"schedule.epochs": [10, 20, 5], "system.stages": 2, "system.mixing": 0.5})
    system = system_of(recipe)
    assert isinstance(system, Colt)
    found = [system.stage(state_at(recipe, epoch)) for epoch in (0, 2.5, 9.75, 12.5, 15, 22.5, 27.5, 34)]
    assert [stage for stage, _ in found] == [0, 0, 0, 1, 1, 2, 2, 2]
    assert [share for _, share in found] == pytest.approx([0, 0.5, 1, 0.5, 1, 0.5, 1, 1])


# Epochs of the stages 0, 1 and 2 at which their losses have the weights 1 and 0.25 beside those of the stages before.
PURE, MIXED = (2, 6, 10), (0.5, 4.5, 8.5)


def colt_recipe(**changes: object) -> Recipe:
    settings = {"steps": 2, "stages": 2, "stability": 0, "l1": 0, "mixing": 0.5, "eps_train": 0.1, "eps_factor": 1}
    own = {f"system.{key}": value for key, value in {**settings, **changes}.items()}
    return load_recipe("mnist-cpu-colt", {"schedule.epochs": [4, 8, 0], "data.name": "digits", **own})


def loss_at(recipe: Recipe, epoch: float, net: ConvNet) -> torch.Tensor:
    return system_of(recipe).loss(recipe, net, *digits(), state_at(recipe, epoch))[0]


@pytest.mark.parametrize(("stage", "trained"), [(0, 4), (1, 3), (2, 2)])
@pytest.mark.parametrize("epochs", [PURE, MIXED])
def test_only_the_layers_after_the_region_are_trained(epochs: tuple[float, ...], stage: int, trained: int):
    """Also while the loss of the stage before, which needs one more layer, has a part in the loss."""
    net = small_net(ColtNet).train()
    loss_at(colt_recipe(stability=0.01, l1=0.01), epochs[stage], net).backward()
    products = [layer for layer in net.body if isinstance(layer, nn.Conv2d | nn.Linear)]
    assert [layer.weight.grad is not None for layer in products] == [False] * (4 - trained) + [True] * trained
    assert all(parameter.requires_grad for parameter in net.parameters())


def test_adversarial_training_replaces_the_cross_entropy_of_the_images():
    net, (images, labels) = small_net(ColtNet).train(), digits()
    plain = F.cross_entropy(net(images), labels)
    losses = [loss_at(colt_recipe(), epoch, net) for epoch in (0, 1, 2)]
    torch.testing.assert_close(losses[0], plain)
    assert plain < losses[1] < losses[2]


def test_the_loss_of_the_stage_before_fades():
    recipe, net, (images, labels) = colt_recipe(), small_net(ColtNet).train(), digits()
    system, state = system_of(recipe), state_at(recipe, MIXED[2])
    assert isinstance(system, Colt)
    source, ends = step_source(recipe, state, images.device), [0, *ends_of_relus(net.body)]
    boxes = backward_boxes(net.body[: ends[2]], net.box_around(images, 0.1, centre=False), "parallel")
    logits = [system.adversarial_logits(net.body, boxes, labels, ends[stage], source) for stage in (2, 1)]
    now, before = (F.cross_entropy(each, labels) for each in logits)
    assert abs(now - before) > 1e-3
    torch.testing.assert_close(loss_at(recipe, MIXED[2], net), 0.25 * now + 0.75 * before)


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_eps_falls_to_that_of_the_last_stage(stage: int):
    net = small_net(ColtNet).train()
    found = loss_at(colt_recipe(eps_train="0.05", eps_factor=1.2), PURE[stage], net)
    expected = loss_at(colt_recipe(eps_train=str(0.05 * 1.2 ** (2 - stage))), PURE[stage], net)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_the_stability_of_the_next_layer_counts(stage: int):
    """The sum over the neurons before the next ReLU, times a weight that grows; the last stage has no such term."""
    net, (images, _) = small_net(ColtNet).train(), digits()
    changes = {"stability": 0.1, "stability_factor": 1.5, "stability_images": 5}
    for epochs, share in ((PURE, 1.0), (MIXED, 0.25)):
        found = loss_at(colt_recipe(**changes), epochs[stage], net) - loss_at(colt_recipe(), epochs[stage], net)
        boxes = backward_boxes(net.body, net.box_around(images[:5], 0.1), "parallel")
        lower, upper = boxes[(1, 3, 0)[stage]].ends
        unstable = (lower < 0) & (upper > 0)
        penalty = (
            torch.where(unstable, -lower * upper, 0.0).flatten(1).sum(1).mean() if stage < 2 else torch.tensor(0.0)
        )
        assert penalty > 0 or stage == 2
        torch.testing.assert_close(found, 0.1 * 1.5**stage * share * penalty, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_the_l1_norm_of_trained_weights_counts(stage: int):
    net = small_net(ColtNet).train()
    found = loss_at(colt_recipe(l1=1e-3), PURE[stage], net) - loss_at(colt_recipe(), PURE[stage], net)
    products = [layer for layer in net.body if isinstance(layer, nn.Conv2d | nn.Linear)]
    norms = [layer.weight.abs().sum() for layer in products[stage:]]
    torch.testing.assert_close(found, 1e-3 * torch.stack(norms).sum(), rtol=1e-3, atol=1e-5)


def test_too_many_stages_are_refused():
    recipe = load_recipe("mnist-cpu-colt", {"system.stages": 4})
    with pytest.raises(ArgumentError, match=r"system\.stages is 4; expected a number of at most 3"):
        system_of(recipe).build(recipe, load("digits").info)
