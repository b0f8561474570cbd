"""The paper's PGD: inside the ball in floating point, repeatable, and without side effects on the net."""

import itertools
import sys
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from linfnet.attacks import (
    ATTACKS,
    best_pgd,
    closest_break,
    minimal,
    pgd,
    smoothed_logits,
    square_attack,
    strongest_within,
)
from linfnet.errors import ArgumentError
from linfnet.nn import Classifier, LinfNet
from linfnet.nn.label_margin import margin


def random_net(seed: int) -> LinfNet:
    torch.manual_seed(seed)
    return LinfNet((1, 3, 3), 3, (10,), mean=0.3, std=0.4).eval()


@given(st.integers(0, 2**32 - 1), st.fractions(0, 1, max_denominator=300))
def test_attacked_images_stay_inside_the_ball_in_floating_point(seed: int, epsilon: Fraction):
    net, generator = random_net(seed), torch.Generator().manual_seed(seed)
    images = torch.rand(6, 1, 3, 3, generator=generator)
    images[0] = torch.randint(2, (1, 3, 3), generator=generator)  # pixels at the border
    moved = pgd(net, images, torch.zeros(6, dtype=torch.int64), epsilon, steps=4, generator=generator)
    assert not moved.requires_grad
    for before, after in zip(images.flatten().tolist(), moved.flatten().tolist(), strict=True):
        assert abs(Fraction(after) - Fraction(before)) <= epsilon
        assert 0 <= after <= 1


def test_the_attack_lowers_margins_and_repeats():
    net = random_net(0)
    images = torch.rand(64, 1, 3, 3, generator=torch.Generator().manual_seed(1))
    labels = net(images).argmax(1)
    runs = [
        pgd(net, images, labels, Fraction(1, 10), steps=20, generator=torch.Generator().manual_seed(2))
        for _ in range(2)
    ]
    assert torch.equal(*runs)
    before, after = margin(net(images), labels), margin(net(runs[0]), labels)
    assert after.mean() < before.mean()
    assert (after <= 0).sum() > (before <= 0).sum()


