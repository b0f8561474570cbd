"""A training step of the CIFAR net (3072-5120x5-10, batch 512) for each p: our kernels, the authors', `torch.cdist`.

    python benchmarks/train_step.py [--peer FOLDER] [--states FOLDER] [--p 8 12 inf] [--record records/train_step.jsonl]

FOLDER of --peer is a checkout of the authors' repository L_inf-dist-net-v2 after `python setup.py build_ext --inplace`.
A step is forward, loss, backward and fused Adam; times are medians of CUDA events, all from one run. Ours is replayed
from CUDA graphs, as in the trainer while p is constant, and once without ("eager"). From about p = 20 on the time
depends on the weights and images: FOLDER of --states is the output of train_states.py. A p without a saved net is timed
on initial weights and random images; each row names the state it was measured on.
"""

import argparse
import datetime
import itertools
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from linfnet.nn import LinfNet
from linfnet.ops import lp_distance, training_in_float16
from linfnet.train.cuda_graphs import GraphedModule

SIZES = (3072, 5120, 5120, 5120, 5120, 5120, 10)
BATCH = 512
# The contender that is replayed from CUDA graphs; all others are compared to it.
GRAPHS = "linfnet"
Distance = Callable[[Tensor, Tensor, float], Tensor]


def ours(x: Tensor, w: Tensor, p: float) -> Tensor:
    return lp_distance(x, w, p, impl="cuda")


def cdist(x: Tensor, w: Tensor, p: float) -> Tensor:
    return torch.cdist(x, w, p)


def peer(folder: Path) -> Distance:
    """Return the authors' operation, from a built checkout of their repository."""
    sys.path.insert(0, str(folder))
    try:
        from core.norm_dist import norm_dist  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        sys.exit(f"{folder} is not a built checkout of the authors' repository: {error}")
    return lambda x, w, p: norm_dist(x.unsqueeze(-1), w, p, 1, tag=0).squeeze(-1)


def initial_weights() -> list[Tensor]:
    """Return weights from N(0, 1), with the -10 that makes a layer copy its input initially."""
    torch.manual_seed(0)
    weights = [torch.randn(out, size, device="cuda") for size, out in itertools.pairwise(SIZES)]
    for w in weights[:-1]:
        outs = torch.arange(w.shape[0], device="cuda")
        w[outs, outs % w.shape[1]] = -10.0
    return weights


def random_images() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.rand(BATCH, SIZES[0], device="cuda") * 4 - 2, torch.randint(10, (BATCH,), device="cuda")


@dataclass(frozen=True)
class State:
    """Weights of the layers, normalised images, labels, and the name of the state."""

    weights: list[Tensor]
    images: Tensor
    labels: Tensor
    name: str


def state_at(p: float, folder: Path | None) -> State:
    """Return the state that a real run saved at p, or a state with initial weights."""
    path = folder / f"p{p:g}" if folder else None
    if folder is None or path is None or not path.is_dir():
        return State(initial_weights(), *random_images(), "initial")
    net = LinfNet.load(path, device="cuda")
    batch = load_file(folder / "images.safetensors", device="cuda")
    images = net.normalize(batch["pixels"]).flatten(1).contiguous()
    return State([layer.weight.detach() for layer in net.layers], images, batch["labels"], f"{folder.name}/{path.name}")


class Layers(torch.nn.Module):
    """Apply the distance layers of the net, with mean shift between them, using the given kernels."""

    def __init__(self, distance: Distance, weights: Sequence[Tensor], p: float) -> None:
        super().__init__()
        self.distance, self.p = distance, p
        self.weights = torch.nn.ParameterList(w.clone() for w in weights)

    def forward(self, x: Tensor) -> Tensor:
        *hidden, last = self.weights
        for w in hidden:
            x = self.distance(x, w, self.p)
            x = x - x.mean(0)
        return -self.distance(x, last, self.p)


def times(action: Callable[[], object], repeats: int) -> tuple[float, float, float]:
    """Return median, smallest and largest milliseconds of an action after two warm-up rounds."""
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


def measure(distance: Distance, state: State, p: float, repeats: int, graphs: bool) -> dict[str, float]:
    images, labels = state.images, state.labels
    net = Layers(distance, state.weights, p)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-6, fused=True)
    forward = GraphedModule(net, len(images), lambda: p, lambda: True) if graphs else net

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.multi_margin_loss(forward(images), labels).backward()
        optimizer.step()

    def inference() -> None:
        with torch.no_grad():
            net(images)

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


def add_row(record: Path, row: dict[str, str | float]) -> None:
    """Append a row immediately: later measurements may run out of memory."""
    record.parent.mkdir(parents=True, exist_ok=True)
    with record.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, metavar="FOLDER", help="also time the authors' kernels, built there")
    parser.add_argument("--states", type=Path, metavar="FOLDER", help="nets of a real run, from train_states.py")
    every_p = [8, 12, 28, 64, 112, 224, 512, math.inf]
    parser.add_argument("--p", type=float, nargs="+", default=every_p, help="default: 8 12 28 64 112 224 512 inf")
    parser.add_argument("--repeats", type=int, default=9, help="steps whose median counts (default: 9)")
    parser.add_argument("--cdist", action="store_true", help="also time torch.cdist (seconds per step)")
    parser.add_argument("--float16", action="store_true", help="train in float16, as with run.float16=true")
    parser.add_argument("--record", type=Path, metavar="FILE", help="append each measurement as a line of JSON")
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error(f"--repeats is {options.repeats}; expected a number of at least 1")
    if not torch.cuda.is_available():
        parser.error("torch finds no CUDA device")
    for name in ("peer", "states"):
        folder = getattr(options, name)
        if folder and not folder.is_dir():
            parser.error(f"--{name} is {folder}; expected a folder")

    candidates: dict[str, Distance] = {GRAPHS: ours, f"{GRAPHS}, eager": ours}
    if options.peer:
        candidates["authors"] = peer(options.peer)
    if options.cdist:
        candidates["torch.cdist"] = cdist
    print(f"{'p':>6} {'kernels':>14} {'step ms':>9} {'forward ms':>11} {'GiB':>6} {'ratio':>6}  state")
    for p in options.p:
        reference, state = math.nan, state_at(p, options.states)
        for name, distance in candidates.items():
            repeats = 2 if name == "torch.cdist" else options.repeats
            with training_in_float16(options.float16):
                figures = measure(distance, state, p, repeats, graphs=name == GRAPHS)
            if name == GRAPHS:
                reference = figures["step_ms"]
            ratio = figures["step_ms"] / reference
            print(
                f"{p:>6g} {name:>14} {figures['step_ms']:>9.2f} {figures['forward_ms']:>11.2f} "
                f"{figures['peak_gib']:>6.2f} {ratio:>6.2f}  {state.name}",
                flush=True,
            )
            if options.record:
                rounded = {key: round(value, 3) for key, value in figures.items()}
                add_row(
                    options.record,
                    {**describe(state.name), "p": str(p), "kernels": name, "float16": options.float16, **rounded},
                )


if __name__ == "__main__":
    main()
