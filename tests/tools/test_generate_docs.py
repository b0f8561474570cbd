"""Generated blocks of README and docs are up to date, and a change of a record or of a block is detected."""

from pathlib import Path

import pytest

from tools import records
from tools.generate_docs import ROOT, main, outdated, regenerate
from tools.speed_tables import AUTHORS, EAGER, OURS, newest_steps


def test_committed_pages_are_up_to_date():
    assert [str(page.relative_to(ROOT)) for page in outdated()] == [], "run make docs and commit the result"


def test_a_changed_block_is_detected_and_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "docs" / "howto").mkdir(parents=True)
    (tmp_path / "README.md").write_text("no block\n")
    page = tmp_path / "docs" / "howto" / "page.md"
    page.write_text("before\n<!-- generated: packaged-net -->\n97 %\n<!-- end -->\nafter\n")
    picture = tmp_path / "docs" / "images" / "ball.svg"
    picture.parent.mkdir()
    monkeypatch.setattr("tools.generate_docs.ROOT", tmp_path)
    assert list(outdated()) == [page, picture]
    main()
    text = page.read_text()
    assert text.startswith("before\n<!-- generated: packaged-net -->\n| ε |")
    assert "](../../records/attacks.json)" in text
    assert text.endswith("<!-- end -->\nafter\n")
    assert picture.read_text().startswith("<svg ")
    assert outdated() == {}


def test_an_unknown_block_is_an_error():
    with pytest.raises(KeyError):
        regenerate("<!-- generated: nothing -->\n<!-- end -->", ROOT / "README.md")


def test_tables_follow_the_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    for path in records.RECORDS.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes().replace(b'"clean": 0.4843', b'"clean": 0.4844'))
    monkeypatch.setattr(records, "RECORDS", tmp_path)
    assert ROOT / "docs" / "results.md" in outdated()


def test_steps_that_are_compared_were_measured_together():
    for kinds in newest_steps().values():
        for key in ("date", "gpu", "driver", "torch", "commit", "state"):
            assert len({kinds[kernels][key] for kernels in (OURS, EAGER, AUTHORS)}) == 1
