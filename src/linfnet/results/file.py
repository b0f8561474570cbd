"""results.json: records are read from it and written to it here; no other module knows its keys.

Version 2 holds `training` and a list of `evaluations`. Version 1, still read, held each evaluation under a key such as
`mnist-test-first-500-pgd-20 eps=0.3`.
"""

import math
import re
import reprlib
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

from filelock import FileLock

from linfnet.epsilon import format_epsilon, parse_epsilon
from linfnet.errors import LinfnetError
from linfnet.files import read_table, write_json
from linfnet.results.result import Accuracies, AttackSettings, Result, Results, TrainingResult

VERSION = 2
FILE = "results.json"


def read_results(folder: Path) -> Results:
    """What has been measured of a run or model so far; an error names a value of the wrong kind."""
    file = folder / FILE
    if not file.exists():
        return Results()
    try:
        return results_from_json(read_table(file))
    except _BadValueError as error:
        raise LinfnetError(f"{file}: {error}") from None


def write_training(folder: Path, training: TrainingResult) -> None:
    """Store what training measured; evaluations stay."""
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
    document: dict[str, Any] = {"version": VERSION}
    if results.training is not None:
        training = results.training
        document["training"] = {
            "test": _accuracies_to_json(training.test),
            **({"train": _accuracies_to_json(training.train)} if training.train else {}),
            "epochs": training.epochs,
            "seconds": training.seconds,
            "seed": training.seed,
            "parameters": training.parameters,
            "device": training.device,
            "processes": training.processes,
        }
    document["evaluations"] = [_result_to_json(result) for result in results.evaluations]
    return document


def _accuracies_to_json(found: Accuracies) -> dict[str, Any]:
    shares = {"above": found.above, "between": found.between, "below": found.below}
    return {
        "clean": found.clean,
        "certified": {format_epsilon(eps): share for eps, share in found.certified.items()},
        **{name: share for name, share in shares.items() if share is not None},
    }


def _result_to_json(result: Result) -> dict[str, Any]:
    return {
        **({"net": result.net} if result.net else {}),
        "data": result.data,
        "split": result.split,
        **({"limit": result.limit} if result.limit is not None else {}),
        "count": result.count,
        "eps": format_epsilon(result.eps),
        "clean": result.clean,
        "attack": {"name": result.attack.name, "steps": result.attack.steps},
        "attacked": result.attacked,
        "certified": dict(result.certified),
        "certify_seconds_per_image": dict(result.certify_seconds),
        "arithmetic": result.arithmetic,
        "confidence": result.confidence,
        "seconds": result.seconds,
    }


def results_from_json(document: Mapping[str, Any]) -> Results:
    """Parse a document of either version; raises an error that names the value that is wrong."""
    if "version" not in document:
        return _read_version_1(document)
    if document["version"] != VERSION:
        raise _BadValueError(f"version is {document['version']!r}; this linfnet reads 1 and {VERSION}: update linfnet")
    training = None
    if "training" in document:
        table = _Table("training", document["training"])
        train = _accuracies(table.table("train")) if "train" in table else None
        training = _training(table, _accuracies(table.table("test")), train)
    entries = _Table("results", document).get("evaluations", _is_list)
    return Results(training, tuple(_result(_Table(f"evaluation {k}", entry)) for k, entry in enumerate(entries, 1)))


def _training(table: "_Table", test: Accuracies, train: Accuracies | None) -> TrainingResult:
    return TrainingResult(
        test,
        train,
        epochs=table.get("epochs", _is_count),
        seconds=table.get("seconds", _is_amount),
        seed=table.get("seed", _is_count),
        parameters=table.get("parameters", _is_count),
        device=table.get("device", _is_text, ""),
        processes=table.get("processes", _is_count, 1),
    )


def _accuracies(table: "_Table") -> Accuracies:
    certified = table.table("certified").all(_is_share)
    shares = {name: table.get(name, _is_share, None) for name in ("above", "between", "below")}
    return Accuracies(
        table.get("clean", _is_share),
        {_epsilon(table.where, text): share for text, share in certified.items()},
        **shares,
    )


