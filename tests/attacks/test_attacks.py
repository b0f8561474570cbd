"""Attacks other than the paper's PGD stay inside the ball and are stronger; the suite runs several of them."""

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from linfnet.attacks import (
    ATTACKS,
    DEFAULT_ATTACKS,
    OBJECTIVES,
    attack_all,
    best_pgd,
    check_sandwich,
    known_attacks,
    parse_exponents,
    pgd,
    smoothed_logits,
    square_attack,
)
from linfnet.attacks.pgd import dlr
from linfnet.attacks.square import square_share
from linfnet.errors import ArgumentError, LinfnetError
from linfnet.nn import Classifier, LinfNet, reestimate_means
from linfnet.nn.label_margin import margin

TENTH = Fraction(1, 10)


def random_net(seed: int, shape: tuple[int, int, int] = (2, 4, 3)) -> LinfNet:
    torch.manual_seed(seed)
    net = LinfNet(shape, 3, (10, 12), mean=0.3, std=0.4, negate_logits=seed % 2 == 0)
    reestimate_means(net, [torch.rand(50, *shape)])
    return net.eval()


def sample(net: LinfNet, count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.rand(count, *net.image_shape, generator=torch.Generator().manual_seed(seed))
    return images, net(images).argmax(1).detach()


def smooth(net: LinfNet, x: torch.Tensor, y: torch.Tensor, eps: Fraction, g: torch.Generator) -> torch.Tensor:
    return best_pgd(net, x, y, eps, steps=5, restarts=2, p=4.0, objective="dlr", generator=g)


def sparse(net: LinfNet, x: torch.Tensor, y: torch.Tensor, eps: Fraction, g: torch.Generator) -> torch.Tensor:
    return best_pgd(net, x, y, eps, steps=5, restarts=2, objective="ce", generator=g)


def square(net: LinfNet, x: torch.Tensor, y: torch.Tensor, eps: Fraction, g: torch.Generator) -> torch.Tensor:
    return square_attack(net, x, y, eps, queries=10, generator=g)


@pytest.mark.parametrize("attack", [smooth, sparse, square])
@given(st.integers(0, 2**32 - 1), st.fractions(0, 1, max_denominator=300))
def test_results_are_in_the_ball_and_no_worse_than_the_start(attack: Callable, seed: int, epsilon: Fraction):
    net, generator = random_net(seed), torch.Generator().manual_seed(seed)
    images, labels = sample(net, 5, seed)
    images[0] = images[0].round()  # pixels at the border
    net.p = 8.0
    found = attack(net, images, labels, epsilon, generator)
    assert net.p == 8.0
    assert not found.requires_grad
    for before, after in zip(images.flatten().tolist(), found.flatten().tolist(), strict=True):
        assert abs(Fraction(after) - Fraction(before)) <= epsilon
        assert 0 <= after <= 1
    with net.at_infinity(), torch.no_grad():
        assert (margin(net(found), labels) <= margin(net(images), labels)).all()
    assert all(parameter.grad is None for parameter in net.parameters())


class TestSmoothedSlopes:
    def test_the_values_are_those_of_infinity_to_the_bit(self):
        net = random_net(0)
        images, _ = sample(net, 9, 0)
        for p in (1.0, 4.0, 100.0, math.inf):
            assert torch.equal(smoothed_logits(net, images, p), net(images))
            assert net.p == math.inf

    def test_the_slopes_are_those_of_the_distance_at_p(self):
        net = LinfNet((1, 2, 2), 2, (), std=0.5, identity_init=False).eval()
        images = torch.rand(3, 1, 2, 2).requires_grad_(True)
        (slope,) = torch.autograd.grad(smoothed_logits(net, images, 6.0).sum(), images)
        net.p = 6.0
        (expected,) = torch.autograd.grad(net(images).sum(), images)
        assert torch.equal(slope, expected)

    def test_they_touch_many_pixels_where_the_net_touches_few(self):
        net = random_net(1)
        images, labels = sample(net, 20, 1)
        images.requires_grad_(True)
        touched = {}
        for p in (8.0, math.inf):
            (slope,) = torch.autograd.grad(margin(smoothed_logits(net, images, p), labels).sum(), images)
            touched[p] = (slope != 0).double().mean().item()
        assert touched[math.inf] < 0.3
        assert touched[8.0] > 0.9


def test_best_iterates_and_smooth_slopes_break_more_than_plain_pgd():
    broken = dict.fromkeys(("pgd", "best", "smooth"), 0)
    for seed in range(6):
        net = random_net(seed)
        images, labels = sample(net, 60, seed)
        for name in broken:
            generator = torch.Generator().manual_seed(seed)
            if name == "pgd":
                found = pgd(net, images, labels, TENTH, steps=40, generator=generator)
            else:
                p = 8.0 if name == "smooth" else math.inf
                found = best_pgd(net, images, labels, TENTH, steps=40, restarts=2, p=p, generator=generator)
            broken[name] += int((margin(net(found), labels) <= 0).sum())
    assert broken["best"] >= broken["pgd"] > 20
    assert broken["smooth"] > broken["pgd"]


def test_a_rival_is_aimed_at_even_where_another_class_is_nearer():
    reached = {1: 0, 2: 0}
    for seed in range(6):
        net = random_net(seed)
        images, labels = sample(net, 60, seed)
        third = net(images).argsort(1, descending=True)[:, 2]
        for rival in reached:
            found = best_pgd(net, images, labels, TENTH, steps=20, p=16.0, rival=rival)
            reached[rival] += int((net(found).argmax(1) == third).sum())
    assert reached[2] > 2 * reached[1]
    with pytest.raises(ArgumentError, match="rival is 3; expected a number from 0 to 2"):
        best_pgd(net, images, labels, TENTH, rival=3)


def test_square_breaks_without_gradients():
    net = random_net(0)
    images, labels = sample(net, 60, 0)
    found = square_attack(net, images, labels, TENTH, queries=200, generator=torch.Generator().manual_seed(0))
    few = square_attack(net, images, labels, TENTH, queries=2, generator=torch.Generator().manual_seed(0))
    broken, early = ((margin(net(x), labels) <= 0).sum().item() for x in (found, few))
    assert broken > early
    assert bool((margin(net(found), labels) <= margin(net(images), labels)).all())  # only better images are accepted
    shares = [square_share(k / 100) for k in range(100)]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] < 0.01


