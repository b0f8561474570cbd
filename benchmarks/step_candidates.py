"""Variants of a training step, on states of a real run, by one command of at most five minutes on a GPU.

    git archive main src benchmarks | tar -x -C baseline      # optional: another checkout, in an empty folder
    python benchmarks/step_candidates.py OUT [--baseline baseline] [--seconds 290] [--epochs 4 42 3] [--seed 1]

1. check: the kernels in float16 on initial weights; errors against the float32 kernels.
2. states: a run of 49 epochs with run.float16=true (without, if the check failed) by train_states.py. Compare its
   certified accuracy with records/cifar10-8-49-epochs-snapped-seed-1.json.
3. steps: a table of training steps (ms) by p and variant (VARIANTS), and of the baseline.
4. layers: errors and times of a hidden layer by p and variant.
5. kernels: the kernels of a step by the profiler.

All results are appended to OUT/candidates.jsonl as they come; a failure is recorded and the next part runs. The table
of steps is printed last. The state folders stay in OUT/states; --states uses those of an earlier call.
"""

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from train_step import State, ours, state_at, times
from train_step import measure as measure_step

from linfnet.ops import lp_distance
from linfnet.ops.cuda import Cuda, half, pruned, pruned_half, tensor_core
from linfnet.ops.cuda.layout import aligned_parts
from linfnet.ops.cuda.nvrtc import Launcher

HERE = Path(__file__).parent
STATES = (10, 12, 14, 16, 20, 24, 28, 40, 64, 96, 128, 512)
STEPS = (8.0, 10.0, 12.0, 14.0, 16.0, 20.0, 24.0, 28.0, 40.0, 64.0, 96.0, 128.0, 512.0, math.inf)
QUANTILES = (0.5, 0.9, 0.99, 0.999)
# Each variant: the range of p, and the settings that differ from training with run.float16=true.
VARIANTS: dict[str, tuple[float, float, dict[str, Any]]] = {
    "float32": (0, math.inf, {"half": False}),
    "half": (0, math.inf, {}),
    # No terms are left out beyond those of float32.
    "all terms": (22, 512, {"pruned.SHORTEN": False, "pruned.HALF_BITS": None}),
    "20 bits": (22, 64, {"pruned.HALF_BITS": (20.0, 20.0)}),
    "not shortened": (65, 512, {"pruned.SHORTEN": False}),
    "no lists": (22, 32, {"pruned.MOST_SHARE_OF_HALF": 0.0}),
    "no products": (12, 12, {"tensor_core.SINGLE_POWERS": (8.0, 10.0)}),
}  # fmt: skip
MODULES: dict[str, Any] = {"pruned": pruned, "pruned_half": pruned_half, "tensor_core": tensor_core}


@contextlib.contextmanager
def settings(variant: str, p: float) -> Generator[None]:
    """Context with the settings of a variant; float32 outside."""
    changes, before = dict(VARIANTS[variant][2]), dict[str, Any]()
    set_half(changes.pop("half", True))
    for key, value in changes.items():
        module, name = key.split(".")
        before[key] = getattr(MODULES[module], name)
        setattr(MODULES[module], name, (30 - math.log2(p),) * 2 if value is None else value)
    try:
        yield
    finally:
        for key, value in before.items():
            module, name = key.split(".")
            setattr(MODULES[module], name, value)
        set_half(False)


def variants_at(p: float) -> list[str]:
    if p < 12 or math.isinf(p):
        return ["float32", "half"]
    return [name for name, (first, last, _) in VARIANTS.items() if first <= p <= last]


