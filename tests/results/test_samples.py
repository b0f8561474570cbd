"""Files that describe single images: their names fit the file system and are found again."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from linfnet.results import Result
from linfnet.results.samples import broken_files, broken_path, read_columns, sample_files, samples_path, write_columns

RESULT = Result("mnist", "test", 500, Fraction(8, 255), 0.9, 0.8, {"margin": 0.7}, limit=500)


def test_files_of_the_same_images_are_found(tmp_path: Path):
    many = [replace(RESULT, eps=Fraction(k, 1000)) for k in range(1, 61)]
    sets = [[RESULT], many, [*many, RESULT]]
    paths = [samples_path(tmp_path, results) for results in sets]
    assert len(set(paths)) == 3
    for path in paths:
        assert len(path.name) < 200
        path.touch()
        broken_path(path).touch()
    samples_path(tmp_path, [replace(RESULT, limit=5)]).touch()
    assert sample_files(tmp_path, RESULT) == sorted(paths)
    assert broken_files(tmp_path, many[0]) == sorted(map(broken_path, paths))


def test_columns_survive_the_file(tmp_path: Path):
    write_columns(tmp_path / "x.csv", {"a": [1, 2], "b": ["x,y", ""]})
    assert read_columns(tmp_path / "x.csv") == {"a": ("1", "2"), "b": ("x,y", "")}
    write_columns(tmp_path / "x.csv", {"a": [], "b": []})
    assert read_columns(tmp_path / "x.csv") == {"a": (), "b": ()}
