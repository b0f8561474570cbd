"""A whole training step of the CIFAR net (3072-5120x5-10, batch 512) per p: our kernels, the authors', `torch.cdist`.

    python benchmarks/train_step.py [--peer FOLDER] [--net FOLDER] [--p 8 12 inf] [--record records/train_step.jsonl]

FOLDER of --peer is a checkout of the authors' repository L_inf-dist-net-v2 after `python setup.py build_ext --inplace`.
A step is forward, loss, backward and fused Adam; times are medians of CUDA events, all from one run. For
p > 30 the sparsity of a trained net decides: give one saved by `LinfNet.save` with --net, else the rows say "initial".
"""

import argparse
import datetime
import itertools
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from linfnet.ops import lp_distance

SIZES = (3072, 5120, 5120, 5120, 5120, 5120, 10)
BATCH = 512
Distance = Callable[[Tensor, Tensor, float], Tensor]


def ours(x: Tensor, w: Tensor, p: float) -> Tensor:
    return lp_distance(x, w, p, impl="cuda")


def cdist(x: Tensor, w: Tensor, p: float) -> Tensor:
    return torch.cdist(x, w, p)


def peer(folder: Path) -> Distance:
    """The authors' operation, from their own built checkout."""
    sys.path.insert(0, str(folder))
    from core.norm_dist import norm_dist  # pyright: ignore[reportMissingImports]

    return lambda x, w, p: norm_dist(x.unsqueeze(-1), w, p, 1, tag=0).squeeze(-1)


def initial_weights() -> list[Tensor]:
    """N(0, 1), with the -10 that makes a layer copy its input at first."""
    torch.manual_seed(0)
    weights = [torch.randn(out, size, device="cuda") for size, out in itertools.pairwise(SIZES)]
    for w in weights[:-1]:
        outs = torch.arange(w.shape[0], device="cuda")
        w[outs, outs % w.shape[1]] = -10.0
    return weights


def saved_weights(folder: Path) -> list[Tensor]:
    from linfnet.nn import LinfNet

    return [layer.weight.detach().cuda() for layer in LinfNet.load(folder).layers]


def forward(distance: Distance, images: Tensor, weights: list[Tensor], p: float) -> Tensor:
    x = images
    for w in weights[:-1]:
        x = distance(x, w, p)
        x = x - x.mean(0)
    return -distance(x, weights[-1], p)


def times(action: Callable[[], object], repeats: int) -> tuple[float, float, float]:
    """Median, least and largest milliseconds of an action after two rounds of warming up."""
    for _ in range(2):
        action()
    measured: list[float] = []
    for _ in range(repeats):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        action()
        stop.record()
        stop.synchronize()
        measured.append(start.elapsed_time(stop))
    return statistics.median(measured), min(measured), max(measured)


def measure(distance: Distance, weights: list[Tensor], p: float, repeats: int) -> dict[str, float]:
    torch.manual_seed(1)
    images = torch.rand(BATCH, SIZES[0], device="cuda") * 4 - 2
    labels = torch.randint(10, (BATCH,), device="cuda")
    parameters = [torch.nn.Parameter(w.clone()) for w in weights]
    optimizer = torch.optim.Adam(parameters, lr=1e-6, fused=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.multi_margin_loss(forward(distance, images, parameters, p), labels).backward()
        optimizer.step()

    def inference() -> None:
        with torch.no_grad():
            forward(distance, images, parameters, p)

    torch.cuda.reset_peak_memory_stats()
    whole = times(step, repeats)
    peak = torch.cuda.max_memory_allocated() / 2**30
    return {
        "step_ms": whole[0],
        "step_min_ms": whole[1],
        "step_max_ms": whole[2],
        "forward_ms": times(inference, repeats)[0],
        "peak_gib": peak,
    }


def describe(state: str) -> dict[str, str]:
    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True
    )
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "gpu": torch.cuda.get_device_name(),
        "driver": driver.stdout.strip(),
        "torch": torch.__version__,
        "commit": commit.stdout.strip() or "unknown",
        "state": state,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path)
    parser.add_argument("--net", type=Path)
    parser.add_argument("--p", type=float, nargs="+", default=[8, 12, 28, 64, 112, 224, 512, math.inf])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--cdist", action="store_true", help="also time torch.cdist (seconds per step)")
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()

    candidates: dict[str, Distance] = {"linfnet": ours}
    if options.peer:
        candidates["authors"] = peer(options.peer)
    if options.cdist:
        candidates["torch.cdist"] = cdist
    state = f"net {options.net.name}" if options.net else "initial"
    weights = saved_weights(options.net) if options.net else initial_weights()
    rows: list[dict[str, object]] = []
    print(f"{'p':>6} {'kernels':>12} {'step ms':>9} {'forward ms':>11} {'GiB':>6} {'ratio':>6}")
    for p in options.p:
        reference = math.nan
        for name, distance in candidates.items():
            repeats = 2 if name == "torch.cdist" else options.repeats
            figures = measure(distance, weights, p, repeats)
            if name == "linfnet":
                reference = figures["step_ms"]
            ratio = figures["step_ms"] / reference
            print(
                f"{p:>6g} {name:>12} {figures['step_ms']:>9.2f} {figures['forward_ms']:>11.2f} "
                f"{figures['peak_gib']:>6.2f} {ratio:>6.2f}",
                flush=True,
            )
            rows.append(
                {**describe(state), "p": str(p), "kernels": name, **{k: round(v, 3) for k, v in figures.items()}}
            )
    if options.record:
        options.record.parent.mkdir(parents=True, exist_ok=True)
        with options.record.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
