"""The scripts in examples/: short, and each ends with certified <= attacked <= clean."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import linfnet

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
LAST_LINE = re.compile(r"certified (\d\.\d{3}) <= attacked (\d\.\d{3}) <= clean (\d\.\d{3})")


def test_there_are_examples():
    assert "foolbox_attack" in {path.stem for path in EXAMPLES}


@pytest.mark.process
@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs(path: Path, tmp_path: Path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 40
    environment = os.environ | {"PYTHONPATH": str(Path(linfnet.__file__).parent.parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(path)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = LAST_LINE.fullmatch(done.stdout.splitlines()[-1])
    assert found, done.stdout
    certified, attacked, clean = map(float, found.groups())
    assert 0 < certified <= attacked <= clean <= 1
