"""Our bounds of conventional nets compared with auto_LiRPA on the same nets.

Claim: interval and CROWN-IBP bounds agree up to rounding, and our CROWN and Fast-Lin bounds are never looser (we also
intersect the boxes before activations with interval bounds, which auto_LiRPA does not). The nets have random weights or
are runs of our systems. The benchmark prints the largest differences and the seconds per image, and writes
records/bounds.json.

auto_LiRPA is not a dependency: install it into another environment, or put its sources on PYTHONPATH.

    python benchmarks/bounds.py [--images 8] [--eps 0.02]
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import auto_LiRPA
import torch
from torch import Tensor, nn

from linfnet.bounds import Method, Slope, margin_bounds
from linfnet.files import write_json
from linfnet.systems.layers import conv_layers
from linfnet.train import environment

# Our method and slope, and the method and option of auto_LiRPA.
CASES: dict[str, tuple[Method, Slope | None, str, str]] = {
    "interval": ("interval", None, "IBP", "adaptive"),
    "CROWN-IBP, adaptive": ("crown-ibp", "adaptive", "CROWN-IBP", "adaptive"),
    "CROWN-IBP, zero": ("crown-ibp", "zero", "CROWN-IBP", "zero-lb"),
    "CROWN-IBP, parallel": ("crown-ibp", "parallel", "CROWN-IBP", "same-slope"),
    "CROWN, adaptive": ("crown", "adaptive", "CROWN", "adaptive"),
    "CROWN, zero": ("crown", "zero", "CROWN", "zero-lb"),
    "Fast-Lin": ("fast-lin", None, "CROWN", "same-slope"),
}


def nets() -> dict[str, tuple[nn.Sequential, tuple[int, ...]]]:
    """Return nets with random weights and statistics, and the shapes of their inputs."""
    torch.manual_seed(0)
    found: dict[str, tuple[nn.Sequential, tuple[int, ...]]] = {}
    for name, norm in (("small", False), ("small", True)):
        layers, features = conv_layers(name, (1, 28, 28), norm)
        found[name + (", batch norm" if norm else "")] = nn.Sequential(*layers, nn.Linear(features, 10)), (1, 28, 28)
    pooled = [nn.Conv2d(3, 8, 3, 1, 1), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(8, 8, 3, 2, 1), nn.BatchNorm2d(8)]
    found["pooling"] = nn.Sequential(*pooled, nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 10)), (3, 16, 16)
    widths = [nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU()]
    found["4 linear layers"] = nn.Sequential(*widths, nn.Linear(100, 10)), (64,)
    for net, shape in found.values():
        for _ in range(20):
            net(torch.rand(64, *shape))
        net.eval()
    return found


def seconds_of(work: Callable[[], Tensor]) -> tuple[Tensor, float]:
    """Return the result and the seconds of a second call; the first call allocates memory."""
    work()
    start = time.perf_counter()
    found = work()
    return found, time.perf_counter() - start


@torch.no_grad()
def compare(net: nn.Sequential, shape: tuple[int, ...], images: int, eps: float) -> dict[str, dict[str, float]]:
    """Return for each case the largest amount by which our bounds are tighter and looser, and seconds per image."""
    centre = torch.rand(images, *shape)
    labels = net(centre).argmax(1)
    lower, upper = centre - eps, centre + eps
    others = torch.ones(images, 10, dtype=torch.bool).scatter(1, labels.unsqueeze(1), False)
    own = nn.functional.one_hot(labels, 10).float()
    rows = (own.unsqueeze(1) - torch.eye(10))[others].view(images, 9, 10)
    results: dict[str, dict[str, float]] = {}
    for name, (method, slope, theirs, option) in CASES.items():
        bounded = auto_LiRPA.BoundedModule(net, centre, bound_opts={"activation_bound_option": option})
        box = auto_LiRPA.PerturbationLpNorm(norm=float("inf"), x_L=lower, x_U=upper)
        inputs = auto_LiRPA.BoundedTensor(centre, box)

        def peer(bounded: object = bounded, inputs: Tensor = inputs, theirs: str = theirs) -> Tensor:
            return bounded.compute_bounds(x=(inputs,), C=rows, method=theirs, bound_upper=False)[0]

        expected, their_seconds = seconds_of(peer)
        found, seconds = seconds_of(lambda m=method, s=slope: margin_bounds(net, lower, upper, labels, m, slope=s))
        difference = (found[others].view(images, 9) - expected) / expected.abs().mean()
        results[name] = {
            "tighter": difference.amax().item(),
            "looser": (-difference).amax().item(),
            "mean_margin": found[others].mean().item(),
            "seconds_per_image": seconds / images,
            "their_seconds_per_image": their_seconds / images,
        }
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--eps", type=float, default=0.02)
    parser.add_argument("--out", type=Path, default=Path("records/bounds.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    table: dict[str, object] = {}
    for name, (net, shape) in nets().items():
        table[name] = found = compare(net, shape, arguments.images, arguments.eps)
        for case, row in found.items():
            print(f"{name:20s} {case:22s}", *(f"{key} {value:9.2e}" for key, value in row.items()))
    about = {"auto_LiRPA": auto_LiRPA.__version__, "images": arguments.images, "eps": arguments.eps, "threads": 1}
    write_json(arguments.out, {**about, "environment": environment(), "nets": table})


if __name__ == "__main__":
    main()
