"""Small runs: few digits, narrow nets."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from linfnet.data import load
from linfnet.recipes import load_recipe
from linfnet.train import RunFolder, Trainer

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


class Quiet:
    """A watcher that records its calls."""

    def __init__(self) -> None:
        self.events: list[dict] = []
        self.steps: list[int] = []

    def step(self, step: int, values: object, so_far: dict[str, float]) -> None:
        self.steps.append(step)

    def event(self, event: dict) -> None:
        self.events.append(event)


@pytest.fixture
def watcher() -> Quiet:
    return Quiet()


@pytest.fixture
def new_trainer(tmp_path: Path) -> Callable[..., Trainer]:
    def build(name: str = "run", *changes: str) -> Trainer:
        recipe = load_recipe("digits", [*TINY, *changes])
        folder = RunFolder.new(tmp_path / name, recipe)
        images, test = load("digits", "train"), load("digits", "test")
        trainer = Trainer(recipe, images, test, torch.device("cpu"), folder=folder)
        folder.create()
        return trainer

    return build
