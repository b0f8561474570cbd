"""A folder with runs, and a function that checks that a command fails with one line and changes nothing."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from linfnet.cli.main import main

TINY = ["--set", "limit=100", "width=8", "depth=2", "epochs=[1, 1, 1]", "checkpoint_every=1", "test_every=0"]


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "run"
    assert main(["train", "digits", "--out", str(run), *TINY]) == 0
    return run


@pytest.fixture
def place(tmp_path: Path, finished_run: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a finished run, a stopped run and an empty cache, in which commands are run."""
    shutil.copytree(finished_run, tmp_path / "run")
    shutil.copytree(finished_run, tmp_path / "stopped")
    for name in ("model.safetensors", "config.json", "results.json"):
        (tmp_path / "stopped" / name).unlink()
    (tmp_path / "cache").mkdir()
    monkeypatch.setenv("LINFNET_DATA", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def snapshot(folder: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


@pytest.fixture
def refused(place: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run(*arguments: str) -> str:
        before = snapshot(place)
        capsys.readouterr()
        try:
            code = main(list(arguments))
        except SystemExit as stop:
            code = stop.code
        assert code == 2
        lines = capsys.readouterr().err.strip().splitlines()
        assert len(lines) == 1, lines
        assert lines[0].startswith("error: ")
        assert snapshot(place) == before
        return lines[0]

    return run
