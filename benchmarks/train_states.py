"""Weights of a real CIFAR-10 run (8/255 by default) as its p rises, for `train_step.py --states`.

    python benchmarks/train_states.py STATES [--p 28 64 112 224 512] [--epochs 4 42 3] [--recipe cifar10-16] [--seed 1]
        [--set run.test_every=50 ...]

STATES gets a run folder `run`, a net saved by `LinfNet.save` in `p64` and so on when p reaches each of the values, and
`images.safetensors`, the batch of training images the steps are timed on. The p of the run are snapped.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from linfnet.data import load, to_pixels
from linfnet.nn import LinfNet
from linfnet.recipes import load_recipe
from linfnet.schedules import StepState
from linfnet.train import RunFolder, Trainer

BATCH = 512


class Saver:
    """Watches a training run and saves the net at the first step of each required p."""

    def __init__(self, net: LinfNet, folder: Path, wanted: list[float]) -> None:
        self.net, self.folder, self.wanted = net, folder, sorted(wanted)

    def step(self, step: int, state: StepState, so_far: dict[str, float]) -> None:
        """Save the net if p has reached the next required value."""
        while self.wanted and state.p >= self.wanted[0]:
            p = self.wanted.pop(0)
            self.net.save(self.folder / f"p{p:g}")
            print(f"p = {p:g} at step {step} (there p = {state.p:g})", flush=True)

    def event(self, event: dict[str, Any]) -> None:
        """Print tests and every tenth epoch."""
        if event["event"] == "test" or event["epoch"] % 10 == 0:
            print(event, flush=True)


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
    trainer = Trainer(recipe, images, test, torch.device("cuda"), folder=folder)
    folder.create()
    batch = to_pixels(images.images[:BATCH], images.info.white).contiguous()
    save_file({"pixels": batch.cpu(), "labels": images.labels[:BATCH].cpu()}, options.states / "images.safetensors")
    try:
        trainer.run(Saver(trainer.net, options.states, options.p))
    finally:
        folder.release()


if __name__ == "__main__":
    main()
