"""The numbers of the event log in the format of TensorBoard."""

import contextlib
from collections.abc import Generator
from typing import Any

from linfnet.cli.display import train_display
from linfnet.schedules import StepState
from linfnet.train import Trainer, Watcher


class TensorBoard:
    """Writes the numbers of each event with a `SummaryWriter`, and forwards all calls to another watcher."""

    def __init__(self, writer: Any, inner: Watcher) -> None:
        self.writer, self.inner = writer, inner

    def step(self, step: int, state: StepState, so_far: dict[str, float]) -> None:
        """Only forwarded: steps are not written."""
        self.inner.step(step, state, so_far)

    def event(self, event: dict[str, Any]) -> None:
        """Write each number as KIND/NAME at its step, for example epoch/loss or test/certified 8/255."""
        self.inner.event(event)
        for key, value in event.items():
            named = {f"{key} {inner}": v for inner, v in value.items()} if isinstance(value, dict) else {key: value}
            for name, number in named.items():
                if name not in ("event", "step") and isinstance(number, int | float):
                    self.writer.add_scalar(f"{event['event']}/{name}", number, event["step"])
        self.writer.flush()


@contextlib.contextmanager
def tensorboard_display(trainer: Trainer) -> Generator[Watcher]:
    """As `train_display`, and write into the folder `tensorboard` of the run; a `linfnet.train.Display`."""
    from torch.utils.tensorboard.writer import SummaryWriter

    with train_display(trainer) as display:
        if trainer.folder is None or not trainer.ranks.first:
            yield display
            return
        done = trainer.progress.step
        # A resumed run repeats the steps after its checkpoint.
        writer = SummaryWriter(str(trainer.folder.path / "tensorboard"), purge_step=done + 1 if done else None)
        try:
            yield TensorBoard(writer, display)
        finally:
            writer.close()
