"""The list of planted bugs fits the package: every text is found once, and the tests that should see it exist."""

import ast
import sys
from pathlib import Path

import pytest

from tools import mutate
from tools.mutate import ROOT, Mutant, copy_tree, outcome, planted, read_mutants

MUTANTS = read_mutants()


def test_names_are_unique_and_many():
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names) >= 99


def test_every_text_occurs_once():
    lost: list[str] = []
    for mutant in MUTANTS:
        try:
            changed = mutant.apply(ROOT)
        except LookupError as error:
            lost.append(str(error))
            continue
        assert changed != mutant.path(ROOT).read_text(encoding="utf-8"), mutant.name
        if not mutant.is_kernel:
            ast.parse(changed)
    assert lost == []


def test_the_tests_exist():
    assert all(mutant.tests and mutant.wrong for mutant in MUTANTS)
    for test in {test for mutant in MUTANTS for test in mutant.tests}:
        file, *names = test.split("::")
        text = (ROOT / file).read_text(encoding="utf-8")
        assert all(f"def {name}(" in text or f"class {name}" in text for name in names), test


def test_a_changed_file_is_restored(tmp_path: Path):
    file = tmp_path / "src" / "linfnet" / "a.py"
    file.parent.mkdir(parents=True)
    file.write_text("x = 1\n")
    mutant = Mutant("a", "a.py", "1", "2", ["tests"], "x is 2")
    with planted(mutant, tmp_path):
        assert file.read_text() == "x = 2\n"
    assert file.read_text() == "x = 1\n"
    for old in ("3", "x = 1\nx", ""):
        with pytest.raises(LookupError, match="a: the text occurs"):
            Mutant("a", "a.py", old, "2", ["tests"], "x is 2").apply(tmp_path)


@pytest.mark.process
def test_a_bug_is_seen_only_by_a_test_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In a package of two lines."""
    for name, text in {
        "src/linfnet/__init__.py": "",
        "src/linfnet/sums.py": "def add(a, b):\n    return a + b\n",
        "tests/test_sums.py": "from linfnet.sums import add\n\ndef test_one():\n    assert add(1, 2) == 3\n\n"
        "def test_zero():\n    assert add(0, 0) == 0\n\ndef test_loop():\n    while add(1, 2) != 3: pass\n",
        "pyproject.toml": "",
    }.items():
        (tmp_path / "own" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "own" / name).write_text(text)
    monkeypatch.setattr(mutate, "ROOT", tmp_path / "own")
    monkeypatch.setattr(mutate, "COPIED", ("src", "tests", "pyproject.toml"))
    target = tmp_path / "copy"
    target.mkdir()
    copy_tree(target)

    def found(test: str, old: str = "a + b", seconds: float = 60.0) -> str:
        mutant = Mutant("minus", "sums.py", old, "a - b", [f"tests/test_sums.py::{test}"], "the sum is a difference")
        return outcome(mutant, target, seconds)

    assert found("test_one") == "seen"
    assert found("test_zero") == "survived"
    assert found("test_zero", old="a * b") == "text not found"
    assert found("test_loop", seconds=3.0) == "time limit"
    assert found("test_nothing").startswith("pytest ended with")
    assert sys.path[0] != str(target)
    assert (target / "src" / "linfnet" / "sums.py").read_text().endswith("return a + b\n")
