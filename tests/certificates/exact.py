"""The exact net in rational arithmetic, nets with awkward numbers, and every float32 image of a small box."""

import itertools
from fractions import Fraction

import numpy as np
import torch

from linfnet.nn import (
    Classifier,
    LinfNet,
    LpDistance,
    LpDistanceConv2d,
    MeanShift,
    SparseDistance,
    SparseNet,
    WrappedNet,
)


def rationals(values: torch.Tensor) -> list[Fraction]:
    return [Fraction(value) for value in values.double().flatten().tolist()]


def connections_of(layer: LpDistance | SparseDistance) -> list[list[tuple[int, Fraction]]]:
    """For each neuron, its inputs and exact weights."""
    if isinstance(layer, LpDistance):
        return [list(enumerate(rationals(row))) for row in layer.weight]
    pairs = list(zip(layer.index.tolist(), rationals(layer.weight), strict=True))
    return [pairs[start:end] for start, end in itertools.pairwise(layer.offsets.tolist())]


class ExactNet:
    """A net with its own float constants, evaluated without rounding."""

    def __init__(self, net: LinfNet | SparseNet) -> None:
        self.mean, self.std = rationals(net.normalize.mean), Fraction(net.normalize.std.item())
        self.pixels = net.image_shape[1] * net.image_shape[2]
        self.sign = -1 if net.negate_logits else 1
        self.layers = []
        for layer in net.layers:
            weights = connections_of(layer)
            none = [Fraction(0)] * len(weights)
            shift = none if layer.shift is None else rationals(layer.shift.running_mean)
            bias = none if layer.bias is None else rationals(layer.bias)
            self.layers.append((weights, [b - s for s, b in zip(shift, bias, strict=True)]))

    def __call__(self, image: torch.Tensor) -> list[Fraction]:
        means = [mean for mean in self.mean for _ in range(self.pixels)]
        values = [(x - m) / self.std for x, m in zip(rationals(image), means, strict=True)]
        for weights, add in self.layers:
            values = [max(abs(values[i] - w) for i, w in row) + b for row, b in zip(weights, add, strict=True)]
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


def thinned(net: LinfNet, seed: int, share: float = 0.6) -> SparseNet:
    """The net without some of its connections; each neuron keeps at least one."""
    generator, layers = torch.Generator().manual_seed(seed), []
    for layer in net.layers:
        keep = torch.rand(layer.weight.shape, generator=generator) < share
        keep[torch.arange(len(keep)), torch.randint(keep.shape[1], (len(keep),), generator=generator)] = True
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), keep.sum(1).cumsum(0)])
        mean = None if layer.shift is None else layer.shift.running_mean
        options = {"mean": mean, "bias": layer.bias}
        layers.append(SparseDistance(layer.weight[keep], keep.nonzero()[:, 1], offsets, layer.in_features, **options))
    options = {"mean": net.mean, "std": net.std, "negate_logits": net.negate_logits}
    return SparseNet(net.image_shape, net.classes, layers, **options).eval()


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


class ExactBody:
    """A wrapped net with its own float constants, evaluated on one image without rounding, operation by operation."""

    def __init__(self, net: WrappedNet) -> None:
        self.net, self.program = net, net.program()

    def __call__(self, image: torch.Tensor) -> list[Fraction]:
        normalize = self.net.normalize
        mean = normalize.mean.view(-1, *[1] * (image.dim() - 1)).expand(image.shape)
        start = (_exact(image) - _exact(mean)) / Fraction(normalize.std.item())
        known = {}
        for node in self.program.graph.nodes:
            arguments = torch.fx.node.map_arg(node.args, known.__getitem__)
            if node.op == "placeholder":
                known[node] = start[None]
            elif node.op == "output":
                return list(arguments[0][0])
            elif node.op == "get_attr":
                known[node] = _exact(getattr(self.net.body, node.target))
            elif node.op == "call_module":
                known[node] = _exact_module(self.net.body.get_submodule(node.target), arguments[0])
            else:
                name = node.target if isinstance(node.target, str) else node.target.__name__
                known[node] = FUNCTIONS[name](*arguments, **torch.fx.node.map_arg(node.kwargs, known.__getitem__))
        raise AssertionError


def _exact(values: torch.Tensor) -> np.ndarray:
    found = np.empty(values.numel(), dtype=object)
    found[:] = rationals(values)
    return found.reshape(tuple(values.shape))


FUNCTIONS = {
    "add": lambda a, b: a + (b if isinstance(b, np.ndarray) else Fraction(float(np.float32(b)))),
    "sub": lambda a, b: a - b if isinstance(a, np.ndarray) else Fraction(float(np.float32(a))) - b,
    "mul": lambda a, b: Fraction(float(np.float32(a))) * b,
    "truediv": lambda a, b: a / Fraction(float(np.float32(b))),
    "neg": lambda a: -a,
    "abs": abs,
    "relu": lambda a, inplace=False: np.maximum(a, 0),
    "clamp": lambda a, **ends: np.minimum(np.maximum(a, Fraction(ends["min"])), Fraction(ends["max"])),
    "maximum": np.maximum,
    "minimum": np.minimum,
    "amax": lambda a, dim: a.max(dim),
    "cat": lambda parts, dim: np.concatenate(parts, dim),
    "stack": lambda parts, dim: np.stack(parts, dim),
    "flatten": lambda a, start: a.reshape(*a.shape[:start], -1),
    "getitem": lambda a, index: a[index],
}