def test_objectives_rise_as_the_margin_falls():
    logits, labels = torch.tensor([[3.0, 1.0, 0.0], [2.0, 1.9, 0.0]]), torch.tensor([0, 0])
    for objective in OBJECTIVES.values():
        far, near = objective(logits, labels, 1.0).tolist()
        assert near > far
    two = dlr(torch.tensor([[3.0, 1.0]]), torch.tensor([0]), 1.0)
    assert two.item() == -2.0
    with pytest.raises(ArgumentError, match="objective is 'cw'; expected one of ce, margin, dlr"):
        best_pgd(random_net(0), torch.rand(1, 2, 4, 3), labels[:1], TENTH, objective="cw")


class TestSuite:
    def test_what_broke_stays_broken_and_only_the_rest_goes_on(self):
        net = random_net(0)
        images, labels = sample(net, 80, 0)
        labels[:5] = (labels[:5] + 1) % 3
        reports = []
        epsilons = [Fraction(1, 10), Fraction(1, 100), Fraction(1, 5)]
        attacks = known_attacks(steps=10, restarts=1, exponents=(4.0,), queries=20)
        results = attack_all(net, images, labels, epsilons, attacks, report=lambda *report: reports.append(report))
        assert [result.epsilon for result in results] == sorted(epsilons)
        lefts = [left for _, _, left in reports]
        assert lefts == sorted(lefts, reverse=True)
        assert lefts[0] == 75
        assert lefts[-1] < 60
        for result in results:
            lost = result.clean & ~result.survived
            assert (margin(net(result.images), labels)[lost] <= 0).all()
            exact = result.images.double() - images.double()
            assert exact.abs().max() <= float(result.epsilon)
            assert list(result.after.values())[-1] == result.robust
        none = {epsilon: torch.zeros(80, dtype=torch.bool) for epsilon in epsilons}
        again = attack_all(net, images, labels, epsilons, attacks, certified=none)
        assert all(torch.equal(a.survived, b.survived) for a, b in zip(results, again, strict=True))

    def test_certified_samples_are_not_attacked(self):
        net = random_net(0)
        images, labels = sample(net, 20, 0)
        seen: list[int] = []

        def attack(net: Classifier, x: Tensor, y: Tensor, epsilon: Fraction, generator: torch.Generator) -> Tensor:
            seen.append(len(x))
            return x

        certified = {TENTH: torch.arange(20) < 15, Fraction(1, 5): torch.zeros(20, dtype=torch.bool)}
        results = attack_all(net, images, labels, list(certified), {"own": attack}, certified=certified)
        assert seen == [5, 20]
        assert all(result.survived.all() for result in results)

    def test_an_attack_that_leaves_the_ball_is_refused(self):
        net = random_net(0)
        images, labels = sample(net, 4, 0)
        attacks = {"cheat": lambda net, x, y, epsilon, generator: (x + float(epsilon) * 1.0001).clamp(0, 1)}
        with pytest.raises(LinfnetError, match=r"'cheat' left the ball of eps = 0\.1"):
            attack_all(net, images, labels, [TENTH], attacks)

    def test_a_certified_sample_that_is_broken_is_named(self):
        net = random_net(0)
        images, labels = sample(net, 80, 0)
        (result,) = attack_all(net, images, labels, [Fraction(1, 5)], known_attacks(steps=10, queries=5))
        check_sandwich(result.epsilon, result.survived, result.survived)
        first = (~result.survived).nonzero().flatten().tolist()
        with pytest.raises(LinfnetError, match=rf"samples \[{first[0]}, .* more are certified at eps = 0.2, but"):
            check_sandwich(result.epsilon, torch.ones(80, dtype=torch.bool), result.survived)

    def test_bad_settings(self):
        for text in ("x", "0.5", ""):
            with pytest.raises(ArgumentError, match="--p is"):
                parse_exponents(text)
        with pytest.raises(ArgumentError, match="steps is 0; expected a number of at least 1"):
            known_attacks(steps=0)


