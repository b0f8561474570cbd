"""Read and write the files of results in a run or model folder. Their names, keys and columns are defined only here.

results.json (version 2) has the fields of `Results` and of the records in it. Version 1, which can still be read, has
evaluations under keys such as `mnist-test-first-500-pgd-20 eps=0.3`. `samples-IMAGES-eps-EPSILONS.csv` has a row for
each image, `….broken.safetensors` contains a few images that the attack found, and `….witnesses.safetensors` all images
that the exact method found. radii.csv of `linfnet certify` has the same columns for labels, predictions and radii.
"""

import csv
import dataclasses
import hashlib
import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, cast, get_args, get_origin, get_type_hints

from filelock import FileLock

from linfnet.epsilon import format_epsilon, parse_epsilon
from linfnet.errors import LinfnetError
from linfnet.files import read_table, replacing, write_table
from linfnet.results.result import Result, Results, Share, TrainingResult

VERSION = 2
RESULTS_FILE = "results.json"
RADII_FILE = "radii.csv"

LABEL, PREDICTION, RUNNER_UP, MARGIN = "label", "prediction", "runner_up", "margin"
REAL_MARGIN_RADIUS = "real_margin_radius"
BROKEN_AT = "broken_at"
# The names of the tensors in a file of broken images; each tensor has one entry per image.
INDEX, IMAGES, PREDICTIONS = "index", "images", "predictions"
# Largest number of characters for the epsilons in a file name; file systems allow 255 bytes in total.
_LONGEST = 100


def read_results(folder: Path | str) -> Results:
    """Return all results in a run or model folder; an error message names the file and the invalid value."""
    file = Path(folder) / RESULTS_FILE
    if not file.exists():
        return Results()
    document = read_table(file)
    try:
        return results_from_json(document)
    except LinfnetError as error:
        raise LinfnetError(f"{file}: {error}") from None


def write_training(folder: Path, training: TrainingResult) -> None:
    """Write the result of training; evaluations that are already in the file do not change."""
    with _lock(folder):
        results = dataclasses.replace(read_results(folder), training=training)
        write_table(folder / RESULTS_FILE, results_to_json(results))


def add_evaluations(folder: Path, evaluations: tuple[Result, ...]) -> None:
    """Add evaluations in one step; existing evaluations of the same subject are replaced."""
    subjects = {result.subject for result in evaluations}
    with _lock(folder):
        results = read_results(folder)
        others = tuple(result for result in results.evaluations if result.subject not in subjects)
        results = dataclasses.replace(results, evaluations=others + evaluations)
        write_table(folder / RESULTS_FILE, results_to_json(results))


def _lock(folder: Path) -> FileLock:
    """Return a lock that prevents evaluations that end at the same time from overwriting each other."""
    return FileLock(folder / f".{RESULTS_FILE}.lock")


def results_to_json(results: Results) -> dict[str, Any]:
    """Convert results to the JSON values of results.json."""
    document = {"version": VERSION, **_to_json(results)}
    if not results.unread:
        del document["unread"]
    return document


def _to_json(value: Any) -> Any:
    """Convert dataclasses to tables of their fields, without empty fields, and epsilons to text."""
    if dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {name: _to_json(item) for name, item in fields.items() if item not in (None, "")}
    if isinstance(value, Mapping):
        return {_to_json(key): _to_json(item) for key, item in cast(Mapping[Any, Any], value).items()}
    if isinstance(value, tuple):
        return [_to_json(item) for item in cast(tuple[Any, ...], value)]
    return format_epsilon(value) if isinstance(value, Fraction) else value


def results_from_json(document: Mapping[str, Any]) -> Results:
    """Parse a document of either version, or raise an error that names the invalid value."""
    if "version" not in document:
        if "evaluations" in document:
            raise LinfnetError(f"the key 'version' is missing; expected {VERSION}")
        document = _upgrade(document)
    if document["version"] != VERSION:
        raise LinfnetError(f"version is {document['version']!r}; this linfnet reads 1 and {VERSION}: update linfnet")
    training = _parse(TrainingResult, document["training"], "training") if "training" in document else None
    entries = _parse(list, document.get("evaluations"), "evaluations")
    evaluations = tuple(_parse(Result, entry, f"evaluation {k}") for k, entry in enumerate(entries, 1))
    unknown = {key: document[key] for key in document if key not in ("version", "training", "evaluations", "unread")}
    return Results(training, evaluations, {**_parse(dict, document.get("unread", {}), "unread"), **unknown})


_PLAIN: dict[Any, tuple[Any, str]] = {
    dict: (dict, "a table"),
    list: (list, "a list"),
    str: (str, "text"),
    int: (int, "a whole number of at least 0"),
    float: (int | float, "a number of at least 0"),
    Share: (int | float, "a number from 0 to 1"),
}


def _parse(kind: Any, value: Any, name: str) -> Any:
    """Convert a JSON value to the type of a field, or raise an error that names the value if it has another type."""
    if dataclasses.is_dataclass(kind):
        return _parse_record(cast(type, kind), _parse(dict, value, name), name)
    if get_origin(kind) is Mapping:
        key, item = get_args(kind)
        items = _parse(dict, value, name).items()
        return {_parse(key, k, f"a key of {name}"): _parse(item, each, f"{k!r} of {name}") for k, each in items}
    if kind is Fraction:
        return parse_epsilon(_parse(str, value, name), name)
    types, wanted = _PLAIN[kind]
    valid = isinstance(value, types) and not isinstance(value, bool)
    if valid and isinstance(value, int | float):
        valid = 0 <= value <= (1 if kind == Share else 2**63)
    if not valid:
        raise LinfnetError(f"{name} is {reprlib.repr(value)}; expected {wanted}")
    return value


