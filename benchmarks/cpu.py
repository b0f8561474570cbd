"""Speed on a CPU: our kernels, `torch.cdist` and a matrix product of the same shape, in one process.

The contenders alternate so that other load on the machine affects all of them; ratios are computed from the best times.
The benchmark prints a table with the required ratios and appends a row per measurement to records/cpu-bench.jsonl.

    python benchmarks/cpu.py [--rounds 3] [--quick]
"""

import argparse
import datetime
import json
import math
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from states import State, random_state, trained_states

from linfnet.ops import cpu, lp_distance

RECORD = Path(__file__).resolve().parent.parent / "records" / "cpu-bench.jsonl"
Call = Callable[[], object]
Times = dict[str, list[float]]

# (shape, p, direction) -> required ratio of speed to (the matrix product, cdist); None where nothing is required.
LARGE, SMALL, HEAD = (256, 1024, 1024), (1, 64, 64), (512, 10, 5120)
WANTED: dict[tuple[tuple[int, int, int], float, str], tuple[float | None, float | None]] = {
    (LARGE, math.inf, "forward"): (0.5, 10),
    (LARGE, 8.0, "forward"): (0.35, 60),
    (LARGE, math.inf, "forward+backward"): (None, 10),
    (LARGE, 8.0, "forward+backward"): (None, 50),
    (LARGE, 30.5, "forward+backward"): (None, 25),
    (LARGE, 200.0, "forward+backward"): (None, 30),
    (SMALL, math.inf, "forward"): (None, 0.5),
    (SMALL, 8.0, "forward"): (None, 0.5),
    (HEAD, math.inf, "forward"): (None, 4),
    (HEAD, 8.0, "forward"): (None, 4),
    (HEAD, math.inf, "forward+backward"): (None, 4),
    (HEAD, 8.0, "forward+backward"): (None, 4),
}


def contenders(state: State, direction: str) -> dict[str, Call]:
    """Return the function to call for each contender."""
    x, w, p = state.x, state.w, state.p
    operations: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
        "matmul": lambda x, w: x @ w.t(),
        "ours": lambda x, w: lp_distance(x, w, p, impl="cpu"),
        "cdist": lambda x, w: torch.cdist(x, w, p),
    }
    if direction == "forward":
        return {name: (lambda f=f: f(x, w)) for name, f in operations.items()}
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    grad = torch.randn(x.shape[0], w.shape[0]) / x.shape[0]
    return {name: (lambda f=f: torch.autograd.grad(f(x, w), (x, w), grad)) for name, f in operations.items()}


def measure(calls: dict[str, Call], rounds: int) -> Times:
    """Return the seconds per call of contenders that alternate; short calls are repeated within a round."""
    repeats: dict[str, tuple[int, int]] = {}
    for name, call in calls.items():
        call()
        start = time.perf_counter()
        call()
        once = time.perf_counter() - start
        inner = max(1, min(1000, int(2e-3 / once)))  # calls per reading of the clock
        repeats[name] = inner, max(1, min(20, int(0.3 / (once * inner))))
    times: Times = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            inner, outer = repeats[name]
            for _ in range(outer):
                start = time.perf_counter()
                for _ in range(inner):
                    call()
                times[name].append((time.perf_counter() - start) / inner)
    return times


def cpu_name() -> str:
    """Return the model of the processor."""
    path = Path("/proc/cpuinfo")
    for line in path.read_text().splitlines() if path.exists() else ():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def commit() -> str:
    """Return the commit of the source, with a plus sign if files differ from it."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    result = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return result.stdout.strip() or "unknown"


def rows(state: State, direction: str, times: Times, machine: dict[str, object]) -> list[dict[str, object]]:
    """Return one row of data per contender."""
    shape = (state.x.shape[0], state.w.shape[0], state.x.shape[1])
    result: list[dict[str, object]] = []
    for name, seconds in times.items():
        cut = statistics.quantiles(seconds, n=10, method="inclusive") if len(seconds) > 1 else seconds * 9
        milliseconds = {"best": min(seconds), "q10": cut[0], "median": cut[4], "q90": cut[8]}
        case = {"shape": shape, "p": str(state.p), "direction": direction, "state": state.source, "who": name}
        spread = {key: round(value * 1e3, 5) for key, value in milliseconds.items()}
        result.append({**machine, **case, **spread, "readings": len(seconds)})
    return result


def mark(ratio: float, wanted: float | None) -> str:
    """Format a ratio for the table."""
    if wanted is None:
        return f"{ratio:.2f}"
    return f"[{'green' if ratio >= wanted else 'bold red'}]{ratio:.2f}[/] (≥ {wanted:g})"


def line(state: State, direction: str, times: Times) -> list[str]:
    """Return one line of the table."""
    shape = (state.x.shape[0], state.w.shape[0], state.x.shape[1])
    best = {name: min(seconds) for name, seconds in times.items()}
    over_product, over_cdist = WANTED.get((shape, state.p, direction), (None, None))
    cells = ["x".join(map(str, shape)), f"{state.p:g}", direction, state.source]
    cells += [f"{best[name] * 1e3:.3f}" for name in ("ours", "matmul", "cdist")]
    # At large p the required ratios hold for trained states.
    if state.p not in (8.0, math.inf) and state.source == "random":
        over_product, over_cdist = None, None
    return [
        *cells,
        f"{statistics.median(times['ours']) * 1e3:.3f}",
        mark(best["matmul"] / best["ours"], over_product),
        mark(best["cdist"] / best["ours"], over_cdist),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the CPU kernels against torch.cdist and a matrix product.")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds, in each of which every contender runs")
    parser.add_argument("--quick", action="store_true", help="omit large p, for which torch.cdist takes minutes")
    options = parser.parse_args()
    if not cpu.levels():
        raise SystemExit(cpu.status())
    console = Console(width=150)
    console.print(f"{cpu_name()}, torch {torch.__version__}, {torch.get_num_threads()} threads; {cpu.status()}")
    cases = [(random_state(p, shape), d) for shape in (LARGE, HEAD) for p in (math.inf, 8.0) for d in DIRECTIONS]
    cases += [(random_state(p, SMALL), "forward") for p in (math.inf, 8.0)]
    if not options.quick:
        console.print("training a small net for realistic states ...")
        for state in trained_states((30.5, 200.0)):
            console.print(f"p = {state.p:g}: {state.terms:.1f} of 1024 terms matter ({state.source})")
            cases += [(state, d) for d in DIRECTIONS]
            cases += [(random_state(state.p), "forward+backward")]
    headers = [
        "shape",
        "p",
        "direction",
        "state",
        "ours ms",
        "matmul ms",
        "cdist ms",
        "ours median",
        "x matmul",
        "x cdist",
    ]
    table = Table(*headers, title="best times; speed as a multiple of matmul's and cdist's")
    machine: dict[str, object] = {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "kernel": cpu.levels()[0],
    }
    RECORD.parent.mkdir(exist_ok=True)
    with RECORD.open("a") as file:
        for state, direction in cases:
            times = measure(contenders(state, direction), options.rounds)
            table.add_row(*line(state, direction, times))
            for row in rows(state, direction, times, machine):
                file.write(json.dumps(row) + "\n")
    console.print(table)


DIRECTIONS = ("forward", "forward+backward")

if __name__ == "__main__":
    main()
