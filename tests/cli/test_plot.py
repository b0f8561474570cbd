"""`linfnet plot` draws runs and records."""

import re
from pathlib import Path

import pytest

from linfnet.cli.main import main

RECORDS = Path(__file__).parent.parent.parent / "records"
TINY = ["--set", "limit=100", "width=8", "depth=2", "epochs=[1, 2, 1]", "test_every=1"]


def test_a_figure_from_a_run_and_from_a_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = tmp_path / "run"
    assert main(["train", "digits", "--out", str(run), *TINY]) == 0
    assert main(["plot", str(run)]) == 0
    assert (run / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert main(["plot", str(RECORDS / "cifar10-8-125-epochs.json"), "--out", str(tmp_path / "c.svg")]) == 0
    assert "<svg" in (tmp_path / "c.svg").read_text()
    assert main(["plot", str(run), "--out", "x.gif"]) == 2
    for name, words in (("cifar10-8-125-epochs", ("above θ", "0 to θ")), ("mnist-0.3-ibp", ("above 0",))):
        assert main(["plot", str(RECORDS / f"{name}.json"), "--out", str(tmp_path / f"{name}.svg")]) == 0
        # Matplotlib draws text as glyphs, and leaves each text beside them as a comment.
        texts = re.findall(r"<!-- (.*) -->", (tmp_path / f"{name}.svg").read_text())
        assert [text for text in texts if re.match("above|0 to", text)] == list(words)
    assert main(["plot", str(RECORDS / "demo.json")]) == 2
    assert "is not the record of a run" in capsys.readouterr().err
