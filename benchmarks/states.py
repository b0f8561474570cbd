"""Inputs and weights of a hidden 1024 x 1024 layer at large p, taken from a short real training run.

Random numbers have many coordinates near the maximum and a trained net has few, so speed at large p must be measured on
trained states. A net with three hidden layers is trained on MNIST (the built-in digits if MNIST is missing): at p = 8
first, then with p rising exponentially as in the paper; the second hidden layer is saved at the required p.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from linfnet.data import load
from linfnet.errors import LinfnetError
from linfnet.nn import LinfNet

WIDTH, BATCH = 1024, 256
START_P, STEADY_STEPS, RISING_STEPS = 8.0, 60, 160


@dataclass(frozen=True)
class State:
    """Inputs x [256, 1024] and weights w [1024, 1024] of a layer at exponent p."""

    x: Tensor
    w: Tensor
    p: float
    source: str

    @property
    def terms(self) -> float:
        """The mean number of terms that can change a float32 sum: those above 2^(-24/p) times the largest."""
        counts: list[Tensor] = []
        for row in self.x[::16]:
            size = (row - self.w).abs()
            counts.append((size > size.amax(-1, keepdim=True) * 2 ** (-24 / self.p)).sum(-1).float().mean())
        return float(torch.stack(counts).mean())


def random_state(p: float, shape: tuple[int, int, int] = (BATCH, WIDTH, WIDTH)) -> State:
    """Return a state of standard normal numbers."""
    generator = torch.Generator().manual_seed(0)
    n, out, features = shape
    x, w = (torch.randn(rows, features, generator=generator) for rows in (n, out))
    return State(x, w, p, "random")


def trained_states(wanted: tuple[float, ...]) -> list[State]:
    """Return the states of the second hidden layer when the rising p reaches each of the given values."""
    torch.manual_seed(0)
    try:
        data = load("mnist")
    except LinfnetError:
        data = load("digits")
    images = data.images.float() / 255
    net = LinfNet(tuple(images.shape[1:]), 10, hidden=(WIDTH,) * 3, mean=float(images.mean()), std=float(images.std()))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02, betas=(0.9, 0.99), eps=1e-10)
    states: list[State] = []
    remaining = sorted(wanted)
    rate = (remaining[-1] / START_P) ** (1 / (RISING_STEPS - 1))
    for step in range(STEADY_STEPS + RISING_STEPS):
        p = START_P * rate ** max(0, step - STEADY_STEPS + 1)
        if p >= remaining[0] * 0.9999:
            p = remaining.pop(0)
            states.append(_catch(net, images[:BATCH], p, f"{data.info.name}, step {step}"))
            if not remaining:
                break
        net.p = p
        batch = torch.randint(len(images), (BATCH,))
        loss = F.cross_entropy(net.scale * net(images[batch]), data.labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return states


def _catch(net: LinfNet, images: Tensor, p: float, source: str) -> State:
    net.p = p
    with torch.no_grad():
        x = net.layers[0](net.normalize(images).flatten(1))
        weight = net.layers[1].weight.detach().clone()
    return State(x, weight, p, source)
