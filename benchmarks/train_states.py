"""Weights of a real CIFAR-10 run (8/255 by default) as its p rises, for `train_step.py --states`.

    python benchmarks/train_states.py STATES [--p 28 64 112 224 512] [--epochs 4 42 3] [--recipe cifar10-16] [--seed 1]
        [--set run.test_every=50 ...]

STATES gets a run folder `run`, a net saved by `LinfNet.save` in `p64` and so on when p reaches each of the values, and
`images.safetensors`, the batch of training images the steps are timed on. The p of the run are snapped.
"""

import argparse
from pathlib import Path

import torch
from safetensors.torch import save_file

from linfnet.data import load, to_pixels
from linfnet.recipes import load_recipe
from linfnet.train import Callback, RunFolder, Trainer, TrainingRun

BATCH = 512


class Saver(Callback):
    """Saves the net at the first step of each required p."""

    def __init__(self, folder: Path, wanted: list[float]) -> None:
        self.folder, self.wanted = folder, sorted(wanted)

    def on_step(self, run: TrainingRun) -> None:
        """Save the net if p has reached the next required value."""
        while self.wanted and run.p >= self.wanted[0]:
            p = self.wanted.pop(0)
            run.net.save(self.folder / f"p{p:g}")
            print(f"p = {p:g} at step {run.step} (there p = {run.p:g})", flush=True)

    def on_epoch(self, run: TrainingRun) -> None:
        """Print every tenth epoch."""
        if run.epoch % 10 == 0:
            print(run.history.epochs[-1], flush=True)

    def on_test(self, run: TrainingRun) -> None:
        """Print the test."""
        print(run.history.tests[-1], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("states", type=Path)
    parser.add_argument("--p", type=float, nargs="+", default=[28, 64, 112, 224, 512])
    parser.add_argument("--epochs", type=int, nargs=3, default=[4, 42, 3])
    parser.add_argument("--recipe", default="cifar10-8")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", nargs="+", default=[], help="further changes of the recipe, as in linfnet train")
    options = parser.parse_args()

    changes = (f"schedule.epochs={options.epochs}", "schedule.snap_p=true", f"run.seed={options.seed}")
    recipe = load_recipe(options.recipe, (*changes, "run.checkpoint_minutes=1000", *options.set))
    images, test = load("cifar10", "train"), load("cifar10", "test")
    folder = RunFolder.new(options.states / "run", recipe)
    saver = Saver(options.states, options.p)
    trainer = Trainer(recipe, images, test, torch.device("cuda"), folder=folder, callbacks=[saver])
    folder.create()
    batch = to_pixels(images.images[:BATCH], images.info.white).contiguous()
    save_file({"pixels": batch.cpu(), "labels": images.labels[:BATCH].cpu()}, options.states / "images.safetensors")
    try:
        trainer.run()
    finally:
        folder.release()


if __name__ == "__main__":
    main()
