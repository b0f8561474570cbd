"""`linfnet demo`, with a smaller net."""

import json
from pathlib import Path

import pytest

from linfnet.cli import demo
from linfnet.cli.main import main
from linfnet.recipes import load_recipe

TINY = ("width=24", "depth=3", "epochs=[2, 2, 1]", "limit=300")


def test_it_ends_with_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(demo, "load_recipe", lambda name: load_recipe(name, TINY))
    folder = tmp_path / "run"
    assert main(["demo", "--out", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert printed.count("trained net") == 4
    assert "Theorem 1" in printed
    assert printed.splitlines()[-1] == f"report, to open in a browser: {folder / 'report.html'}"
    results = json.loads((folder / "results.json").read_text())
    assert {"digits-test eps=0.05", "digits-test eps=0.1", "nearest-neighbour digits-test eps=0.1"} <= results.keys()
    page = (folder / "report.html").read_text(encoding="utf-8")
    for text in ("Most robust", "nearest-neighbour digits-test", "records/demo.json"):
        assert text in page
