"""Fixtures: an evaluated run, and a run that was only trained."""

import shutil
from pathlib import Path

import pytest

from linfnet.cli.main import main

TINY = ["--set", "limit=400", "width=24", "depth=3", "epochs=[4, 4, 2]", "batch=32", "test_every=2"]
EPSILONS = ("0.02", "8/255", "0.1", "0.25")


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report") / "trained"
    assert main(["train", "digits", "--out", str(folder), *TINY]) == 0
    return folder


@pytest.fixture(scope="session")
def evaluated(trained: Path) -> Path:
    folder = trained.parent / "evaluated"
    shutil.copytree(trained, folder)
    assert main(["evaluate", str(folder), "--steps", "10", "--eps", *EPSILONS]) == 0
    return folder


@pytest.fixture(scope="session")
def report(evaluated: Path) -> Path:
    assert main(["report", str(evaluated)]) == 0
    return evaluated / "report.html"
