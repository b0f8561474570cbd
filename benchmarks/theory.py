"""The constructions of the theorems at full size: random separated sets of all depths, and 5,000 real MNIST images.

Claim: every net certifies its whole set at eps = r (1 - 1e-5), by margin and by interval bounds; its hidden layers are
no wider than the theorem says; on random inputs its logits are the negated nearest distances up to `rounding`. The
benchmark writes records/construction.json; it needs `linfnet data fetch mnist`.
"""

import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from linfnet.certificates import certified_by_interval
from linfnet.certificates.real import real_certified
from linfnet.data import load
from linfnet.files import write_json
from linfnet.ops import lp_distance
from linfnet.theory import check_separation, nearest_neighbour_net, point_separation, rounding, widest_layer
from linfnet.train import environment

SHARE = 1 - Fraction(1, 100000)
SIZES = ((10, 2, 2), (200, 2, 10), (500, 64, 3), (2000, 3, 10), (2000, 784, 10))


def separated_set(n: int, d: int, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return random images [n, 1, 1, d] and labels; the first two coordinates separate the classes by at least 1/8."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.cat([torch.arange(classes), torch.randint(classes, (n - classes,), generator=generator)])
    labels = labels[torch.randperm(n, generator=generator)]
    images = torch.rand(n, 1, 1, d, generator=generator)
    cell = torch.stack([labels % 4 / 4, labels // 4 / 3], 1)
    images[:, 0, 0, :2] = cell + images[:, 0, 0, :2] / 8
    return images, labels


def check(images: Tensor, labels: Tensor, classes: int, layers: int) -> dict[str, Any]:
    start = time.perf_counter()
    found = point_separation(images, labels)
    epsilon = found.radius * SHARE
    check_separation(found, epsilon, layers)
    net = nearest_neighbour_net(images, labels, classes, layers=layers)
    by_margin, by_interval = 0, 0
    for part in torch.arange(len(images)).split(500):
        with torch.no_grad():
            by_margin += int(real_certified(net(images[part]), labels[part], net.lipschitz, epsilon).sum())
        by_interval += int(certified_by_interval(net, images[part], labels[part], epsilon).sum())
    x = torch.rand(200, *images.shape[1:], generator=torch.Generator().manual_seed(layers))
    exact = lp_distance(x.flatten(1), images.flatten(1))
    nearest = torch.stack([exact[:, labels == k].amin(1) for k in range(classes)], 1)
    with torch.no_grad():
        error = (net(x) + nearest).abs().max().item()
    features = images[0].numel()
    row = {
        "n": len(images),
        "d": features,
        "K": classes,
        "L": layers,
        "r": float(found.radius),
        "widest": max(net.hidden),
        "widest_allowed": widest_layer(len(images), classes, features, layers),
        "certified_margin": by_margin / len(images),
        "certified_interval": by_interval / len(images),
        "largest_error": error,
        "rounding": float(rounding(layers)),
        "seconds": round(time.perf_counter() - start, 2),
    }
    assert row["widest"] <= row["widest_allowed"]
    assert by_margin == by_interval == len(images)
    assert error <= row["rounding"] + 2.0**-25
    print(row)
    return row


def main() -> None:
    rows = [
        {"set": "random", **check(*separated_set(n, d, classes, layers), classes, layers)}
        for n, d, classes in SIZES
        for layers in range(2, 9)
    ]
    mnist = load("mnist", "train").first(5000)
    rows += [{"set": "mnist", **check(mnist.pixels(), mnist.labels, 10, layers)} for layers in (2, 3, 8)]
    path = Path(__file__).parent.parent / "records" / "construction.json"
    write_json(path, {"what": "Theorem 1 and its extension to L layers", "environment": environment(), "rows": rows})


if __name__ == "__main__":
    main()
