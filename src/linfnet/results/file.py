"""results.json: results are read from it and written to it here; no other module knows its keys.

Version 2 has the fields of `Results` and of the records in it. Version 1, still read, had each evaluation under a key
such as `mnist-test-first-500-pgd-20 eps=0.3`.
"""

import dataclasses
import re
import reprlib
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, cast, get_args, get_origin, get_type_hints

from filelock import FileLock

from linfnet.epsilon import format_epsilon, parse_epsilon
from linfnet.errors import LinfnetError
from linfnet.files import read_table, write_json
from linfnet.results.result import Result, Results, Share, TrainingResult

VERSION = 2
FILE = "results.json"


def read_results(folder: Path) -> Results:
    """All results of a run or model folder so far; an error names the file and the value that is wrong."""
    file = folder / FILE
    if not file.exists():
        return Results()
    document = read_table(file)
    try:
        return results_from_json(document)
    except LinfnetError as error:
        raise LinfnetError(f"{file}: {error}") from None


def write_training(folder: Path, training: TrainingResult) -> None:
    """Store the result of training; evaluations stay."""
    with _lock(folder):
        write_json(folder / FILE, results_to_json(Results(training, read_results(folder).evaluations)))


def add_evaluations(folder: Path, evaluations: tuple[Result, ...]) -> None:
    """Add evaluations, all or none; those of the same subject are replaced."""
    with _lock(folder):
        write_json(folder / FILE, results_to_json(read_results(folder).with_evaluations(evaluations)))


def _lock(folder: Path) -> FileLock:
    """Evaluations that end at the same time must not overwrite each other."""
    return FileLock(folder / f".{FILE}.lock")


def results_to_json(results: Results) -> dict[str, Any]:
    """The contents of the file as JSON values."""
    return {"version": VERSION, **_to_json(results)}


def _to_json(value: Any) -> Any:
    """Dataclasses become tables of their fields, without empty ones; epsilons become text."""
    if dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {name: _to_json(item) for name, item in fields.items() if item not in (None, "")}
    if isinstance(value, Mapping):
        return {_to_json(key): _to_json(item) for key, item in cast(Mapping[Any, Any], value).items()}
    if isinstance(value, tuple):
        return [_to_json(item) for item in cast(tuple[Any, ...], value)]
    return format_epsilon(value) if isinstance(value, Fraction) else value


def results_from_json(document: Mapping[str, Any]) -> Results:
    """Parse a document of either version; raises an error that names the wrong value."""
    if "version" not in document:
        document = _upgrade(document)
    if document["version"] != VERSION:
        raise LinfnetError(f"version is {document['version']!r}; this linfnet reads 1 and {VERSION}: update linfnet")
    training = _parse(TrainingResult, document["training"], "training") if "training" in document else None
    entries = _parse(list, document.get("evaluations"), "evaluations")
    return Results(training, tuple(_parse(Result, entry, f"evaluation {k}") for k, entry in enumerate(entries, 1)))


def _parse(kind: Any, value: Any, name: str) -> Any:
    """A JSON value as the type of a field; raises an error that names the value if it is of another type."""
    if dataclasses.is_dataclass(kind):
        return _parse_record(cast(type, kind), _table(value, name), name)
    if get_origin(kind) is Mapping:
        key, item = get_args(kind)
        table = _table(value, name)
        return {
            _parse(key, text, f"a key of {name}"): _parse(item, table[text], f"{text!r} of {name}") for text in table
        }
    if kind is Fraction:
        return parse_epsilon(_parse(str, value, name), name)
    types, wanted = _SCALARS[kind]
    if isinstance(value, bool) or not isinstance(value, types):
        raise LinfnetError(f"{name} is {reprlib.repr(value)}; wanted {wanted}")
    if isinstance(value, int | float) and not 0 <= value <= (1 if kind == Share else 2**63):
        raise LinfnetError(f"{name} is {reprlib.repr(value)}; wanted {wanted}")
    return value


_SCALARS: dict[Any, tuple[Any, str]] = {
    list: (list, "a list"),
    str: (str, "text"),
    int: (int, "a whole number of at least 0"),
    float: (int | float, "a number of at least 0"),
    Share: (int | float, "a number from 0 to 1"),
}


def _parse_record(kind: type, table: dict[str, Any], name: str) -> Any:
    hints = get_type_hints(kind, include_extras=True)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        choices = get_args(hints[field.name])
        optional = type(None) in choices
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if field.name in table or (required and not optional):
            hint = choices[0] if optional else hints[field.name]
            values[field.name] = _parse(hint, table.get(field.name), f"{field.name!r} of {name}")
        elif required:
            values[field.name] = None
    return kind(**values)


_KEY_1 = re.compile(
    r"(?:(?P<net>.+) )?(?P<data>\S+?)-(?P<split>test|train)"
    r"(?:-first-(?P<limit>\d{1,9}))?(?:-pgd-\d+)? eps=(?P<eps>\S+)"
)


def _upgrade(old: Mapping[str, Any]) -> dict[str, Any]:
    """A document of version 1 as version 2, without entries that lack a figure or have another kind of key."""
    new: dict[str, Any] = {"version": VERSION, "evaluations": []}
    if "train" in old:
        train = _table(old["train"], "train")
        if {"clean", "epochs", "seconds", "seed", "parameters"} <= train.keys():
            on_training_images = {"train": train["training_images"]} if "training_images" in train else {}
            new["training"] = {**train, "test": train, **on_training_images}
    for key, value in old.items():
        entry = _table(value, repr(key)) if (match := _KEY_1.fullmatch(key)) else {}
        certified = {name.removeprefix("certified_"): entry[name] for name in sorted(entry) if "certified_" in name}
        certified.pop("and_broken", None)  # was always 0
        if match and certified and {"samples", "clean", "pgd", "pgd_steps"} <= entry.keys():
            subject = {name: text for name, text in match.groupdict().items() if text and name != "limit"}
            new["evaluations"].append(
                {
                    **entry,
                    **subject,
                    **({"limit": int(match["limit"])} if match["limit"] else {}),
                    "count": entry["samples"],
                    "attack": {"name": "pgd", "steps": entry["pgd_steps"]},
                    "attacked": entry["pgd"],
                    "certified": certified,
                    "certify_seconds": entry.get("certify_seconds_per_image", {}),
                }
            )
    return new


def _table(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise LinfnetError(f"{name} is {reprlib.repr(value)}; wanted a table")
    return cast(dict[str, Any], value)
