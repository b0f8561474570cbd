"""Smoothing of clamped and averaged pixels: the box in the l2 ball, the noise of blocks, attacks and files."""

import json
from fractions import Fraction
from pathlib import Path
from typing import cast

import pytest
import torch
from systems.small import state_at
from systems.smoothed import Halfplane, conv_net, halfplane
from torch import Tensor, nn

from linfnet.attacks import attack_all, known_attacks
from linfnet.errors import ArgumentError, LinfnetError
from linfnet.files import read_table
from linfnet.recipes import load_recipe
from linfnet.systems import load_model, system_of
from linfnet.systems.smoothing import SmoothedNet


def clamped_net(kind: type[SmoothedNet] = SmoothedNet, samples: int = 2000) -> SmoothedNet:
    return kind((1, 8, 8), 2, "small", 0.1, samples, 0.001, 16, low=0.2, high=0.7, pool=2).eval()


class Smooth(SmoothedNet):
    """A base net with gradients: class 1 where the first prepared pixel is above 0.45."""

    def base_logits(self, noisy: Tensor) -> Tensor:
        first = noisy.flatten(1)[:, 0]
        return torch.stack([0.45 - first, first - 0.45], 1)


def test_no_radius_exceeds_the_true_one_if_pixels_are_clamped_and_averaged():
    net, images = clamped_net(Halfplane), torch.rand(6, 1, 8, 8)
    images[:, 0, :2, :2] = torch.tensor([0.0, 0.1, 0.3, 0.6, 0.75, 1.0]).view(-1, 1, 1)
    images[1, 0, 0, 0], images[4, 0, 0, 0] = 1.0, 0.3
    labels = (net.prepared(images)[:, 0, 0, 0] > 0.5).long()
    # The smoothed class changes where the first prepared pixel is 0.5: find this epsilon by a grid.
    moves = torch.linspace(0, 1, 2001).view(-1, 1, 1, 1)
    true = torch.empty(6, dtype=torch.float64)
    for row, (image, label) in enumerate(zip(images, labels, strict=True)):
        first = net.prepared(image + moves * (1 - 2 * label))[:, 0, 0, 0]
        true[row] = (first > 0.5 if label == 0 else first < 0.5).nonzero()[0].item() / 2000
    radii = net.certified_radius(images, labels)
    assert bool((radii <= true).all())
    assert bool((radii > 0.1 * true).all())


@pytest.mark.parametrize(("low", "high", "pool"), [(0.0, 1.0, 1), (0.2, 0.7, 1), (0.2, 0.7, 2), (0.0, 1.0, 2)])
def test_a_box_in_the_ball_is_the_largest_one(low: float, high: float, pool: int):
    net = SmoothedNet((1, 8, 8), 2, "small", 0.1, 10, 0.001, 4, low=low, high=high, pool=pool)
    source = torch.Generator().manual_seed(0)
    images = torch.rand(20, 1, 8, 8, generator=source).sub(0.25).mul(2).clamp(0, 1)  # a quarter black, a quarter white
    radii = torch.linspace(0, 0.4, 20, dtype=torch.float64)
    found = net.box_in_ball(images, radii)
    assert found[0] == 0
    assert bool((found[1:] > 0).all())
    centre = net.prepared(images.double())
    for signs in (torch.randint(0, 2, (50, 8, 8), generator=source) * 2 - 1, torch.tensor([-1, 1]).view(2, 1, 1)):
        for sign in signs:
            moved = net.prepared(images + found.view(-1, 1, 1, 1) * sign)
            assert bool(((moved - centre).flatten(1).norm(dim=1) <= radii + 1e-12).all())
    # The farthest corner of the box is reached if each block moves towards its farther end.
    beyond = (found + 1e-6).view(-1, 1, 1, 1)
    up, down = net.prepared(images + beyond) - centre, centre - net.prepared(images - beyond)
    assert bool((torch.maximum(up, down).flatten(1).norm(dim=1)[1:] > radii[1:]).all())


def test_a_radius_of_zero_proves_nothing():
    assert clamped_net().box_in_ball(torch.zeros(1, 1, 8, 8), torch.zeros(1, dtype=torch.float64)).item() == 0


def test_the_box_of_inner_pixels_is_a_cube():
    net, radii = halfplane(), torch.tensor([0.1, 0.8], dtype=torch.float64)
    torch.testing.assert_close(net.box_in_ball(torch.full((2, 1, 8, 8), 0.5), radii), radii / 8)


def test_all_pixels_of_a_block_have_the_same_noise():
    """The l2 ball is that of prepared images, so the noise must have one number for each of their pixels."""
    net, seen = clamped_net(samples=10), list[Tensor]()
    first = cast(nn.Sequential, net.base[0])[0]
    first.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].detach()))
    images = torch.rand(3, 1, 8, 8)
    net(images)
    net.counts(images, "vote")
    for name in ("smoothing", "smoothadv"):
        recipe = load_recipe(f"mnist-cpu-{name}", ["data.name=digits"])
        system_of(recipe).loss(recipe, net, images, torch.tensor([0, 1, 0]), state_at(recipe, 0))
    assert len(seen) > 20
    for pixels in seen:
        assert torch.equal(pixels, pixels[..., ::2, ::2].repeat_interleave(2, -1).repeat_interleave(2, -2))
    noise = seen[0][:, :, ::2, ::2] - net.prepared(images)
    assert 0.05 < noise.std() < 0.15


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"low": 0.5, "high": 0.5}, r"system.low is 0.5 and system.high 0.5; expected low < high"),
        ({"low": -0.1}, "system.low is -0.1; expected a number of at least 0"),
        ({"high": 1.5}, "system.high is 1.5; expected a number of at most 1"),
        ({"pool": 3}, "system.pool is 3; expected a divisor of the image size, 8 x 8"),
        ({"pool": 0}, "system.pool is 0; expected a number of at least 1"),
    ],
)
def test_wrong_preparations_are_refused(changed: dict[str, float], message: str):
    with pytest.raises(ArgumentError, match=message):
        SmoothedNet((1, 8, 8), 2, "small", 0.1, 10, 0.001, 4, **changed)  # pyright: ignore[reportArgumentType]


def test_attacks_move_clamped_pixels():
    net, images = clamped_net(Smooth, samples=200), torch.zeros(4, 1, 8, 8)
    images[2:, 0, :2, :2] = 1.0
    labels = torch.tensor([0, 0, 1, 1])
    # The first prepared pixel crosses the middle, 0.45, if its four pixels do.
    assert net.keeps_class(images, labels).all()
    for name in ("pgd", "best-pgd"):
        (found,) = attack_all(net, images, labels, [Fraction("0.6")], known_attacks([name], steps=20))
        assert found.robust == 0


def test_the_preparation_is_saved_if_there_is_one(tmp_path: Path):
    conv_net().save(tmp_path / "plain")
    assert not {"low", "high", "pool"} & read_table(tmp_path / "plain" / "config.json").keys()
    clamped_net().save(tmp_path / "clamped")
    loaded = load_model(tmp_path / "clamped")
    assert loaded.settings() == clamped_net().settings()
    config = tmp_path / "clamped" / "config.json"
    settings = read_table(config)
    del settings["low"]
    config.write_text(json.dumps(settings))
    with pytest.raises(LinfnetError, match="it lacks 'low'"):
        load_model(tmp_path / "clamped")
