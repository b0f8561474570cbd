"""Small runs: few digits, narrow nets."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from linfnet.data import load
from linfnet.recipes import load_recipe
from linfnet.train import Callbacks, RunFolder, Trainer

TINY = (
    "limit=150",
    "width=16",
    "depth=3",
    "epochs=[1, 3, 1]",
    "batch=64",
    "checkpoint_every=1",
    "test_every=1",
    "pad=1",
)


@pytest.fixture
def new_trainer(tmp_path: Path) -> Callable[..., Trainer]:
    def build(name: str = "run", *changes: str, callbacks: Callbacks = ()) -> Trainer:
        recipe = load_recipe("digits", [*TINY, *changes])
        folder = RunFolder.new(tmp_path / name, recipe)
        images, test = load("digits", "train"), load("digits", "test")
        trainer = Trainer(recipe, images, test, torch.device("cpu"), folder=folder, callbacks=callbacks)
        folder.create()
        return trainer

    return build
