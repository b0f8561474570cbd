"""A study keeps finished runs, resumes interrupted ones, and reports what it did."""

import csv
import errno
import io
import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from linfnet.cli.main import main
from linfnet.cli.reproduce import Reproduce, outcome_table
from linfnet.errors import LinfnetError
from linfnet.reproduce import STUDIES, Cell, Figures, Options, Outcome, RunOutcome, Study, runner, spreads, table1_with
from linfnet.reproduce.outcome import SMALL_NETS
from linfnet.reproduce.runner import plan
from linfnet.results import read_results, results_to_json, write_training

SMALL = ("limit=100", "width=8", "depth=2", "epochs=[2, 4, 2]", "test_every=0")
STUDY = Study(
    "tiny",
    "two tiny nets",
    (Cell("narrow", "digits", SMALL, Figures(90.0, None, 80.0)), Cell("wide", "digits", (*SMALL, "width=12"))),
)


@pytest.fixture(autouse=True)
def _tiny_study(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(STUDIES, "tiny", STUDY)
    monkeypatch.chdir(tmp_path)


def reproduce(*arguments: str) -> int:
    return main(["reproduce", "tiny", "--out", "out", "--limit", "50", "--steps", "3", *arguments])


def stamps(folder: str) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in Path(folder).rglob("seed-*/*") if path.is_file()}


def test_a_study_is_run_once_and_kept(capsys: pytest.CaptureFixture[str]):
    assert reproduce("--row", "narrow") == 0
    first = stamps("out/narrow")
    assert reproduce("--seeds", "2") == 0
    printed = capsys.readouterr().out
    assert "1/4 narrow, seed 0: already finished\n" in printed
    assert "4/4 wide, seed 1: trained, evaluated" in printed
    assert "paper" in printed
    assert "90.00" in printed
    assert {path: stamp for path, stamp in stamps("out/narrow").items() if path in first} == first
    outcome = json.loads(Path("out/outcome.json").read_text())
    assert outcome["differs"] == "first 50 test images; PGD-3"
    narrow, wide = outcome["cells"]
    assert [run["seed"] for run in wide["runs"]] == [0, 1]
    shares = sorted(run["clean"] for run in narrow["runs"])
    assert narrow["spread"]["clean"] == {"median": sum(shares) / 2, "lowest": shares[0], "highest": shares[1]}
    with Path("out/outcome.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["label"], row["seed"]) for row in rows] == [
        ("narrow", "0"),
        ("wide", "0"),
        ("narrow", "1"),
        ("wide", "1"),
    ]
    assert all(float(row["certified_margin"]) <= float(row["pgd"]) <= float(row["clean"]) for row in rows)


def rows_of_outcome() -> list[tuple[str, int]]:
    cells = json.loads(Path("out/outcome.json").read_text())["cells"]
    return [(cell["label"], len(cell["runs"])) for cell in cells]


def test_finished_rows_stay_when_others_are_asked_for(capsys: pytest.CaptureFixture[str]):
    assert reproduce("--row", "wide", "--seeds", "2") == 0
    capsys.readouterr()
    assert reproduce("--row", "narrow") == 0
    assert "wide" in capsys.readouterr().out
    assert rows_of_outcome() == [("narrow", 1), ("wide", 2)]
    # The table excludes runs with other settings and runs that were evaluated differently.
    Path("out/wide/seed-0/recipe.toml").write_text("nonsense")
    assert reproduce("--row", "narrow") == 0
    assert rows_of_outcome() == [("narrow", 1), ("wide", 1)]
    assert reproduce("--row", "narrow", "--steps", "2") == 0
    assert rows_of_outcome() == [("narrow", 1)]


def test_finished_rows_stay_whatever_their_seeds_and_however_often_they_were_tested():
    assert reproduce("--row", "wide", "--set", "seed=5", "checkpoint_minutes=7") == 0
    assert reproduce("--row", "narrow") == 0
    assert rows_of_outcome() == [("narrow", 1), ("wide", 1)]
    assert reproduce("--row", "narrow", "--set", "lr=0.01", "seed=1") == 0
    assert rows_of_outcome() == [("narrow", 1)]  # the other run was trained differently
    shutil.move("out/wide/seed-5", "out/wide/seed-6")
    Path("out/wide/seed-x").mkdir()
    assert reproduce("--row", "narrow") == 0
    assert rows_of_outcome() == [("narrow", 1)]  # folders without a run of their seed are ignored


def test_rows_that_another_process_finishes_meanwhile_stay(monkeypatch: pytest.MonkeyPatch):
    start = runner.fit

    def slow(*arguments, **options):
        monkeypatch.setattr(runner, "fit", start)
        assert reproduce("--row", "narrow") == 0
        return start(*arguments, **options)

    monkeypatch.setattr(runner, "fit", slow)
    assert reproduce("--row", "wide") == 0
    assert rows_of_outcome() == [("narrow", 1), ("wide", 1)]


