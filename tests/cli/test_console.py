"""The progress of long commands whose output is not a terminal."""

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from linfnet.cli import console
from linfnet.cli.main import main

TINY = ["--set", "limit=100", "width=8", "depth=2", "epochs=[1, 1, 1]"]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines on standard error, one every few milliseconds."""
    printed: list[str] = []
    monkeypatch.setattr(console, "EVERY", 0.005)
    monkeypatch.setattr(console.errors, "print", printed.append)
    return printed


def _wait(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_a_line_is_repeated_until_the_end(lines: list[str], capsys: pytest.CaptureFixture[str]):
    with console.progress_bar("evaluating", 5000) as advance:
        _wait(lambda: "evaluating: 0 of 5,000 (0 s)" in lines)
        advance(500)
        advance(1000)
        _wait(lambda: "evaluating: 1,500 of 5,000 (0 s)" in lines)
    count = len(lines)
    time.sleep(0.05)
    assert len(lines) == count
    assert capsys.readouterr().out == ""


def test_a_status_is_shown_at_once_and_repeated(lines: list[str]):
    with console.status_line() as show:
        show("pgd")
        assert lines[0] == "pgd"
        _wait(lambda: "pgd (0 s)" in lines)


def test_other_processes_do_not_print_progress(lines: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(console.console, "quiet", True)
    with console.progress_bar("evaluating", 2):
        time.sleep(0.05)
    assert lines == []


def test_a_closed_pipe_does_not_end_the_command(lines: list[str], monkeypatch: pytest.MonkeyPatch):
    def broken(text: str) -> None:
        lines.append(text)
        raise BrokenPipeError

    monkeypatch.setattr(console.errors, "print", broken)
    with console.progress_bar("evaluating", 2) as advance:
        _wait(lambda: len(lines) == 1)
        advance(1)
    assert len(lines) == 1


def test_training_and_searches_print_their_progress(lines: list[str], tmp_path: Path):
    assert main(["train", "digits", "--out", str(tmp_path / "run"), *TINY, "width=256"]) == 0
    assert re.fullmatch(r"epoch    1/3  p 8 λ \S+ loss [\d.]+ acc [\d.]+ >θ [\d.]+ \(\d+ s\)", lines[0])
    lines.clear()
    assert main(["search", "digits", "--variant", "a", "--seeds", "0", "--out", str(tmp_path / "search"), *TINY]) == 0
    assert any(line.startswith("epochs: 0 of 3 (") for line in lines)
