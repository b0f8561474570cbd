"""Shared by all tests: hypothesis settings, poisoned memory, the choice of kernels, markers of expensive tests."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from browser import browser, open_page  # noqa: F401
from hypothesis import settings

from linfnet.ops import default_implementation, names

settings.register_profile("suite", max_examples=25, deadline=None, derandomize=True)
settings.load_profile("suite")

# The suite runs one process per core: more threads would only wait for each other. Tests of threads set their own.
torch.set_num_threads(1)

TESTS = Path(__file__).parent
# Markers that `make test-fast` leaves out: by fixture, and by the beginning of a test's name. Tests may also carry one.
MARKERS_BY_FIXTURE = {"browser": "browser", "processes": "process", "libraries": "emulator", "tools": "process"}
MARKERS_BY_NAME = {
    "attacks/test_attacks.py::test_best_iterates": "slow",
    "certificates/test_soundness.py::test_the_campaign": "slow",
    "cli/test_demo.py": "slow",
    "cli/test_plot.py": "slow",
    "distributed/test_group.py": "process",
    "nn/test_net.py::test_training_compiles_once": "slow",
    "ops/test_cuda_emulated.py": "emulator",
    "ops/test_simt.py": "emulator",
    "serve/test_abuse.py": "process",
    "systems/test_systems.py::TestCommands": "slow",
    "test_extending.py": "slow",
    "theory/test_separation.py::test_real_digits": "slow",
    "train/test_cuda_graphs.py::test_the_trainer": "slow",
    "train/test_events.py::test_a_log_that_was_cut": "slow",
    "train/test_faults.py": "process",
    "train/test_loop.py::test_every_objective": "slow",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--impl", choices=names(), default=None, help="run the suite with this implementation preferred")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that start processes, a browser or the emulator."""
    for item in items:
        fixtures: list[str] = getattr(item, "fixturenames", [])
        marks = {mark for fixture, mark in MARKERS_BY_FIXTURE.items() if fixture in fixtures}
        if item.path.is_relative_to(TESTS):
            name = item.path.relative_to(TESTS).as_posix() + item.nodeid.removeprefix(item.nodeid.split("::")[0])
            marks |= {mark for start, mark in MARKERS_BY_NAME.items() if name.startswith(start)}
        for mark in marks:
            item.add_marker(mark)


@pytest.fixture(autouse=True)
def _marked_if_it_starts_processes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test without a marker fail when it starts a process other than git, which each run folder needs."""
    if any(request.node.get_closest_marker(mark) for mark in ("process", "browser", "emulator", "gpu")):
        return
    start = subprocess.Popen.__init__

    def checked(self: Any, args: Any, *rest: Any, **options: Any) -> None:
        program = args if isinstance(args, str) else next(iter(args))
        assert Path(program).name == "git", f"a test that starts {program} needs @pytest.mark.process"
        start(self, args, *rest, **options)

    monkeypatch.setattr(subprocess.Popen, "__init__", checked)


@pytest.fixture(autouse=True)
def _preferred_implementation(request: pytest.FixtureRequest) -> Iterator[None]:
    with default_implementation(request.config.getoption("--impl")):
        yield


@pytest.fixture(autouse=True)
def _poisoned_memory() -> Iterator[None]:
    """Fill fresh memory with NaN, so that an element that is never written shows in the result."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="session")
def processes(request: pytest.FixtureRequest) -> None:
    """For tests that start processes: these choose their implementation themselves, so --impl has no effect."""
    if request.config.getoption("--impl") is not None:
        pytest.skip("the processes it starts do not follow --impl")
