"""Seconds of `linfnet demo` on idle cores and beside processes that use all cores.

Idle and busy runs alternate; the ratio is computed from the best times. The machine must have no other load.

    python benchmarks/busy.py [--loops 2] [--rounds 2] [--record records/busy.json]
"""

import argparse
import contextlib
import datetime
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

import torch
from cpu import commit, cpu_name

WHAT = "seconds of `linfnet demo` on idle cores and beside busy loops: all of it, its training, and its CPU time"
WANTED = 3.0


@contextlib.contextmanager
def busy_loops(count: int) -> Generator[None]:
    """Run `count` processes that each use one core."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def demo() -> dict[str, float]:
    """Run the demo in a process; return its seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        command = [sys.executable, "-m", "linfnet", "demo", "--out", folder]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - start
        lines = (Path(folder) / "events.jsonl").read_text().splitlines()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    training = next(row["seconds"] for row in map(json.loads, reversed(lines)) if "seconds" in row)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"all": round(seconds, 2), "training": training, "cpu": round(spent, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loops", type=int, default=os.cpu_count(), help="number of busy loops; default: one per core")
    parser.add_argument("--rounds", type=int, default=2, help="number of runs on idle cores and beside the loops")
    parser.add_argument("--record", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    idle: list[dict[str, float]] = []
    busy: list[dict[str, float]] = []
    for _ in range(arguments.rounds):
        idle.append(demo())
        with busy_loops(arguments.loops):
            # The processes of the loops are not children that have ended yet, so their time is not counted.
            busy.append(demo())
    ratio = min(run["all"] for run in busy) / min(run["all"] for run in idle)
    figures = {
        "what": WHAT,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "commit": commit(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "load_before": round(load, 2),
        "loops": arguments.loops,
        "idle": idle,
        "busy": busy,
        "ratio": round(ratio, 2),
        "at_most": WANTED,
    }
    print(json.dumps(figures, indent=2))
    if arguments.record:
        arguments.record.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
