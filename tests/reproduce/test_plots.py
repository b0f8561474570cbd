"""The authors' learning curve and the hardware of a run."""

import pytest

from linfnet.recipes import load_recipe
from linfnet.reproduce.outcome import hardware_of
from linfnet.reproduce.plots import AUTHORS_CURVE, comparable_epochs


def test_the_hardware_is_what_was_used():
    assert hardware_of({"cpu": "C", "gpu": "G"}, "cuda", []) == "G"
    assert hardware_of({"cpu": "C", "gpu": "G"}, "cpu", []) == "C"
    assert hardware_of({"cpu": "C", "gpu": None}, "", []) == "C"


def test_the_authors_curve_is_compared_where_it_may_be():
    assert comparable_epochs(load_recipe("cifar10-8")) == 1300
    assert comparable_epochs(load_recipe("cifar10-8", ["snap_p=true"])) == 1300
    assert comparable_epochs(load_recipe("cifar10-8", ["schedule.epochs=[10, 110, 5]"])) == 10
    assert comparable_epochs(load_recipe("cifar10-8", ["schedule.epochs=[4, 42, 3]"])) == 0
    assert comparable_epochs(load_recipe("cifar10-8", ["lr=0.02"])) == 0
    assert comparable_epochs(load_recipe("cifar10-16")) == 0
    assert comparable_epochs(load_recipe("cifar10-8", ["system.name=hybrid"])) == 0
    # p of the schedule at these epochs, to the number of digits in the log
    from linfnet.train import step_state

    recipe = load_recipe("cifar10-8")
    for point in AUTHORS_CURVE:
        assert step_state(recipe, point.epoch * 98 - 1, 98).p == pytest.approx(point.p, rel=0.006)
