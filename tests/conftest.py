"""Settings of all tests: hypothesis profile, NaN in uninitialised memory, choice of kernels, markers of slow tests."""

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

# The suite runs one process per core, so more threads would only slow it down. Tests of threads set their number.
torch.set_num_threads(1)

TESTS = Path(__file__).parent
# `make test-fast` leaves out tests with these markers. They are set here by fixture and by the start of a test's name,
# or by a decorator at the test.
MARKERS_BY_FIXTURE = {"browser": "browser", "processes": "process", "package_tools": "process", "libraries": "emulator"}
MARKERS_BY_NAME = {
    "attacks/test_attacks.py::test_best_iterates": "slow",
    "attacks/test_attacks.py::test_results_are_in_the_ball": "slow",
    "certificates/test_images.py::test_the_curve": "slow",
    "certificates/test_rounding.py::test_compiled_nets": "slow",
    "certificates/test_soundness.py::test_the_campaign": "slow",
    "cli/test_demo.py": "slow",
    "cli/test_report.py::test_a_figure": "slow",
    "cli/test_theory.py::test_lipschitz": "slow",
    "distributed/test_group.py": "process",
    "nn/test_net.py::test_training_compiles_once": "slow",
    "ops/test_cpu.py::test_compiles": "slow",
    "ops/test_cpu.py::test_opcheck": "slow",
    "ops/test_cuda_emulated.py": "emulator",
    "ops/test_cuda_launches.py::test_what_is_saved": "slow",
    "ops/test_lp_distance.py::test_compiles": "slow",
    "ops/test_lp_distance.py::test_opcheck": "slow",
    "ops/test_simt.py": "emulator",
    "ops/test_sparse.py::test_compiles": "slow",
    "ops/test_sparse.py::test_opcheck": "slow",
    "reproduce/test_ablations.py::test_a_study_is_drawn": "slow",
    "reproduce/test_runner.py": "slow",
    "serve/test_abuse.py": "process",
    "serve/test_api.py::test_nets_of_other_systems": "slow",
    "systems/test_systems.py::TestCommands": "slow",
    "test_extending.py": "slow",
    "theory/test_separation.py::test_real_digits": "slow",
    "train/test_cuda_graphs.py::test_the_trainer": "slow",
    "train/test_events.py::test_a_log_that_was_cut": "slow",
    "train/test_faults.py": "process",
    "train/test_loop.py::test_every_objective": "slow",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--impl", choices=names(), default=None, help="run the tests with this implementation")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that are slow or that start processes, a browser or the emulator."""
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
    """Make a test fail if it starts a process without a marker; git and uname (for environment()) are allowed."""
    if any(request.node.get_closest_marker(mark) for mark in ("process", "browser", "emulator", "gpu")):
        return
    start = subprocess.Popen.__init__

    def checked(self: Any, args: Any, *rest: Any, **options: Any) -> None:
        program = args if isinstance(args, str) else next(iter(args))
        assert Path(program).name in ("git", "uname"), f"a test that starts {program} needs @pytest.mark.process"
        start(self, args, *rest, **options)

    monkeypatch.setattr(subprocess.Popen, "__init__", checked)


@pytest.fixture(autouse=True, scope="session")  # so that fixtures of the session use it, too
def _preferred_implementation(request: pytest.FixtureRequest) -> Iterator[None]:
    with default_implementation(request.config.getoption("--impl")):
        yield


@pytest.fixture(autouse=True)
def _poisoned_memory() -> Iterator[None]:
    """Fill uninitialised memory with NaN, so that an element that is never written is visible in the result."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="session")
def processes(request: pytest.FixtureRequest) -> None:
    """Skip tests that start processes if --impl is given: the processes choose their implementation themselves."""
    if request.config.getoption("--impl") is not None:
        pytest.skip("the processes that this test starts ignore --impl")
