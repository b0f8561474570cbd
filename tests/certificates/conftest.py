"""Fixtures shared by the tests of certificates."""

from collections.abc import Generator

import pytest

from linfnet import ops


@pytest.fixture(params=["default", "reference"])
def implementation(request: pytest.FixtureRequest) -> Generator[None]:
    """The default kernels, and the reference."""
    with ops.default_implementation(None if request.param == "default" else request.param):
        yield
