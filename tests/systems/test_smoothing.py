"""Smoothing: the confidence bound is exact, radii are divided by the root of d, and attacks are evaluated by counts."""

import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from statistics import NormalDist
from typing import cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from systems.small import state_at
from systems.smoothed import Halfplane, conv_net, halfplane, seen
from torch import Tensor, nn

from linfnet.attacks import attack_all, known_attacks
from linfnet.certificates import certify, certify_images
from linfnet.certificates.rounding import float_above
from linfnet.data import load
from linfnet.errors import ArgumentError
from linfnet.evaluation import evaluate
from linfnet.recipes import load_recipe
from linfnet.systems import load_model, system_of
from linfnet.systems.smoothing import SmoothedNet, clopper_pearson


def tail(successes: int, trials: int, p: float) -> float:
    """Return the exact probability of at least this many successes."""
    chance = Fraction(p)
    terms = (math.comb(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in range(successes, trials + 1))
    return float(sum(terms, Fraction(0)))


@given(st.integers(1, 40), st.integers(0, 40), st.sampled_from([0.001, 0.05]))
def test_the_bound_is_where_the_tail_has_probability_alpha(trials: int, successes: int, alpha: float):
    successes = min(successes, trials)
    bound = clopper_pearson(successes, trials, alpha)
    assert 0 <= bound <= successes / trials
    if successes:
        assert tail(successes, trials, bound) <= alpha
        assert tail(successes, trials, bound + 1e-9) > alpha * (1 - 1e-9)


def test_published_bounds():
    # If all of 100,000 copies agree at alpha = 0.001, the radius is 3.81 sigma, the largest in the literature.
    bound = clopper_pearson(100_000, 100_000, 0.001)
    assert NormalDist().inv_cdf(bound) == pytest.approx(3.8115, abs=1e-3)
    # The paper's appendix: 2/255 and 8/255 on CIFAR-10 are l2 radii of 0.4347 and 1.739.
    assert 2 / 255 * math.sqrt(3072) == pytest.approx(0.4347, abs=1e-4)
    assert 8 / 255 * math.sqrt(3072) == pytest.approx(1.739, abs=1e-3)


def test_no_radius_exceeds_the_true_one():
    net = halfplane()
    images = torch.zeros(5, 1, 8, 8)
    images[:, 0, 0, 0] = torch.tensor([0.0, 0.2, 0.6, 0.9, 1.0])
    labels = (images[:, 0, 0, 0] > 0.5).long()
    radii = net.certified_radius(images, labels)
    # For a half-space, the l2 radius is the distance to its boundary; here the l_inf radius is an eighth of it.
    true = (images[:, 0, 0, 0] - 0.5).abs().double() / 8
    assert bool((radii <= true).all())
    assert bool((radii > 0.6 * true).all())
    assert torch.equal(net.certified_radius(images, 1 - labels), torch.full((5,), -torch.inf, dtype=torch.float64))


@pytest.mark.parametrize("alpha", [0.001, 0.05])
def test_radii_use_alpha_itself(alpha: float):
    """If all copies agree, the bound on their probability is alpha^(1 / samples), whatever the noise is."""
    net = Halfplane((1, 8, 8), 2, "small", 0.01, 500, alpha, 16).eval()
    images = torch.ones(1, 1, 8, 8)
    expected = 0.01 * NormalDist().inv_cdf(alpha ** (1 / 500)) / 8
    assert net.certified_radius(images, torch.tensor([1])).item() == pytest.approx(expected, rel=1e-6)


def test_votes_certificates_and_attacks_have_independent_noise(monkeypatch: pytest.MonkeyPatch):
    """Otherwise the class is chosen by the noise with which it is certified, and alpha does not hold."""
    net, image = halfplane(samples=20), torch.full((1, 1, 8, 8), 0.75)
    drawn: list[Tensor] = []
    base_logits = Halfplane.base_logits

    def note(self: Halfplane, noisy: Tensor) -> Tensor:
        drawn.extend((noisy - image).flatten(1))
        return base_logits(self, noisy)

    monkeypatch.setattr(Halfplane, "base_logits", note)
    with torch.no_grad():
        net(image)
    votes = torch.stack(drawn)
    drawn.clear()
    net.certified_radius(image, torch.tensor([1]))
    certificate = torch.stack(drawn)
    drawn.clear()
    net.keeps_class(image, torch.tensor([1]))
    attack = torch.stack(drawn)
    assert len(votes) == 16
    assert len(certificate) >= 20
    assert len(attack) >= 20
    # `certified_radius` also votes, with the noise of `forward`.
    fresh = certificate[(torch.cdist(certificate, votes) > 1e-3).all(1)]
    assert len(fresh) == 20
    assert (torch.cdist(attack, fresh) > 1e-3).all()


def test_certified_follows_the_radius():
    net, images = halfplane(), torch.ones(1, 1, 8, 8)
    labels = torch.ones(1, dtype=torch.long)
    radius = net.certified_radius(images, labels).item()
    assert net.certified(images, labels, Fraction(radius) - Fraction(1, 10**6)).item()
    assert not net.certified(images, labels, Fraction(radius) + Fraction(1, 10**6)).item()
    assert net.certified(images, labels, torch.tensor([radius], dtype=torch.float64)).item()


def test_an_attack_must_outvote_beyond_chance():
    net = halfplane(samples=400)
    images = torch.full((3, 1, 8, 8), 0.5)
    images[:, 0, 0, 0] = torch.tensor([0.2, 0.499, 0.8])
    assert net.keeps_class(images, torch.ones(3, dtype=torch.long)).tolist() == [False, True, True]


class Torn(SmoothedNet):
    """A base net that is certain of class 0 in three of ten noisy copies, and slightly prefers class 1 in the rest."""

    def base_logits(self, noisy: Tensor) -> Tensor:
        pixel = noisy.flatten(1)[:, 0]
        first = torch.where(pixel > 0.524 * self.sigma, 0.99, 0.45) + 0 * pixel
        return torch.stack([first, 1 - first], 1).log()


def test_what_is_right_stays_so_at_an_epsilon_of_zero():
    net = Torn((1, 8, 8), 2, "small", 0.3, 200, 0.001, 64).eval()
    images = load("digits", "test").first(4)
    images = replace(images, images=torch.zeros_like(images.images), labels=torch.zeros_like(images.labels))
    assert not net.keeps_class(images.pixels(), images.labels).any()
    found = evaluate(net, (images.pixels(), images.labels), (Fraction(0),), steps=1)
    assert found.clean == found.results[0].attacked == found.results[0].certified["smoothing"] == 1
    (attacked,) = attack_all(net, images.pixels(), images.labels, [Fraction(0)], known_attacks(steps=1, queries=1))
    assert attacked.robust == 1


def test_the_vote_is_a_function_of_the_image_alone():
    torch.manual_seed(0)
    net = SmoothedNet((1, 8, 8), 10, "small", 0.3, 10, 0.001, 4).eval()
    images = torch.rand(6, 1, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(net(images)[2:4], net(images[2:4]))
        torch.testing.assert_close(net(images).exp().sum(1), torch.ones(6))


def test_the_radius_of_an_image_does_not_depend_on_other_images():
    net, images = conv_net(), seen(12)
    labels = torch.zeros(12, dtype=torch.long)
    radii = net.certified_radius(images, labels)
    assert len(radii.unique()) > 4
    for part in (slice(0, 1), slice(5, 6), slice(3, 9), slice(1, 12)):
        assert torch.equal(net.certified_radius(images[part], labels[part]), radii[part])
        assert torch.equal(net.keeps_class(images[part], labels[part]), net.keeps_class(images, labels)[part])
    assert torch.equal(net.certified_radius(images.flip(0), labels).flip(0), radii)
    assert torch.equal(net.certified_radius(images * -0.0, labels), net.certified_radius(images * 0.0, labels))


def test_pixels_outside_are_refused():
    labels = torch.zeros(3, dtype=torch.long)
    with pytest.raises(ArgumentError, match="images have pixels from"):
        conv_net().certified_radius(seen(3) + 1, labels)


def test_the_default_dtype_does_not_change_the_noise():
    net, images = conv_net(), seen(3)
    found, logits = certify(net, images), net(images)
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(certify(net, images).radius, found.radius)
        assert torch.equal(net(images), logits)
    finally:
        torch.set_default_dtype(torch.float32)


def test_all_commands_find_the_same_radius(tmp_path: Path):
    conv_net().save(tmp_path)
    net, images = load_model(tmp_path), seen(6)
    radii = certify(net, images).radius
    epsilons = [Fraction(radius) for radius in radii.clamp(min=0).tolist()]
    above = [epsilon + Fraction(1, 10**9) for epsilon in epsilons]
    found = certify_images(net, [(images[:4], None), (images[4:], None)], epsilons + above)
    assert torch.equal(found.radii["smoothing"], radii)
    rows = [float_above(epsilon) for epsilon in epsilons + above]
    assert torch.equal(found.certified["smoothing"], torch.stack([radii >= row for row in rows]))
    evaluated = evaluate(net, (images, found.labels), epsilons + above, attack=None)
    assert torch.equal(evaluated.radii["smoothing"], radii)
    for at, epsilon, row in zip(evaluated.at, epsilons + above, rows, strict=True):
        assert torch.equal(at.certified["smoothing"], radii >= row)
        assert torch.equal(net.certified(images, found.labels, epsilon), radii >= row)
    from linfnet.serve.service import Service  # needs the extra serve, unlike the other tests

    service = Service(tmp_path)
    assert [service.predict(image).radius for image in images] == radii.tolist()


def test_an_evaluation_reports_progress_often():
    net, done = halfplane(samples=10), list[int]()
    evaluate(net, (torch.rand(60, 1, 8, 8), [0] * 60), ("0.01", "0.02"), attack=None, advance=done.append)
    assert done == [50, 10, 50, 10]


def test_at_most_alpha_of_the_radii_are_too_large():
    # With 100 copies and 2,000 images, twice alpha or a part of alpha would be noticed.
    count, samples, alpha = 2000, 100, 0.1
    net = Halfplane((1, 8, 8), 2, "small", 0.3, samples, alpha, 16).eval()
    images = torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    images[:, 0, 0, 0] = torch.linspace(0.51, 1, count)
    distance = images[:, 0, 0, 0].double() - 0.5
    radii = certify(net, images, torch.ones(count, dtype=torch.long)).radius
    wrong = int((radii > distance / 8).sum())
    bounds = torch.tensor([clopper_pearson(won, samples, alpha) for won in range(samples + 1)], dtype=torch.float64)
    true = torch.special.ndtr(distance / 0.3)
    chance = [
        tail(int((bounds <= p).sum()), samples, p) if bool((bounds > p).any()) else 0.0 for p in true[::20].tolist()
    ]
    expected = count * sum(chance) / len(chance)
    assert 0.5 * alpha * count < expected <= alpha * count
    assert abs(wrong - expected) < 4 * math.sqrt(count * alpha)


def test_votes_and_certificates_use_independent_noise():
    # Exactly half of the copies are of class 1. If both used the same noise, no certified label could be outvoted.
    net = Halfplane((1, 8, 8), 2, "small", 0.3, 200, 0.45, 16).eval()
    images = torch.rand(200, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    images[:, 0, 0, 0] = 0.5
    labels = net(images).argmax(1)
    both = (net.certified_radius(images, labels) > 0) & ~net.keeps_class(images, labels)
    assert 15 < int(both.sum()) < 70


class BatchMean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


def changed_nets() -> dict[str, SmoothedNet]:
    nets = {name: conv_net(20) for name in ("hook", "pre-hook", "forward", "layer", "no running mean", "flatten")}
    next(module for module in nets["flatten"].modules() if isinstance(module, nn.Flatten)).end_dim = 3
    nets["hook"].base.register_forward_hook(lambda module, inputs, output: 2 * output)
    nets["pre-hook"].register_forward_pre_hook(lambda module, inputs: inputs)
    nets["forward"].forward = lambda images: torch.zeros(len(images), 3)
    cast(nn.Sequential, nets["layer"].base[0])[1] = BatchMean()
    norm = next(module for module in nets["no running mean"].modules() if isinstance(module, nn.BatchNorm2d))
    norm.running_mean = norm.running_var = None

    class Own(SmoothedNet):
        def forward(self, images: Tensor) -> Tensor:
            return 2 * super().forward(images)

    return {**nets, "subclass": Own((1, 8, 8), 3, "small", 0.3, 20, 0.05, 4).eval()}


MESSAGES = {
    "hook": "module 'base' has a forward hook",
    "pre-hook": "the net has a forward hook",
    "forward": "forward of the net, a SmoothedNet, was replaced",
    "layer": r"contains BatchMean \('base.0.1'\)",
    "no running mean": "has no running mean",
    "flatten": r"Flatten \('base.0.\d'\) of the net has start_dim 1 and end_dim 3; expected 1 and -1",
    "subclass": "overrides forward",
}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_changed_net_is_refused(name: str):
    net, images = changed_nets()[name], seen(2)
    with pytest.raises(ArgumentError, match=MESSAGES[name]) as caught:
        certify(net, images)
    assert "\n" not in str(caught.value)
    with pytest.raises(ArgumentError, match=MESSAGES[name]):
        certify_images(net, [(images, None)])
    with pytest.raises(ArgumentError, match=MESSAGES[name]):
        evaluate(net, (images, [0, 0]), "0.01", attack=None)


def test_each_step_draws_noise_of_its_own_and_the_same_when_it_is_made_again():
    recipe = load_recipe("cifar10-smoothing", ["system.architecture=small", "data.name=digits"])
    system, images = system_of(recipe), load("digits", "test").first(8)
    torch.manual_seed(0)
    net = system.build(recipe, images.info).eval()
    once, again, later = (
        system.loss(recipe, net, images.pixels(), images.labels, state_at(recipe, epoch))[0].item()
        for epoch in (0.25, 0.25, 0.5)
    )
    assert once == again != later
