"""Plots of runs, the authors' learning curve, and the hardware of a run."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from linfnet.recipes import Recipe, load_recipe
from linfnet.reproduce import plots
from linfnet.reproduce.outcome import hardware_of
from linfnet.reproduce.plots import AUTHORS_CURVE, comparable_epochs


def test_the_hardware_is_what_was_used():
    assert hardware_of({"cpu": "C", "gpu": "G"}, "cuda", []) == "G"
    assert hardware_of({"cpu": "C", "gpu": "G"}, "cpu", []) == "C"
    assert hardware_of({"cpu": "C", "gpu": None}, "", []) == "C"


def test_the_authors_curve_is_compared_where_it_may_be():
    assert comparable_epochs(load_recipe("cifar10-8")) == 1300
    assert comparable_epochs(load_recipe("cifar10-8", ["snap_p=false"])) == 1300
    assert comparable_epochs(load_recipe("cifar10-8", ["schedule.epochs=[10, 110, 5]"])) == 10
    assert comparable_epochs(load_recipe("cifar10-8", ["schedule.epochs=[4, 42, 3]"])) == 0
    assert comparable_epochs(load_recipe("cifar10-8", ["lr=0.02"])) == 0
    assert comparable_epochs(load_recipe("cifar10-16")) == 0
    assert comparable_epochs(load_recipe("cifar10-8", ["system.name=hybrid"])) == 0
    # p of the schedule at these epochs, to the number of digits in the log
    from linfnet.train import step_state

    recipe = load_recipe("cifar10-8", ["snap_p=false"])
    for point in AUTHORS_CURVE:
        assert step_state(recipe, point.epoch * 98 - 1, 98).p == pytest.approx(point.p, rel=0.006)


def events(**certified: float) -> list[dict[str, Any]]:
    """Return the events of a run of three epochs."""
    shares = {"above": 0.5, "between": 0.3, "below": 0.2}
    epochs: list[dict[str, Any]] = [
        {"event": "epoch", "epoch": k, "p": 8.0, "loss": 1 / k, "accuracy": 0.5, **shares} for k in (1, 2, 3)
    ]
    return [*epochs, {"event": "test", "epoch": 3, "clean": 0.5, "certified": certified}]


def drawn(monkeypatch: pytest.MonkeyPatch, recipe: Recipe, **certified: float) -> Figure:
    kept: list[Figure] = []

    def keep(figure: Figure, path: Path) -> None:
        kept.append(figure)

    monkeypatch.setattr(plots, "save_figure", keep)
    plots.draw_run(Path("x.png"), recipe, events(**certified))
    return kept[0]


def test_the_title_names_the_data_and_epsilon_of_the_run(monkeypatch: pytest.MonkeyPatch):
    recipe = load_recipe("mnist-0.1", ["data.name=fashion-mnist", "evaluation.eps=['0.2']"])
    assert drawn(monkeypatch, recipe).get_suptitle() == "Fashion-MNIST at ε = 0.2"


def test_the_authors_run_is_not_drawn_for_other_data(monkeypatch: pytest.MonkeyPatch):
    for changes, expected in (([], True), (["data.name=mnist"], False)):
        figure = drawn(monkeypatch, load_recipe("cifar10-8", changes))
        assert ("the authors' run" in [line.get_label() for line in figure.axes[1].lines]) == expected


def test_the_legend_names_only_visible_lines(monkeypatch: pytest.MonkeyPatch):
    figure = drawn(monkeypatch, load_recipe("digits"), **{"0.1": 0.4})
    accuracies = figure.axes[2]
    legend = accuracies.get_legend()
    assert legend is not None
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["training", "test at p = ∞", "certified at ε = 0.1"]  # no test had an accuracy at p
    figure.draw_without_rendering()
    assert all(tick == round(tick) for tick in accuracies.get_xticks())
