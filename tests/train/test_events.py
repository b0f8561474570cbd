"""Reading an event log: truncated lines and lines that are not events are ignored."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from linfnet.cli.main import main
from linfnet.train import parse_events
from tools.record import main as record_run

EPOCH: dict[str, Any] = {
    "event": "epoch",
    "epoch": 2,
    "step": 4,
    "seconds": 0.5,
    "p": 8.0,
    "lambda": 0.1,
    "lr": 0.03,
    "scale": 1.0,
    "loss": 0.9,
    "accuracy": 0.5,
    "above": 0.25,
    "between": 0.25,
    "below": 0.5,
}
TEST: dict[str, Any] = {
    "event": "test",
    "epoch": 2,
    "step": 4,
    "seconds": 0.5,
    "accuracy_at_p": 0.5,
    "clean": 0.5,
    "certified": {"0.1": 0.25},
}


def lines(*events: object) -> str:
    return "".join(json.dumps(event) + "\n" for event in events)


def test_whole_events_are_kept():
    kept = [EPOCH, {**EPOCH, "p": "inf"}, TEST, {"event": "resume", "step": 3}, {"event": "finish", "note": None}]
    assert parse_events(lines(*kept)) == kept


@pytest.mark.parametrize("event", [EPOCH, TEST], ids=["epoch", "test"])
def test_events_with_missing_values_or_values_of_another_type_are_left_out(event: dict[str, Any]):
    for key in event:
        without = {name: value for name, value in event.items() if name != key}
        assert parse_events(lines(without)) == ([without] if key == "step" else [])
        for wrong in (None, [1], {"a": "b"}):
            assert parse_events(lines({**event, key: wrong}, event)) == [event], (key, wrong)


def test_lines_that_are_no_event():
    assert parse_events('7\n[]\n{}\n{"event": 7}\n{"event": "epo') == []
    assert parse_events('{"event": "note", "v": NaN}\n{"event": "note", "v": [-Infinity]}\n') == []  # not JSON
    assert parse_events("[" * 100_000) == []


def test_a_log_that_was_cut_can_be_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = tmp_path / "run"
    settings = ["limit=100", "width=8", "depth=2", "epochs=[1, 1, 1]", "test_every=1"]
    assert main(["train", "digits", "--out", str(run), "--set", *settings]) == 0
    log = run / "events.jsonl"
    log.write_text(log.read_text() + lines({**TEST, "epoch": 3, "certified": {"0.7": 0.5}}) + '{"event": "epo')
    assert main(["plot", str(run)]) == 0
    assert main(["report", str(run)]) == 0
    assert record_run([str(run), "--out", str(tmp_path / "record.json")]) == 0
    assert main(["plot", str(tmp_path / "record.json")]) == 0
    packed = tmp_path / "record.events.jsonl.gz"
    whole = packed.read_bytes()
    for damaged in (whole[:-9], whole[:12] + b"x" * 40 + whole[52:], b"no archive", gzip.compress(b"no log")):
        packed.write_bytes(damaged)
        capsys.readouterr()
        assert main(["plot", str(tmp_path / "record.json")]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "event log" in line