def test_a_folder_serves_one_study(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    assert reproduce("--row", "narrow") == 0
    before = Path("out/outcome.json").read_text()
    monkeypatch.setitem(STUDIES, "other", replace(STUDY, name="other"))
    assert main(["reproduce", "other", "--out", "out", "--row", "narrow"]) == 2
    assert "out contains the outcome of tiny, not of other; choose another --out" in capsys.readouterr().err
    assert Path("out/outcome.json").read_text() == before
    Path("out/outcome.json").write_text("{")
    assert reproduce("--row", "narrow") == 0
    assert Path("out/outcome.json").read_text() == before


def test_what_small_stands_for_is_told_once():
    options = Reproduce("ablation", small=True, set=(("width=16", "optimizer.batch=64"),))._options(STUDIES["ablation"])
    assert [change for change in options.changes if "width" in change or "batch" in change] == [
        "width=16",
        "optimizer.batch=64",
    ]
    assert "model.depth=4" in options.changes


def test_an_interrupted_run_goes_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    from linfnet.train import Trainer

    step = Trainer._step

    def interrupted(trainer: Trainer, *arguments):
        if trainer.progress.step == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(trainer, *arguments)

    monkeypatch.setattr(Trainer, "_step", interrupted)
    assert reproduce("--row", "wide") == 130
    assert "wide, seed 0: stopped at step 6 of 16; run the same command again to resume it" in capsys.readouterr().err
    monkeypatch.setattr(Trainer, "_step", step)
    assert reproduce("--row", "wide") == 0
    printed = capsys.readouterr().out
    assert "resuming at step 6" in printed
    assert "wide, seed 0: resumed, evaluated" in printed


def test_an_interrupted_evaluation_says_how_to_resume(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("linfnet.cli.reproduce.evaluate_with_progress", interrupted)
        assert reproduce("--row", "wide") == 130
    assert "wide, seed 0: interrupted; run the same command again to resume it" in capsys.readouterr().err
    assert reproduce("--row", "wide") == 0
    assert "wide, seed 0: already finished, evaluated" in capsys.readouterr().out


def test_a_shortened_study_says_so_and_has_its_own_folders(capsys: pytest.CaptureFixture[str]):
    assert reproduce("--row", "narrow", "--scale", "0.5") == 0
    assert "SHORTENED: every phase × 0.5" in capsys.readouterr().out
    assert "epochs = [1, 2, 1]" in Path("out/narrow/scale-0.5-seed-0/recipe.toml").read_text()


def test_a_folder_is_not_taken_for_that_of_another_recipe(capsys: pytest.CaptureFixture[str]):
    assert reproduce("--row", "narrow") == 0
    assert reproduce("--row", "narrow", "--set", "lr=0.01") == 2
    assert "narrow/seed-0 contains a run with other settings in [optimizer]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("width=6", "--set overrides keys of [model] that define row narrow of tiny"),
        ("model.width=6", "--set overrides keys of [model] that define row narrow of tiny"),
        ("system.name=hybrid", "--set system.name is 'hybrid'; expected 'linf'"),
        ("system.hidden=3", "unknown key 'system.hidden'"),
    ],
)
def test_rows_stay_what_their_labels_say(change: str, complaint: str, capsys: pytest.CaptureFixture[str]):
    assert reproduce("--set", change) == 2
    printed = capsys.readouterr()
    assert complaint in printed.err
    assert "training" not in printed.out
    assert not Path("out").exists()


def test_a_folder_is_not_taken_for_that_of_another_system(capsys: pytest.CaptureFixture[str]):
    assert reproduce("--row", "narrow") == 0
    file = Path("out/narrow/seed-0/recipe.toml")
    file.write_text(file.read_text().partition("\n")[2] + '\n[system]\nname = "hybrid"\n')
    assert reproduce("--row", "narrow") == 2
    assert "narrow/seed-0 contains a run with other settings in [system]" in capsys.readouterr().err


def test_the_range_over_seeds_is_readable_in_80_columns():
    runs = tuple(
        RunOutcome("narrow", seed, x, x, x, x, None, None, 1.0, 1, "NVIDIA H200", None, "")
        for seed, x in enumerate((0.1234, 0.9876))
    )
    console = Console(width=80, file=io.StringIO())
    console.print(outcome_table(Outcome(STUDY, Options(), runs)))
    assert isinstance(console.file, io.StringIO)
    printed = console.file.getvalue()
    assert "…" not in printed
    assert printed.count("98.76") == printed.count("12.34") == 4