class Output:
    """Appends rows to a file and prints them."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.file, self.start, self.seconds = folder / "candidates.jsonl", time.monotonic(), seconds

    def row(self, **values: Any) -> None:
        text = json.dumps({"at_s": round(time.monotonic() - self.start, 1), **values})
        with self.file.open("a", encoding="utf-8") as file:
            file.write(text + "\n")
        print(text[:600], flush=True)

    def left(self) -> float:
        return self.seconds - (time.monotonic() - self.start)

    def attempt(self, what: str, action: Callable[[], object]) -> bool:
        """Run an action; record its failure. Return whether it succeeded."""
        if self.left() < 5:
            self.row(what=what, skipped="no time left")
            return False
        try:
            action()
        except Exception as error:  # the next part must run
            self.row(what=what, failed=f"{type(error).__name__}: {error}"[:1500], trace=traceback.format_exc()[-1500:])
            return False
        return True


def set_half(on: bool) -> None:
    half._enabled = on  # pyright: ignore[reportPrivateUsage]


def quantiles(made: Tensor, exact: Tensor) -> dict[str, Any]:
    """Return relative errors of the elements above 1e-10 of the largest, of the norm, and the share of wrong signs."""
    a, b = made.double().flatten(), exact.double().flatten()
    counts = b.abs() > 1e-10 * b.abs().max()
    relative = ((a - b).abs() / b.abs())[counts].float()
    if len(relative) > 4_000_000:
        relative = relative[torch.randint(len(relative), (4_000_000,), device=relative.device)]
    return {
        "quantiles": [
            float(f"{q:.3g}") for q in torch.quantile(relative, torch.tensor(QUANTILES).to(relative)).tolist()
        ],
        "norm": float(f"{((a - b).norm() / b.norm()).item():.3g}"),
        "wrong_signs": float(f"{((a * b < 0) & counts).double().mean().item():.3g}"),
        "lost": float(f"{((a == 0) & counts).double().mean().item():.3g}"),
        "nonfinite": int((~torch.isfinite(made)).sum()),
    }


def graphed(action: Callable[[], object]) -> Callable[[], None]:
    """Return a function that replays an action from a CUDA graph."""
    for _ in range(2):
        action()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        action()
    return graph.replay


Layer = tuple[Tensor, Tensor, Tensor]


def layers_of(state: State, p: float) -> list[Layer]:
    """Return inputs, weights and gradients of the distances of all layers in a training step, by float32 kernels."""
    set_half(False)
    x, found = state.images, []
    weights = [w.clone().requires_grad_() for w in state.weights]
    for k, w in enumerate(weights):
        y = lp_distance(x, w, p, impl="cuda")
        y.retain_grad()
        found.append((x.detach(), w.detach(), y))
        x = y - y.mean(0) if k + 1 < len(weights) else -y
    torch.nn.functional.multi_margin_loss(x, state.labels).backward()
    return [(x, w, y.grad.clone()) for x, w, y in found if y.grad is not None]


def measure(layer: Layer, p: float) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    """Return (y, grad_x, grad_w) of a layer, and its times and flags with the current settings."""
    kernels, (x, w, grad) = Cuda(), layer
    y, saved = kernels.forward_saving(x, w, p)

    def backward() -> tuple[Tensor, Tensor]:
        return kernels.backward(grad, x, w, y, saved, p, True, True)

    results = (y, *backward())
    forward_ms = times(graphed(lambda: kernels.forward_saving(x, w, p)), 5)[0]
    backward_ms = times(graphed(backward), 5)[0]
    found: dict[str, Any] = {"ms": [round(forward_ms, 3), round(backward_ms, 3)]}
    listed = not math.isinf(p) and pruned.supports(x, w, p)
    if listed:
        lengths = pruned.Pruned(Launcher(), x, w, p)._lengths(saving=True)  # pyright: ignore[reportPrivateUsage]
        lists = pruned.Lists(saved, lengths)
        found["share"] = round(lists.counts.double().mean().item() / x.shape[1], 4)
        found["lists_too_long"] = int(lists.use_dense.item())
    single = half.enabled() and tensor_core.supports(x, w, p, single=True)
    if single:
        found["cancels"] = int(saved[0].item())
        lengths = tensor_core.TensorCore(Launcher(), x, w, p, single=True).lengths
        bits = aligned_parts(saved, lengths)[2]
        ones = sum(int((bits >> k & 1).sum()) for k in range(32))
        found["unexpanded"] = round(ones / y.numel(), 6)
    elif half.supports(Launcher(), x, w, p):
        found["half_fallback"] = int(saved[66 if listed else 2].item())
    return results, found


def compare(out: Output, state: State, p: float, indices: tuple[int, ...]) -> float:
    """Record errors and times of some layers by variant; return the largest error of a norm with float16."""
    worst, layers = 0.0, layers_of(state, p)
    for index in indices:
        exact, plain = measure(layers[index], p)
        found, errors = {"float32": plain}, dict[str, Any]()
        for variant in variants_at(p)[1:]:
            with settings(variant, p):
                made, found[variant] = measure(layers[index], p)
            for name, a, b in zip(("y", "grad_x", "grad_w"), made, exact, strict=True):
                errors[f"{variant} {name}"] = error = quantiles(a, b)
                if variant == "half":
                    worst = max(worst, error["norm"] if math.isfinite(error["norm"]) else math.inf)
        out.row(what="layer", state=state.name, p=p, layer=index, **found, errors=errors)
    return worst


def steps(out: Output, states: Path, p: float, table: dict[float, dict[str, float]]) -> None:
    """Measure training steps at p, replayed from graphs, with all variants."""
    # The state at p = 10 is also the last one at p = 8.
    state, row = state_at(max(p, 10.0), states), table.setdefault(p, {})
    for variant in variants_at(p):
        with settings(variant, p):
            figures = measure_step(ours, state, p, 5, graphs=True)
        row[variant] = round(figures["step_ms"], 2)
    out.row(what="steps", state=state.name, p=str(p), ms=row)


def print_table(table: dict[float, dict[str, float]]) -> None:
    names = [name for name in (*VARIANTS, "baseline") if any(name in row for row in table.values())]
    print(f"{'p':>6}" + "".join(f"{name:>15}" for name in names))
    for p, row in table.items():
        print(f"{p:>6g}" + "".join(f"{row[name]:>15.2f}" if name in row else f"{'':>15}" for name in names))


def profile(out: Output, state: State, p: float, on: bool) -> None:
    """Record the kernels of one forward and backward pass."""
    set_half(on)
    weights = [w.clone().requires_grad_() for w in state.weights]

    def step() -> None:
        x = state.images
        for k, w in enumerate(weights):
            x = lp_distance(x, w, p, impl="cuda")
            x = x - x.mean(0) if k + 1 < len(weights) else -x
        torch.nn.functional.multi_margin_loss(x, state.labels).backward()

    step()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        step()
        torch.cuda.synchronize()
    averages: list[Any] = list(profiler.key_averages())
    kernels: list[tuple[float, int, str]] = [
        (round(event.self_device_time_total / 1000, 3), event.count, event.key[:48]) for event in averages
    ]
    kernels = sorted(kernels, reverse=True)[:24]
    out.row(what="kernels", state=state.name, p=p, half=on, ms_and_count=kernels)
    set_half(False)


def script(out: Output, name: str, arguments: list[str], tree: Path, limit: float) -> None:
    """Run a script of this folder with the package of a checkout; record the end of its output."""
    path = os.pathsep.join(filter(None, (str(tree / "src"), os.environ.get("PYTHONPATH", ""))))
    command = [sys.executable, str(tree / "benchmarks" / name), *arguments]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True,
        timeout=max(5.0, min(limit, out.left())), check=False,
    )  # fmt: skip
    out.row(
        what=name, tree=str(tree), arguments=arguments, rc=done.returncode,
        output=done.stdout[-3500:], errors=done.stderr[-1500:] if done.returncode else "",
    )  # fmt: skip
    print(done.stdout[-3500:], flush=True)


def check(out: Output) -> bool:
    """Measure the kernels in float16 on initial weights; return whether all ran and their errors are small."""
    worst: list[float] = []
    for p in (8.0, 12.0, 20.0, 28.0):
        out.attempt(f"check p = {p:g}", lambda p=p: worst.append(compare(out, state_at(p, None), p, (2,))))
    return len(worst) == 4 and max(worst) < 0.05


def baseline(out: Output, tree: Path, states: Path, table: dict[float, dict[str, float]]) -> None:
    """Measure the steps of another checkout, with its default settings."""
    record = out.file.with_name("train_step-baseline.jsonl")
    arguments = ["--states", str(states), "--repeats", "5", "--record", str(record), "--p", *map(str, STEPS)]
    out.attempt("baseline", lambda: script(out, "train_step.py", arguments, tree, 60))
    for line in record.read_text(encoding="utf-8").splitlines() if record.is_file() else ():
        row = json.loads(line)
        if row["kernels"] == "linfnet":
            table.setdefault(float(row["p"]), {})["baseline"] = row["step_ms"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--baseline", type=Path, metavar="FOLDER", help="another checkout to compare steps with")
    parser.add_argument("--seconds", type=float, default=290)
    parser.add_argument("--epochs", type=int, nargs=3, default=[4, 42, 3])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--states", type=Path, help="states of an earlier call; otherwise they are trained")
    parser.add_argument("--parts", nargs="+", default=["check", "states", "steps", "layers", "kernels"])
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    out, root, states = Output(options.out, options.seconds), HERE.parent, options.states or options.out / "states"
    out.row(what="machine", gpu=torch.cuda.get_device_name(), torch=torch.__version__)

    good = "check" not in options.parts or check(out)
    if "states" in options.parts and not options.states:
        arguments = [str(states), "--epochs", *map(str, options.epochs), "--seed", str(options.seed)]
        arguments += ["--p", *map(str, STATES), "--set", f"run.float16={str(good).lower()}"]
        out.attempt("states", lambda: script(out, "train_states.py", arguments, root, 120))
    table: dict[float, dict[str, float]] = {}
    if "steps" in options.parts:
        for p in STEPS:
            out.attempt(f"steps, p = {p:g}", lambda p=p: steps(out, states, p, table))
        if options.baseline:
            baseline(out, options.baseline.resolve(), states, table)
    if "layers" in options.parts:
        for p in (12.0, 20.0, 28.0, 64.0, 128.0, 512.0):
            out.attempt(f"layers, p = {p:g}", lambda p=p: compare(out, state_at(p, states), p, (2,)))
    if "kernels" in options.parts:
        for p in (8.0, 12.0, 20.0, 28.0, 64.0, 128.0, 512.0):
            out.attempt(f"kernels, p = {p:g}", lambda p=p: profile(out, state_at(max(p, 10.0), states), p, on=True))
    out.row(what="end", total_s=round(time.monotonic() - out.start, 1))
    print_table(table)


if __name__ == "__main__":
    main()
