"""Training as TensorBoard sees it: the same numbers as the event log, in its own format."""

import importlib.util
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from linfnet.errors import LinfnetError
from linfnet.train import StepValues, Watcher


def check_tensorboard() -> None:
    """Complain before any work if TensorBoard is not installed."""
    if importlib.util.find_spec("tensorboard") is None:
        raise LinfnetError("--tensorboard needs TensorBoard: pip install 'linfnet[tensorboard]'")


class TensorBoard:
    """Passes everything on to another watcher, and writes the numbers of each event into a folder; a `Watcher`."""

    def __init__(self, folder: Path, inner: Watcher, done: int) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self.inner = inner
        # A resumed run takes the steps after its checkpoint again.
        self.writer = SummaryWriter(str(folder), purge_step=done + 1 if done else None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.writer.close()

    def step(self, step: int, values: StepValues, so_far: dict[str, float]) -> None:
        """Only passed on: an epoch is what is written."""
        self.inner.step(step, values, so_far)

    def event(self, event: dict[str, Any]) -> None:
        """Write each number as KIND/NAME at its step, for example epoch/loss or test/certified 8/255."""
        self.inner.event(event)
        for key, value in event.items():
            named = {f"{key} {inner}": v for inner, v in value.items()} if isinstance(value, dict) else {key: value}
            for name, number in named.items():
                if name not in ("event", "step") and isinstance(number, int | float):
                    self.writer.add_scalar(f"{event['event']}/{name}", number, event["step"])
        self.writer.flush()
