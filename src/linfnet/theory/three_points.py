"""Three points on a line: interval bounds prove less for conventional nets than for a two-layer distance net.

Points 0, 1/2, 1 of classes 0, 1, 0 are separated at r = 1/4; in units of r around 1/2 they are z = -2, 0, 2. Mirman et
al. (2021) show that no conventional net has interval bounds that prove all of its robustness on three such points. Take
    f(z) = 1 - t - relu(z - t) - relu(-z - t),   0 <= t < 1,   class 1 where f(z) > 0.
This net is robust at every eps < r, but interval bounds let both relus reach eps/r - t at once, so they prove
robustness only for eps < (1 + t) r / 2. A larger t gives a larger proven radius but a smaller margin 1 - t at 1/2, and
no t reaches r. For the distance net, the bounds prove every eps < r. All bounds here are computed in floating point,
without outward rounding.
"""

import itertools
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from linfnet.figures import RUST, SOFT, TEAL, new_figure, save_figure, style_axes
from linfnet.nn import LinfNet
from linfnet.systems.layers import Box, through
from linfnet.theory.construct import nearest_neighbour_net

RADIUS = 0.25
POINTS, LABELS = torch.tensor([0.0, 0.5, 1.0]), torch.tensor([0, 1, 0])


@dataclass(frozen=True)
class Contender:
    """A net in the comparison: a conventional net from z to a score, or a distance net with two logits."""

    name: str
    net: nn.Sequential | LinfNet

    @torch.no_grad()
    def bounds(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Return lower and upper bounds [n] on the score, which is positive for class 1, over n intervals."""
        if isinstance(self.net, nn.Sequential):
            low, high = interval_bounds(self.net, _units(lower), _units(upper))
            return low.squeeze(1), high.squeeze(1)
        low, high = self.net.bounds(lower.view(-1, 1, 1, 1), upper.view(-1, 1, 1, 1))
        return low[:, 1] - high[:, 0], high[:, 1] - low[:, 0]

    def score(self, x: Tensor) -> Tensor:
        """Return the score at each point: [n] -> [n]."""
        return self.bounds(x, x)[0]

    def around_points(self, epsilon: float) -> tuple[Tensor, ...]:
        """Return the ends of the intervals around the points, bounds on the score, and whether each point is proven."""
        ends = (POINTS - epsilon).clamp(min=0), (POINTS + epsilon).clamp(max=1)
        lower, upper = self.bounds(*ends)
        return *ends, lower, upper, torch.where(LABELS == 1, lower > 0, upper < 0)

    @property
    def proven(self) -> float:
        """The eps below which the bounds prove all three points, found by bisection to 2^-24; 0 if they never do."""
        low, high = 0.0, 2 * RADIUS
        while high - low > 2.0**-24:
            middle = (low + high) / 2
            proven = bool(self.around_points(middle)[-1].all())
            low, high = (middle, high) if proven else (low, middle)
        return low


def three_points_net(layers: int = 2) -> LinfNet:
    """Build the distance net that the theorems construct for the three points."""
    return nearest_neighbour_net(POINTS.view(3, 1, 1, 1), LABELS, 2, layers=layers)


def relu_net(hidden: tuple[int, ...]) -> nn.Sequential:
    """Build an untrained conventional net from z to a score."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise((1, *hidden, 1)):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def interval_bounds(net: nn.Sequential, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Propagate interval bounds through linear layers and relus: two [n, in] -> two [n, out].

    >>> interval_bounds(nn.Sequential(nn.ReLU()), torch.tensor([[-1.0]]), torch.tensor([[2.0]]))
    (tensor([[0.]]), tensor([[2.]]))
    """
    box = Box(lower, upper)
    for layer in net:
        box = through(layer, box)
    return box.lower, box.upper


def two_relu_net(t: float) -> nn.Sequential:
    """Build the net f of the module's docstring."""
    net = relu_net((2,))
    weights = ([[1.0], [-1.0]], [-t, -t], [[-1.0, -1.0]], [1 - t])
    net.load_state_dict({name: torch.tensor(w) for name, w in zip(net.state_dict(), weights, strict=True)})
    return net


def train_for_intervals(hidden: tuple[int, ...], share: float, steps: int = 200) -> nn.Sequential:
    """Train a conventional net on its interval bounds, while eps rises from 0 to `share` * r, as is common practice."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = relu_net(hidden)
    z = _units(POINTS)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    for step in range(steps):
        epsilon = share * min(1.0, 1.5 * step / steps)
        lower, upper = interval_bounds(net, z - epsilon, z + epsilon)
        worst = torch.where(LABELS.unsqueeze(1) == 1, lower, -upper)
        loss = nn.functional.softplus(-5 * worst).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net


def _units(x: Tensor) -> Tensor:
    """Convert points x [n] to z [n, 1]."""
    return ((x - 0.5) / RADIUS).unsqueeze(1)


def contenders(net: LinfNet) -> list[Contender]:
    """Return the two-relu nets, nets trained on their interval bounds, and the given distance net."""
    constructed = [Contender(f"2 relus, t = {t:g}", two_relu_net(t)) for t in (0.0, 0.5, 0.9)]
    trained = [
        Contender(f"relus {'×'.join(map(str, hidden))}, trained at {share:g} r", train_for_intervals(hidden, share))
        for hidden in ((64,), (32, 32))
        for share in (0.5, 0.9, 1.0)
    ]
    return [*constructed, *trained, Contender(f"distance net, {len(net.hidden) + 1} layers", net)]


def draw_three_points(path: Path, contenders: list[Contender], share: float = 0.95) -> None:
    """Plot scores and bounds of three nets (first, middle, last) at eps = `share` * r, and proven radii of all nets."""
    figure = new_figure(11, 5.5)
    grid = figure.add_gridspec(2, 3, height_ratios=(1, 1.2))
    line = torch.linspace(0, 1, 401)
    shown = [contenders[0], contenders[len(contenders) // 2 - 1], contenders[-1]]
    for column, contender in enumerate(shown):
        axis = figure.add_subplot(grid[0, column])
        axis.plot(line.numpy(), contender.score(line).numpy(), color="black")
        boxes = torch.stack(contender.around_points(share * RADIUS), 1).tolist()
        for left, right, low, high, proven in boxes:
            colour = TEAL if proven else RUST
            axis.bar(left, high - low, right - left, bottom=low, align="edge", alpha=0.3, color=colour)
        axis.axhline(0, linestyle=":", color="black")
        style_axes(axis)
        axis.set_title(f"{contender.name}: bounds at {share:g} r", fontsize=9)
    axis = figure.add_subplot(grid[1, :])
    radii = [contender.proven / RADIUS for contender in contenders]
    colours = [SOFT] * (len(radii) - 1) + [TEAL]
    axis.barh([contender.name for contender in contenders], radii, color=colours)
    axis.axvline(1.0, linestyle="--", color="black")
    axis.set_xlabel("proven radius / r")
    style_axes(axis, grid="x")
    axis.tick_params(axis="y", labelsize=7)
    axis.invert_yaxis()
    save_figure(figure, path)
