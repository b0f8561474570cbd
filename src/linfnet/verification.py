"""Say which files of a run or model folder are whole, by the digests that `linfnet.files` writes into them."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from linfnet.errors import LinfnetError
from linfnet.files import check_tensors, read_checked_table
from linfnet.nn.model_path import check_model
from linfnet.nn.weights import check_pair
from linfnet.results.storage import RESULTS_FILE
from linfnet.train import RunFolder
from linfnet.train.checkpoint import find_checkpoints
from linfnet.train.event_log import describe_log, parse_events
from linfnet.train.run_folder import check_recipe

# What `describe_log` returns; a checkpoint of another program may say something else.
_LOG = re.compile(r"[0-9]{1,18} [0-9a-f]{64}")


@dataclass(frozen=True)
class FileState:
    """The state of a file."""

    file: Path
    has_digest: bool
    """Whether the file has a digest; damage to the content of other files is not noticed."""
    problem: str = ""
    """Why the file cannot be used; empty if it is readable and matches its digest."""
    deleted: bool = False
    """Whether a search deleted the file after the results had been written; this is not a problem."""


def verify_folder(folder: Path) -> list[FileState]:
    """Return the state of each file of a run or model folder; model cards and CSV files have no digest.

    >>> from linfnet.nn.model_path import find_model
    >>> [(state.file.name, state.has_digest, state.problem) for state in verify_folder(find_model("mnist-small"))]
    [('model.safetensors', True, ''), ('config.json', True, '')]
    """
    check_model(folder)
    discarded = _discarded(folder)
    return [_state(file, check, discarded) for file, check in _files(folder)]


def _discarded(folder: Path) -> bool:
    try:
        return RunFolder.open(folder).discarded
    except LinfnetError:  # it is not a run, or its recipe is damaged
        return False


def _state(file: Path, check: Callable[[Path], bool], discarded: bool) -> FileState:
    if discarded and not file.exists():
        return FileState(file, has_digest=False, deleted=True)
    try:
        return FileState(file, check(file))
    except (LinfnetError, OSError) as error:
        return FileState(file, has_digest=False, problem=str(error))


def _files(folder: Path) -> Iterator[tuple[Path, Callable[[Path], bool]]]:
    """Yield the files with the functions that check them. A run has a model only when it has finished."""
    recipe, log, environment = (folder / name for name in ("recipe.toml", "events.jsonl", "env.json"))
    is_run = recipe.is_file()
    own_net = is_run and environment.is_file() and _own_net(environment)
    finished = not is_run or (folder / RESULTS_FILE).exists()
    if finished or (folder / "model.safetensors").is_file():
        yield folder / "model.safetensors", _tensors
    if (finished and not own_net) or (folder / "config.json").is_file():
        yield folder / "config.json", _config
    for file in (folder / RESULTS_FILE, environment):
        if file.exists():
            yield file, _table
    images = (file for file in folder.glob("*.safetensors") if file.name != "model.safetensors")
    yield from ((file, _tensors) for file in sorted(images))
    if is_run:
        checkpoints = find_checkpoints(folder / "checkpoints")
        yield recipe, _recipe
        if log.exists():
            yield log, partial(_log, checkpoints=checkpoints)
        yield from ((file, _tensors) for file in checkpoints)


def _own_net(environment: Path) -> bool:
    try:
        return bool(read_checked_table(environment)[0].get("net"))
    except LinfnetError:
        return False


def _tensors(file: Path) -> bool:
    return check_tensors(file)[1]


def _table(file: Path) -> bool:
    return read_checked_table(file)[1]


def _config(file: Path) -> bool:
    config, has_digest = read_checked_table(file)
    try:
        check_tensors(file.with_name("model.safetensors"))
    except LinfnetError:
        return has_digest  # the problem of the other file
    check_pair(file.parent, config)
    return has_digest


def _recipe(file: Path) -> bool:
    RunFolder.open(file.parent)
    return check_recipe(file, file.read_text(encoding="utf-8"))


def _log(file: Path, checkpoints: list[Path]) -> bool:
    """Compare the event log with the newest checkpoint that is whole and says what the log was; parse what follows."""
    content, length = file.read_bytes(), 0
    stored = _stored_log(checkpoints)
    if stored is not None:
        checkpoint, about = stored
        length = int(about.split()[0])
        if describe_log(content[:length]) != about:
            raise LinfnetError(f"{file} is damaged: its first {length} bytes are not those before {checkpoint.name}")
    before = content[:length].count(b"\n")
    *lines, last = content[length:].decode(errors="replace").split("\n")
    for number, line in enumerate(lines, before + 1):
        if not parse_events(line):
            raise LinfnetError(f"{file} is damaged: line {number} is not an event")
    if last:
        raise LinfnetError(f"{file} is damaged: its last line is incomplete")
    return stored is not None


def _stored_log(checkpoints: list[Path]) -> tuple[Path, str] | None:
    """Return the newest checkpoint that is whole and says what the log was, and what it says."""
    for checkpoint in checkpoints:
        try:
            stored = check_tensors(checkpoint)[0].get("log")
        except LinfnetError:
            continue
        if stored is not None and _LOG.fullmatch(stored):
            return checkpoint, stored
    return None
