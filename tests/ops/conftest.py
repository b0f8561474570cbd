"""Fixtures shared by the tests of the operations."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of compiled kernels, which all processes of a test run share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "emulated-kernels"
    folder.mkdir(exist_ok=True)
    return folder
