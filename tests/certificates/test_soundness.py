"""The soundness campaign of benchmarks/soundness.py at a small size."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

from linfnet.certificates import certify_images
from linfnet.nn.label_margin import margin


@pytest.fixture(scope="module")
def campaign() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "soundness.py"
    spec = importlib.util.spec_from_file_location("soundness", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("seed", range(14))
def test_no_certified_sample_is_broken(campaign: ModuleType, seed: int):
    net = campaign.random_net(seed)
    attacked, broken, least = campaign.try_net(net, torch.rand(40, *net.image_shape), 5)
    assert attacked > 10 or seed in (6, 13)  # large weights leave some images without a radius
    assert broken == 0
    assert 0 < min(least.values()) < 1


def test_the_campaign_breaks_what_is_not_certified(campaign: ModuleType):
    """At ten times the radius the attacks succeed; otherwise the test above could not fail."""
    broken = dict.fromkeys(("margin p=16", "rival 1 p=64", "ce p=inf", "pgd", "square", "corners"), 0)
    for seed in range(4):
        net = campaign.random_net(seed)
        images = torch.rand(40, *net.image_shape)
        certified = certify_images(net, [(images, None)])
        gaps = campaign.least_margins(net, images, certified.labels, (10 * certified.best_radii).clamp(0, 1), 10)
        for name in broken:
            broken[name] += int((gaps[name] <= 0).sum())
    assert all(count > 5 for count in broken.values()), broken


def test_the_corner_search_is_exact(campaign: ModuleType):
    net = campaign.random_net(1)
    images, labels = torch.rand(3, 1, 2, 2), torch.zeros(3, dtype=torch.int64)
    epsilons = torch.tensor([0.0, 0.01, 0.5], dtype=torch.float64)
    least = campaign.corners(net, images, labels, epsilons)
    assert least[0] == margin(net(images[:1]), labels[:1])[0]
    for index in (1, 2):
        signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 4).view(-1, 1, 2, 2)
        moved = (images[index] + float(epsilons[index]) * signs).clamp(0, 1)
        expected = margin(net(moved), labels[:1].expand(16)).min()
        torch.testing.assert_close(least[index], expected, atol=1e-5, rtol=0)
