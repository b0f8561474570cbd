"""results.json of version 2, and of version 1 from older runs and records; the files that describe single images."""

import copy
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from linfnet.errors import LinfnetError
from linfnet.files import read_table, write_json
from linfnet.results import (
    Accuracies,
    AttackSettings,
    Result,
    Results,
    TrainingResult,
    add_evaluations,
    read_results,
    results_from_json,
    results_to_json,
    write_training,
)
from linfnet.results.storage import broken_files, broken_path, read_columns, sample_files, samples_path, write_columns

RECORDS = Path(__file__).parent.parent.parent / "records"
TENTH = Fraction(1, 10)
RESULT = Result(
    data="digits",
    split="test",
    count=360,
    eps=TENTH,
    clean=0.5,
    attacked=0.25,
    certified={"margin": 0.125},
    attack=AttackSettings("pgd", 20),
    limit=7,
    net="nearest-neighbour",
    arithmetic="real",
    confidence=0.999,
    certify_seconds={"margin": 1e-6},
    seconds=0.5,
)
TRAINING = TrainingResult(
    test=Accuracies(0.5, {TENTH: 0.0}),
    train=Accuracies(1.0, {TENTH: 0.25}, above=0.5, between=0.5, below=0.0),
    epochs=3,
    seconds=1.5,
    seed=0,
    parameters=100,
    device="cpu",
    processes=2,
)
# As linfnet wrote it before results had a version.
VERSION_1: dict[str, Any] = {
    "train": {
        "clean": 0.5,
        "certified": {"0.1": 0.0},
        "training_images": {"clean": 1, "certified": {"0.1": 0.25}, "above": 0.5, "between": 0.5, "below": 0.0},
        "epochs": 3,
        "seconds": 1.5,
        "seed": 0,
        "parameters": 100,
        "device": "cpu",
        "processes": 2,
    },
    "nearest-neighbour digits-test-first-7-pgd-20 eps=0.1": {
        "samples": 360,
        "clean": 0.5,
        "pgd": 0.25,
        "certified_margin": 0.125,
        "certified_and_broken": 0,
        "arithmetic": "real",
        "confidence": 0.999,
        "pgd_steps": 20,
        "certify_seconds_per_image": {"margin": 1e-6},
        "seconds": 0.5,
    },
    "notes": ["anything"],
}


def paths(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The path of every value in a JSON document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from paths(item, (*path, key))


def test_results_survive_the_file(tmp_path: Path):
    assert read_results(tmp_path) == Results()
    add_evaluations(tmp_path, (RESULT,))
    write_training(tmp_path, TRAINING)
    assert read_results(tmp_path) == Results(TRAINING, (RESULT,))
    assert json.loads((tmp_path / "results.json").read_text())["version"] == 2
    write_training(tmp_path, replace(TRAINING, epochs=4))
    again, other = replace(RESULT, clean=0.75), replace(RESULT, limit=None)
    add_evaluations(tmp_path, (other, again))
    assert read_results(tmp_path) == Results(replace(TRAINING, epochs=4), (other, again))


def test_version_1_is_read_and_rewritten_as_version_2(tmp_path: Path):
    write_json(tmp_path / "results.json", VERSION_1)
    notes = {"notes": ["anything"]}
    assert read_results(tmp_path) == Results(TRAINING, (RESULT,), notes)
    add_evaluations(tmp_path, (replace(RESULT, net=""),))
    assert read_results(tmp_path) == Results(TRAINING, (RESULT, replace(RESULT, net="")), notes)
    assert json.loads((tmp_path / "results.json").read_text())["version"] == 2


@pytest.mark.parametrize("name", ["cifar10-8-800-epochs", "mnist-0.3-ibp", "cifar10-smoothing-0.25", "demo"])
def test_results_of_real_records_are_read(name: str):
    document = json.loads((RECORDS / f"{name}.json").read_text())["results"]
    results = results_from_json(document)
    assert len(results.evaluations) == sum(" eps=" in key for key in document) + len(document.get("evaluations", ()))
    assert len(results.evaluations) > 0
    for result in results.evaluations:
        assert result.best_certified <= result.attacked <= result.clean <= 1
        assert result.limit in (None, result.count)
    assert results_from_json(results_to_json(results)) == results


@pytest.mark.parametrize("version", [1, 2])
def test_each_value_must_be_of_its_type(version: int, tmp_path: Path):
    document = VERSION_1 if version == 1 else results_to_json(Results(TRAINING, (RESULT,)))
    unchecked = {("version",), ("notes",), ("notes", 0)}
    if version == 1:
        unchecked |= {path for path in paths(document) if path[-1] == "certified_and_broken"}
    for path in set(paths(document)) - unchecked:
        for wrong in ([1], None, True, -1, float("nan"), 10**400):
            if wrong == [1] and path == ("evaluations",):
                continue
            changed = copy.deepcopy(document)
            table = changed
            for key in path[:-1]:
                table = table[key]
            table[path[-1]] = wrong
            write_json(tmp_path / "results.json", changed)
            with pytest.raises(LinfnetError, match=r"results\.json: .* is .{1,50}; expected ") as caught:
                read_results(tmp_path)
            if version == 2 and isinstance(path[-1], str):
                assert path[-1] in str(caught.value)


def test_error_messages_name_the_value(tmp_path: Path):
    document = results_to_json(Results(None, (RESULT,)))
    document["evaluations"][0]["certified"]["margin"] = 93.2
    write_json(tmp_path / "results.json", document)
    with pytest.raises(LinfnetError) as caught:
        read_results(tmp_path)
    complaint = "'margin' of 'certified' of evaluation 1 is 93.2; expected a number from 0 to 1"
    assert str(caught.value) == f"{tmp_path / 'results.json'}: {complaint}"
    write_json(tmp_path / "results.json", {"version": 3})
    with pytest.raises(LinfnetError, match=r"version is 3; this linfnet reads 1 and 2: update linfnet"):
        read_results(tmp_path)


def test_evaluations_that_end_at_the_same_time_are_all_kept(tmp_path: Path):
    def add(limit: int) -> None:
        for steps in range(1, 21):
            add_evaluations(tmp_path, (replace(RESULT, limit=limit, attack=AttackSettings("pgd", steps)),))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(1, 5)))
    assert len(read_results(tmp_path).evaluations) == 80


