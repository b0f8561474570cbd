"""Damage files and kill runs; count what is noticed and what ends as an undisturbed run.

Flips: one random bit of model.safetensors or of the newest checkpoint. A damaged model must be refused in one line with
exit status 2; a run with a damaged checkpoint must resume from the one before and end with the same model.
Kills: SIGKILL at random moments, then `linfnet train --resume` until the run has finished. Weights, events (without
times), checkpoints and the names of all files must be those of an undisturbed run.

    python benchmarks/faults.py [--flips 300] [--runs 50] [--seed 0] [--record records/faults.json]
"""

import argparse
import contextlib
import io
import multiprocessing
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from linfnet.cli.console import console
from linfnet.cli.main import main as linfnet
from linfnet.files import read_tensors, write_json
from linfnet.train import RunFolder, environment
from linfnet.train.checkpoint import find_checkpoints

SETTINGS = ["--set", "limit=200", "width=48", "depth=3", "batch=32", "checkpoint_every=1"]
SHORT = [*SETTINGS, "epochs=[1, 1, 1]"]
LONG = [*SETTINGS, "epochs=[3, 12, 3]", "test_every=3"]


def command(arguments: list[str]) -> tuple[int, str]:
    """Run a command; return its exit status and output."""
    output = io.StringIO()
    console.file = output
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        return linfnet(arguments), output.getvalue()


def flip(file: Path, draw: random.Random) -> int:
    """Change a random bit of a file, and return its index."""
    content = bytearray(file.read_bytes())
    bit = draw.randrange(8 * len(content))
    content[bit // 8] ^= 1 << bit % 8
    file.write_bytes(content)
    return bit


def measure_flips(folder: Path, count: int, draw: random.Random) -> dict[str, Any]:
    """Flip one bit of a model or of a checkpoint, `count` times."""
    whole, copy = folder / "whole", folder / "copy"
    assert command(["train", "digits", *SHORT, "--out", str(whole)])[0] == 0
    model = (whole / "model.safetensors").read_bytes()
    noticed, unnoticed = {"model": 0, "checkpoint": 0}, list[str]()
    for number in range(count):
        kind = "model" if number % 2 else "checkpoint"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(whole, copy)
        newest, before = find_checkpoints(copy / "checkpoints")
        bit = flip(copy / "model.safetensors" if kind == "model" else newest, draw)
        status, printed = command(["verify", str(copy)])
        seen = status == 2 and sum(not line.startswith("whole: ") for line in printed.splitlines()) == 1
        if kind == "model":
            status, printed = command(["evaluate", str(copy)])
            seen &= status == 2 and len(printed.splitlines()) == 1 and "model.safetensors" in printed
        else:
            for name in ("model.safetensors", "config.json", "results.json"):
                (copy / name).unlink()
        status, printed = command(["train", "--resume", str(copy)])
        step = int((newest if kind == "model" else before).stem.removeprefix("step-"))
        seen &= status == 0 and f"resuming at step {step} " in printed
        seen &= (copy / "model.safetensors").read_bytes() == model
        noticed[kind] += seen
        if not seen:
            unnoticed.append(f"bit {bit} of {kind}: {printed}")
    return {"flips": count, "noticed": noticed, "unnoticed": unnoticed}


def _work(arguments: list[str], log: Path) -> None:
    torch.set_num_threads(1)
    with log.open("a", buffering=1) as sys.stdout:
        sys.stderr = sys.stdout
        sys.exit(linfnet(arguments))


def contents(run: Path) -> dict[str, Any]:
    """Return what must be equal in two runs of one recipe."""
    untimed = [{**event, "seconds": 0} for event in RunFolder.open(run).events() if event["event"] != "resume"]
    checkpoints = {path.name: read_tensors(path)[0] for path in find_checkpoints(run / "checkpoints")}
    return {
        "weights": (run / "model.safetensors").read_bytes(),
        "events": untimed,
        "checkpoints": {
            name: {key: tensor.tolist() for key, tensor in tensors.items()} for name, tensors in checkpoints.items()
        },
        "files": sorted(str(path.relative_to(run)) for path in run.rglob("*")),
    }


def measure_kills(folder: Path, runs: int, draw: random.Random) -> dict[str, Any]:
    """Kill each of `runs` runs one to four times."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["linfnet.cli.main", "torch._dynamo"])
    log = folder / "log"

    def start(arguments: list[str]) -> Any:
        process = context.Process(target=_work, args=(arguments, log))
        process.start()
        return process

    train = ["train", "digits", *LONG, "--out"]
    start(["--version"]).join()
    begin = time.monotonic()
    start([*train, str(folder / "undisturbed")]).join()
    seconds = time.monotonic() - begin
    expected = contents(folder / "undisturbed")
    kills, leftovers, different = 0, 0, list[str]()
    for number in range(runs):
        run, planned = folder / f"run-{number}", draw.randint(1, 4)
        while not (run / "results.json").exists():
            again = (run / "recipe.toml").exists()
            process = start(["train", "--resume", str(run)] if again else [*train, str(run)])
            process.join(draw.uniform(0, 1.2 / planned) * seconds if planned else None)
            if process.is_alive():
                process.kill()
                process.join()
                kills, planned = kills + 1, planned - 1
                leftovers += bool(list(run.rglob(".*.tmp")))
            elif process.exitcode:
                different.append(f"run {number}: exit status {process.exitcode}")
                break
        found = contents(run)
        different += [f"run {number}: {key}" for key in expected if found[key] != expected[key]]
        different += [f"run {number}: {file}" for file in set(found["files"]) ^ set(expected["files"])]
        shutil.rmtree(run)
    return {"runs": runs, "kills": kills, "kills_during_a_write": leftovers, "different": different}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flips", type=int, default=300)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    draw = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as name:
        record = {
            "what": "files with one flipped bit, and runs that were killed at random moments and resumed",
            "seed": options.seed,
            "flips": measure_flips(Path(name), options.flips, draw),
            "kills": measure_kills(Path(name), options.runs, draw),
            "environment": environment(),
        }
    print({key: record[key] for key in ("flips", "kills")})
    if options.record:
        write_json(options.record, record)


if __name__ == "__main__":
    main()
