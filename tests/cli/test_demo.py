"""`linfnet demo`, with a smaller net."""

from pathlib import Path

import pytest

from linfnet.cli import evaluate
from linfnet.cli.main import main
from linfnet.recipes import load_recipe
from linfnet.results import read_results

TINY = ("width=24", "depth=3", "epochs=[2, 2, 1]", "limit=300")


def test_it_ends_with_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(evaluate, "load_recipe", lambda name: load_recipe(name, TINY))
    folder = tmp_path / "run"
    assert main(["demo", "--out", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert printed.count("trained net") == 4
    assert "Theorem 1" in printed
    assert printed.splitlines()[-1] == f"report, to open in a browser: {folder / 'report.html'}"
    images = [result.images for result in read_results(folder).evaluations]
    assert images == [*4 * ["digits-test"], "nearest-neighbour digits-test"]
    card = (folder / "README.md").read_text()
    assert card.count("| Hand-written digits, test | 360 |") == 4  # not the net of Theorem 1: the card is about one net
    page = (folder / "report.html").read_text(encoding="utf-8")
    for text in ("Most robust", "nearest-neighbour net", "records/demo.json"):
        assert text in page