def test_a_run_that_fails_leaves_the_others(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    start = runner.fit

    def failing(recipe, *arguments, **options):
        if recipe.model.width == 8:
            raise LinfnetError("the loss is nan")
        return start(recipe, *arguments, **options)

    monkeypatch.setattr(runner, "fit", failing)
    assert reproduce() == 2
    printed = capsys.readouterr().out
    assert "1/2 narrow, seed 0: failed: the loss is nan" in printed
    assert "2/2 wide, seed 0: trained, evaluated" in printed


def test_a_run_that_cannot_be_read_leaves_the_others(capsys: pytest.CaptureFixture[str]):
    assert reproduce() == 0
    run = Path("out/narrow/seed-0")
    environment = (run / "env.json").read_text()
    untrained = json.dumps(results_to_json(replace(read_results(run), training=None)))
    for file, text, complaint in (
        ("env.json", "{", "env.json is not readable JSON"),
        ("env.json", "[]", "env.json does not contain a JSON object"),
        ("results.json", untrained, "results.json lacks the results of training"),
    ):
        (run / "env.json").write_text(environment)
        (run / file).write_text(text)
        capsys.readouterr()
        assert reproduce() == 2
        printed = capsys.readouterr().out
        assert f"1/2 narrow, seed 0: failed: {run}/{complaint}" in printed
        assert "2/2 wide, seed 0: already finished" in printed


def test_a_run_without_its_commit_or_figures_of_training_images_is_kept(capsys: pytest.CaptureFixture[str]):
    assert reproduce("--row", "narrow") == 0
    run = Path("out/narrow/seed-0")
    training = read_results(run).training
    assert training is not None
    write_training(run, replace(training, train=None))
    (run / "env.json").write_text("{}")
    assert reproduce("--row", "narrow") == 0
    (found,) = json.loads(Path("out/outcome.json").read_text())["cells"][0]["runs"]
    assert [found[key] for key in ("commit", "certified_train", "above_theta")] == [None, None, None]


def test_a_full_disk_ends_the_study(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device", "somewhere")

    monkeypatch.setattr("linfnet.train.loop.save_checkpoint", full)
    assert reproduce() == 2
    printed = capsys.readouterr()
    assert "the run stopped: somewhere: No space left on device" in printed.err
    assert "2/2" not in printed.out


def test_a_folder_that_cannot_be_written_ends_the_study(capsys: pytest.CaptureFixture[str]):
    Path("out").write_text("a file")
    assert reproduce() == 2
    printed = capsys.readouterr()
    assert "cannot be written" in printed.err
    assert "2/2" not in printed.out


def test_seeds_count_up_from_that_of_the_recipe(tmp_path: Path):
    runs = plan(STUDY, Options(tmp_path, ("wide",), seeds=3, changes=("seed=7",)))
    assert [(run.recipe.run.seed, run.path.name) for run in runs] == [(7, "seed-7"), (8, "seed-8"), (9, "seed-9")]


def test_the_median_is_that_of_the_seeds():
    runs = tuple(
        RunOutcome("a", seed, x, x, x, x, None, None, 1.0, 1, "", None, "") for seed, x in enumerate((0.5, 0.1, 0.2))
    )
    assert spreads(runs)["clean"].median == 0.2
    assert spreads(()) == {}


def test_rows_of_other_systems_are_run_and_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    few = (
        "data.name=digits",
        "evaluation.eps=[0.01]",
        "limit=100",
        "epochs=[1, 2, 1]",
        "batch=50",
        "system.architecture=small",
    )
    cells = (Cell("ours", "digits", SMALL), Cell("theirs", "mnist-0.1-ibp-2021", few, Figures(90.0, None, 80.0)))
    monkeypatch.setattr("linfnet.cli.reproduce.table1_with", lambda systems: replace(STUDY, cells=cells))
    few_images = ["--limit", "20", "--steps", "2", "--out", "out"]
    figures: list[Any] = []
    monkeypatch.setattr("linfnet.reproduce.plots.save_figure", lambda figure, path: figures.append(figure))
    assert main(["reproduce", "table1", "--systems", "all", *few_images]) == 0
    printed = capsys.readouterr().out
    assert "proof s" in printed
    assert "80.00" in printed
    found = json.loads(Path("out/outcome.json").read_text())["cells"]
    ours, theirs = (cell["runs"][0] for cell in found)
    assert (ours["system"], theirs["system"]) == ("linf", "ibp")
    assert theirs["certified_margin"] is None
    assert theirs["certified"] == theirs["certified_interval"] <= theirs["pgd"]
    assert theirs["certify_seconds"] > 0
    lengths = [bar.get_width() for bar in figures[0].axes[0].patches]
    assert lengths == [100 * ours["certified"], 100 * theirs["certified"]]
    assert main(["reproduce", "ablation", "--systems", "all", *few_images]) == 2
    assert "--systems has no effect on ablation; expected table1" in capsys.readouterr().err
    assert main(["reproduce", "table1", "--systems", "all", "--set", "system.name=hybrid", *few_images]) == 2
    assert "expected 'linf', the system of row ours" in capsys.readouterr().err


def test_the_title_of_small_systems_has_only_changes_of_all_rows():
    """`--small` changes each system in its own way."""
    study = table1_with(["all"])
    chosen = Reproduce("table1", small=True, systems=(("all",),), set=(("seed=3",),))
    differs = Outcome(study, chosen._options(study), ()).differs
    assert differs == f"{SMALL_NETS}; changed: seed=3; first 500 test images; PGD-10"
