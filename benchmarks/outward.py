"""Certificates of nets with matrix products, against the float32 program in many orders of summation.

    python benchmarks/outward.py search [--certificates 10000]
    python benchmarks/outward.py cost RUN DATA [--images 1000]
    python benchmarks/outward.py tanh

`search`: small nets (1 to 3 pixels) of the systems hybrid and ibp with awkward numbers: magnitudes of 2^-20 to 2^20,
biases much larger than the margins. Each certified image is attacked within its exact radius: corners, neighbours of
corners and of the image, random images, all float32 images of small boxes with one pixel, then the neighbours of the
best image so far. Each candidate is computed by the net in batches and one by one, and with products that are summed in
random orders, in pairs, with and without fused products, by scaled weights as on a CPU and as on a GPU. Claim: none is
broken. The same search runs on certificates that ignore rounding, of which many are broken.

`cost`: certified accuracy of a trained net with and without rounding errors, and seconds per image.

`tanh`: the error of `torch.tanh` for all float32 numbers, in units in the last place.

Results are written to records/outward.json.
"""

import argparse
import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linfnet.boxes import inner_box, outer_box
from linfnet.certificates import certified_by_interval, interval_radius, outward
from linfnet.data import load
from linfnet.errors import LinfnetError
from linfnet.files import read_json, write_json
from linfnet.nn.label_margin import label_on_top, margin
from linfnet.systems import layers as layers_of_systems
from linfnet.systems import load_model
from linfnet.systems.hybrid import HybridNet, MlpNet, ScaledLinear
from linfnet.systems.ibp import IbpNet
from linfnet.systems.layers import Box, smallest_margin, worst_margins
from linfnet.systems.sortnet_mlp import SortMlpNet
from linfnet.train import environment

OUT = Path(__file__).parent.parent / "records" / "outward.json"
# Nets for images of one row: convolutions (channels, kernel, stride), then the widths of hidden linear layers.
TINY = {"thin": (((2, 3, 1),), (3,)), "deep": (((2, 3, 1), (2, 3, 1)), (2,)), "flat": (((2, 1, 1),), ())}
IMAGES = 24
LARGEST_BOX = 2**12

SmallNet = MlpNet | IbpNet
Sum = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def awkward(shape: tuple[int, ...], source: torch.Generator, widest: int) -> Tensor:
    """Return random numbers of either sign and of magnitudes 2^-widest to 2^widest; a tenth of them is 0."""
    size = torch.exp2(torch.randint(-widest, widest + 1, shape, generator=source).float())
    values = size * (1 + torch.rand(shape, generator=source)) * (2 * torch.randint(2, shape, generator=source) - 1)
    return values * (torch.rand(shape, generator=source) >= 0.1)


