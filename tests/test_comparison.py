"""`linfnet compare` shows the results of runs, and what their certificates guarantee."""

import csv
import io
import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from linfnet import LinfNet
from linfnet.cli.main import main
from linfnet.comparison import compare_runs
from linfnet.results import Accuracies, Result, TrainingResult, add_evaluations, write_training
from linfnet.systems.hybrid import HybridNet

TRAINING = TrainingResult(
    Accuracies(0.9, {Fraction(1, 10): 0.5, Fraction(3, 10): 0.25}), None, 10, seconds=12.3, seed=0, parameters=1234
)
OURS = Result(
    data="mnist",
    split="test",
    count=10,
    eps=Fraction(1, 10),
    clean=0.9,
    attacked=0.8,
    certified={"margin": 0.6, "interval": 0.7},
    certify_seconds={"margin": 1e-4, "interval": 2e-4},
)


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    LinfNet((1, 2, 2), 2).save(ours)
    equal = replace(OURS, eps=Fraction(1, 7), limit=5, certified={"margin": 0.7, "interval": 0.7})
    add_evaluations(ours, (OURS, equal))
    HybridNet((1, 2, 2), 2, (3,), 4).save(theirs)
    for folder in (ours, theirs):
        write_training(folder, TRAINING)
    return [ours, theirs]


def test_the_best_certificate_is_shown_with_its_price(folders: list[Path]):
    first, second, *rest = compare_runs(folders)
    assert (first.system, first.images, first.eps) == ("linf", "mnist-test", "0.1")
    assert (first.clean, first.attacked, first.certified) == (0.9, 0.8, 0.7)
    assert (first.certificate, first.arithmetic, first.certify_seconds_per_image) == ("interval", "float32", 2e-4)
    assert (first.train_seconds, first.parameters) == (12.3, 1234)
    assert (second.eps, second.certificate, second.certify_seconds_per_image) == ("1/7", "margin", 1e-4)
    assert [(row.system, row.eps, row.certified, row.attacked, row.arithmetic) for row in rest] == [
        ("hybrid", "0.1", 0.5, None, "real"),
        ("hybrid", "0.3", 0.25, None, "real"),
    ]


def test_the_table_json_and_csv_agree(folders: list[Path], capsys: pytest.CaptureFixture[str]):
    names = list(map(str, folders))
    assert main(["compare", *names]) == 0
    shown = capsys.readouterr().out
    for word in ("ours", "theirs", "hybrid", "80.00", "70.00", "interval float32", "0.0002", "1,234"):
        assert word in shown
    assert main(["compare", *names, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert main(["compare", *names, "--csv"]) == 0
    table = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["certified"] for row in rows] == [0.7, 0.7, 0.5, 0.25]
    assert [float(row["certified"]) for row in table] == [0.7, 0.7, 0.5, 0.25]
    assert list(table[0]) == list(rows[0])


def test_runs_of_the_same_name_are_told_apart(folders: list[Path], monkeypatch: pytest.MonkeyPatch):
    ours, theirs = folders
    for folder, cell in ((ours, "hinge"), (theirs, "mixture")):
        (folder.parent / cell).mkdir()
        folder.rename(folder.parent / cell / "seed-0")
    monkeypatch.chdir(ours.parent / "hinge" / "seed-0")
    rows = compare_runs([Path(), Path("../../mixture/seed-0")])
    assert [row.run for row in rows] == [".", ".", *2 * ["../../mixture/seed-0"]]
    assert [row.run for row in compare_runs([Path()])] == ["seed-0", "seed-0"]


def test_mistakes_are_one_line(folders: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    LinfNet((1, 2, 2), 2).save(tmp_path / "bare")
    for arguments, complaint in (
        ([], "no run is given"),
        ([str(tmp_path / "nowhere")], "is not a folder"),
        ([str(tmp_path / "bare")], "has no results; evaluate it: linfnet evaluate"),
        ([str(folders[0]), "--json", "--csv"], "cannot be combined"),
    ):
        assert main(["compare", *arguments]) == 2
        assert complaint in capsys.readouterr().err


def test_another_net_has_no_cost_of_the_trained_one(folders: list[Path]):
    add_evaluations(folders[0], (replace(OURS, net="nearest-neighbour"),))
    *own, other = compare_runs(folders[:1] * 2)  # a run that is given twice is shown once
    assert all((row.train_seconds, row.parameters) == (12.3, 1234) for row in own)
    assert other.images == "nearest-neighbour mnist-test"
    assert (other.system, other.train_seconds, other.parameters) == ("", None, None)
    assert other.certify_seconds_per_image == 2e-4


def test_the_parameters_of_a_model_without_a_training_are_counted(tmp_path: Path):
    net = LinfNet((1, 2, 2), 2, (3,))
    net.save(tmp_path)
    add_evaluations(tmp_path, (OURS,))
    (row,) = compare_runs([tmp_path])
    assert (row.train_seconds, row.parameters) == (None, sum(part.numel() for part in net.parameters()))
