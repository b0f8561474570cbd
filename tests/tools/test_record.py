"""A record is written from a run folder alone; the committed records have one layout."""

import gzip
import json
import resource
import shutil
from pathlib import Path

import pytest

from linfnet.cli.main import main
from linfnet.epsilon import parse_epsilon
from linfnet.files import read_table
from linfnet.recipes import load_recipe, recipe_from_toml
from linfnet.results import read_results, results_from_json
from tools.record import compare_with_authors, seconds_per_epoch
from tools.record import main as record_run

RECORDS = Path(__file__).parent.parent.parent / "records"
TINY = ["--set", "limit=100", "width=8", "depth=2", "epochs=[1, 2, 1]", "test_every=1"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert main(["train", "digits", "--out", str(folder), *TINY]) == 0
    assert main(["evaluate", str(folder), "--steps", "2"]) == 0
    return folder


def epoch(number: int, seconds: float, **values: float) -> dict:
    return {"event": "epoch", "epoch": number, "seconds": seconds, **values}


def test_a_record_holds_the_run_and_its_circumstances(run: Path, tmp_path: Path):
    out = tmp_path / "new" / "tiny.json"
    assert record_run([str(run), "--out", str(out), "--what", "a tiny run"]) == 0
    record = json.loads(out.read_text())
    assert record["what"] == "a tiny run"
    assert (record["seed"], record["epochs"]) == (0, [1, 2, 1])
    assert record["environment"] == read_table(run / "env.json")
    assert record["results"] == read_table(run / "results.json")
    training = read_results(run).training
    assert training is not None
    assert record["seconds"] == training.seconds
    assert record["cpu_seconds"] == training.cpu_seconds >= 0
    assert record["hardware"] == record["environment"]["cpu"]
    assert set(record["seconds_per_epoch"]) == {"p_start", "rise", "infinite"}
    log = gzip.decompress((out.parent / record["events"]).read_bytes())
    assert log == (run / "events.jsonl").read_bytes()
    assert "beside_the_authors_curve" not in record


def test_a_record_says_where_a_run_was_resumed_and_what_had_changed(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    moved, out = tmp_path / "run", tmp_path / "tiny.json"
    shutil.copytree(run, moved)
    began = read_table(moved / "env.json")

    def resume(**changes: str) -> dict:
        (moved / "results.json").unlink()  # as if it had been killed just before its end
        monkeypatch.setattr("linfnet.train.run_folder.environment", lambda: {**began, "command": "again", **changes})
        assert main(["train", "--resume", str(moved)]) == 0
        assert record_run([str(moved), "--out", str(out), "--replace"]) == 0
        return json.loads(out.read_text())

    record = resume(cpu="another", commit="later")
    assert record["hardware"] == f"{began['cpu']}, then another"
    assert record["resumed"] == [{"step": 8, "environment": {"cpu": "another", "commit": "later"}}]
    assert record["environment"] == began
    record = resume()  # at the same step: the earlier session leaves no trace
    assert record["hardware"] == began["cpu"]
    assert record["resumed"] == [{"step": 8, "environment": {}}]
    (moved / "env.json").write_text("")  # a run without it can still be resumed
    (moved / "results.json").unlink()
    assert main(["train", "--resume", str(moved)]) == 0


def test_a_missing_attack_is_reported(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert record_run([str(run), "--out", str(tmp_path / "tiny.json")]) == 0
    assert f"PGD-100 on all test images is missing: run linfnet evaluate {run}" in capsys.readouterr().out


def test_a_record_is_not_overwritten_by_accident_and_a_commit_is_not_contradicted(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = str(tmp_path / "tiny.json")
    environment = read_table(run / "env.json")
    assert record_run([str(run), "--out", out]) == 0
    assert record_run([str(run), "--out", out]) == 2
    assert "exists; use --replace" in capsys.readouterr().err
    (run / "env.json").write_text(json.dumps({**environment, "commit": None}))
    assert record_run([str(run), "--out", out, "--replace", "--commit", "abc"]) == 0
    assert json.loads(Path(out).read_text())["environment"]["commit"] == "abc"
    (run / "env.json").write_text(json.dumps({**environment, "commit": "def"}))
    assert record_run([str(run), "--out", out, "--replace", "--commit", "abc"]) == 2
    assert "env.json of the run has 'def'" in capsys.readouterr().err


def test_a_run_without_figures_of_training_and_a_full_disk_leave_no_record(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    copy, out = tmp_path / "run", tmp_path / "tiny.json"
    shutil.copytree(run, copy)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1500, before[1]))
        assert record_run([str(copy), "--out", str(out)]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "File too large" in capsys.readouterr().err
    (copy / "results.json").write_text("{}")
    assert record_run([str(copy), "--out", str(out)]) == 2
    assert "contains no results of training" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [copy]


def test_seconds_per_epoch_of_each_phase():
    recipe = load_recipe("digits", ["epochs=[2, 3, 0]"])
    events = [epoch(k, seconds) for k, seconds in enumerate((1.0, 3.0, 4.0, 5.0, 7.5), 1)]
    assert seconds_per_epoch(recipe, events) == {"p_start": 1.5, "rise": 1.5}


def test_epochs_next_to_those_of_the_authors():
    values = {"loss": 0.751, "accuracy": 0.5, "above": 0.25, "scale": 1.0}
    (row,) = compare_with_authors(load_recipe("cifar10-8"), [epoch(10, 1.0, **values), epoch(11, 2.0, **values)])
    assert row["loss_authors"] == 0.750
    assert row["loss_difference"] == 0.001


OF_RUNS = [path for path in sorted(RECORDS.glob("*.json")) if '"events": "' in path.read_text()]


def test_there_are_records_of_runs():
    assert len(OF_RUNS) >= 2


@pytest.mark.parametrize("path", OF_RUNS, ids=lambda path: path.name)
def test_the_records_of_runs_have_one_layout(path: Path):
    record = json.loads(path.read_text())
    expected = {"what", "seed", "epochs", "hardware", "seconds", "seconds_per_epoch", "environment", "recipe"}
    assert expected | {"results", "events"} <= record.keys()
    assert record["environment"]["commit"]
    log = gzip.decompress(path.with_name(record["events"]).read_bytes())
    events = [json.loads(line) for line in log.splitlines()]
    recipe = recipe_from_toml(record["recipe"], path.name, path.name)
    assert list(recipe.schedule.epochs) == record["epochs"]
    assert seconds_per_epoch(recipe, events) == record["seconds_per_epoch"]
    last = [event for event in events if event["event"] == "test"][-1]
    assert last["epoch"] == sum(record["epochs"])
    results = results_from_json(record["results"])
    assert results.training is not None
    assert results.training.test is not None
    if recipe.system_name != "sortnet":  # its means are estimated again after the last test
        certified = {parse_epsilon(eps): share for eps, share in last["certified"].items()}
        assert (last["clean"], certified) == (results.training.test.clean, results.training.test.certified)
    for result in results.evaluations:
        assert result.best_certified <= result.attacked <= result.clean
        # Interval bounds are never weaker than the margin.
        assert result.certified.get("margin", 0.0) <= result.certified.get("interval", 1.0)
