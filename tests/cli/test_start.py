"""The entry point of the command: what it sets before torch is imported, and an interrupt during the import."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import linfnet.cli.main
from linfnet.cli.start import WAIT_SETTINGS

pytestmark = pytest.mark.process

# In place of torch: print the variable and wait.
FAKE_TORCH = """
import os, time
print(os.environ.get("OMP_WAIT_POLICY"), flush=True)
time.sleep(60)
"""


def start(folder: Path, **variables: str) -> subprocess.Popen[str]:
    """Start the command in a process in which `import torch` waits."""
    (folder / "torch").mkdir(exist_ok=True)
    (folder / "torch" / "__init__.py").write_text(FAKE_TORCH)
    environment = {key: value for key, value in os.environ.items() if key not in WAIT_SETTINGS} | variables
    environment["PYTHONPATH"] = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "linfnet", "recipes"]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_an_interrupt_during_the_import_prints_no_traceback(tmp_path: Path) -> None:
    with start(tmp_path) as process:
        assert first_line(process) == "passive"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60)[1] == "interrupted\n"
    assert process.returncode == 130


@pytest.mark.parametrize(
    ("name", "value", "seen"),
    [("OMP_WAIT_POLICY", "active", "active"), ("GOMP_SPINCOUNT", "7", "None"), ("KMP_BLOCKTIME", "1", "None")],
)
def test_the_wait_policy_of_the_user_is_kept(tmp_path: Path, name: str, value: str, seen: str) -> None:
    with start(tmp_path, **{name: value}) as process:
        assert first_line(process) == seen
        process.kill()


def test_the_library_leaves_the_environment_as_it_is() -> None:
    script = """
import os, torch
before = dict(os.environ)
import linfnet
linfnet.lp_distance(torch.rand(200, 200), torch.rand(200, 200), 8.0)
assert dict(os.environ) == before
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("cause", [KeyboardInterrupt(), None])
def test_an_interrupt_that_an_import_replaced_is_an_interrupt(
    cause: KeyboardInterrupt | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def fail(arguments: list[str]) -> int:
        raise RuntimeError("Error calling __set_name__") from cause

    monkeypatch.setattr("linfnet.cli.main._run", fail)
    if cause is None:
        with pytest.raises(RuntimeError):
            linfnet.cli.main.main(["recipes"])
    else:
        assert linfnet.cli.main.main(["recipes"]) == 130
        assert capsys.readouterr().err == "interrupted\n"


def test_a_closed_pipe_is_no_error():
    command = [sys.executable, "-m", "linfnet", "predict", "--help"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0
