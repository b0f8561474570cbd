"""Seconds of the first forward and backward call for each p: with an empty kernel cache, and in the next process.

python benchmarks/first_call.py [--record records/gpu-first-call.json]
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

CALLS = """
import json, time, torch
from linfnet.ops import lp_distance

def seconds(p):
    x = torch.randn(512, 1024, device="cuda", requires_grad=True)
    w = torch.randn(1024, 1024, device="cuda", requires_grad=True)
    torch.cuda.synchronize()
    start = time.perf_counter()
    lp_distance(x, w, p).sum().backward()
    torch.cuda.synchronize()
    return round(time.perf_counter() - start, 3)

measured = {str(p): seconds(p) for p in (8.0, 12.0, 64.0, 100.0, 200.5, float("inf"))}
print(json.dumps([measured, torch.cuda.get_device_name(), torch.__version__]))
"""
WHAT = (
    "seconds of the first forward and backward call per p, 512 x 1024 x 1024, kernels not compiled before; "
    "the same in the next process"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("torch finds no CUDA device")
    with tempfile.TemporaryDirectory() as cache:
        env = {**os.environ, "XDG_CACHE_HOME": cache}
        runs = [
            subprocess.run([sys.executable, "-c", CALLS], env=env, capture_output=True, text=True) for _ in range(2)
        ]
    if any(run.returncode for run in runs):
        sys.exit("\n".join(run.stderr for run in runs))
    (first, hardware, torch_version), (following, *_) = (json.loads(run.stdout) for run in runs)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    figures = {
        "what": WHAT,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "hardware": hardware,
        "torch": torch_version,
        "commit": commit.stdout.strip() or "unknown",
        "first_process_seconds": first,
        "next_process_seconds": following,
    }
    print(json.dumps(figures, indent=2))
    if arguments.record:
        arguments.record.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
