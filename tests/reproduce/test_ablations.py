"""The paper's ablation and sensitivity tables as literals, small runs of them, and their plots."""

import json
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from linfnet.cli.main import main
from linfnet.cli.reproduce import training_table
from linfnet.losses import CrossEntropy, Hinge, Mixture, ThresholdedCrossEntropy
from linfnet.recipes import load_recipe
from linfnet.reproduce import SMALL, STUDIES, Options, Outcome, RunOutcome
from linfnet.reproduce.plots import draw_study
from linfnet.results import read_results

EPS = Fraction(8, 255)


def published(name: str) -> dict[str, tuple[float | None, float | None]]:
    return {cell.label: (cell.paper.clean, cell.paper.certified) for cell in STUDIES[name].cells}


def test_the_five_objectives():
    cells = {cell.label: cell.build() for cell in STUDIES["ablation"].cells}
    assert {label: recipe.loss for label, recipe in cells.items()} == {
        "1-hinge": Hinge(theta=10 * EPS),
        "1-trained-as-2021": Hinge(theta=10 * EPS, max_share=0.75),
        "2-cross-entropy": CrossEntropy(fixed_scale=1.0),
        "3-with-threshold": ThresholdedCrossEntropy(theta=4 * EPS),
        "4-mixture-fixed": Mixture(theta=6 * EPS, mixing_start=0.02, mixing_end=0.02),
        "5-mixture-decaying": Mixture(theta=6 * EPS, mixing_start=0.1, mixing_end=5e-4),
        "clipped-hinge-alone": Mixture(theta=6 * EPS, mixing_start=0.0, mixing_end=0.0),
    }
    assert published("ablation") == {
        "1-hinge": (56.80, 33.30),
        "1-trained-as-2021": (56.80, 33.30),
        "2-cross-entropy": (55.58, 33.23),
        "3-with-threshold": (53.37, 34.91),
        "4-mixture-fixed": (53.51, 39.24),
        "5-mixture-decaying": (54.30, 40.06),
        "clipped-hinge-alone": (10.0, 10.0),
    }
    # All rows use the same training procedure, except the row that repeats the training of 2021.
    procedure = load_recipe("cifar10-8")
    for label, recipe in cells.items():
        expected = load_recipe("cifar10-8-2021") if label == "1-trained-as-2021" else procedure
        assert replace(recipe, loss=expected.loss) == expected, label


def test_the_fixed_mixing_coefficients():
    assert published("lambda") == {
        "lambda-0.1": (58.99, 37.67),
        "lambda-0.05": (56.50, 38.82),
        "lambda-0.02": (53.51, 39.24),
        "lambda-0.01": (50.48, 38.05),
        "lambda-0.005": (47.51, 37.03),
        "lambda-0": (10.0, 10.0),
    }
    deviations = [(0.35, 0.25), (0.25, 0.14), (0.40, 0.37), (1.83, 1.31), (5.03, 2.64), None]
    assert [cell.paper.deviation for cell in STUDIES["lambda"].cells] == deviations
    for cell in STUDIES["lambda"].cells:
        assert cell.build().loss == Mixture(mixing_start=cell.at, mixing_end=cell.at)


def test_the_thresholds():
    mixture = [cell for cell in STUDIES["theta"].cells if cell.line == "mixture"]
    hinge = [cell for cell in STUDIES["theta"].cells if cell.line == "hinge alone"]
    assert [cell.at for cell in mixture] == [cell.at for cell in hinge] == [3, 4, 5, 6, 7, 8, 9, 10]
    certified = [35.23, 38.47, 39.55, 40.06, 39.46, 39.05, 38.68, 38.31]
    assert [cell.paper.certified for cell in mixture] == certified
    train = [None, None, 48.03, 46.66, 45.42, 43.69, None, None]
    assert [cell.paper.certified_train for cell in mixture] == train
    assert [cell.build().loss for cell in mixture] == [Mixture(theta=k * EPS) for k in range(3, 11)]
    assert [cell.build().loss for cell in hinge] == [Hinge(theta=k * EPS, max_share=0.75) for k in range(3, 11)]
    assert (hinge[-1].paper.certified, hinge[-1].paper.above_theta) == (33.30, 1.62)
    assert all(cell.build().optimizer == load_recipe("cifar10-8-2021").optimizer for cell in hinge)


