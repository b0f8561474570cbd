"""Checkpoints: the model, the optimizer, the random state and the progress, written atomically as safetensors.

This module also handles the signals that stop a run: the run writes a checkpoint first.
"""

import contextlib
import json
import signal
import threading
import time
from collections.abc import Generator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from linfnet.distributed.group import Group
from linfnet.errors import LinfnetError
from linfnet.files import read_tensors, write_tensors
from linfnet.nn import load_weights

FORMAT = "linfnet-checkpoint-1"


class StoppedError(LinfnetError):
    """A signal stopped the run, which has written a checkpoint."""


@dataclass
class Progress:
    """The number of finished steps and the training time in seconds, summed over all sessions of a run."""

    step: int = 0
    seconds: float = 0.0
    cpu_seconds: float | None = 0.0
    """The processor time of the first process; None if the run was started by a version that did not measure it."""


class Stopwatch:
    """Adds the time since it was created to the progress of a run."""

    def __init__(self, progress: Progress) -> None:
        self.progress, self.start = progress, time.perf_counter() - progress.seconds
        self.cpu_start = time.process_time() - (progress.cpu_seconds or 0.0)

    def update(self) -> None:
        """Add the time up to now."""
        self.progress.seconds = time.perf_counter() - self.start
        if self.progress.cpu_seconds is not None:
            self.progress.cpu_seconds = time.process_time() - self.cpu_start


def save_checkpoint(
    folder: Path,
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    record: Tensor,
    progress: Progress,
    *,
    recipe_digest: str,
    log: str,
    keep: int,
) -> None:
    """Write `step-N.safetensors`, and delete all but the newest `keep` checkpoints.

    Checkpoints of later steps are also deleted. They are damaged: the run would otherwise have resumed from them.
    `log` is the length and the digest of the event log.
    """
    tensors = {f"model.{name}": tensor for name, tensor in net.state_dict().items()}
    for name, parameter in net.named_parameters():
        for key, value in optimizer.state[parameter].items():
            tensors[f"optimizer.{name}.{key}"] = value
    tensors |= {"record": record, "random": torch.get_rng_state()}
    path = _path(folder, progress.step)
    metadata = {"linfnet": FORMAT, "progress": json.dumps(asdict(progress)), "recipe": recipe_digest, "log": log}
    write_tensors(path, tensors, metadata)
    existing = find_checkpoints(folder)
    for other in existing[: existing.index(path)]:
        other.unlink(missing_ok=True)
    prune_checkpoints(folder, progress.step, keep)


def prune_checkpoints(folder: Path, step: int, keep: int) -> None:
    """Delete the checkpoints before a step except the newest ones, so that `keep` remain with that of the step."""
    existing = find_checkpoints(folder)
    path = _path(folder, step)
    if path in existing:
        for other in existing[existing.index(path) + keep :]:
            other.unlink(missing_ok=True)


def _path(folder: Path, step: int) -> Path:
    return folder / f"step-{step:09d}.safetensors"


def find_checkpoints(folder: Path) -> list[Path]:
    """Return the paths of the checkpoints in a folder, newest first."""
    return sorted(folder.glob("step-*.safetensors"), reverse=True)


def load_checkpoint(
    path: Path, net: nn.Module, optimizer: torch.optim.Optimizer, record: Tensor, recipe_digest: str
) -> Progress:
    """Load a checkpoint into the net, the optimizer and the record. If it does not fit, nothing is changed."""
    tensors, metadata = read_tensors(path)
    if metadata.get("linfnet") != FORMAT:
        raise LinfnetError(f"{path} is not a checkpoint of this library")
    try:
        stored: dict[str, Any] = {"cpu_seconds": None, **json.loads(metadata["progress"])}
        progress = Progress(**stored)
        saved_record, random = tensors.pop("record"), tensors.pop("random")
    except (KeyError, TypeError, ValueError):
        raise LinfnetError(f"{path} is incomplete") from None
    if random.dtype != torch.uint8:
        raise LinfnetError(f"{path} is damaged: 'random' has dtype {random.dtype}")
    if saved_record.shape != record.shape:
        raise LinfnetError(f"{path} was written with different data or a different batch size")
    model = {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}
    moments: dict[Tensor, dict[str, Tensor]] = {}
    for name, parameter in net.named_parameters():
        prefix = f"optimizer.{name}."
        state = {key.removeprefix(prefix): t for key, t in tensors.items() if key.startswith(prefix)}
        for key, tensor in state.items():
            if key != "step" and tensor.shape != parameter.shape:
                raise LinfnetError(f"{path}: {prefix}{key} has shape {tuple(tensor.shape)}: it belongs to another net")
            if tensor.dtype != parameter.dtype and tensor.dtype != torch.float32:
                raise LinfnetError(f"{path} is damaged: {prefix}{key} has dtype {tensor.dtype}")
            state[key] = tensor.to(parameter.device)
        if parameter.requires_grad and state.keys() != {"step", "exp_avg", "exp_avg_sq"}:
            raise LinfnetError(f"{path} is incomplete: it has no optimizer state for {name}")
        moments[parameter] = state
    if metadata.get("recipe") != recipe_digest:
        raise LinfnetError(f"{path} was written by a run with a different recipe")
    if path != _path(path.parent, progress.step):
        raise LinfnetError(f"{path} is damaged: it contains step {progress.step}")
    load_weights(net, model, path)
    record.copy_(saved_record)
    optimizer.state.clear()
    optimizer.state.update(moments)
    torch.set_rng_state(random)
    return progress


def load_newest(
    folder: Path, net: nn.Module, optimizer: torch.optim.Adam, record: Tensor, recipe_digest: str, group: Group
) -> tuple[Progress, list[str]]:
    """Load the newest valid checkpoint; return its progress, and an error message for each newer, invalid one.

    Without any checkpoint, the run starts again from its seed. The first process reads the file and broadcasts the
    state, so the other processes need no access to the folder.
    """

    def load() -> tuple[Progress, list[str]]:
        errors: list[str] = []
        for path in find_checkpoints(folder):
            try:
                return load_checkpoint(path, net, optimizer, record, recipe_digest), errors
            except LinfnetError as error:
                errors.append(str(error))
        if errors:
            raise LinfnetError(errors[0])
        return Progress(), []

    progress, errors = group.from_first(load)
    if group.size > 1 and progress.step:
        for parameter in (each for each in net.parameters() if each.requires_grad):
            if not group.first:
                averages = {key: torch.zeros_like(parameter) for key in ("exp_avg", "exp_avg_sq")}
                optimizer.state[parameter] = {"step": torch.zeros((), device=parameter.device), **averages}
            group.spread_(optimizer.state[parameter][key] for key in ("step", "exp_avg", "exp_avg_sq"))
        group.spread_([*net.state_dict().values(), record])
    return progress, errors


@contextlib.contextmanager
def stop_on_signals() -> Generator[threading.Event]:
    """Yield an event that SIGINT, SIGTERM and SIGHUP set; a second SIGINT interrupts immediately.

    A terminal sends SIGHUP when it is closed. If the signal was already ignored (`nohup`), it stays ignored.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def handle(number: int, _: FrameType | None) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
