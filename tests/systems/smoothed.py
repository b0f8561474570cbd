"""Smoothed nets that several tests use."""

from typing import cast

import torch
from torch import Tensor, nn

from linfnet.data import load
from linfnet.systems.smoothing import SmoothedNet


class Halfplane(SmoothedNet):
    """A base net whose smoothed class is known: class 1 where the first pixel is above one half."""

    def base_logits(self, noisy: Tensor) -> Tensor:
        first = noisy.flatten(1)[:, 0]
        return torch.stack([0.5 - first, first - 0.5], 1)


def halfplane(samples: int = 2000, sigma: float = 0.3) -> Halfplane:
    return Halfplane((1, 8, 8), 2, "small", sigma, samples, 0.001, 16).eval()


def seen(count: int) -> Tensor:
    """Return digits that all differ."""
    return load("digits", "test").first(count).pixels()


def conv_net(samples: int = 300) -> SmoothedNet:
    torch.manual_seed(0)
    net = SmoothedNet((1, 8, 8), 3, "small", 0.3, samples, 0.05, 4).eval()
    last = cast(nn.Linear, net.base[1])
    # Without this, the random net would assign one class to all images.
    last.bias.data -= net.base_logits(seen(12) + 0.3 * torch.randn(12, 1, 8, 8)).detach().mean(0)
    last.bias.data[0] += 0.01
    return net
