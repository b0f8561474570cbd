"""Fine-tuning of compressed nets at p = infinity: does it gain certified accuracy?

The benchmark trains copies of a compressed net by `linfnet.fit` on the training images without 5,000 held-out ones, one
copy for each of the settings below. The setting with the best certified accuracy on the held-out images is measured on
the test images, together with the net before. The dense net was trained on the held-out images too: before, the net is
as good on them as on the other training images, so that only differences between settings count.

    python benchmarks/fine_tuning.py NET RECIPE [--epochs 1] [--record records/fine-tuning.json]
"""

import argparse
import copy
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from linfnet import load_model
from linfnet.certificates import certify
from linfnet.data import ImageSet, load
from linfnet.epsilon import format_epsilon
from linfnet.files import read_table, write_json
from linfnet.nn import SparseNet
from linfnet.recipes import load_recipe
from linfnet.train import Callback, TrainingRun, environment, fit

HELD_OUT = 5000
SEED = 0


@dataclass(frozen=True)
class Setting:
    """One way to fine-tune a net: changes of the recipe, and what a recipe cannot say."""

    changes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    layers: int | None = None
    """Train only the last layers; None for all."""
    average: float = 0.0
    """Decay of a moving average of the weights, which is measured instead of the weights; 0 for none."""

    @property
    def name(self) -> str:
        """The setting in words, as a table shows it."""
        words = [f"{key} {value}" for key, value in self.changes.items()]
        words += [f"last {self.layers} layers"] if self.layers else []
        return ", ".join([*words, *(["average of weights"] if self.average else [])])


def settings_for(theta: Fraction) -> list[Setting]:
    """Return what is tried for a net that was trained with theta."""
    usual = {"lr": 1e-3}
    return [
        *(Setting({"lr": rate}) for rate in (1e-4, 3e-4, 1e-3, 3e-3)),
        Setting(usual, average=0.98),
        Setting(usual, layers=2),
        Setting({**usual, "theta": format_epsilon(theta * Fraction(2, 3))}),
        Setting({**usual, "loss.name": "hinge", "theta": format_epsilon(theta)}),
        Setting({**usual, "mixing_end": 0.05}),
        Setting({**usual, "pad": 0, "flip": False}),
    ]


class Average(Callback):
    """A moving average of all tensors of a net."""

    def __init__(self, decay: float) -> None:
        self.decay, self.tensors = decay, dict[str, Tensor]()

    def on_start(self, run: TrainingRun) -> None:
        self.tensors = {name: tensor.clone() for name, tensor in run.net.state_dict().items()}

    def on_step(self, run: TrainingRun) -> None:
        for name, tensor in run.net.state_dict().items():
            if tensor.is_floating_point():
                self.tensors[name].lerp_(tensor, 1 - self.decay)


@torch.no_grad()
def accuracy(net: SparseNet, images: ImageSet, eps: Fraction) -> dict[str, float]:
    """Return the shares of images that are classified correctly and certified."""
    found: list[Tensor] = []
    for part in torch.arange(len(images)).split(500):
        certificate = certify(net, images.pixels(part), images.labels[part])
        found.append(torch.stack([certificate.radius >= 0, certificate.at(eps)]))
    clean, certified = torch.cat(found, 1).double().mean(1).tolist()
    return {"clean": clean, "certified": certified}


def split(images: ImageSet) -> tuple[ImageSet, ImageSet]:
    """Return the images that are trained on, and the held-out images."""
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(SEED))
    parts = order[HELD_OUT:], order[:HELD_OUT]
    first, second = (replace(images, images=images.images[part], labels=images.labels[part]) for part in parts)
    return first, second


def fine_tuned(net: SparseNet, recipe: str, training: ImageSet, setting: Setting, epochs: int) -> SparseNet:
    """Return a fine-tuned copy of a net."""
    net = copy.deepcopy(net)
    for layer in net.sparse_layers()[: -setting.layers] if setting.layers else []:
        layer.requires_grad_(False)
    average = Average(setting.average)
    changes = {"epochs": [0, 0, epochs], "test_every": 0, **setting.changes}
    fit(recipe, training, net=net, settings=changes, callbacks=[average], device="cpu")
    if setting.average:
        net.load_state_dict(average.tensors)
    return net


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("net", type=Path, help="folder of a compressed net")
    parser.add_argument("recipe", help="the recipe with which the dense net was trained")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--record", type=Path)
    given = parser.parse_args()
    recipe, net = load_recipe(given.recipe), load_model(given.net)
    if not isinstance(net, SparseNet):
        raise SystemExit(f"{given.net} is not a compressed net; write one with: linfnet compress RUN")
    eps = max(recipe.evaluation.eps)
    training, held_out = split(load(recipe.data.name, "train"))
    probe = training.first(HELD_OUT)

    def measured(net: SparseNet) -> dict[str, Any]:
        return {"held_out": accuracy(net, held_out, eps), "training": accuracy(net, probe, eps)}

    before = measured(net)
    sys.stdout.write(f"before: {before}\n")
    rows: list[dict[str, Any]] = []
    best, best_row = net, dict[str, Any]()
    for setting in settings_for(recipe.loss.theta):
        start = time.process_time()
        tuned = fine_tuned(net, given.recipe, training, setting, given.epochs)
        seconds = round(time.process_time() - start, 1)
        rows.append({"setting": setting.name, "processor_seconds": seconds, **measured(tuned)})
        sys.stdout.write(f"{rows[-1]}\n")
        sys.stdout.flush()
        if not best_row or rows[-1]["held_out"]["certified"] > best_row["held_out"]["certified"]:
            best, best_row = tuned, rows[-1]
    test = load(recipe.data.name, "test")
    found = {"before": accuracy(net, test, eps), "after": accuracy(best, test, eps)}
    about = {"recipe": given.recipe, "eps": format_epsilon(eps), "epochs": given.epochs, "chosen": best_row["setting"]}
    connections = sum(layer.connections for layer in net.sparse_layers())
    record = {**about, "connections": connections, "before": before, "rows": rows, "test": found}
    sys.stdout.write(f"chosen: {best_row['setting']}\ntest: {found}\n")
    if given.record is not None:
        table: dict[str, Any] = read_table(given.record) if given.record.exists() else {}
        write_json(given.record, {**table, given.net.name: {**record, "environment": environment()}})


if __name__ == "__main__":
    main()
