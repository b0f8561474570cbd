"""Records and figures come from a run folder alone."""

import gzip
import json
import re
import shutil
from pathlib import Path

import pytest

from linfnet.cli.main import main
from linfnet.recipes import load_recipe, recipe_from_toml
from linfnet.reproduce.curve import AUTHORS_CURVE, beside_authors, comparable_epochs
from linfnet.reproduce.record import certificates_of, hardware_of, readme_row, seconds_per_epoch

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
    assert main(["record", str(run), "--out", str(out), "--what", "a tiny run"]) == 0
    record = json.loads(out.read_text())
    assert record["what"] == "a tiny run"
    assert (record["seed"], record["epochs"]) == (0, [1, 2, 1])
    assert record["environment"] == json.loads((run / "env.json").read_text())
    assert record["results"] == json.loads((run / "results.json").read_text())
    assert record["results"]["digits-test-pgd-2 eps=0.1"]["certified_and_broken"] == 0
    assert record["seconds"] == record["results"]["train"]["seconds"]
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
    began = json.loads((moved / "env.json").read_text())

    def resume(**changes: str) -> dict:
        (moved / "results.json").unlink()  # as if it had been killed in its last moment
        monkeypatch.setattr("linfnet.train.run_folder.environment", lambda: {**began, "command": "again", **changes})
        assert main(["train", "--resume", str(moved)]) == 0
        assert main(["record", str(moved), "--out", str(out), "--replace"]) == 0
        return json.loads(out.read_text())

    record = resume(cpu="another", commit="later")
    assert record["hardware"] == f"{began['cpu']}, then another"
    assert record["resumed"] == [{"step": 8, "environment": {"cpu": "another", "commit": "later"}}]
    assert record["environment"] == began
    record = resume()  # at the same step: nothing is left of the sitting before
    assert record["hardware"] == began["cpu"]
    assert record["resumed"] == [{"step": 8, "environment": {}}]
    (moved / "env.json").write_text("")  # no reason to give a run up
    (moved / "results.json").unlink()
    assert main(["train", "--resume", str(moved)]) == 0


def test_a_row_wants_pgd_100_whatever_the_recipe_attacks_with(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "tiny.json"
    assert main(["record", str(run), "--out", str(out)]) == 0
    assert f"lacks the attack on all test images: linfnet evaluate {run} --steps 100" in capsys.readouterr().out
    # As in 2021: the recipe's own attack has 20 steps, and so has the published figure.
    record = json.loads(out.read_text())
    record["recipe"] = record["recipe"].replace("pgd_steps = 100", "pgd_steps = 20")
    record["recipe"] = record["recipe"].replace('source = "records/demo.json"', 'source = "the paper"')
    entry = record["results"].pop("digits-test-pgd-2 eps=0.1")
    record["results"]["digits-test eps=0.1"] = entry
    assert "| 94.44 / 85.83 / 85.56, 80 epochs, PGD-20 |" in readme_row(record, "tiny.json")


def test_a_record_is_not_overwritten_by_accident_and_a_commit_is_not_contradicted(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = str(tmp_path / "tiny.json")
    environment = json.loads((run / "env.json").read_text())
    assert main(["record", str(run), "--out", out]) == 0
    assert main(["record", str(run), "--out", out]) == 2
    assert "exists; give --replace" in capsys.readouterr().err
    (run / "env.json").write_text(json.dumps({**environment, "commit": None}))
    assert main(["record", str(run), "--out", out, "--replace", "--commit", "abc"]) == 0
    assert json.loads(Path(out).read_text())["environment"]["commit"] == "abc"
    (run / "env.json").write_text(json.dumps({**environment, "commit": "def"}))
    assert main(["record", str(run), "--out", out, "--replace", "--commit", "abc"]) == 2
    assert "env.json of the run says 'def'" in capsys.readouterr().err


def test_seconds_per_epoch_of_each_phase():
    recipe = load_recipe("digits", ["epochs=[2, 3, 0]"])
    events = [epoch(k, seconds) for k, seconds in enumerate((1.0, 3.0, 4.0, 5.0, 7.5), 1)]
    assert seconds_per_epoch(recipe, events) == {"p_start": 1.5, "rise": 1.5}


def test_the_hardware_is_what_was_used():
    assert hardware_of({"cpu": "C", "gpu": "G"}, {"device": "cuda"}, []) == "G"
    assert hardware_of({"cpu": "C", "gpu": "G"}, {"device": "cpu"}, []) == "C"
    assert hardware_of({"cpu": "C", "gpu": None}, {}, []) == "C"


def test_the_authors_curve_is_compared_where_it_may_be():
    assert comparable_epochs(load_recipe("cifar10-8")) == 1300
    assert comparable_epochs(load_recipe("cifar10-8", ["snap_p=true"])) == 1300
    assert comparable_epochs(load_recipe("cifar10-8", ["schedule.epochs=[10, 110, 5]"])) == 10
    assert comparable_epochs(load_recipe("cifar10-8", ["schedule.epochs=[4, 42, 3]"])) == 0
    assert comparable_epochs(load_recipe("cifar10-8", ["lr=0.02"])) == 0
    assert comparable_epochs(load_recipe("cifar10-16")) == 0
    assert comparable_epochs(load_recipe("cifar10-8", ["system.name=hybrid"])) == 0
    values = {"loss": 0.751, "accuracy": 0.5, "above": 0.25, "scale": 1.0}
    (row,) = beside_authors(load_recipe("cifar10-8"), [epoch(10, 1.0, **values), epoch(11, 2.0, **values)])
    assert row["loss_authors"] == 0.750
    assert row["loss_difference"] == 0.001
    # p of the schedule at those epochs, to the digits the log has
    from linfnet.train import step_state

    recipe = load_recipe("cifar10-8")
    for point in AUTHORS_CURVE:
        assert step_state(recipe, point.epoch * 98 - 1, 98).p == pytest.approx(point.p, rel=0.006)


def test_a_figure_from_a_run_and_from_a_record(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["plot", str(run)]) == 0
    assert (run / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert main(["plot", str(RECORDS / "cifar10-8-125-epochs.json"), "--out", str(tmp_path / "c.svg")]) == 0
    assert "<svg" in (tmp_path / "c.svg").read_text()
    assert main(["plot", str(run), "--out", "x.gif"]) == 2
    for name, words in (("cifar10-8-125-epochs", ("above θ", "0 to θ")), ("mnist-0.3-ibp", ("above 0",))):
        assert main(["plot", str(RECORDS / f"{name}.json"), "--out", str(tmp_path / f"{name}.svg")]) == 0
        # Matplotlib draws text as glyphs, and leaves each text beside them as a comment.
        texts = re.findall(r"<!-- (.*) -->", (tmp_path / f"{name}.svg").read_text())
        assert [text for text in texts if re.match("above|0 to", text)] == list(words)
    assert main(["plot", str(RECORDS / "demo.json")]) == 2
    assert "is not the record of a run" in capsys.readouterr().err


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
    assert last["clean"] == record["results"]["train"]["clean"]
    assert last["certified"] == record["results"]["train"]["certified"]
    for key, entry in record["results"].items():
        if key != "train":
            certified = [entry[name] for name in certificates_of(entry)]
            assert certified
            assert certified == sorted(certified)  # by margin, then by interval, which is never weaker
            assert certified[-1] <= entry["pgd"] <= entry["clean"]
            # At that commit an evaluation with a certified and broken sample ended in an error, and was not stored.
            assert "certified_and_broken" in entry or record["environment"]["commit"].startswith("59aba1f")
            assert entry.get("certified_and_broken", 0) == 0
