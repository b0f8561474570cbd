"""The time of a compressed net, compared with the dense net of the same width, and the cost of its certificates.

A net is a folder that `linfnet compress` wrote. Without a folder, a random net with the connections of a compressed
CIFAR-10 net is measured. The dense net has random weights, which do not change its time. Sparse and dense calls
alternate; the table shows the best wall-clock time, and the best processor time, which depends less on other processes.
A certificate is `linfnet.certify(net, images).at_each(epsilons)` with 50 epsilons; its time is also shown in forward
passes.

    python benchmarks/sparse.py [FOLDER ...] [--rounds 3] [--batch 500] [--record records/sparse-cpu.json]
"""

import argparse
import datetime
import json
import os
import statistics
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from cpu import commit, cpu_name
from rich.console import Console
from rich.table import Table
from torch import Tensor

from linfnet import certify, load_model
from linfnet.nn import LinfNet, SparseDistance, SparseNet
from linfnet.ops import cpu

# Inputs, neurons and connections of each layer of a compressed CIFAR-10 net (8/255).
RANDOM = (3072, ((5087, 105412), (5000, 199905), (4951, 225710), (4065, 167733), (1056, 35677), (10, 1214)))
WIDTH = 5120  # of the dense net
EPSILONS = [Fraction(k, 255) for k in range(50)]


def random_net() -> SparseNet:
    """Return a random net with the sizes of `RANDOM`."""
    generator = np.random.default_rng(0)
    features, sizes = RANDOM
    layers: list[SparseDistance] = []
    for inputs, (out, connections) in zip((features, *(out for out, _ in sizes)), sizes, strict=False):
        chosen = np.sort(generator.choice(out * inputs, connections, replace=False))
        # Every neuron has a connection.
        chosen = np.unique(np.concatenate([chosen, np.arange(out) * inputs]))
        counts = np.bincount(chosen // inputs, minlength=out)
        offsets = torch.from_numpy(np.concatenate([[0], counts.cumsum()]))
        index = torch.from_numpy(chosen % inputs)
        layers.append(SparseDistance(torch.randn(len(chosen)), index, offsets, inputs, mean=torch.randn(out)))
    return SparseNet((features,), sizes[-1][0], layers)


def read_net(folder: Path) -> SparseNet:
    """Return the compressed net of a folder."""
    net = load_model(folder)
    if not isinstance(net, SparseNet):
        raise SystemExit(f"{folder} is not a compressed net; write one with: linfnet compress RUN")
    return net


def calls(net: LinfNet | SparseNet) -> dict[str, Callable[[Tensor], object]]:
    """Return what is measured, as functions of the images."""

    def gradient(x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        with torch.enable_grad():
            return torch.autograd.grad(net(x).sum(), x)[0]

    return {
        "forward": net,
        "bounds": lambda x: net.bounds(x - 0.1, x + 0.1),
        "gradient": gradient,
        "certificate": lambda x: certify(net, x).at_each(EPSILONS),
    }


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
    parser.add_argument("nets", type=Path, nargs="*", help="folders of compressed nets; default: a random net")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds, in each of which both nets run")
    parser.add_argument("--batch", type=int, default=500, help="images in a batch")
    parser.add_argument("--sparse-only", action="store_true", help="omit the dense net, which takes most of the time")
    parser.add_argument("--record", type=Path, help="write the figures here")
    options = parser.parse_args()
    nets = {path.name: read_net(path) for path in options.nets} or {"random": random_net()}
    console = Console(width=140)
    console.print(f"{cpu_name()}, torch {torch.__version__}; {cpu.status()}; load {os.getloadavg()[0]:.1f}")
    rows: list[dict[str, object]] = []
    cores = os.cpu_count() or 1
    cases = [("forward", 1, 1), ("certificate", 1, 1), ("bounds", 1, 1)]
    cases += [(what, options.batch, 1) for what in ("forward", "certificate", "bounds", "gradient")]
    if cores > 1:
        cases += [(what, images, 2) for images in (1, options.batch) for what in ("forward", "certificate")]
    headers = ("net", "connections", "what", "images", "threads", "sparse ms", "processor", "dense ms", "processor")
    table = Table(*headers, "times faster", "passes", title="best times of a call (ratio of processor times)")
    with torch.no_grad():
        for name, net in nets.items():
            hidden = (WIDTH,) * (len(net.layers) - 1)
            shape, connections = net.image_shape, sum(layer.weight.numel() for layer in net.layers)
            dense = {} if options.sparse_only else calls(LinfNet(shape, 10, hidden, identity_init=False).eval())
            sparse = calls(net.eval())
            for what, images, threads in cases:
                torch.set_num_threads(threads)
                x = torch.rand(images, *shape)
                measured: dict[str, list[tuple[float, float]]] = {"sparse": [], "dense": [], "forward": []}
                compared, counted = bool(dense) and what != "certificate", what == "certificate"
                for _ in range(options.rounds):
                    measured["sparse"] += seconds(sparse[what], x, 5)
                    if compared:
                        measured["dense"] += seconds(dense[what], x, 1)
                    if counted:
                        measured["forward"] += seconds(sparse["forward"], x, 5)
                ours = milliseconds(measured["sparse"])
                theirs = milliseconds(measured["dense"]) if compared else None
                forward = milliseconds(measured["forward"]) if counted else ours
                passes = {k: round(ours[k] / forward[k], 2) for k in ("best", "processor")}
                ratios = {} if theirs is None else {k: round(theirs[k] / ours[k], 1) for k in ("best", "processor")}
                row = {"net": name, "connections": connections, "what": what, "images": images}
                row |= {"threads": threads, "sparse": ours, "dense": theirs, "times_faster": ratios}
                row |= {"forward_passes": passes} if counted else {}
                rows.append(row | {"load": round(os.getloadavg()[0], 1)})
                cells = [name, f"{connections:,}", what, images, threads, ours["best"], ours["processor"]]
                cells += (
                    ["", "", ""]
                    if theirs is None
                    else [theirs["best"], theirs["processor"], f"{ratios['best']} ({ratios['processor']})"]
                )
                table.add_row(*map(str, cells), f"{passes['best']} ({passes['processor']})" if counted else "")
    console.print(table)
    console.print(
        f"load {os.getloadavg()[0]:.1f}; wanted: one image in 2 ms on one core, a batch 5 times faster than dense, "
        "a certificate in 1.3 forward passes"
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
