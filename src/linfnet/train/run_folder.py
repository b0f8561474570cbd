"""The run folder: everything needed to repeat, resume and check a run.

recipe.toml   all keys of the recipe         events.jsonl   the event log, one JSON object per line
env.json      versions, hardware and commit  checkpoints/   the newest checkpoints, as safetensors
model.safetensors, config.json, results.json: written when the run has finished
"""

import contextlib
import fcntl
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Generator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import torch
from filelock import FileLock, Timeout

from linfnet import plugins
from linfnet.errors import ArgumentError, LinfnetError
from linfnet.files import (
    check_table,
    check_tensors,
    read_table,
    table_digest,
    write_table,
    write_text,
)
from linfnet.nn.model_path import packaged_hint
from linfnet.nn.weights import check_pair
from linfnet.recipes import Recipe, load_recipe, missing_sections, recipe_to_toml
from linfnet.results.storage import RESULTS_FILE
from linfnet.systems import SYSTEMS
from linfnet.train.event_log import describe_log, parse_lines
from linfnet.version import __version__

# The first line of recipe.toml begins with this. Older versions wrote it as the last line.
_DIGEST = "# digest: "
# Temporary files of `linfnet.files` and, in older versions, of safetensors.
_TEMPORARY = (".*.tmp", ".tmp*")


class UnwritableError(LinfnetError):
    """The run folder cannot be written; existing checkpoints are not changed."""