def test_find_takes_a_limit_beyond_the_set_as_none():
    whole, few = replace(RESULT, net="", limit=None), replace(RESULT, net="", limit=7, count=7)
    results = Results(None, (replace(RESULT, limit=None), whole, few))
    attack = AttackSettings("pgd", 20)
    assert results.find("digits", TENTH, attack=attack) == whole
    assert results.find("digits", TENTH, attack=attack, limit=1000) == whole
    assert results.find("digits", TENTH, attack=attack, limit=7) == few
    assert results.find("digits", TENTH, attack=attack, limit=8) is None
    assert results.find("digits", TENTH) is None


SUBSET = Result("mnist", "test", 500, Fraction(8, 255), 0.9, 0.8, {"margin": 0.7}, limit=500)


def test_files_of_the_same_images_are_found(tmp_path: Path):
    many = [replace(SUBSET, eps=Fraction(k, 1000)) for k in range(1, 61)]
    sets = [[SUBSET], many, [*many, SUBSET]]
    paths = [samples_path(tmp_path, results) for results in sets]
    assert len(set(paths)) == 3
    for path in paths:
        assert len(path.name) < 200
        path.touch()
        broken_path(path).touch()
    samples_path(tmp_path, [replace(SUBSET, limit=5)]).touch()
    assert sample_files(tmp_path, SUBSET) == sorted(paths)
    assert broken_files(tmp_path, many[0]) == sorted(map(broken_path, paths))


def test_columns_survive_the_file(tmp_path: Path):
    write_columns(tmp_path / "x.csv", {"a": [1, 2], "b": ["x,y", ""]})
    assert read_columns(tmp_path / "x.csv") == {"a": ("1", "2"), "b": ("x,y", "")}
    write_columns(tmp_path / "x.csv", {"a": [], "b": []})
    assert read_columns(tmp_path / "x.csv") == {"a": (), "b": ()}


def test_entries_that_cannot_be_interpreted_are_written_back(tmp_path: Path):
    old = json.loads((RECORDS / "demo.json").read_text())["results"]
    incomplete = {key: value for key, value in old["digits-test eps=0.1"].items() if key != "clean"}
    write_json(tmp_path / "results.json", {**old, "digits-test eps=0.1": incomplete, "my notes": {"a": 1}})
    (first, *_) = results_from_json(old).evaluations
    add_evaluations(tmp_path, (first,))
    assert read_results(str(tmp_path)).unread == {"digits-test eps=0.1": incomplete, "my notes": {"a": 1}}
    write_json(tmp_path / "results.json", {**read_table(tmp_path / "results.json"), "later": 3})
    add_evaluations(tmp_path, (first,))
    assert read_results(tmp_path).unread["later"] == 3


def test_a_file_without_its_version_is_an_error(tmp_path: Path):
    write_json(tmp_path / "results.json", {"evaluations": []})
    with pytest.raises(LinfnetError, match="the key 'version' is missing"):
        read_results(tmp_path)


def test_certificates_stay_in_the_order_of_the_file():
    old = json.loads((RECORDS / "demo.json").read_text())["results"]
    assert list(results_from_json(old).evaluations[0].certified) == ["margin", "interval"]