class Constant(Classifier):
    """A net whose logits do not depend on the image: no step changes it."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return 0 * images.flatten(1)[:, :2]


def test_the_attack_starts_from_noise():
    """N(0, (eps/4)^2), clamped to eps/2: 95 % of the numbers are not clamped."""
    images = torch.full((50, 1, 8, 8), 0.5)
    labels = torch.zeros(50, dtype=torch.int64)
    first, second = (
        pgd(Constant((1, 8, 8), 2), images, labels, "0.2", torch.Generator().manual_seed(seed), steps=1) - images
        for seed in (0, 1)
    )
    assert not torch.equal(first, second)
    assert first.abs().max() == pytest.approx(0.1, abs=1e-6)
    assert (first.abs() > 0.0999).float().mean() == pytest.approx(0.0455, abs=0.01)
    assert first.std() == pytest.approx(0.05 * 0.96, abs=0.002)


def test_no_images():
    nothing = torch.zeros(0, 1, 3, 3)
    assert (
        pgd(random_net(0), nothing, torch.zeros(0, dtype=torch.int64), Fraction(1, 10), steps=2).shape == nothing.shape
    )


def test_no_weight_gets_a_gradient():
    net = random_net(0)
    pgd(net, torch.rand(2, 1, 3, 3), torch.zeros(2, dtype=torch.int64), Fraction(1, 10), steps=2)
    assert all(parameter.grad is None for parameter in net.parameters())


def test_no_gradient_of_a_weight_is_computed_meanwhile():
    net, seen = random_net(0), list[bool]()
    net.layers[1].weight.requires_grad_(False)
    before = [parameter.requires_grad for parameter in net.parameters()]
    unchanged = list[bool]()

    def look(attacked: torch.nn.Module, *_: object) -> None:
        seen.extend(parameter.requires_grad for parameter in attacked.parameters())
        unchanged.append([parameter.requires_grad for parameter in net.parameters()] == before)

    handle = net.register_forward_hook(look)
    images = torch.rand(3, *net.image_shape)
    for attack in (pgd, best_pgd):
        attack(net, images, torch.zeros(3, dtype=torch.int64), 0.1, steps=2)
    handle.remove()
    assert seen
    assert not any(seen)
    assert all(unchanged)  # another thread may train the net
    assert [parameter.requires_grad for parameter in net.parameters()] == before


def test_images_outside_the_pixel_range_are_refused():
    with pytest.raises(ArgumentError, match=r"expected \[0, 1\]"):
        pgd(random_net(0), torch.full((1, 1, 3, 3), 1.5), torch.zeros(1, dtype=torch.int64), Fraction(1, 10))


def test_a_net_in_training_mode_is_attacked_at_infinity_and_left_unchanged():
    net = random_net(0)
    case = (net, torch.rand(8, 1, 3, 3), torch.zeros(8, dtype=torch.int64), Fraction(1, 10))
    attacks = [
        lambda: pgd(*case, steps=5, generator=torch.Generator().manual_seed(0)),
        lambda: best_pgd(*case, steps=5),
        lambda: square_attack(*case, queries=5, generator=torch.Generator().manual_seed(0)),
        lambda: ATTACKS["smoothed"](*case, torch.Generator().manual_seed(0)),
    ]
    expected = [attack() for attack in attacks]
    net.train()
    net.p = 8.0
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    for attack, moved in zip(attacks, expected, strict=True):
        assert torch.equal(attack(), moved)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert net.p == 8.0
    assert net.training


def test_as_is_attacks_the_present_p():
    net = random_net(0)
    images, labels = torch.rand(8, 1, 3, 3), torch.zeros(8, dtype=torch.int64)
    net.p = 4.0
    runs = [
        pgd(net, images, labels, Fraction(1, 10), steps=5, generator=torch.Generator().manual_seed(0), as_is=as_is)
        for as_is in (False, True)
    ]
    assert not torch.equal(*runs)


def test_a_search_for_the_closest_image_runs_the_net_once_on_each_result(monkeypatch: pytest.MonkeyPatch):
    net, calls = random_net(0), list[int]()
    forward = net.forward
    monkeypatch.setattr(net, "forward", lambda images: calls.append(len(images)) or forward(images))
    monkeypatch.setattr(minimal, "best_pgd", lambda net, images, labels, epsilons, **options: images)
    image = torch.rand(1, 3, 3)
    closest_break(net, image, int(net(image.unsqueeze(0)).argmax()), exponents=(16.0,), points=8)
    assert calls == [1, 8]


def stop_after(calls: int) -> Callable[[], bool]:
    """Return a function that returns true from the call after the given number of calls."""
    count = itertools.count(1)
    return lambda: next(count) > calls


@pytest.mark.parametrize("attack", ["closest", "strongest"])
def test_a_stopped_attack_takes_no_further_step(attack: str, monkeypatch: pytest.MonkeyPatch):
    net, image, steps = LinfNet((1, 1, 1), 2, (), identity_init=False).eval(), torch.rand(1, 1, 1), list[int]()
    net.layers[0].weight.data.copy_(torch.tensor([[0.0], [10.0]]))  # no pixel is closer to 10 than to 0

    def counted(net: Classifier, images: Tensor, p: float) -> Tensor:
        steps.append(len(images))
        return smoothed_logits(net, images, p)

    monkeypatch.setattr(sys.modules[best_pgd.__module__], "smoothed_logits", counted)
    stop = stop_after(4)
    if attack == "closest":
        # The first attack is also the last one.
        found = closest_break(net, image, 0, steps=50, exponents=(16.0,), points=1, rounds=1, stop=stop)
    else:
        found = strongest_within(net, image, 0, "1/1000", steps=50, restarts=1, stop=stop)
    assert 1 < len(steps) <= 5
    assert not found.complete
