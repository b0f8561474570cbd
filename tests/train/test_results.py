"""results.json is read by many commands: what people wrote into it is told where it is read."""

import copy
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from linfnet.errors import LinfnetError
from linfnet.files import write_json
from linfnet.train import add_results, read_results

EVALUATION = {
    "samples": 360,
    "clean": 0.5,
    "pgd": 0.25,
    "certified_margin": 0.125,
    "certified_and_broken": 0,
    "arithmetic": "float32",
    "confidence": 1.0,
    "pgd_steps": 100,
    "certify_seconds_per_image": {"margin": 1e-6},
    "seconds": 0.5,
}
TRAIN = {
    "clean": 0.5,
    "certified": {"0.1": 0.0},
    "training_images": {"clean": 1, "certified": {"0.1": 0.25}, "above": 0.5, "between": 0.5, "below": 0.0},
    "epochs": 3,
    "seconds": 1,
    "seed": 0,
    "parameters": 100,
    "device": "cpu",
    "processes": 1,
}
WHOLE: dict[str, Any] = {"train": TRAIN, "digits-test eps=0.1": EVALUATION, "notes": ["anything"]}


def places(table: dict[str, Any], way: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in table.items():
        yield (*way, key)
        if isinstance(value, dict):
            yield from places(value, (*way, key))


def test_what_the_commands_write_is_read(tmp_path: Path):
    assert read_results(tmp_path) == {}
    add_results(tmp_path, WHOLE)
    add_results(tmp_path, {"train": {**TRAIN, "clean": 0.75}})
    assert read_results(tmp_path) == {**WHOLE, "train": {**TRAIN, "clean": 0.75}}


@pytest.mark.parametrize("place", [way for way in places(WHOLE) if way[0] != "notes"], ids=" / ".join)
def test_each_value_must_be_of_its_kind(place: tuple[str, ...], tmp_path: Path):
    for wrong in ([1], None, True, -1, float("nan"), 10**400):
        results = copy.deepcopy(WHOLE)
        table = results
        for key in place[:-1]:
            table = table[key]
        table[place[-1]] = wrong
        write_json(tmp_path / "results.json", results)
        with pytest.raises(LinfnetError, match=r"results\.json: .* is .{1,50}; wanted ") as told:
            read_results(tmp_path)
        assert repr(place[-1]) in str(told.value) or f"{place[-1]}'" in str(told.value)


def test_the_complaint_in_full(tmp_path: Path):
    write_json(tmp_path / "results.json", {"mnist-test eps=0.3": {"certified_margin": 93.2}})
    with pytest.raises(LinfnetError) as told:
        read_results(tmp_path)
    complaint = "'certified_margin' of 'mnist-test eps=0.3' is 93.2; wanted a share from 0 to 1"
    assert str(told.value) == f"{tmp_path / 'results.json'}: {complaint}"


def test_evaluations_that_end_together_are_all_kept(tmp_path: Path):
    def add(which: int) -> None:
        for number in range(20):
            add_results(tmp_path, {f"digits-test eps={which}.{number}": EVALUATION})

    with ThreadPoolExecutor(4) as pool:  # the lock is one of open files: threads meet it as processes do
        list(pool.map(add, range(4)))
    assert len(read_results(tmp_path)) == 80
