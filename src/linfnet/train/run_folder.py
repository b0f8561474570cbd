"""The run folder: everything needed to repeat, resume and trust a run.

recipe.toml   the whole recipe          events.jsonl   what happened, a line each
env.json      versions, device, commit  checkpoints/   safetensors, the newest few
model.safetensors, config.json, results.json           once the run has finished
"""

import contextlib
import fcntl
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Generator
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from linfnet.errors import LinfnetError
from linfnet.files import read_table, write_json, write_text
from linfnet.nn.model_path import packaged_hint
from linfnet.recipes import Recipe, recipe_from_toml, recipe_to_toml
from linfnet.train.events import parse_events
from linfnet.version import __version__

# Seconds for which somebody may hold a folder who only asks whether it is held.
MOMENT = 0.2


class UnwritableError(LinfnetError):
    """The run folder could not be written, or not any more: then the last checkpoint is kept."""


class RunFolder:
    """One run on disk; `new` and `create` make it, `open` finds it, and only one process may hold it at a time."""

    def __init__(self, path: Path, recipe: Recipe) -> None:
        self.path = path
        self.recipe = recipe
        self._lock: int | None = None

    @classmethod
    def new(cls, path: Path, recipe: Recipe) -> "RunFolder":
        """A run that is to live in an empty or absent folder; nothing is written until `create`."""
        try:
            if path.exists() and not _hardly_begun(path):
                advice = f", or --resume {shlex.quote(str(path))}" if (path / "recipe.toml").exists() else ""
                held = "a run" if advice else "files"
                raise LinfnetError(f"output folder {path} already holds {held}; choose another --out{advice}")
        except OSError as error:
            raise LinfnetError(f"output folder {path} cannot be used: {error.strerror}") from None
        return cls(path, recipe)

    def create(self) -> None:
        """Make the folder, hold it, and write down what the run is."""
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            self.lock()
            if (self.path / "recipe.toml").exists():
                raise LinfnetError(f"output folder {self.path} has been taken by another run in the meantime")
            self._sweep()
            write_text(self.path / "recipe.toml", recipe_to_toml(self.recipe))
            write_json(self.path / "env.json", environment())
        except OSError as error:
            raise UnwritableError(f"output folder {self.path} cannot be written: {error.strerror}") from None

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """The run that lives in a folder."""
        file = path / "recipe.toml"
        if not file.is_file():
            raise LinfnetError(f"{path} is not a run folder: it has no recipe.toml{packaged_hint(path)}")
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise LinfnetError(f"{file} cannot be read: {error}") from None
        recipe = recipe_from_toml(text, str(file), path.name)
        if "\n[reported]\n" not in text:  # the end of what decides; defaults would stand in for what is missing
            raise LinfnetError(f"{file} was cut short: it has no [reported]")
        return cls(path, recipe)

    def lock(self) -> None:
        """Hold the folder until `release` or the end of this process, or fail if another one holds it."""
        handle = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
        patience = time.monotonic() + MOMENT
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > patience:
                    os.close(handle)
                    raise LinfnetError(f"{self.path} is in use by another process") from None
                time.sleep(0.01)
            except OSError as error:  # of a file system that has no locks
                os.close(handle)
                raise UnwritableError(f"{self.path} cannot be held for this process: {error.strerror}") from None
        self._lock = handle

    def _sweep(self) -> None:
        """Only where training begins: in a finished run they may be those of an evaluation under way."""
        for half_written in (*self.path.glob(".*.tmp"), *self.checkpoints.glob(".*.tmp")):
            half_written.unlink(missing_ok=True)

    def release(self) -> None:
        """Let go of the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def held(self) -> bool:
        """Whether some process is training this run."""
        file = self.path / ".lock"
        if not file.exists():
            return False
        handle = os.open(file, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def finished(self) -> bool:
        """Whether the trained model has been written."""
        return (self.path / "model.safetensors").is_file() and (self.path / "results.json").is_file()

    @contextlib.contextmanager
    def guarded(self) -> Generator[None]:
        """Where files cannot be written any more (a full disk, a folder that went away), say what is kept."""
        try:
            yield
        except OSError as error:
            steps = sorted(path.stem for path in self.checkpoints.glob("step-*.safetensors"))
            kept = f"its last checkpoint, {steps[-1]}, is kept" if steps else "it has no checkpoint yet"
            where = f"{error.filename}: " if error.filename else ""
            raise UnwritableError(
                f"the run is stopped: {where}{error.strerror or error}; {kept}; when that is mended, {go_on(self.path)}"
            ) from None

    def log(self, event: str, **values: Any) -> None:
        """Append one event."""
        with (self.path / "events.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"event": event, **values}, allow_nan=False) + "\n")

    def events(self) -> list[dict[str, Any]]:
        """All events so far; a line that a crash cut short, or that is no event, is left out."""
        file = self.path / "events.jsonl"
        return parse_events(file.read_text(encoding="utf-8", errors="replace")) if file.is_file() else []

    def rewind(self, step: int) -> None:
        """Drop half-written files and the events after a step: training goes on from there and will log them again.

        The log then says that the run was resumed, and what has changed since it began: commit, versions, hardware.
        """
        self.checkpoints.mkdir(exist_ok=True)  # a copy of a folder may have left it out
        self._sweep()
        # One that was resumed here before has come no further: nothing of it is left.
        last = {"resume": step - 1, "finish": -1}
        events = (event for event in self.events() if event.get("step", 0) <= last.get(event["event"], step))
        kept = [json.dumps(event, allow_nan=False) for event in events]
        write_text(self.path / "events.jsonl", "".join(line + "\n" for line in kept))
        self.log("resume", step=step, environment=self._changes())

    def _changes(self) -> dict[str, Any]:
        began: dict[str, Any] = {}
        with contextlib.suppress(LinfnetError):  # where env.json was lost, everything is new
            began = read_table(self.path / "env.json")
        now = environment().items()
        return {key: value for key, value in now if key != "command" and value != began.get(key)}


def go_on(path: Path) -> str:
    """What to tell of a run that has not finished.

    >>> go_on(Path("runs/my run"))
    "go on with: linfnet train --resume 'runs/my run'"
    """
    return f"go on with: linfnet train --resume {shlex.quote(str(path))}"


def _hardly_begun(path: Path) -> bool:
    """Whether a folder is empty, or holds only what a run leaves that was killed before it wrote down its recipe."""
    entries = [entry for entry in path.iterdir() if entry.name != ".lock" and not entry.match(".*.tmp")]
    return all(entry.name == "checkpoints" and entry.is_dir() and not any(entry.iterdir()) for entry in entries)


def environment() -> dict[str, Any]:
    """Versions, device and commit: what one needs to know to repeat a run."""
    packages = ("torch", "numpy", "safetensors")
    return {
        "linfnet": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in packages},
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }


def cpu_name() -> str:
    """The processor's name as the system gives it."""
    file = Path("/proc/cpuinfo")
    for line in file.read_text().splitlines() if file.exists() else ():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _commit() -> str | None:
    """The commit of the source tree this package runs from, marked if it was changed since; None if it is not one."""
    here = Path(__file__)

    def git(*arguments: str) -> str:
        command = ["git", "-C", os.fspath(here.parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", here.name)  # installed inside somebody else's repository, it is not tracked
        return git("describe", "--always", "--dirty", "--abbrev=12")
    except (OSError, subprocess.SubprocessError):
        return None