def _parse_record(kind: type, table: dict[str, Any], name: str) -> Any:
    hints = get_type_hints(kind, include_extras=True)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        hint, choices = hints[field.name], get_args(hints[field.name])
        optional = type(None) in choices
        required = not optional and field.default is field.default_factory is dataclasses.MISSING
        if field.name in table or required:
            parsed = choices[0] if optional else hint
            values[field.name] = _parse(parsed, table.get(field.name), f"{field.name!r} of {name}")
        elif optional:
            values[field.name] = None
    return kind(**values)


_KEY_1 = re.compile(
    r"(?:(?P<net>.+) )?(?P<data>\S+?)-(?P<split>test|train)"
    r"(?:-first-(?P<limit>\d{1,9}))?(?:-pgd-\d+)? eps=(?P<eps>\S+)"
)


def _upgrade(old: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a document of version 1 to version 2; entries with missing values or unknown keys become `unread`."""
    new: dict[str, Any] = {"version": VERSION, "evaluations": [], "unread": dict(old)}
    if "train" in old:
        train = _parse(dict, old["train"], "train")
        if {"clean", "epochs", "seconds", "seed", "parameters"} <= train.keys():
            on_training_images = {"train": train["training_images"]} if "training_images" in train else {}
            new["training"] = {**train, "test": train, **on_training_images}
            del new["unread"]["train"]
    for key, value in old.items():
        match = _KEY_1.fullmatch(key)
        entry = _parse(dict, value, repr(key)) if match else {}
        certified = {name.removeprefix("certified_"): entry[name] for name in entry if "certified_" in name}
        certified.pop("and_broken", None)  # always 0 in version 1
        if match and certified and {"samples", "clean", "pgd", "pgd_steps"} <= entry.keys():
            subject: dict[str, Any] = {name: text for name, text in match.groupdict().items() if text}
            if "limit" in subject:
                subject["limit"] = int(subject["limit"])
            figures = {
                "count": entry["samples"],
                "attack": {"name": "pgd", "steps": entry["pgd_steps"]},
                "attacked": entry["pgd"],
                "certified": certified,
                "certify_seconds": entry.get("certify_seconds_per_image", {}),
            }
            new["evaluations"].append({**entry, **subject, **figures})
            del new["unread"][key]
    return new


def radius_column(certificate: str) -> str:
    """Return the name of the column with the radii of a certificate, such as margin_radius."""
    return f"{certificate}_radius"


def at_epsilon(name: str, eps: Fraction) -> str:
    """Return the name of a column or tensor with values for one epsilon.

    >>> at_epsilon(INDEX, Fraction(8, 255))
    'index@8/255'
    """
    return f"{name}@{format_epsilon(eps)}"


def epsilons_in(names: Iterable[str]) -> list[Fraction]:
    """Return the epsilons of the tensors in a file of broken images, from their names (`at_epsilon`).

    >>> epsilons_in(["index@8/255", "images@8/255", "predictions@8/255"])
    [Fraction(8, 255)]
    """
    prefix = f"{INDEX}@"
    return [parse_epsilon(name.removeprefix(prefix)) for name in names if name.startswith(prefix)]


def samples_path(folder: Path, results: Sequence[Result]) -> Path:
    """Return the path of the CSV file of an evaluation at one or more epsilons.

    >>> result = Result("mnist", "test", 500, Fraction(8, 255), 0.9, 0.8, {"margin": 0.7}, limit=500)
    >>> samples_path(Path("run"), [result]).name
    'samples-mnist-test-first-500-eps-8-255.csv'
    """
    epsilons = "_".join(format_epsilon(result.eps).replace("/", "-") for result in results)
    if len(epsilons) > _LONGEST:
        digest = hashlib.sha256(epsilons.encode()).hexdigest()[:8]
        epsilons = f"{epsilons[:_LONGEST].rpartition('_')[0]}_and-more-{digest}"
    return folder / f"samples-{results[0].images}-eps-{epsilons}.csv"


def broken_path(samples: Path) -> Path:
    """Return the path of the file of broken images that belongs to a CSV file of samples."""
    return samples.with_suffix(".broken.safetensors")


def witness_path(samples: Path) -> Path:
    """Return the path of the file of all images that the exact method found, which belongs to a CSV file of samples."""
    return samples.with_suffix(".witnesses.safetensors")


def sample_files(folder: Path, result: Result, suffix: str = ".csv") -> list[Path]:
    """Return the CSV files of all evaluations of the same images with the same attack, at any epsilons."""
    return sorted(folder.glob(f"samples-{result.images}-eps-*{suffix}"))


def broken_files(folder: Path, result: Result) -> list[Path]:
    """Return the files of broken images of the same evaluations as `sample_files`."""
    return sample_files(folder, result, ".broken.safetensors")


def write_columns(path: Path, columns: Mapping[str, Iterable[Any]]) -> None:
    """Write columns of equal length to a CSV file, in one step."""
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def read_columns(path: Path) -> dict[str, tuple[str, ...]]:
    """Return the columns of a CSV file by name, as text; raise ValueError if rows differ in length."""
    with path.open(newline="", encoding="utf-8") as file:
        header, *rows = list(csv.reader(file))
    return dict(zip(header, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(header, ())