def test_the_grid():
    rows = {
        0.02: (39.47, 39.92, 39.80, 39.43, 39.79),
        0.05: (39.29, 39.50, 39.57, 39.97, 39.76),
        0.1: (39.96, 39.96, 40.06, 39.80, 39.49),
        0.2: (39.80, 39.42, 39.12, 39.22, 39.12),
    }
    expected = {
        (start, end): figure
        for start, row in rows.items()
        for end, figure in zip((1e-4, 2e-4, 5e-4, 1e-3, 2e-3), row, strict=True)
    }
    found = {}
    for cell in STUDIES["grid"].cells:
        loss = cell.build().loss
        assert isinstance(loss, Mixture)
        found[loss.mixing_start, loss.mixing_end] = cell.paper.certified
        assert (cell.line, cell.at) == (f"λ0 = {loss.mixing_start:g}", loss.mixing_end)
    assert found == expected


def test_the_budget_and_adam():
    epochs = {cell.build().schedule.epochs: cell.paper.certified for cell in STUDIES["budget"].cells}
    assert epochs == {(100, 1150, 50): 40.06, (100, 650, 50): 39.61}
    adam = {cell.label: cell.build().optimizer for cell in STUDIES["adam"].cells}
    settings = {label: (optimizer.beta2, optimizer.eps) for label, optimizer in adam.items()}
    assert settings == {
        "beta2-0.98": (0.98, 1e-10),
        "beta2-0.99-eps-1e-10": (0.99, 1e-10),
        "beta2-0.995": (0.995, 1e-10),
        "beta2-0.999": (0.999, 1e-10),
        "eps-1e-8": (0.99, 1e-8),
        "eps-1e-11": (0.99, 1e-11),
        "eps-1e-12": (0.99, 1e-12),
    }


@pytest.mark.parametrize("name", ["ablation", "lambda", "theta", "grid", "budget", "adam"])
def test_a_study_is_drawn_as_far_as_it_has_come(name: str, tmp_path: Path):
    study = STUDIES[name]
    runs = tuple(
        RunOutcome(cell.label, seed, 0.4, 0.3, 0.2 + 0.01 * seed, 0.2, 0.25, 0.1, 1.0, 1, "", None, "")
        for cell in study.cells[1:]
        for seed in (0, 1)
    )
    outcome = Outcome(study, replace(SMALL, steps=20), runs)
    assert outcome.differs.startswith("SMALL nets, not the paper's")
    draw_study(tmp_path / "study.png", outcome)
    from PIL import Image

    with Image.open(tmp_path / "study.png") as picture:
        assert picture.size[0] > 500
        assert len(set(picture.convert("L").resize((60, 60)).tobytes())) > 20  # not an empty page


def test_the_table_shows_ours_and_the_papers_in_eighty_columns(capsys: pytest.CaptureFixture[str]):
    from rich.console import Console

    study = STUDIES["lambda"]
    runs = tuple(
        RunOutcome("lambda-0.01", seed, clean, 0.3, 0.2, 0.2, 0.25, None, 1.0, 1, "", None, "")
        for seed, clean in enumerate((0.41, 0.45, 0.42))
    )
    Console(width=80).print(training_table(Outcome(study, Options(), runs)))
    rows = [re.split(r"\s*[│┃]\s*", line)[1:-1] for line in capsys.readouterr().out.splitlines()]
    assert ["lambda-0.01", "ours, 3", "42.00", "20.00", "25.00", ""] in rows
    assert ["", "range", "41.0–45.0", "20.0–20.0", "25.0–25.0", ""] in rows
    assert ["", "paper", "50.48±1.83", "38.05±1.31", "", ""] in rows
    assert ["lambda-0", "paper", "10.00", "10.00", "", ""] in rows


def test_a_small_study_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """Run an even smaller study, on digits: each run uses the preset and the changes of `--set`."""
    monkeypatch.chdir(tmp_path)
    tiny = ["data.name=digits", "width=8", "data.limit=60", "data.flip=false", "batch=64"]
    assert main(["reproduce", "budget", "--small", "--limit", "20", "--steps", "2", "--set", *tiny]) == 0
    printed = capsys.readouterr().out
    assert "SMALL nets" in printed
    out = tmp_path / "runs" / "reproduce" / "budget-small"
    assert (out / "budget.png").is_file()
    found = json.loads((out / "outcome.json").read_text())
    assert found["small"] is True
    assert found["scale"] == SMALL.scale
    long, short = (cell["runs"][0] for cell in found["cells"])
    assert (long["epochs"], short["epochs"]) == (3 + 34 + 2, 3 + 20 + 2)
    training = read_results(Path(long["folder"])).training
    assert training is not None
    assert training.train is not None
    assert long["certified_train"] == training.train.certified[EPS]
    assert long["above_theta"] == training.train.above
    assert training.train.above + training.train.between + training.train.below == pytest.approx(1.0)