def test_nothing_is_attacked_at_zero():
    """Nothing can change, and attacks of other libraries do not accept an epsilon of 0."""

    def refuse(*_: object) -> torch.Tensor:
        raise AssertionError("attacked at 0")

    net = LinfNet((1, 2, 2), 3, (4,)).eval()
    images = torch.rand(5, 1, 2, 2)
    (found,) = attack_all(net, images, net(images).argmax(1), [Fraction(0)], {"any": refuse})
    assert found.after == {"any": 1.0}
    assert torch.equal(found.images, images)


def test_an_attack_from_outside_is_registered_and_receives_its_settings():
    received = []

    @ATTACKS.register("nothing")
    def nothing(net: LinfNet, x: torch.Tensor, y: torch.Tensor, eps: Fraction, g: torch.Generator, *, steps: int = 1):
        received.append(steps)
        return x

    try:
        assert "nothing" in ATTACKS.names()
        net = random_net(0)
        images, labels = sample(net, 4, 0)
        (found,) = attack_all(net, images, labels, [TENTH], known_attacks(("nothing",), steps=7, queries=3))
    finally:
        del ATTACKS._entries["nothing"]
    assert received == [7]
    assert found.robust == 1.0
    with pytest.raises(ArgumentError, match="attack is 'nothing'; expected one of autoattack, best-pgd"):
        known_attacks(("nothing",))
    assert tuple(known_attacks()) == DEFAULT_ATTACKS
    assert set(DEFAULT_ATTACKS) < set(ATTACKS)
