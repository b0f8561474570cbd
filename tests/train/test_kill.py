"""A run that is killed at any moment loses only the steps since its last checkpoint."""

import signal
import subprocess
import sys
import time
from pathlib import Path

from safetensors.torch import load_file

SETTINGS = [
    "--set",
    "limit=300",
    "width=48",
    "depth=3",
    "epochs=[2, 8, 2]",
    "batch=32",
    "checkpoint_every=1",
    "test_every=0",
]


def linfnet(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "linfnet", *arguments]


def test_kill_and_resume_repeats_every_bit(tmp_path: Path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run(linfnet("train", "digits", "--out", str(whole), *SETTINGS), check=True, capture_output=True)

    process = subprocess.Popen(linfnet("train", "digits", "--out", str(killed), *SETTINGS), stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list(killed.glob("checkpoints/step-*.safetensors")):
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (killed / "model.safetensors").exists()

    done = subprocess.run(linfnet("train", "--resume", str(killed)), capture_output=True, text=True, check=True)
    assert "resuming at step" in done.stdout
    expected, got = load_file(whole / "model.safetensors"), load_file(killed / "model.safetensors")
    assert expected.keys() == got.keys()
    for name, tensor in expected.items():
        assert tensor.numpy().tobytes() == got[name].numpy().tobytes(), name
