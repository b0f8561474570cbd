"""Tables of named losses, systems, attacks and kernels."""

import pytest

from linfnet.errors import ArgumentError
from linfnet.registry import Registry


@pytest.fixture
def shapes() -> Registry[type]:
    registry: Registry[type] = Registry("shape")
    registry.register("square")(int)
    registry.register("circle")(float)
    return registry


def test_names_are_sorted_and_iteration_has_the_order_of_registration(shapes: Registry[type]):
    assert shapes.names() == ("circle", "square")
    assert list(shapes) == ["square", "circle"]
    assert "circle" in shapes
    assert "triangle" not in shapes


def test_the_decorator_returns_what_it_registers(shapes: Registry[type]):
    @shapes.register("triangle")
    class Triangle: ...

    assert shapes["triangle"] is Triangle
    assert shapes.name_of(Triangle) == "triangle"


def test_a_name_can_be_registered_only_once(shapes: Registry[type]):
    with pytest.raises(ArgumentError, match=r"shape 'circle' is already registered as .*float"):
        shapes.register("circle")(str)
    assert shapes["circle"] is float


def test_an_unknown_name_lists_the_names_and_suggests_one(shapes: Registry[type]):
    with pytest.raises(ArgumentError, match=r"shape is 'circel'; \w+ one of circle, square; did you mean 'circle'\?"):
        shapes["circel"]
    with pytest.raises(ArgumentError, match=r"one of circle, square \(import your own module first"):
        shapes["xyz"]


def test_an_entry_that_is_not_registered_has_no_name(shapes: Registry[type]):
    with pytest.raises(ArgumentError, match="is not registered"):
        shapes.name_of(str)
