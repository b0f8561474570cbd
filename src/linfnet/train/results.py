"""results.json: what was measured of a run, each evaluation under its own key; checked when it is read."""

import reprlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from linfnet.errors import LinfnetError
from linfnet.files import read_json, write_json

MOST = 2**63  # larger numbers are no counts and no seconds


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _share(value: Any) -> bool:
    return _number(value) and 0 <= value <= 1


def _amount(value: Any) -> bool:
    return _number(value) and 0 <= value < MOST


def _count(value: Any) -> bool:
    return _amount(value) and isinstance(value, int)


def _text(value: Any) -> bool:
    return isinstance(value, str)


Kind = Callable[[Any], bool]
_WORDS: dict[Kind, str] = {
    _share: "a share from 0 to 1",
    _amount: "a number of at least 0",
    _count: "a whole number of at least 0",
    _text: "text",
}
# Keys with a meaning, wherever they stand; others may hold anything.
_KINDS: dict[str, Kind] = {
    **dict.fromkeys(("clean", "pgd", "confidence", "above", "between", "below"), _share),
    **dict.fromkeys(("samples", "pgd_steps", "certified_and_broken"), _count),
    **dict.fromkeys(("epochs", "seed", "parameters", "processes"), _count),
    **dict.fromkeys(("arithmetic", "device"), _text),
    "seconds": _amount,
}
_TABLES: dict[str, Kind] = {"certified": _share, "certify_seconds_per_image": _amount}


def add_results(folder: Path, entries: dict[str, Any]) -> None:
    """Put evaluations into a folder's `results.json`, all or none, each under its own key; the others stay."""
    write_json(folder / "results.json", {**read_results(folder), **entries})


def read_results(folder: Path) -> dict[str, Any]:
    """What has been measured of a run or model so far; an error names what is not of its kind."""
    file = folder / "results.json"
    results: Any = read_json(file) if file.exists() else {}
    if not isinstance(results, dict):
        raise LinfnetError(f"{file} holds no table of results")
    try:
        for key, entry in cast(dict[str, Any], results).items():
            if key == "train" or " eps=" in key:
                _check_entry(key, entry)
    except ValueError as error:
        raise LinfnetError(f"{file}: {error}") from None
    return cast(dict[str, Any], results)


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
            _check(place, value, _share)


def _table(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where!r} is {reprlib.repr(value)}; wanted a table")
    return cast(dict[str, Any], value)


def _check(place: str, value: Any, kind: Kind) -> None:
    if not kind(value):
        raise ValueError(f"{place} is {reprlib.repr(value)}; wanted {_WORDS[kind]}")
