"""The time of a net with few connections per neuron, compared with the dense net of the same width.

A net is a tar file of the connections that were decisive on training images: layerK.npz with `count` (connections per
neuron), `cols`, `weight` and the encoded counts `plain` and `moved`, rest.npz with means and bias. All connections that
were decisive at least once are used, and neurons that no other neuron reads are removed. Without a file, a random net
with the connections of a compressed CIFAR-10 net is measured. The dense net has random weights, which do not change its
time. Sparse and dense calls alternate; the table shows the best wall-clock time, and the best processor time, which
depends less on other processes.

    python benchmarks/sparse.py [NET.tar ...] [--rounds 3] [--batch 500] [--record records/sparse-speed.json]
"""

import argparse
import datetime
import io
import json
import os
import statistics
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from cpu import commit, cpu_name
from rich.console import Console
from rich.table import Table
from torch import Tensor

from linfnet.nn import LinfNet
from linfnet.ops import cpu, sparse_linf_bounds, sparse_linf_distance

# Inputs, neurons and connections of each layer of a compressed CIFAR-10 net (8/255).
RANDOM = (3072, ((5087, 105412), (5000, 199905), (4951, 225710), (4065, 167733), (1056, 35677), (10, 1214)))
WIDTH = 5120  # of the dense net


@dataclass
class Layer:
    """The connections of a layer as compressed rows, and what is added to the distances."""

    weight: Tensor
    index: Tensor
    offsets: Tensor
    shift: Tensor

    @property
    def csr(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.weight, self.index, self.offsets


@dataclass
class Net:
    name: str
    features: int
    layers: list[Layer]

    @property
    def connections(self) -> int:
        return sum(layer.weight.numel() for layer in self.layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = sparse_linf_distance(x, *layer.csr) + layer.shift
        return x

    def bounds(self, x: Tensor) -> Tensor:
        lower, upper = x - 0.1, x + 0.1
        for layer in self.layers:
            lower, upper = (b + layer.shift for b in sparse_linf_bounds(lower, upper, *layer.csr))
        return upper - lower

    def gradient(self, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        with torch.enable_grad():
            return torch.autograd.grad(self.forward(x).sum(), x)[0]


def random_net() -> Net:
    """Return a random net with the sizes of `RANDOM`."""
    generator = np.random.default_rng(0)
    features, sizes = RANDOM
    layers: list[Layer] = []
    inputs = features
    for out, connections in sizes:
        chosen = np.sort(generator.choice(out * inputs, connections, replace=False))
        # Every neuron has a connection.
        chosen = np.unique(np.concatenate([chosen, np.arange(out) * inputs]))
        counts = np.bincount(chosen // inputs, minlength=out)
        offsets = torch.from_numpy(np.concatenate([[0], counts.cumsum()])).int()
        layers.append(
            Layer(torch.randn(len(chosen)), torch.from_numpy(chosen % inputs).int(), offsets, torch.randn(out))
        )
        inputs = out
    return Net("random", features, layers)


def read_net(path: Path) -> Net:
    """Return the net of a tar file without the neurons that nobody reads."""
    with tarfile.open(path) as tar:

        def content(name: str) -> bytes:
            file = tar.extractfile(name)
            assert file is not None
            return file.read()

        count = sum(name.startswith("layer") for name in tar.getnames())
        files = [dict(np.load(io.BytesIO(content(f"layer{k}.npz")))) for k in range(count)]
        rest = dict(np.load(io.BytesIO(content("rest.npz"))))
        config = json.loads(content("config.json"))
    features = int(np.prod(config["image_shape"]))
    read = np.ones(len(files[-1]["count"]), bool)
    layers: list[Layer] = []
    for k, layer in reversed(list(enumerate(files))):
        row = np.repeat(np.arange(len(layer["count"])), layer["count"])
        chosen = ((layer["plain"] > 0) | (layer["moved"] > 0)) & read[row]
        counts = np.bincount(row[chosen], minlength=len(read))[read]
        index = layer["cols"][chosen].astype(np.int64)
        below = np.zeros(features if k == 0 else len(files[k - 1]["count"]), bool)
        below[index] = True
        if k > 0:
            index = (below.cumsum() - 1)[index]
        mean, bias = rest.get(f"layers.{k}.shift.running_mean"), rest.get(f"layers.{k}.bias")
        shift = (0 if bias is None else bias) - (np.zeros(len(read), np.float32) if mean is None else mean)
        layers.append(
            Layer(
                torch.from_numpy(layer["weight"][chosen]),
                torch.from_numpy(index).int(),
                torch.from_numpy(np.concatenate([[0], counts.cumsum()])).int(),
                torch.from_numpy(shift[read]),
            )
        )
        read = below
    return Net(path.stem, features, layers[::-1])


def dense_calls(features: int, hidden: int) -> dict[str, Callable[[Tensor], object]]:
    net = LinfNet((features,), 10, hidden=(WIDTH,) * hidden, identity_init=False).eval()

    def gradient(x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        with torch.enable_grad():
            return torch.autograd.grad(net(x).sum(), x)[0]

    return {"forward": net, "bounds": lambda x: net.bounds(x - 0.1, x + 0.1), "gradient": gradient}


def seconds(call: Callable[[Tensor], object], x: Tensor, calls: int, least: float = 0.5) -> list[tuple[float, float]]:
    """Call at least `calls` times and for at least `least` seconds; return wall-clock and processor times."""
    times: list[tuple[float, float]] = []
    begin = time.perf_counter()
    while len(times) < calls or time.perf_counter() - begin < least:
        start = time.perf_counter(), time.process_time()
        call(x)
        times.append((time.perf_counter() - start[0], time.process_time() - start[1]))
    return times


def milliseconds(times: list[tuple[float, float]]) -> dict[str, float]:
    wall, processor = zip(*times, strict=True)
    figures = {"best": min(wall), "median": statistics.median(wall), "processor": min(processor)}
    return {name: round(value * 1e3, 3) for name, value in figures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", type=Path, nargs="*", help="tar files; default: a random net")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds, in each of which both nets run")
    parser.add_argument("--batch", type=int, default=500, help="images in a batch")
    parser.add_argument("--sparse-only", action="store_true", help="omit the dense net, which takes most of the time")
    parser.add_argument("--record", type=Path, help="write the figures here")
    options = parser.parse_args()
    nets = [read_net(path) for path in options.nets] or [random_net()]
    console = Console(width=140)
    console.print(f"{cpu_name()}, torch {torch.__version__}; {cpu.status()}; load {os.getloadavg()[0]:.1f}")
    rows: list[dict[str, object]] = []
    cores = os.cpu_count() or 1
    cases = [("forward", 1, 1), ("bounds", 1, 1), ("forward", options.batch, 1)]
    cases += [("bounds", options.batch, 1), ("gradient", options.batch, 1), ("forward", options.batch, min(2, cores))]
    headers = ("net", "connections", "what", "images", "threads", "sparse ms", "processor", "dense ms", "processor")
    table = Table(*headers, "times faster", title="best times of a call (ratio of processor times)")
    with torch.no_grad():
        for net in nets:
            dense = {} if options.sparse_only else dense_calls(net.features, len(net.layers) - 1)
            sparse = {"forward": net.forward, "bounds": net.bounds, "gradient": net.gradient}
            for what, images, threads in cases:
                torch.set_num_threads(threads)
                x = torch.rand(images, net.features)
                measured: dict[str, list[tuple[float, float]]] = {"sparse": [], "dense": []}
                for _ in range(options.rounds):
                    measured["sparse"] += seconds(sparse[what], x, 5)
                    if dense:
                        measured["dense"] += seconds(dense[what], x, 1)
                ours = milliseconds(measured["sparse"])
                theirs = milliseconds(measured["dense"]) if dense else None
                ratios = {} if theirs is None else {k: round(theirs[k] / ours[k], 1) for k in ("best", "processor")}
                row = {"net": net.name, "connections": net.connections, "what": what, "images": images}
                row |= {"threads": threads, "sparse": ours, "dense": theirs, "times_faster": ratios}
                rows.append(row | {"load": round(os.getloadavg()[0], 1)})
                cells = [net.name, f"{net.connections:,}", what, images, threads, ours["best"], ours["processor"]]
                cells += (
                    ["", "", ""]
                    if theirs is None
                    else [theirs["best"], theirs["processor"], f"{ratios['best']} ({ratios['processor']})"]
                )
                table.add_row(*map(str, cells))
    console.print(table)
    console.print(
        f"load {os.getloadavg()[0]:.1f}; wanted: one image in 2 ms on one core, a batch 5 times faster than dense"
    )
    if options.record:
        figures = {
            "what": "milliseconds of a sparse net and of the dense net of the same width",
            "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
            "commit": commit(),
            "cpu": cpu_name(),
            "cores": cores,
            "torch": torch.__version__,
            "kernel": cpu.levels()[0] if cpu.levels() else "reference",
            "rows": rows,
        }
        options.record.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
