"""Callbacks: objects that observe a training run and may stop it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from linfnet.data import ImageSet
from linfnet.errors import ArgumentError
from linfnet.nn import Classifier
from linfnet.recipes import Recipe
from linfnet.schedules import StepState
from linfnet.train.history import History


@dataclass
class TrainingRun:
    """What a callback sees of a run. The values are those after the last step."""

    recipe: Recipe
    net: Classifier
    """The net in training, at the current p."""
    steps_per_epoch: int
    total_steps: int
    state: StepState
    """The values of the schedule at the last step."""
    folder: Path | None = None
    """The run folder; None if nothing is written."""
    first: bool = True
    """Whether this is the first process of a group; only this process should write or print."""
    resumed: bool = False
    """Whether the run was resumed from a checkpoint."""
    skipped: tuple[str, ...] = ()
    """The errors of newer checkpoints that could not be read when the run was resumed."""
    step: int = 0
    """The number of finished steps."""
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    """Mean loss, accuracy and margin shares (`above`, `between`, `below` theta) over the training samples of the
    current epoch. On a GPU they are those of the previous epoch until the epoch ends."""
    history: History = field(default_factory=History)
    """All epochs and tests so far, also those before the run was resumed."""
    stopping: bool = False
    """Whether a callback has called `stop`."""
    train: ImageSet | None = None
    """The training images."""
    test: ImageSet | None = None
    """The images of the tests: test images or held-out training images; None without tests."""

    @property
    def epoch(self) -> int:
        """The number of finished epochs."""
        return self.step // self.steps_per_epoch

    @property
    def epochs(self) -> int:
        """The number of epochs of the recipe."""
        return self.total_steps // self.steps_per_epoch

    @property
    def p(self) -> float:
        """The exponent of the distance layers."""
        return self.state.p

    @property
    def lr(self) -> float:
        """The learning rate."""
        return self.state.lr

    def stop(self) -> None:
        """Stop the run after the current step, or after the tests of the current epoch if it was its last step.

        In `on_start`, stop it before its first step. A checkpoint is written if there is a run folder. `linfnet.fit`
        returns the net as it is then.
        """
        self.stopping = True


class Callback:
    """Base class of callbacks; override the methods that are needed. They must not change the net.

    >>> class Patience(Callback):
    ...     def on_test(self, run):
    ...         clean = run.history.column("clean")
    ...         if len(clean) > 3 and max(clean[-3:]) < max(clean):
    ...             run.stop()
    """

    def on_start(self, run: TrainingRun) -> None:
        """Called before the first step of a new or resumed run. If it raises, the run ends."""

    def on_step(self, run: TrainingRun) -> None:
        """Called after each step."""

    def on_epoch(self, run: TrainingRun) -> None:
        """Called after each epoch; the epoch is `run.history.epochs[-1]`."""

    def on_test(self, run: TrainingRun) -> None:
        """Called after each test; the test is `run.history.tests[-1]`."""

    def on_finish(self, run: TrainingRun) -> None:
        """Called at the end of the run, also if it was stopped or failed, unless `on_start` has raised an error."""


class OnEpoch(Callback):
    """Calls a function after each epoch.

    Args:
        function: is called with the `TrainingRun`.
    """

    def __init__(self, function: Callable[[TrainingRun], object]) -> None:
        self.function = function

    def on_epoch(self, run: TrainingRun) -> None:
        """Call the function."""
        self.function(run)


Callbacks = Iterable[Callback | Callable[[TrainingRun], object]]


def as_callbacks(callbacks: Callbacks | Callback) -> tuple[Callback, ...]:
    """Return a list of callbacks, in which plain functions are called after each epoch."""
    if isinstance(callbacks, Callback) or not hasattr(callbacks, "__iter__"):
        raise ArgumentError(f"callbacks is {callbacks!r}; expected a list of callbacks")
    found: list[Callback] = []
    for each in callbacks:
        if isinstance(each, type) or not (isinstance(each, Callback) or callable(each)):
            raise ArgumentError(f"a callback is {each!r}; expected an instance of linfnet.Callback or a function")
        found.append(each if isinstance(each, Callback) else OnEpoch(each))
    return tuple(found)
