"""Fixtures shared by the tests of the operations."""

import os
from pathlib import Path

import pytest
import torch
from simt import Emulator, needs_compiler

from linfnet.ops.cuda.nvrtc import Launcher

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of compiled kernels, which all processes of a test run share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "emulated-kernels"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(params=["emulated", pytest.param("gpu", marks=[pytest.mark.gpu, needs_gpu])])
def device(request: pytest.FixtureRequest) -> str:
    """Return the device of the tensors: the CPU if the kernels are emulated."""
    return "cpu" if request.param == "emulated" else "cuda"


@pytest.fixture
def launcher(device: str, libraries: Path) -> Launcher:
    """Return what runs CUDA kernels on the device."""
    if device == "cpu" and needs_compiler.args[0]:
        pytest.skip(needs_compiler.kwargs["reason"])
    return Emulator(libraries) if device == "cpu" else Launcher()
