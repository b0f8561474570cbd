"""The exact net in rational arithmetic, nets with awkward numbers, and every float32 image of a small box."""

import itertools
from fractions import Fraction

import torch

from linfnet.nn import LinfNet


def rationals(values: torch.Tensor) -> list[Fraction]:
    return [Fraction(value) for value in values.double().flatten().tolist()]


class ExactNet:
    """A net with its own float constants, evaluated without rounding."""

    def __init__(self, net: LinfNet) -> None:
        self.mean, self.std = rationals(net.normalize.mean), Fraction(net.normalize.std.item())
        self.pixels = net.image_shape[1] * net.image_shape[2]
        self.sign = -1 if net.negate_logits else 1
        self.layers = []
        for layer in net.layers:
            weights = [rationals(row) for row in layer.weight]
            none = [Fraction(0)] * len(weights)
            shift = none if layer.shift is None else rationals(layer.shift.running_mean)
            bias = none if layer.bias is None else rationals(layer.bias)
            self.layers.append((weights, [b - s for s, b in zip(shift, bias, strict=True)]))

    def __call__(self, image: torch.Tensor) -> list[Fraction]:
        means = [mean for mean in self.mean for _ in range(self.pixels)]
        values = [(x - m) / self.std for x, m in zip(rationals(image), means, strict=True)]
        for weights, add in self.layers:
            rows = zip(weights, add, strict=True)
            values = [max(abs(x - w) for x, w in zip(values, row, strict=True)) + b for row, b in rows]
        return [self.sign * value for value in values]


def awkward(shape: tuple[int, ...], generator: torch.Generator, widest: int) -> torch.Tensor:
    """Random numbers of either sign whose magnitudes spread over 2^-widest … 2^widest, with repeats and zeros."""
    size = torch.exp2(torch.randint(-widest, widest + 1, shape, generator=generator).float())
    values = size * (1 + torch.rand(shape, generator=generator))
    values = values * (2 * torch.randint(2, shape, generator=generator) - 1)
    values[torch.rand(shape, generator=generator) < 0.1] = 0.0
    return values


def awkward_net(seed: int, widest: int, image_shape: tuple[int, int, int] = (1, 1, 3), hidden=(4, 3)) -> LinfNet:
    """A small net whose weights, means and biases spread over 2^±widest, with all kinds of steps."""
    generator = torch.Generator().manual_seed(seed)
    std = float(torch.rand((), generator=generator)) + 0.05
    net = LinfNet(
        image_shape, 3, hidden, mean=0.4, std=std, hidden_bias=seed % 2 == 0, mean_shift=seed % 3 > 0,
        negate_logits=seed % 5 > 0, identity_init=False,
    ).eval()  # fmt: skip
    with torch.no_grad():
        for name, tensor in net.state_dict().items():
            if name != "scale":
                tensor.copy_(awkward(tuple(tensor.shape), generator, widest))
    return net


def floats_between(low: Fraction, high: Fraction) -> list[float]:
    """Every float32 in [low, high]; both within [0, 1]."""
    value = torch.tensor(float(low), dtype=torch.float32)
    value = torch.nextafter(value, torch.tensor(-1.0)).clamp(min=0)
    found = []
    while Fraction(value.item()) <= high:
        if Fraction(value.item()) >= low:
            found.append(value.item())
        value = torch.nextafter(value, torch.tensor(2.0))
    return found


def all_images(image: torch.Tensor, epsilon: Fraction) -> torch.Tensor:
    """Every float32 image within epsilon of a small one and inside [0, 1]: [n, C, H, W]."""
    sides = [floats_between(max(x - epsilon, Fraction(0)), min(x + epsilon, Fraction(1))) for x in rationals(image)]
    return torch.tensor(list(itertools.product(*sides))).view(-1, *image.shape)
