"""A training run in the background, for machines on which a single command may not run as long as the training.

    python benchmarks/long_run.py RUN [--recipe cifar10-8] [--set run.seed=1 ...] [--wait 500] [--every 60]

The first call starts the training as a separate process, whose output goes to RUN.log. Every call prints the progress
until the run has finished or --wait seconds have passed. If the process has ended without a result, the next call
resumes the run from its last checkpoint, as `linfnet train --resume` does. The script does not need tyro.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

from linfnet import fit
from linfnet.recipes import load_recipe
from linfnet.train import RunFolder
from linfnet.train.history import History

STARTING = 20.0  # seconds within which a new process must have locked its folder


def folder_of(run: Path) -> RunFolder | None:
    return RunFolder.open(run) if (run / "recipe.toml").is_file() else None


def start(run: Path, arguments: list[str]) -> None:
    """Start the training as a process that outlives this one."""
    run.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, __file__, *arguments, "--worker"]
    with Path(f"{run}.log").open("a", encoding="utf-8") as log:
        subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)


def progress(folder: RunFolder) -> str:
    """Return one line: the epoch, the steps per second of the last epochs, and the last test."""
    history, total = History.from_json(folder.events()), folder.recipe.schedule.phases().total
    if not history.epochs:
        return "no epoch has ended"
    last, earlier = history.epochs[-1], history.epochs[-min(10, len(history.epochs))]
    text = f"epoch {last.epoch} of {total:g}, p = {last.p:g}, loss {last.loss:.4f}, {last.seconds / 60:.1f} min"
    if last.step > earlier.step:
        text += f", {1000 * (last.seconds - earlier.seconds) / (last.step - earlier.step):.1f} ms per step"
    if history.tests:
        test = history.tests[-1]
        shares = ", ".join(f"{100 * share:.2f} % at {eps}" for eps, share in test.certified.items())
        text += f"; test after epoch {test.epoch}: clean {100 * test.clean:.2f} %, certified {shares}"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--recipe", default="cifar10-8")
    parser.add_argument("--set", nargs="+", default=[], help="changes of the recipe, as in linfnet train")
    parser.add_argument("--wait", type=float, default=500, metavar="SECONDS")
    parser.add_argument("--every", type=float, default=60, metavar="SECONDS")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        folder = folder_of(options.run)
        fit(folder.recipe if folder else load_recipe(options.recipe, options.set), out=options.run, resume=True)
        return
    end, started = time.monotonic() + options.wait, -STARTING
    while True:
        folder, now = folder_of(options.run), time.monotonic()
        if folder and folder.complete:
            print(f"finished: {progress(folder)}")
            return
        if not (folder and folder.locked) and now - started > STARTING:
            if started > 0:
                sys.exit(f"the process has ended; its output is in {options.run}.log")
            start(options.run, sys.argv[1:])
            started = now
        print(progress(folder) if folder else "starting", flush=True)
        if time.monotonic() >= end:
            return
        time.sleep(max(1.0, min(options.every, end - time.monotonic())))


if __name__ == "__main__":
    main()
