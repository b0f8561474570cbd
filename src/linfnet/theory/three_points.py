"""Three points on a line: what interval bounds on conventional nets cannot prove, and a two-layer distance net does.

Points 0, 1/2, 1 of classes 0, 1, 0 are separated at r = 1/4; in units of r around 1/2 they are z = -2, 0, 2. Mirman et
al. (2021) show that no conventional net has interval bounds that prove all of its robustness on three such points. Take
    f(z) = 1 - t - relu(z - t) - relu(-z - t),   0 <= t < 1,   class 1 where f(z) > 0:
it is robust at every eps < r, yet in the bounds both relus reach eps/r - t at once: they prove eps < (1 + t) r / 2 and
no more. A larger t buys a larger radius with a smaller margin 1 - t at 1/2, and none reaches r. The one distance net
proves every eps < r.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from linfnet.errors import ArgumentError
from linfnet.nn import LinfNet
from linfnet.theory.construct import nearest_neighbour_net

RADIUS = 0.25
CLASSES = 2

Bounds = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Contender:
    """A net on the line: its score (positive for class 1), and bounds on it over intervals."""

    name: str
    score: Callable[[Tensor], Tensor]  # [n] -> [n]
    bounds: Bounds  # two [n] -> two [n]

    @property
    def proven(self) -> float:
        """The radius up to which the bounds prove all three points."""
        return proven_radius(self.bounds)


def three_points() -> tuple[Tensor, Tensor]:
    """The points [3] and their labels [3].

    >>> three_points()
    (tensor([0.0000, 0.5000, 1.0000]), tensor([0, 1, 0]))
    """
    return torch.tensor([0.0, 0.5, 1.0]), torch.tensor([0, 1, 0])


def proven_radius(bounds: Bounds) -> float:
    """The eps below which the bounds prove all three points (by bisection, to 2^-24); 0 if they prove none."""
    points, labels = three_points()
    low, high = 0.0, 2 * RADIUS
    while high - low > 2.0**-24:
        middle = (low + high) / 2
        lower, upper = bounds((points - middle).clamp(min=0), (points + middle).clamp(max=1))
        proven = bool(torch.where(labels == 1, lower > 0, upper < 0).all())
        low, high = (middle, high) if proven else (low, middle)
    return low


def relu_net(hidden: tuple[int, ...]) -> nn.Sequential:
    """A conventional net from z to a score."""
    sizes = (1, *hidden, 1)
    layers: list[nn.Module] = []
    for place in range(len(sizes) - 1):
        layers += [nn.Linear(sizes[place], sizes[place + 1]), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def interval_bounds(net: nn.Sequential, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Interval bound propagation through linear layers and relus: two [n, in] -> two [n, out].

    >>> interval_bounds(nn.Sequential(nn.ReLU()), torch.tensor([[-1.0]]), torch.tensor([[2.0]]))
    (tensor([[0.]]), tensor([[2.]]))
    """
    for layer in net:
        if isinstance(layer, nn.Linear):
            centre, reach = (lower + upper) / 2, (upper - lower) / 2
            centre, reach = layer(centre), reach @ layer.weight.abs().t()
            lower, upper = centre - reach, centre + reach
        elif isinstance(layer, nn.ReLU):
            lower, upper = layer(lower), layer(upper)
        else:
            raise ArgumentError(f"net has a {type(layer).__name__}; wanted Linear and ReLU alone")
    return lower, upper


def two_relu_net(t: float) -> nn.Sequential:
    """The net f above."""
    net = relu_net((2,))
    weights = {
        "0.weight": torch.tensor([[1.0], [-1.0]]),
        "0.bias": torch.tensor([-t, -t]),
        "2.weight": torch.tensor([[-1.0, -1.0]]),
        "2.bias": torch.tensor([1 - t]),
    }
    net.load_state_dict(weights)
    return net


def train_for_intervals(hidden: tuple[int, ...], share: float, seed: int = 0, steps: int = 200) -> nn.Sequential:
    """A conventional net trained on its own interval bounds, eps rising from 0 to `share` of r: the usual way."""
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
    """The two-relu nets, nets trained for their interval bounds, and the distance net (given, or Theorem 1's)."""
    made = [conventional(f"2 relus, t = {t:g}", two_relu_net(t)) for t in (0.0, 0.5, 0.9)]
    trained = [
        conventional(f"relus {'×'.join(map(str, hidden))}, trained at {share:g} r", train_for_intervals(hidden, share))
        for hidden in ((64,), (32, 32))
        for share in (0.5, 0.9, 1.0)
    ]
    return [*made, *trained, distance_contender(net)]
