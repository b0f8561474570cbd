"""Three points on a line: interval bounds prove less for conventional nets than for a two-layer distance net.

Points 0, 1/2, 1 of classes 0, 1, 0 are separated at r = 1/4; in units of r around 1/2 they are z = -2, 0, 2. Mirman et
al. (2021) show that no conventional net has interval bounds that prove all of its robustness on three such points. Take
    f(z) = 1 - t - relu(z - t) - relu(-z - t),   0 <= t < 1,   class 1 where f(z) > 0:
it is robust at every eps < r, yet in the bounds both relus reach eps/r - t at once, so they prove only
eps < (1 + t) r / 2. A larger t gives a larger radius but a smaller margin 1 - t at 1/2, and no t reaches r. For the one
distance net, the bounds prove every eps < r. Bounds are computed here in floating point, without outward rounding.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from linfnet.errors import ArgumentError
from linfnet.nn import LinfNet
from linfnet.systems.layers import linear_bounds
from linfnet.theory.construct import nearest_neighbour_net

RADIUS = 0.25
CLASSES = 2


@dataclass(frozen=True)
class Contender:
    """A net on the line: its score (positive for class 1), and bounds on it over intervals."""

    name: str
    score: Callable[[Tensor], Tensor]  # [n] -> [n]
    bounds: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # two [n] -> two [n]

    @property
    def proven(self) -> float:
        """The eps below which the bounds prove all three points, by bisection to 2^-24; 0 if there is none."""
        points, labels = three_points()
        low, high = 0.0, 2 * RADIUS
        while high - low > 2.0**-24:
            middle = (low + high) / 2
            lower, upper = self.bounds((points - middle).clamp(min=0), (points + middle).clamp(max=1))
            proven = bool(torch.where(labels == 1, lower > 0, upper < 0).all())
            low, high = (middle, high) if proven else (low, middle)
        return low


def three_points() -> tuple[Tensor, Tensor]:
    """The points [3] and their labels [3].

    >>> three_points()
    (tensor([0.0000, 0.5000, 1.0000]), tensor([0, 1, 0]))
    """
    return torch.tensor([0.0, 0.5, 1.0]), torch.tensor([0, 1, 0])


def relu_net(hidden: tuple[int, ...]) -> nn.Sequential:
    """An untrained conventional net from z to a score."""
    sizes = (1, *hidden, 1)
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def interval_bounds(net: nn.Sequential, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Propagate interval bounds through linear layers and relus: two [n, in] -> two [n, out].

    >>> interval_bounds(nn.Sequential(nn.ReLU()), torch.tensor([[-1.0]]), torch.tensor([[2.0]]))
    (tensor([[0.]]), tensor([[2.]]))
    """
    for layer in net:
        if isinstance(layer, nn.Linear):
            lower, upper = linear_bounds(lower, upper, layer.weight, layer.bias)
        elif isinstance(layer, nn.ReLU):
            lower, upper = layer(lower), layer(upper)
        else:
            raise ArgumentError(f"net has a {type(layer).__name__}; wanted only Linear and ReLU")
    return lower, upper


def two_relu_net(t: float) -> nn.Sequential:
    """The net f above."""
    net = relu_net((2,))
    weights = ([[1.0], [-1.0]], [-t, -t], [[-1.0, -1.0]], [1 - t])
    net.load_state_dict({name: torch.tensor(w) for name, w in zip(net.state_dict(), weights, strict=True)})
    return net


def train_for_intervals(hidden: tuple[int, ...], share: float, seed: int = 0, steps: int = 200) -> nn.Sequential:
    """Train a conventional net on its interval bounds, with eps rising from 0 to `share` of r, as is usual."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = relu_net(hidden)
    points, labels = three_points()
    z = _units(points)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    for step in range(steps):
        epsilon = share * min(1.0, 1.5 * step / steps)
        lower, upper = interval_bounds(net, z - epsilon, z + epsilon)
        worst = torch.where(labels.unsqueeze(1) == 1, lower, -upper)
        loss = nn.functional.softplus(-5 * worst).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net


def _units(x: Tensor) -> Tensor:
    """[n] -> z [n, 1]."""
    return ((x - 0.5) / RADIUS).unsqueeze(1)


def conventional(name: str, net: nn.Sequential) -> Contender:
    """A conventional net as a contender."""

    @torch.no_grad()
    def score(x: Tensor) -> Tensor:
        return net(_units(x)).squeeze(1)

    @torch.no_grad()
    def bounds(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        low, high = interval_bounds(net, _units(lower), _units(upper))
        return low.squeeze(1), high.squeeze(1)

    return Contender(name, score, bounds)


def distance_contender(net: LinfNet | None = None) -> Contender:
    """The net of Theorem 1 on the three points; its score is the difference of its logits."""
    points, labels = three_points()
    net = net if net is not None else nearest_neighbour_net(points.view(3, 1, 1, 1), labels, CLASSES)

    @torch.no_grad()
    def score(x: Tensor) -> Tensor:
        logits = net(x.view(-1, 1, 1, 1))
        return logits[:, 1] - logits[:, 0]

    @torch.no_grad()
    def bounds(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        low, high = net.bounds(lower.view(-1, 1, 1, 1), upper.view(-1, 1, 1, 1))
        return low[:, 1] - high[:, 0], high[:, 1] - low[:, 0]

    return Contender(f"distance net, {len(net.hidden) + 1} layers", score, bounds)


def contenders(net: LinfNet | None = None) -> list[Contender]:
    """The two-relu nets, nets trained on their interval bounds, and the distance net (the given one or Theorem 1's)."""
    constructed = [conventional(f"2 relus, t = {t:g}", two_relu_net(t)) for t in (0.0, 0.5, 0.9)]
    trained = [
        conventional(f"relus {'×'.join(map(str, hidden))}, trained at {share:g} r", train_for_intervals(hidden, share))
        for hidden in ((64,), (32, 32))
        for share in (0.5, 0.9, 1.0)
    ]
    return [*constructed, *trained, distance_contender(net)]