def _result(table: "_Table") -> Result:
    attack = table.table("attack")
    return Result(
        data=table.get("data", _is_text),
        split=table.get("split", _is_text),
        count=table.get("count", _is_count),
        eps=_epsilon(table.where, table.get("eps", _is_text)),
        clean=table.get("clean", _is_share),
        attacked=table.get("attacked", _is_share),
        certified=table.table("certified").all(_is_share, at_least_one=True),
        attack=AttackSettings(attack.get("name", _is_text), attack.get("steps", _is_count)),
        limit=table.get("limit", _is_count, None),
        net=table.get("net", _is_text, ""),
        arithmetic=table.get("arithmetic", _is_text, "float32"),
        confidence=table.get("confidence", _is_share, 1.0),
        certify_seconds=table.table("certify_seconds_per_image").all(_is_amount),
        seconds=table.get("seconds", _is_amount, 0.0),
    )


_KEY_1 = re.compile(
    r"(?:(?P<net>.+) )?(?P<data>\S+?)-(?P<split>test|train)"
    r"(?:-first-(?P<limit>\d{1,9}))?(?:-pgd-\d+)? eps=(?P<eps>\S+)"
)


def _read_version_1(document: Mapping[str, Any]) -> Results:
    """Entries that lack a figure, or stand under another kind of key, are left out."""
    training = None
    if "train" in document:
        old = _Table("train", document["train"])
        train = _accuracies(old.table("training_images")) if "training_images" in old else None
        if {"clean", "epochs", "seconds", "seed", "parameters"} <= old.keys():
            training = _training(old, _accuracies(old), train)
    evaluations = [
        _result_1(match, _Table(key, entry)) for key, entry in document.items() if (match := _KEY_1.fullmatch(key))
    ]
    return Results(training, tuple(result for result in evaluations if result is not None))


def _result_1(match: re.Match[str], table: "_Table") -> Result | None:
    certified = {
        key.removeprefix("certified_"): table.get(key, _is_share)
        for key in sorted(table.keys())
        if key.startswith("certified_") and key != "certified_and_broken"
    }
    if not certified or not {"samples", "clean", "pgd", "pgd_steps"} <= table.keys():
        return None
    return Result(
        data=match["data"],
        split=match["split"],
        count=table.get("samples", _is_count),
        eps=_epsilon(table.where, match["eps"]),
        clean=table.get("clean", _is_share),
        attacked=table.get("pgd", _is_share),
        certified=certified,
        attack=AttackSettings("pgd", table.get("pgd_steps", _is_count)),
        limit=int(match["limit"]) if match["limit"] else None,
        net=match["net"] or "",
        arithmetic=table.get("arithmetic", _is_text, "float32"),
        confidence=table.get("confidence", _is_share, 1.0),
        certify_seconds=table.table("certify_seconds_per_image").all(_is_amount),
        seconds=table.get("seconds", _is_amount, 0.0),
    )


class _BadValueError(LinfnetError):
    """A value of the file is missing or of the wrong kind."""


def _is_share(value: Any) -> bool:
    return _is_amount(value) and value <= 1


def _is_amount(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_count(value: Any) -> bool:
    return _is_amount(value) and isinstance(value, int)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


_WANTED: dict[Callable[[Any], bool], str] = {
    _is_share: "a number from 0 to 1",
    _is_amount: "a number of at least 0",
    _is_count: "a whole number of at least 0",
    _is_text: "text",
    _is_list: "a list",
}


class _Table:
    """A JSON object whose values are checked as they are read; `where` names it in errors."""

    def __init__(self, where: str, value: Any) -> None:
        if not isinstance(value, dict):
            raise _BadValueError(f"{where} is {reprlib.repr(value)}; wanted a table")
        self.where, self._values = where, cast(dict[str, Any], value)

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def keys(self) -> set[str]:
        return set(self._values)

    def get(self, key: str, kind: Callable[[Any], bool], default: Any = math.nan) -> Any:
        """The value under a key; without a default (NaN) the key must be there."""
        if key not in self._values and not (isinstance(default, float) and math.isnan(default)):
            return default
        value = self._values.get(key)
        if not kind(value):
            raise _BadValueError(f"{key!r} of {self.where} is {reprlib.repr(value)}; wanted {_WANTED[kind]}")
        return value

    def table(self, key: str) -> "_Table":
        return _Table(f"{key!r} of {self.where}", self._values.get(key, {}))

    def all(self, kind: Callable[[Any], bool], *, at_least_one: bool = False) -> dict[str, Any]:
        """All values, each of one kind."""
        if at_least_one and not self._values:
            raise _BadValueError(f"{self.where} is empty; wanted at least one entry")
        return {key: self.get(key, kind) for key in self._values}


def _epsilon(where: str, text: str) -> Fraction:
    try:
        return parse_epsilon(text)
    except LinfnetError as error:
        raise _BadValueError(f"{where}: {error}") from None
