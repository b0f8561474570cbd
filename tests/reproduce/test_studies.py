"""The studies as data: published rows, scaled schedules, and invalid options."""

import pytest

from linfnet.errors import ArgumentError
from linfnet.recipes import load_recipe
from linfnet.reproduce import STUDIES, Figures
from linfnet.reproduce.studies import scaled


def test_table1_has_the_published_rows():
    table = STUDIES["table1"]
    assert [cell.label for cell in table.cells] == ["mnist-0.1", "mnist-0.3", "cifar10-2", "cifar10-8", "cifar10-16"]
    for cell in table.cells:
        reported = load_recipe(cell.recipe).reported
        assert cell.paper == Figures(reported.clean, reported.pgd, reported.certified)
        assert cell.build() == load_recipe(cell.recipe)
    assert table.rows(("cifar10-8",))[0].log == Figures(54.21, 42.28, 40.13)


@pytest.mark.parametrize(
    ("scale", "epochs"), [(1, (100, 1150, 50)), (0.5, (50, 575, 25)), (0.1, (10, 115, 5)), (0.001, (1, 1, 1))]
)
def test_a_scale_shortens_all_three_phases(scale: float, epochs: tuple[int, int, int]):
    recipe = load_recipe("cifar10-8")
    short = scaled(recipe, scale)
    assert short.schedule.epochs == epochs
    assert short.loss == recipe.loss
    assert short.optimizer == recipe.optimizer


def test_a_phase_that_is_not_there_stays_away():
    assert scaled(load_recipe("digits", ["epochs=[0, 40, 0]"]), 0.01).schedule.epochs == (0, 1, 0)


def test_mistakes_are_named():
    with pytest.raises(ArgumentError, match="--scale is 2; expected a number above 0, at most 1"):
        scaled(load_recipe("digits"), 2)
    with pytest.raises(ArgumentError, match=r"--row is 'cifar'; table1 has mnist-0\.1, "):
        STUDIES["table1"].rows(("cifar",))


def test_labels_are_names_of_folders_all_different():
    for study in STUDIES.values():
        labels = [cell.label for cell in study.cells]
        assert len(set(labels)) == len(labels)
        assert not any("/" in label for label in labels)
