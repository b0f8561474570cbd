"""results.json: what was measured of a run, each evaluation under its own key; checked when it is read."""

import contextlib
import fcntl
import os
import reprlib
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

from linfnet.errors import LinfnetError
from linfnet.files import read_table, write_json
from linfnet.train.kinds import WORDS, Kind, amount, count, share, table, text

# Keys with a meaning, wherever they stand; others may hold anything.
_KINDS: dict[str, Kind] = {
    **dict.fromkeys(("clean", "pgd", "confidence", "above", "between", "below"), share),
    **dict.fromkeys(("samples", "pgd_steps", "certified_and_broken"), count),
    **dict.fromkeys(("epochs", "seed", "parameters", "processes"), count),
    **dict.fromkeys(("arithmetic", "device"), text),
    "seconds": amount,
}
_TABLES: dict[str, Kind] = {"certified": share, "certify_seconds_per_image": amount}


def add_results(folder: Path, entries: dict[str, Any]) -> None:
    """Put evaluations into a folder's `results.json`, all or none, each under its own key; the others stay."""
    with _in_turn(folder):
        write_json(folder / "results.json", {**read_results(folder), **entries})


@contextlib.contextmanager
def _in_turn(folder: Path) -> Generator[None]:
    """Evaluations that end at the same time wait for each other, or one would write over what the other added."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems lock no folders
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def read_results(folder: Path) -> dict[str, Any]:
    """What has been measured of a run or model so far; an error names what is not of its kind."""
    file = folder / "results.json"
    results = read_table(file) if file.exists() else {}
    try:
        for key, entry in results.items():
            if key == "train" or " eps=" in key:
                _check_entry(key, entry)
    except ValueError as error:
        raise LinfnetError(f"{file}: {error}") from None
    return results


def _check_entry(where: str, entry: Any) -> None:
    for key, value in _table(where, entry).items():
        place = f"{key!r} of {where!r}"
        if key == "training_images":
            _check_entry(f"{where} {key}", value)
        elif key in _TABLES:
            for name, one in _table(f"{where} {key}", value).items():
                _check(f"{name!r} of '{where} {key}'", one, _TABLES[key])
        elif key in _KINDS:
            _check(place, value, _KINDS[key])
        elif key.startswith("certified_"):
            _check(place, value, share)


def _table(where: str, value: Any) -> dict[str, Any]:
    _check(repr(where), value, table)
    return cast(dict[str, Any], value)


def _check(place: str, value: Any, kind: Kind) -> None:
    if not kind(value):
        raise ValueError(f"{place} is {reprlib.repr(value)}; wanted {WORDS[kind]}")