class RunFolder:
    """A run on disk. `new` and `create` start it, `open` opens it. Only one process at a time can train it."""

    def __init__(self, path: Path, recipe: Recipe) -> None:
        self.path, self.recipe = path, recipe
        self._lock = self._new_lock()

    @classmethod
    def new(cls, path: Path, recipe: Recipe) -> "RunFolder":
        """Return a new run in an empty or missing folder; nothing is written before `create`."""
        try:
            if path.exists() and not _is_unused(path):
                content, advice = "files", ""
                if (path / "recipe.toml").exists():
                    finished, place = cls(path, recipe).finished, shlex.quote(str(path))
                    content = "a run that has finished" if finished else "a run"
                    resume = f"resume it by resume=True or: linfnet train --resume {place}"
                    advice = f", or {f'evaluate it: linfnet evaluate {place}' if finished else resume}"
                raise LinfnetError(f"output folder {path} already contains {content}; choose another folder{advice}")
        except OSError as error:
            raise LinfnetError(f"output folder {path} cannot be used: {error.strerror}") from None
        return cls(path, recipe)

    def create(self, facts: Mapping[str, Any] | None = None) -> None:
        """Create and lock the folder, and write the recipe and the environment, to which `facts` are added."""
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            self.lock()
            if (self.path / "recipe.toml").exists():
                raise LinfnetError(f"output folder {self.path} is already used by another run")
            self._sweep()
            entries = (type(self.recipe.loss), SYSTEMS[self.recipe.system_name])
            imports = sorted({name for entry in entries if (name := plugins.origin(entry))})
            more = {"imports": imports} if imports else {}
            write_table(self.path / "env.json", {**environment(), **more, **(facts or {})})
            # Written last: a run without this file has not started.
            text = recipe_to_toml(self.recipe)
            write_text(self.path / "recipe.toml", f"{_DIGEST}{table_digest(tomllib.loads(text))}\n\n{text}")
        except OSError as error:
            raise UnwritableError(f"output folder {self.path} cannot be written: {error.strerror}") from None

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Return the run in an existing folder."""
        file = path / "recipe.toml"
        if not file.is_file():
            raise LinfnetError(f"{path} is not a run folder: it has no recipe.toml{packaged_hint(path)}")
        try:
            recipe = load_recipe(file)
            SYSTEMS[recipe.system_name]
        except ArgumentError as error:
            raise ArgumentError(f"{file}: {error}{plugins.missing_imports(path)}") from None
        # A run writes all sections. In a truncated file, defaults would silently replace the missing ones.
        text = file.read_text(encoding="utf-8")
        if missing := missing_sections(text):
            raise LinfnetError(f"{file} is truncated: it has no section [{missing[0]}]")
        check_recipe(file, text)
        return cls(path, recipe)

    def lock(self) -> None:
        """Lock the folder until `release` or the end of this process; raise if another process has locked it."""
        try:
            # Wait, because `locked` in another process may hold the lock for a moment.
            self._lock.acquire(timeout=0.2, poll_interval=0.01)
        except Timeout:
            raise LinfnetError(f"{self.path} is in use by another process") from None
        except OSError as error:  # the file system has no locks
            raise UnwritableError(f"{self.path} cannot be locked: {error.strerror}") from None

    def _sweep(self) -> None:
        """Remove temporary files. Call this only before training: later, an evaluation may be writing such files."""
        for temporary in find_leftovers(self.path):
            temporary.unlink(missing_ok=True)

    def release(self) -> None:
        """Unlock the folder."""
        self._lock.release()

    @property
    def locked(self) -> bool:
        """Whether a process is training this run."""
        if not (self.path / ".lock").exists():
            return False
        # `linfnet watch` may be run by another user, who can only read the file: a shared lock needs no more.
        try:
            with (self.path / ".lock").open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return False
        except OSError as error:
            return isinstance(error, BlockingIOError)  # any other error means that the file system has no locks

    def _new_lock(self) -> FileLock:
        return FileLock(self.path / ".lock", mode=0o644)

    @property
    def own_net(self) -> dict[str, Any]:
        """What env.json says about the user's own net; empty if the run trains the net of its recipe."""
        stored: Any = None
        with contextlib.suppress(LinfnetError):
            stored = read_table(self.path / "env.json").get("net")
        return cast(dict[str, Any], stored) if isinstance(stored, dict) else {}

    @property
    def resume_hint(self) -> str:
        """The part of a message that tells the user how to resume the run."""
        if self.recipe.data.in_memory or self.own_net:
            return "resume it with: linfnet.fit(…, resume=True), with the same arguments"
        return f"resume it with: linfnet train --resume {shlex.quote(str(self.path))}"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def finished(self) -> bool:
        """Whether the trained model has been written."""
        return (self.path / "model.safetensors").is_file() and (self.path / RESULTS_FILE).is_file()

    @property
    def complete(self) -> bool:
        """Whether the trained model has been written and its files are whole; a resumed run writes others again."""
        if not self.finished:
            return False
        try:
            check_tensors(self.path / "model.safetensors")
            if not self.own_net:
                check_pair(self.path, read_table(self.path / "config.json"))
        except LinfnetError:
            return False
        return True

    def discard_weights(self, keep_model: bool) -> None:
        """Delete the checkpoints of a finished run and, unless it is kept, its model; if this was done, do nothing.

        The deletion of the model is logged first. The checkpoints are deleted last: if their folder exists, the process
        was killed before all was deleted.
        """
        if not self.checkpoints.exists():
            return
        if not keep_model:
            if not self.discarded:
                self.log("discard")
            for name in ("model.safetensors", "config.json", "README.md"):
                (self.path / name).unlink(missing_ok=True)
        shutil.rmtree(self.checkpoints)

    @property
    def discarded(self) -> bool:
        """Whether the model was deleted after the run had finished (`discard_weights`)."""
        return any(event["event"] == "discard" for event in self.events())

    @contextlib.contextmanager
    def guarded(self) -> Generator[None]:
        """Convert write failures (a full disk, a removed folder) to an error that names the last checkpoint."""
        try:
            yield
        except OSError as error:
            steps = sorted(path.stem for path in self.checkpoints.glob("step-*.safetensors"))
            saved = f"its last checkpoint is {steps[-1]}" if steps else "it has no checkpoint yet"
            where = f"{error.filename}: " if error.filename else ""
            advice = f"fix the cause, then {self.resume_hint}"
            raise UnwritableError(f"the run stopped: {where}{error.strerror or error}; {saved}; {advice}") from None

    def log(self, event: str, **values: Any) -> None:
        """Append one event to the log."""
        with (self.path / "events.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"event": event, **values}, allow_nan=False) + "\n")

    def log_digest(self) -> str:
        """Write the log to the disk durably; return its length and digest, which a checkpoint stores."""
        with (self.path / "events.jsonl").open("ab+") as file:
            os.fsync(file.fileno())
            file.seek(0)
            return describe_log(file.read())

    def events(self) -> list[dict[str, Any]]:
        """Return all events so far, without lines that are truncated or not events."""
        return [event for _, event in self._lines()]

    def _lines(self) -> list[tuple[str, dict[str, Any]]]:
        file = self.path / "events.jsonl"
        return parse_lines(file.read_text(encoding="utf-8", errors="replace")) if file.is_file() else []

    def rewind(self, step: int) -> None:
        """Remove temporary files and all events after the step from which training resumes.

        Then log a `resume` event with the values of env.json that have changed: commit, versions or hardware.
        """
        self.checkpoints.mkdir(exist_ok=True)  # the folder may be missing in a copy of the run
        self._sweep()
        # Also remove an earlier `resume` event of this step, after which no step was completed.
        last = {"resume": step - 1, "finish": -1, "discard": -1}
        kept = (line for line, event in self._lines() if event.get("step", 0) <= last.get(event["event"], step))
        write_text(self.path / "events.jsonl", "".join(f"{line}\n" for line in kept))
        before: dict[str, Any] = {}
        with contextlib.suppress(LinfnetError):  # without a readable env.json, all values count as changed
            before = read_table(self.path / "env.json")
        now = environment().items()
        changes = {key: value for key, value in now if key != "command" and value != before.get(key)}
        self.log("resume", step=step, environment=changes)


def find_leftovers(path: Path) -> list[Path]:
    """Return the temporary files in a run folder: those of processes that write now, or that were killed."""
    folders = (path, path / "checkpoints")
    return sorted(file for folder in folders for pattern in _TEMPORARY for file in folder.glob(pattern))


def check_recipe(file: Path, text: str) -> bool:
    """Return whether the recipe.toml of a run has a digest; raise an error if it does not match."""
    comments = [line for line in text.splitlines() if line.startswith("#")]
    stored = next((line for line in comments if "digest:" in line or "sha256:" in line), None)
    found = None if stored is None else stored.removeprefix(_DIGEST)
    return check_table(file, tomllib.loads(text), found, f"line {_DIGEST!r}")


def new_run_path(name: str) -> Path:
    """Return a path under `runs/` that consists of a name and the current time."""
    return Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"


def _is_unused(path: Path) -> bool:
    """Return whether a folder is empty or has only the traces of a run that was killed before it wrote its recipe."""
    traces = (".lock", "env.json", *_TEMPORARY) if (path / ".lock").exists() else _TEMPORARY
    entries = [entry for entry in path.iterdir() if not any(map(entry.match, traces))]
    return all(entry.name == "checkpoints" and entry.is_dir() and not any(entry.iterdir()) for entry in entries)


def environment() -> dict[str, Any]:
    """Return the versions, the hardware, the commit and the command for env.json."""
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
    """Return the name of the processor."""
    file = Path("/proc/cpuinfo")
    for line in file.read_text().splitlines() if file.exists() else ():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _commit() -> str | None:
    """Return the commit of this package's source tree, with `-dirty` if it has changes; None if it is not known.

    In an installed package it is the commit from which the package was built, which CMakeLists.txt writes to a file.
    """
    here = Path(__file__)

    def git(*arguments: str) -> str:
        command = ["git", "-C", os.fspath(here.parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        git(
            "ls-files", "--error-unmatch", here.name
        )  # this fails if the package is installed inside another repository
        return git("describe", "--always", "--dirty", "--abbrev=12")
    except (OSError, subprocess.SubprocessError):
        built = here.parents[1] / "commit.txt"
        return built.read_text(encoding="utf-8").strip() if built.is_file() else None
