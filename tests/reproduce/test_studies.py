"""The studies as data: published rows, scaled schedules, and invalid options."""

import pytest

from linfnet.errors import ArgumentError
from linfnet.recipes import load_recipe, recipe_names
from linfnet.reproduce import SMALL, STUDIES, Figures, table1_with
from linfnet.reproduce.studies import PAPER, TABLE1, scaled
from linfnet.systems import check_changes, system_of


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


# The rows of other methods in the paper's Table 1: clean, PGD and certified accuracy.
OTHERS = {
    "mnist-0.1-cap": (98.92, None, 96.33),
    "mnist-0.1-ibp-2018": (98.92, 97.98, 97.25),
    "mnist-0.1-crown-ibp": (98.83, 98.19, 97.76),
    "mnist-0.1-ibp-2021": (98.84, None, 97.95),
    "mnist-0.1-colt": (99.2, None, 97.1),
    "mnist-0.1-2021": (98.66, 97.79, 97.70),
    "mnist-0.3-ibp-2018": (97.88, 93.22, 91.79),
    "mnist-0.3-crown-ibp": (98.18, 93.95, 92.98),
    "mnist-0.3-ibp-2021": (97.67, None, 93.10),
    "mnist-0.3-colt": (97.3, None, 85.7),
    "mnist-0.3-hybrid": (98.56, 95.28, 93.09),
    "mnist-0.3-2021": (98.54, 94.71, 92.64),
    "cifar10-2-cap": (68.28, None, 53.89),
    "cifar10-2-ibp-2018": (61.46, 50.28, 44.79),
    "cifar10-2-crown-ibp": (71.52, 59.72, 53.97),
    "cifar10-2-ibp-2021": (66.84, None, 52.85),
    "cifar10-2-colt": (78.4, None, 60.5),
    "cifar10-2-smoothing": (78.8, None, 62.6),
    "cifar10-2-2021": (60.33, 51.45, 50.94),
    "cifar10-8-ibp-2018": (50.99, 31.27, 29.19),
    "cifar10-8-crown-ibp": (45.98, 34.58, 33.06),
    "cifar10-8-crown-ibp-bn": (46.29, 35.69, 33.38),
    "cifar10-8-ibp-2021": (48.94, None, 34.97),
    "cifar10-8-crown-lbp": (48.06, 37.95, 34.92),
    "cifar10-8-colt": (51.7, None, 27.5),
    "cifar10-8-smoothadv": (53.0, None, 24.0),
    "cifar10-8-consistency": (52.3, None, 25.2),
    "cifar10-8-hybrid": (50.80, 37.06, 35.42),
    "cifar10-8-2021": (56.80, 37.46, 33.30),
    "cifar10-16-ibp-2018": (31.03, 23.34, 21.88),
    "cifar10-16-crown-ibp": (33.94, 24.77, 23.20),
    "cifar10-16-ibp-2021": (36.65, None, 24.48),
    "cifar10-16-2021": (55.05, 26.02, 19.28),
}


def test_table1_with_all_systems_has_the_rows_of_the_paper():
    table, own = table1_with(["all"]), [cell.label for cell in STUDIES["table1"].cells]
    published = {cell.label: cell.paper for cell in table.cells}
    assert {label: published[label] for label in OTHERS} == {label: Figures(*row) for label, row in OTHERS.items()}
    assert [cell.label for cell in table.cells if cell.label in own] == own
    claimed = {name for name in recipe_names() if load_recipe(name).reported.source == PAPER}
    assert published.keys() == {*claimed, *own}


def test_rows_of_some_systems():
    labels = [cell.label for cell in table1_with(["cap", "crown-lbp"]).cells]
    assert [label for label in labels if label in OTHERS] == ["mnist-0.1-cap", "cifar10-2-cap", "cifar10-8-crown-lbp"]
    with pytest.raises(ArgumentError, match=r"--systems is 'ipb'; expected some of all, cap.*did you mean 'ibp'"):
        table1_with(["ipb"])
    with pytest.raises(ArgumentError, match="--systems is 'sortnet' without a row in the paper's table; expected some"):
        table1_with(["sortnet"])


@pytest.mark.parametrize("label", [cell.label for cell in table1_with(["all"]).cells if cell not in TABLE1.cells])
def test_small_runs_of_all_systems_are_small(label: str):
    """The changes of `--small` have an effect on the row's system, and the schedule is short."""
    recipe = load_recipe(label)
    options = SMALL.for_system(recipe.system_name)
    small = scaled(load_recipe(label, list(options.changes)), options.scale)
    check_changes(recipe, small)
    system_of(small)
    assert small.schedule.phases().total <= 40
    assert small.data.limit <= 10_000
    assert (options == SMALL) == (recipe.system_name == "linf")
    assert scaled(recipe, 1) == recipe
