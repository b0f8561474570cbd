"""Callbacks that act at a step."""

from collections.abc import Callable

from linfnet.train import Callback, TrainingRun


class OnStep(Callback):
    """Calls a function with the number of each step."""

    def __init__(self, function: Callable[[int], object]) -> None:
        self.function = function

    def on_step(self, run: TrainingRun) -> None:
        self.function(run.step)


def at_step(step: int, action: Callable[[], object]) -> OnStep:
    """A callback that acts once, after a step."""
    return OnStep(lambda now: action() if now == step else None)