def awkward_net(seed: int, keep: float = 1.0) -> SmallNet:
    """Return a net of one of the two systems whose logits are equal for some image, up to rounding.

    The biases of its last layer may be much larger than the differences of its logits. With a keep rate below 1, the
    system `sortnet-mlp` takes the place of `hybrid`.
    """
    source = torch.Generator().manual_seed(seed)
    shape, classes = (1, 1, 1 + seed % 3), 2 + seed // 3 % 2
    mean, std = 0.4, 0.05 + torch.rand((), generator=source).item()
    if seed % 2:
        hidden = tuple(torch.randint(1, 4, (1 + seed // 2 % 2,), generator=source).tolist())
        sizes = (shape, classes, hidden, 1 + seed // 4 % 6)
        own = {"mean": mean, "std": std}
        net = SortMlpNet(*sizes, keep=keep, **own) if keep < 1 else HybridNet(*sizes, **own)
    else:
        with patch.dict(layers_of_systems.ARCHITECTURES, TINY):
            net = IbpNet(shape, classes, list(TINY)[seed // 2 % 3], seed // 6 % 2 > 0, mean=mean, std=std)
    widest = (1, 3, 8, 20)[seed // 5 % 4]
    with torch.no_grad():
        for name, tensor in net.state_dict().items():
            if tensor.is_floating_point() and name != "scale":
                tensor.copy_(awkward(tuple(tensor.shape), source, widest))
                if name.endswith("running_var"):
                    tensor.abs_()
        if isinstance(net, MlpNet):  # otherwise tanh is 1 or -1 for almost all images
            for tensor in (net.first.weight, net.first.bias):
                tensor.mul_(2.0**-widest)
        net.eval().last.bias.zero_()
        logits = net(torch.rand(1, *shape, generator=source))[0]
        large = torch.exp2(torch.randint(0, 16, (), generator=source).float()) * logits.abs().max()
        net.last.bias.sub_(logits).add_(large if seed // 7 % 3 else 0.0)
    return net


def summed(weight: Tensor, columns: Tensor, bias: Tensor | None, source: torch.Generator) -> Tensor:
    """Return weight [out, n] times columns [B, n, L] plus bias in float32, with one of many orders of rounding."""
    order = torch.randperm(columns.shape[1] + (bias is not None), generator=source).tolist()
    fused, in_pairs = torch.randint(2, (2,), generator=source).tolist()
    terms: list[Tensor | None] = [None if k == columns.shape[1] else columns[:, k, None] for k in order]
    factors = [weight[:, k, None] if k < columns.shape[1] else bias.view(-1, 1) for k in order]  # type: ignore
    shape = (len(columns), len(weight), columns.shape[2])
    if in_pairs:
        parts = [(factor if x is None else factor * x).expand(shape) for x, factor in zip(terms, factors, strict=True)]
        while len(parts) > 1:
            parts = [a + b for a, b in zip(parts[::2], parts[1::2], strict=False)] + parts[len(parts) // 2 * 2 :]
        return parts[0]
    total = columns.new_zeros(shape)
    for x, factor in zip(terms, factors, strict=True):
        if x is None:
            total = total + factor
        else:  # the float64 product of two float32 numbers is exact
            total = (total.double() + factor.double() * x.double()).float() if fused else total + factor * x
    return total


def in_other_order(net: SmallNet, images: Tensor, source: torch.Generator) -> Tensor:
    """Return the logits of a net whose products are summed in other orders."""

    def linear(layer: nn.Linear | ScaledLinear, x: Tensor) -> Tensor:
        weight = layer.weight
        if isinstance(layer, ScaledLinear):
            reciprocal = (1 / torch.tensor(math.sqrt(weight.shape[1]))).float()
            weight = weight * reciprocal if torch.randint(2, (), generator=source) else layer.scaled()
        return summed(weight, x.unsqueeze(2), layer.bias, source).squeeze(2)

    if isinstance(net, MlpNet):
        return linear(net.last, linear(net.first, net.features(images)).tanh())
    x = net.normalize(images)
    for layer in (*net.layers, net.last):
        if isinstance(layer, nn.Conv2d):
            columns = F.unfold(x, layer.kernel_size, padding=layer.padding, stride=layer.stride)  # type: ignore
            wide = x.shape[3] + 2 * layer.padding[1] - layer.kernel_size[1] + 1  # type: ignore
            x = summed(layer.weight.flatten(1), columns, layer.bias, source).unflatten(2, (-1, wide))
        else:
            x = linear(layer, x) if isinstance(layer, nn.Linear) else outward.evaluate([layer], x)
    return x


def moved_by_steps(x: Tensor, steps: Tensor) -> Tensor:
    """Return non-negative float32 numbers moved by a number of float32 steps."""
    return (x.view(torch.int32) + steps.to(torch.int32)).clamp(min=0).view(torch.float32)


def candidates(image: Tensor, radius: float, source: torch.Generator) -> Tensor:
    """Return float32 images [n, d] within the exact radius of an image [d] and in [0, 1]."""
    low, high = (end[0] for end in inner_box(image[None], Fraction(radius)))
    d = len(image)
    corners = torch.where(torch.tensor(list(itertools.product([False, True], repeat=d))), high, low)
    near = torch.cat([corners, image[None]]).repeat_interleave(16, 0)
    near = moved_by_steps(near, torch.randint(-3, 4, near.shape, generator=source))
    random = low + torch.rand(64, d, generator=source) * (high - low)
    mixed = torch.where(torch.rand(64, d, generator=source) < 0.5, corners[torch.arange(64) % len(corners)], random)
    found = [corners, image[None], near, random, mixed]
    if d == 1:
        first, last = (end.abs().view(torch.int32).item() for end in (low, high))
        step = max((last - first) // LARGEST_BOX, 1)
        found.append(torch.arange(first, last + 1, step, dtype=torch.int32).view(torch.float32)[:, None])
    return torch.cat(found).clamp(low, high)


def least_margin(net: SmallNet, images: Tensor, label: int, source: torch.Generator) -> tuple[float, Tensor]:
    """Return the smallest margin of images [n, d] in any order of summation, and the image with this margin."""
    x = images.view(-1, *net.image_shape)
    logits = [net(x), *(in_other_order(net, x, source) for _ in range(3))]
    logits.append(torch.cat([*(net(one[None]) for one in x[:8]), logits[0][8:]]))
    labels = torch.full((len(x),), label)
    gaps = torch.stack([margin(each.double(), labels) for each in logits])
    least = gaps.nan_to_num(-math.inf).amin(0)
    return least.min().item(), images[least.argmin()]


@torch.no_grad()
def attack(net: SmallNet, image: Tensor, label: int, radius: float, source: torch.Generator) -> float:
    """Return the smallest margin that was found within the radius; 0 or less breaks the certificate."""
    low, high = (end[0] for end in inner_box(image.flatten()[None], Fraction(radius)))
    least, best = least_margin(net, candidates(image.flatten(), radius, source), label, source)
    for reach in (4, 64):
        steps = torch.randint(-reach, reach + 1, (64, len(low)), generator=source)
        found, near = least_margin(net, moved_by_steps(best.abs(), steps).clamp(low, high), label, source)
        least, best = (found, near) if found < least else (least, best)
    return least


@contextlib.contextmanager
def without_rounding() -> Iterator[None]:
    """Context in which the bounds ignore the rounding of the float32 program."""
    with (
        patch.object(outward, "error_rate", lambda roundings: 2.0**-45),
        patch.object(outward, "TANH_ULPS", -1 + 2.0**-20),
    ):
        yield


def search(seed: int, keep: float = 1.0) -> tuple[int, int]:
    """Return the numbers of certified and of broken images of one net (see `awkward_net`)."""
    source, net = torch.Generator().manual_seed(seed), awkward_net(seed, keep)
    images = torch.rand(IMAGES, *net.image_shape, generator=source)
    images[::4] = images[::4].mul(8).round() / 8
    with torch.no_grad():
        logits = net(images)
    labels = logits.argmax(1)
    radii = interval_radius(net, images, labels, steps=30)
    certified = (radii > 0).nonzero().flatten().tolist()
    left = [attack(net, images[k], int(labels[k]), radii[k].item(), source) for k in certified]
    return len(left), sum(not gap > 0 for gap in left)


def search_many(certificates: int) -> dict[str, object]:
    """Search until enough images were certified; return a part of the record."""
    rows = {name: {"nets": 0, "certified": 0, "broken": 0} for name in ("float32", "rounding_ignored")}
    for seed in itertools.count():
        if rows["float32"]["certified"] >= certificates:
            break
        for name, row in rows.items():
            if name != "float32" and seed % 20:  # a twentieth of the nets is enough
                continue
            with contextlib.nullcontext() if name == "float32" else without_rounding():
                certified, broken = search(seed)
            for key, count in (("nets", 1), ("certified", certified), ("broken", broken)):
                row[key] += count
        if seed % 100 == 0:
            print(seed, rows, flush=True)
    return {**rows}


@torch.no_grad()
def real_margin(net: SmallNet, lower: Tensor, upper: Tensor, labels: Tensor) -> Tensor:
    """Return the bound on the margin that ignores rounding, as training computes it."""
    if isinstance(net, IbpNet):
        end = net.boxes(Box(lower, upper))[-1]
        return smallest_margin(worst_margins(end.lower, end.upper, net.last.weight, net.last.bias, labels), labels)
    low, high = (end.flatten(1) for end in net.normalize.bounds(lower, upper))
    for layer in net.layers:
        low, high = layer.bounds(low, high)  # type: ignore
    return smallest_margin(net.head_margins(low, high, labels), labels)


@torch.no_grad()
def cost(run: str, data: str, count: int) -> dict[str, object]:
    """Return certified accuracies with and without rounding errors, and seconds per image."""
    net, test = load_model(run), load(data, "test").first(count)
    assert isinstance(net, MlpNet | IbpNet)
    parts = [slice(k, k + 500) for k in range(0, count, 500)]
    rows = list[dict[str, object]]()
    for eps in (Fraction(1, 100), Fraction(1, 20), Fraction(1, 10), Fraction(3, 10)):
        real, sound, seconds = 0, 0, [0.0, 0.0, 0.0]
        for part in parts:
            x, y = test.pixels(part), test.labels[part]
            times = [time.perf_counter()]
            right = label_on_top(net(x), y)
            times.append(time.perf_counter())
            real += int((right & (real_margin(net, *outer_box(x, eps), y) > 0)).sum())
            times.append(time.perf_counter())
            sound += int(certified_by_interval(net, x, y, eps).sum())
            times.append(time.perf_counter())
            seconds = [s + b - a for s, a, b in zip(seconds, times, times[1:], strict=False)]
        per_image = {key: s / count for key, s in zip(("forward", "real", "float32"), seconds, strict=True)}
        rows.append({"eps": str(eps), "real": real / count, "float32": sound / count, "seconds_per_image": per_image})
        print(rows[-1], flush=True)
    return {"system": net.system, "config": net.settings(), "data": data, "images": count, "rows": rows}


def tanh_error() -> dict[str, object]:
    """Return the largest error of `torch.tanh` over all float32 numbers."""
    worst, end = 0.0, 0x41A00000  # tanh(20) rounds to 1
    for start in range(0, end, 2**24):
        x = torch.arange(start, min(start + 2**24, end), dtype=torch.int32).view(torch.float32)
        for values in (x, -x):
            exact = values.double().tanh()
            unit = torch.exp2(torch.frexp(exact)[1].double() - 24).clamp(min=2.0**-149)
            worst = max(worst, ((values.tanh().double() - exact).abs() / unit).max().item())
    large = torch.tensor([20.0, 1e10, torch.finfo(torch.float32).max, math.inf])
    assert torch.equal(large.tanh(), torch.ones(4))
    return {"largest_error_in_units_in_the_last_place": worst, "numbers": 2 * end}


def main() -> None:
    parser = argparse.ArgumentParser(description="certificates of nets with matrix products")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("search").add_argument("--certificates", type=int, default=10_000)
    of_cost = commands.add_parser("cost")
    of_cost.add_argument("run")
    of_cost.add_argument("data")
    of_cost.add_argument("--images", type=int, default=1000)
    commands.add_parser("tanh")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.command == "cost":
        result = cost(options.run, options.data, options.images)
        name = f"cost: {Path(options.run).name}"
    else:
        result = search_many(options.certificates) if options.command == "search" else tanh_error()
        name = options.command
    try:
        record = read_json(OUT)
    except LinfnetError:
        record = {}
    write_json(OUT, {**record, name: {**result, "environment": environment()}})


if __name__ == "__main__":
    main()
