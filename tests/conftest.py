"""Shared by all tests: hypothesis without surprises, tensors that start as NaN."""

from collections.abc import Iterator

import pytest
import torch
from browser import browser, open_page  # noqa: F401
from hypothesis import settings

from linfnet.ops import default_implementation, names

settings.register_profile("suite", max_examples=25, deadline=None, derandomize=True)
settings.load_profile("suite")

# The suite runs one process per core: more threads would only wait for each other. Tests of threads set their own.
torch.set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--impl", choices=names(), default=None, help="run the suite with this implementation preferred")


@pytest.fixture(autouse=True)
def _preferred_implementation(request: pytest.FixtureRequest) -> Iterator[None]:
    with default_implementation(request.config.getoption("--impl")):
        yield


@pytest.fixture(autouse=True)
def _poisoned_memory() -> Iterator[None]:
    """Fresh memory holds NaN, so that an element nobody wrote is seen."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="session")
def processes(request: pytest.FixtureRequest) -> None:
    """For tests that start processes: those choose their own implementation, so a pass with another shows nothing."""
    if request.config.getoption("--impl") is not None:
        pytest.skip("the processes it starts do not follow --impl")
