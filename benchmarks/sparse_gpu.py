"""Sparse layers on a GPU: compare all results with a CPU bit by bit, then measure times per net and per batch.

python benchmarks/sparse_gpu.py [--rows 1 64 512 10000] [--record records/gpu-sparse.json] [--device cpu --repeats 2]

The net has the shape of a compressed CIFAR-10 net (735,651 connections in six layers) and random weights; few inputs
have many connections, as in a trained net.
"""

import argparse
import datetime
import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from linfnet.ops import count_deciding, default_implementation, lp_distance, sparse_linf_bounds, sparse_linf_distance
from linfnet.ops.cuda import sparse

# Inputs, outputs and connections of each layer.
LAYERS = [
    (3072, 5087, 105_412),
    (5087, 5000, 199_905),
    (5000, 4951, 225_710),
    (4951, 4065, 167_733),
    (4065, 1056, 35_677),
    (1056, 10, 1_214),
]
# Inputs, outputs and rows of the dense layer.
DENSE = (5120, 5120, 512)
Csr = tuple[Tensor, Tensor, Tensor]


def layer(features: int, out: int, connections: int, device: str) -> Csr:
    """Return (weight, index, offsets) of a random layer; each neuron has at least one connection."""
    popular = torch.rand(features) ** 3 + 1e-3
    counts = torch.distributions.Multinomial(connections - out, torch.rand(out) + 0.1).sample().long() + 1
    counts.clamp_(max=features)
    rows = [torch.multinomial(popular, count, replacement=False).sort().values for count in counts.tolist()]
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]).int()
    weight, index = torch.randn(int(offsets[-1])), torch.cat(rows).int()
    return weight.to(device), index.to(device), offsets.to(device)


def forward(net: list[Csr], x: Tensor) -> Tensor:
    """Return the outputs; the mean is subtracted after each layer, as by the mean shift."""
    for csr in net:
        x = sparse_linf_distance(x, *csr) - 3.0
    return x


def bounds(net: list[Csr], x: Tensor) -> tuple[Tensor, Tensor]:
    lower, upper = x - 0.1, x + 0.1
    for csr in net:
        smallest, largest = sparse_linf_bounds(lower, upper, *csr)
        lower, upper = smallest - 3.0, largest - 3.0
    return lower, upper


@cache  # a graph cannot copy from a CPU
def factors(n: int, out: int, device: torch.device) -> Tensor:
    return torch.linspace(0.1, 1.3, n * out, dtype=torch.float64).float().reshape(n, out).to(device)


def gradients(net: list[Csr], x: Tensor, weights: bool) -> list[Tensor]:
    """Return the outputs and the gradients of the inputs, and optionally of the weights, for different gradients."""
    inputs = [x.detach().requires_grad_(), *(csr[0].detach().requires_grad_(weights) for csr in net)]
    y = forward([(w, *csr[1:]) for w, csr in zip(inputs[1:], net, strict=True)], inputs[0])
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    return [y.detach(), *torch.autograd.grad(y, wanted, factors(*y.shape, y.device))]


def compare(net: list[Csr], x: Tensor) -> list[str]:
    """Return the names of the results that differ from those of the reference on a CPU."""
    plain_net, plain_x = [tuple(t.cpu() for t in csr) for csr in net], x.cpu()
    different: list[str] = []
    for name, compute in (
        ("forward", lambda net, x: [forward(net, x)]),
        ("bounds", lambda net, x: list(bounds(net, x))),
        ("gradients", lambda net, x: gradients(net, x, True)),
    ):
        ours = compute(net, x)
        with default_implementation("reference"):
            theirs = compute(plain_net, plain_x)
        same = all(torch.equal(a.cpu(), b) for a, b in zip(ours, theirs, strict=True))
        different += [] if same else [name]
    return different


def milliseconds(call: Callable[[], object], device: str, repeats: int) -> dict[str, float]:
    """Return the median time from the call to its end, and on a GPU also the time of the device alone in a graph."""
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    times: list[float] = []
    for _ in range(repeats + 2):
        synchronize()
        start = time.perf_counter()
        call()
        synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    result = {"call": round(sorted(times[2:])[repeats // 2], 4)}
    if device == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        ends = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        graph.replay()
        ends[0].record()
        for _ in range(repeats):
            graph.replay()
        ends[1].record()
        synchronize()
        result["device"] = round(ends[0].elapsed_time(ends[1]) / repeats, 4)
    return result


def measure(net: list[Csr], n: int, device: str, repeats: int) -> dict[str, dict[str, float]]:
    x = torch.randn(n, LAYERS[0][0], device=device)
    with torch.no_grad():
        times = {
            "forward": milliseconds(lambda: forward(net, x), device, repeats),
            "bounds": milliseconds(lambda: bounds(net, x), device, repeats),
        }
    times["forward, gradient of x"] = milliseconds(lambda: gradients(net, x, False), device, repeats)
    times["forward, all gradients"] = milliseconds(lambda: gradients(net, x, True), device, repeats)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64, 512, 10_000], help="batch sizes")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--scale", type=int, default=1, help="divide the sizes of all layers by this number")
    parser.add_argument("--record", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    device, repeats = arguments.device, arguments.repeats
    torch.manual_seed(0)
    net = [layer(*(size if size == 10 else size // arguments.scale for size in sizes), device) for sizes in LAYERS]
    LAYERS[0] = (LAYERS[0][0] // arguments.scale, *LAYERS[0][1:])

    different = compare(net, torch.randn(64, LAYERS[0][0], device=device))
    print("differs from the reference:", ", ".join(different) or "nothing", flush=True)
    figures: dict[str, object] = {
        "what": "milliseconds of a compressed CIFAR-10 net (735,651 connections), random weights; call: with launches "
        "from Python; device: replayed from a CUDA graph",
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "hardware": torch.cuda.get_device_name() if device == "cuda" else "CPU",
        "torch": torch.__version__,
        "identical": not different,
    }
    for n in arguments.rows:
        figures[f"{n} rows"] = measure(net, n, device, repeats)
        print(n, figures[f"{n} rows"], flush=True)
    for most in (1, 2, 4) if device == "cuda" else ():  # layouts of the forward kernels
        sparse.MOST_ROWS = most
        sparse.plan.cache_clear()
        x = torch.randn(512, LAYERS[0][0], device=device)
        with torch.no_grad():
            figures[f"512 rows, {most} per block"] = milliseconds(lambda x=x: forward(net, x), device, repeats)
        print(most, figures[f"512 rows, {most} per block"], flush=True)
    features, out, n = (size // arguments.scale for size in DENSE)
    x, w = torch.randn(n, features, device=device), torch.randn(out, features, device=device)
    first, second = torch.zeros(2, out, features, dtype=torch.int32, device=device)
    with torch.no_grad():
        dense = milliseconds(lambda: lp_distance(x, w), device, repeats)
    figures["one dense layer"] = {
        "forward": dense,
        "count_deciding": milliseconds(lambda: count_deciding(x, w, first, second), device, repeats),
    }
    print(figures["one dense layer"], flush=True)
    if arguments.record:
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
        figures["commit"] = commit.stdout.strip() or "unknown"
        arguments.record.write_text(json.dumps(figures, indent=1) + "\n")
    if different:
        sys.exit(1)


if __name__ == "__main__":
    main()
