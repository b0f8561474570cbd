"""Seconds of the first forward and backward call per p: with no compiled kernel in the cache, and in the next process.

python benchmarks/first_call.py [--record records/gpu-first-call.json]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

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

print(json.dumps({str(p): seconds(p) for p in (8.0, 12.0, 64.0, 100.0, 200.5, float("inf"))}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        env = {**os.environ, "XDG_CACHE_HOME": cache}
        runs = [
            subprocess.run([sys.executable, "-c", CALLS], env=env, capture_output=True, text=True) for _ in range(2)
        ]
    if any(run.returncode for run in runs):
        sys.exit("\n".join(run.stderr for run in runs))
    first, cached = (json.loads(run.stdout) for run in runs)
    figures = {"first_process_seconds": first, "next_process_seconds": cached}
    print(json.dumps(figures, indent=2))
    if arguments.record:
        arguments.record.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
