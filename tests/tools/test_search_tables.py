from pathlib import Path

import pytest

from linfnet.search import Variant, search
from tools import records, search_tables


def test_the_table_of_a_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for module in (records, search_tables):
        monkeypatch.setattr(module, "RECORDS", tmp_path)
    assert search_tables.searches() == "No search is recorded yet.\n"
    variants = [Variant("published"), Variant("leaky", ("clip_leak=0.1",))]
    settings = ["width=8", "depth=2", "epochs=[1, 0, 1]", "limit=100"]
    outcome = search("digits", variants, out=tmp_path / "out", settings=settings, device="cpu")
    (tmp_path / "out" / "outcome.json").rename(tmp_path / "search-leak.json")
    lines = search_tables.searches().splitlines()
    assert lines[0] == f"{outcome.title} ([search-leak.json](records/search-leak.json)):"
    for summary, line in zip(outcome.ranked, lines[4:6], strict=True):
        changes = "`clip_leak=0.1`" if summary.variant.changes else "–"
        certified = summary.spread("certified").percent()
        assert line.startswith(f"| {summary.variant.name} | {changes} | 2 | {certified} | ")
