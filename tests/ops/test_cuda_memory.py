"""Every CUDA kernel under NVIDIA's memory checker, on a GPU."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.skipif(shutil.which("compute-sanitizer") is None, reason="no compute-sanitizer"),
]

EVERY_PATH = """
import torch
from kernel_steps import every_path
from sparse_cases import every_sparse_path
from linfnet.ops.cuda import Cuda
from linfnet.ops.cuda.nvrtc import Launcher
with torch.device("cuda"):
    every_path(Cuda())
every_sparse_path(Launcher(), "cuda")
torch.cuda.synchronize()
print("every path ran")
"""

BEYOND_THE_END = """
import torch
from linfnet.ops.cuda import Cuda
x, w = torch.randn(64, 256, device="cuda"), torch.randn(32, 256, device="cuda")
x.untyped_storage().resize_(4)
Cuda().forward(x, w, 12.0)
torch.cuda.synchronize()
"""


def checked(program: str) -> subprocess.CompletedProcess[str]:
    """Run with a separate allocation for every tensor, so that accesses beyond its end are detected."""
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PYTHONPATH": paths}
    command = ["compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "9", sys.executable, "-c", program]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_all_kernels_are_clean_under_the_memory_checker() -> None:
    done = checked(EVERY_PATH)
    assert "every path ran" in done.stdout, done.stderr
    assert done.returncode == 0, done.stdout
    assert "ERROR SUMMARY: 0 errors" in done.stdout


def test_the_memory_checker_detects_a_read_beyond_the_end() -> None:
    done = checked(BEYOND_THE_END)
    assert done.returncode != 0
    assert "Invalid __global__ read" in done.stdout