def _exact_module(module: torch.nn.Module, x: np.ndarray) -> np.ndarray:
    if isinstance(module, torch.nn.Flatten):
        return x.reshape(len(x), -1)
    if isinstance(module, torch.nn.ReLU):
        return np.maximum(x, 0)
    if isinstance(module, MeanShift):
        return x - _along(_exact(module.running_mean), module.dim, x)
    if isinstance(module, torch.nn.MaxPool2d | torch.nn.AvgPool2d):
        channels = [_patches(x[:, c : c + 1], module.kernel_size, module.stride, 0) for c in range(x.shape[1])]
        rows = [patches.max(1) if isinstance(module, torch.nn.MaxPool2d) else patches.mean(1) for patches in channels]
        side = [(size - module.kernel_size) // module.stride + 1 for size in x.shape[2:]]
        return np.stack(rows).reshape(1, len(rows), *side)
    weight = _exact(module.weight)
    if isinstance(module, LpDistance):
        y = np.stack([abs(x - row).max(-1) for row in weight], -1)
    else:
        patches = _patches(x, module.kernel_size, module.stride, module.padding)
        side = [(size + 2 * module.padding - module.kernel_size) // module.stride + 1 for size in x.shape[2:]]
        y = np.stack([abs(patches - row).max(1) for row in weight]).reshape(1, len(weight), *side)
    if module.shift is not None:
        y = y - _along(_exact(module.shift.running_mean), module.dim, y)
    return y if module.bias is None else y + _along(_exact(module.bias), module.dim, y)


def _along(vector: np.ndarray, dim: int, x: np.ndarray) -> np.ndarray:
    return vector.reshape([-1 if d == dim % x.ndim else 1 for d in range(x.ndim)])


def _patches(x: np.ndarray, kernel: int, stride: int, padding: int) -> np.ndarray:
    """The patches [positions, fan_in] of an image [1, C, H, W]; the numbers of the pixels tell which they are."""
    places = torch.arange(1, x.size + 1).view(x.shape).double()
    columns = torch.nn.functional.unfold(places, kernel, padding=padding, stride=stride)[0].long()
    return np.concatenate([[Fraction(0)], x.flatten()])[columns.T.numpy()]


class Dag(torch.nn.Module):
    """All operations that join, choose, negate, shift and scale features, on vectors."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.first, self.second = LpDistance(features, 3, mean_shift=True), LpDistance(features, 2, bias=True)
        self.shift, self.third, self.fourth = (
            MeanShift(2),
            LpDistance(5, 4),
            LpDistance(5, 4, mean_shift=True, bias=True),
        )
        self.last, self.offset = LpDistance(4, 3, bias=True), torch.nn.Parameter(torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        both = torch.cat([-self.first(x), self.shift(self.second(x))], 1)
        above = torch.maximum(torch.relu(self.third(both)), self.fourth(both) - self.offset)
        scaled = torch.minimum(0.7 * above, 3 - abs(above) / 3.0)
        return -self.last(torch.stack([scaled, self.offset + above], 1).amax(1)[:, 0:4].clamp(min=-5.0, max=2.0**19))


class Conv(torch.nn.Sequential):
    """Convolutional distance layers with a pool between them, on images [1, 3, 3]."""

    def __init__(self, pool: torch.nn.Module) -> None:
        super().__init__(
            LpDistanceConv2d(1, 2, 2, padding=1, mean_shift=True, bias=True), pool, torch.nn.ReLU(),
            LpDistanceConv2d(2, 2, 2), MeanShift(2, dim=1), torch.nn.Flatten(), LpDistance(8, 3, bias=True),
        )  # fmt: skip


def wrapped_net(seed: int, widest: int) -> WrappedNet:
    """A wrapped net for vectors (seeds that 3 divides) or images whose numbers spread over 2^±widest."""
    generator = torch.Generator().manual_seed(seed)
    pools = [torch.nn.MaxPool2d(2, 1), torch.nn.AvgPool2d(2, 1)]
    body, shape = (Dag(2), (2,)) if seed % 3 == 0 else (Conv(pools[seed % 3 - 1]), (1, 3, 3))
    std = float(torch.rand((), generator=generator)) + 0.05
    mean = (0.4, 0.3) if len(shape) == 1 else 0.4
    with torch.no_grad():
        for tensor in body.state_dict().values():
            tensor.copy_(awkward(tuple(tensor.shape), generator, widest))
    return Classifier.wrap(body.eval(), image_shape=shape, classes=3, mean=mean, std=std)
