"""SmoothAdv and consistency: attacks stay in their ball, and losses are those of their authors."""

import pytest
import torch
import torch.nn.functional as F
from systems.small import digits, state_at
from torch import Tensor

from linfnet.recipes import load_recipe
from linfnet.systems import system_of
from linfnet.systems.consistency import Consistency
from linfnet.systems.smoothadv import SmoothAdv, SmoothAdvNet, attacked


def smoothed_net() -> SmoothAdvNet:
    torch.manual_seed(0)
    return SmoothAdvNet((1, 8, 8), 10, "small", 0.25, 10, 0.001, 4, mean=0.3, std=0.4).eval()


def mean_loss(net: SmoothAdvNet, images: Tensor, labels: Tensor, noise: Tensor) -> Tensor:
    """Return the cross-entropy [B] of the mean probabilities over noise."""
    mean = torch.stack([net.base_logits(images + one).softmax(1) for one in noise]).mean(0)
    return -mean.gather(1, labels.unsqueeze(1)).log().squeeze(1)


@pytest.mark.parametrize("radius", [0.1, 1.0])
def test_the_attack_raises_the_loss_within_the_ball(radius: float):
    net, (images, labels) = smoothed_net(), digits()
    noise = 0.25 * torch.randn(3, *images.shape)
    found = attacked(net, images, labels, noise, radius, 5)
    lengths = (found - images).flatten(1).norm(dim=1)
    assert bool((lengths <= radius * (1 + 1e-5)).all())
    assert lengths.max() > 0.5 * radius
    assert found.min() >= 0
    assert found.max() <= 1
    assert bool((mean_loss(net, found, labels, noise) > mean_loss(net, images, labels, noise)).all())


def test_the_attack_grows_in_the_first_phase(monkeypatch: pytest.MonkeyPatch):
    recipe = load_recipe("cifar10-8-smoothadv", ["system.architecture=small", "data.name=digits"])
    system, (images, labels), net = system_of(recipe), digits(), smoothed_net().train()
    radii = list[float]()

    def recorded(net: SmoothAdvNet, pixels: Tensor, *rest: object) -> Tensor:
        assert not net.training
        radii.append(float(rest[2]))  # pyright: ignore
        return pixels

    monkeypatch.setattr("linfnet.systems.smoothadv.attacked", recorded)
    for epoch in (0, 5, 10, 100):
        system.loss(recipe, net, images, labels, state_at(recipe, epoch))
        assert net.training
    assert isinstance(system, SmoothAdv)
    assert radii == pytest.approx([system.attack_eps * share for share in (0.5, 1, 1)])


def test_without_an_attack_the_loss_is_the_cross_entropy_of_all_copies():
    recipe = load_recipe("cifar10-8-smoothadv", ["system.attack_eps=0", "data.name=digits"])
    system, (images, labels), net = system_of(recipe), digits(), smoothed_net()
    losses = [system.loss(recipe, net, images, labels, state_at(recipe, epoch))[0].item() for epoch in (20, 20, 21)]
    assert losses[0] == losses[1] != losses[2]
    logits = torch.randn(3, 12, 10)
    expected = torch.stack([F.cross_entropy(copy, labels) for copy in logits]).mean()
    torch.testing.assert_close(SmoothAdv(architecture="small").loss_of_copies(logits, labels), expected)


def test_the_penalty_is_the_divergence_from_the_mean_and_its_entropy():
    logits, labels = torch.randn(4, 6, 10), torch.randint(10, (6,))
    mean = logits.softmax(2).mean(0)
    kl = torch.stack([F.kl_div(copy.log_softmax(1), mean, reduction="batchmean") for copy in logits]).mean()
    entropy = torch.distributions.Categorical(mean).entropy().mean()
    plain = SmoothAdv(architecture="small").loss_of_copies(logits, labels)
    found = Consistency(architecture="small", consistency=3.0, entropy=0.25).loss_of_copies(logits, labels)
    torch.testing.assert_close(found, plain + 3 * kl + 0.25 * entropy)
    same = logits[:1].expand(4, -1, -1)
    no_entropy = Consistency(architecture="small", entropy=0.0)
    expected = SmoothAdv(architecture="small").loss_of_copies(same, labels)
    torch.testing.assert_close(no_entropy.loss_of_copies(same, labels), expected)
