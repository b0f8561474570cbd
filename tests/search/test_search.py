"""Searches: trials, ranking, resumption and the files of the outcome."""

import contextlib
import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from linfnet.cli.main import main
from linfnet.data import source
from linfnet.errors import ArgumentError, LinfnetError
from linfnet.recipes import load_recipe
from linfnet.search import SearchOutcome, Variant, search
from linfnet.search.outcome import TrialOutcome
from linfnet.search.plan import Plan
from linfnet.search.plot import draw_search
from linfnet.train import RunFolder, fit
from linfnet.verification import verify_folder

SMALL = ("width=12", "depth=2", "epochs=[1, 2, 1]", "limit=200")
VARIANTS = (Variant("published"), Variant("leaky", ("clip_leak=0.2",)))


def run(out: Path, variants: tuple[Variant, ...] = VARIANTS, **options: Any) -> SearchOutcome:
    return search("digits", variants, out=out, **{"settings": SMALL, "device": "cpu", **options})


def test_a_search_ranks_variants_by_held_out_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    loaded: list[str] = []
    load = source.load
    monkeypatch.setattr(
        source, "load", lambda name, split, **rest: (loaded.append(split), load(name, split, **rest))[1]
    )
    seen: list[tuple[int, int]] = []
    outcome = run(tmp_path, progress=lambda done, total: seen.append((done, total)))
    assert set(loaded) == {"train"}  # test images are not read
    assert seen[0] == (0, 16)
    assert seen[-1] == (16, 16)
    assert sorted(summary.variant.name for summary in outcome.ranked) == ["leaky", "published"]
    best, other = (summary.spread("certified") for summary in outcome.ranked)
    assert best.mean >= other.mean
    assert best.deviation is not None

    # A trial is a run of its recipe.
    recipe = load_recipe("digits", [*SMALL, "clip_leak=0.2", "hold_out=143", "seed=1", "test_every=0"])
    alone = fit(recipe, device="cpu").result
    trial = next(trial for trial in outcome.trials if (trial.variant, trial.seed) == ("leaky", 1))
    assert alone.test is None
    assert trial.clean == alone.held_out.clean
    assert trial.certified == alone.held_out.certified[recipe.evaluation.eps[0]]
    assert trial.certified_train == alone.train.certified[recipe.evaluation.eps[0]]
    assert trial.epochs == 4

    table = json.loads((tmp_path / "outcome.json").read_text())
    assert [variant["name"] for variant in table["variants"]] == [each.variant.name for each in outcome.ranked]
    assert table["variants"][0]["spread"]["certified"]["mean"] == best.mean
    with (tmp_path / "outcome.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["certified"]) for row in rows] == [trial.certified for trial in outcome.trials]
    lines = (tmp_path / "outcome.md").read_text().splitlines()
    assert len([line for line in lines if line.startswith("|")]) == 4
    assert f"{100 * best.mean:.2f} ± {100 * best.deviation:.2f}" in lines[4]
    assert not list(tmp_path.rglob("*.safetensors"))
    draw_search(tmp_path / "plot.svg", outcome)
    assert "leaky" in (tmp_path / "plot.svg").read_text()


NEVER = {"a": 1, "b": 3, "c": None}


def test_variants_are_ranked_by_the_mean_on_held_out_images(tmp_path: Path):
    variants = tuple(Variant(name) for name in "abc")
    certified = {"a": (0.2, 0.4), "b": (0.45, 0.35), "c": (0.5,)}
    trials = [
        TrialOutcome(name, seed, value, 1 - value, 1 - value, 1 - value, NEVER[name], 1.0, 4, "", "")
        for name, values in certified.items()
        for seed, value in enumerate(values)
    ]
    outcome = SearchOutcome(Plan(load_recipe("digits"), variants, variants, (0, 1), tmp_path), tuple(trials), {})
    assert [summary.variant.name for summary in outcome.ranked] == ["c", "b", "a"]
    spreads = [summary.spread("certified") for summary in outcome.ranked]
    assert [spread.mean for spread in spreads] == pytest.approx([0.5, 0.4, 0.3])
    assert [summary.never_predicted for summary in outcome.ranked] == [None, 3, 1]
    assert [row[5] for row in outcome.rows()] == ["–", "3.0", "1.0"]
    assert spreads[0].deviation is None
    assert [spread.deviation for spread in spreads[1:]] == pytest.approx([0.005**0.5, 0.02**0.5])


def test_finished_trials_are_not_repeated_and_others_are_added(tmp_path: Path):
    first = run(tmp_path, seeds=[3])
    notes: list[str] = []
    again = run(tmp_path, seeds=[3], note=notes.append)
    assert notes == ["2 trials, 2 of them finished before"]
    assert again.trials == first.trials
    more = run(tmp_path, (Variant("slow", ("lr=0.001",)),), seeds=[3, 4], keep_models=True)
    assert len(more.trials) == 4
    assert len(more.ranked) == 3
    assert len(list(tmp_path.rglob("model.safetensors"))) == 2


def test_a_folder_of_something_else_is_refused(tmp_path: Path):
    (tmp_path / "recipe.toml").touch()
    with pytest.raises(LinfnetError, match="contains files, but no search; choose another --out"):
        run(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.toml"]


@pytest.mark.parametrize("killed_at", ["config.json", "checkpoints"])
@pytest.mark.parametrize("keep_models", [False, True])
def test_a_search_that_was_killed_while_it_deleted_weights_deletes_the_others_later(
    tmp_path: Path, killed_at: str, keep_models: bool, monkeypatch: pytest.MonkeyPatch
):
    def unless_killed(delete: Callable[..., None]) -> Callable[..., None]:
        def call(path: Path, *arguments: Any, **options: Any) -> None:
            if path.name == killed_at:
                raise SystemExit
            delete(path, *arguments, **options)

        return call

    with monkeypatch.context() as patch, contextlib.suppress(SystemExit):
        patch.setattr(Path, "unlink", unless_killed(Path.unlink))
        patch.setattr("shutil.rmtree", unless_killed(shutil.rmtree))
        run(tmp_path, VARIANTS[:1], seeds=[3], keep_models=keep_models)
    run(tmp_path, VARIANTS[:1], seeds=[3], keep_models=keep_models)
    left = {path.name for path in (tmp_path / "published" / "seed-3").iterdir() if path.name[0] != "."}
    model = {"model.safetensors", "config.json", "README.md"} if keep_models else set[str]()
    assert left == {"recipe.toml", "env.json", "events.jsonl", "results.json"} | model


@pytest.mark.parametrize("table", [{}, {"recipe": "", "variants": [1]}, {"recipe": "", "variants": {"a": 1}}])
def test_a_plan_that_is_none_is_refused(tmp_path: Path, table: dict[str, object]):
    (tmp_path / "search.json").write_text(json.dumps(table))
    with pytest.raises(LinfnetError, match=r"search\.json"):
        run(tmp_path, VARIANTS[:1])


def test_an_unfinished_trial_is_resumed(tmp_path: Path):
    def stop(done: int, total: int) -> None:
        if done == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    whole = run(tmp_path / "whole", seeds=[0])
    with pytest.raises(LinfnetError, match="run the same command again"):
        run(tmp_path / "parts", seeds=[0], progress=stop)
    folder = tmp_path / "parts" / "published" / "seed-0"
    assert list(folder.rglob("*.safetensors"))
    parts = run(tmp_path / "parts", seeds=[0])
    assert [trial.certified for trial in parts.trials] == [trial.certified for trial in whole.trials]
    assert [event for event in RunFolder.open(folder).events() if event["event"] == "resume"]


@pytest.mark.process
def test_several_processes_give_the_same_results(tmp_path: Path):
    here = run(tmp_path / "here", seeds=[0])
    there = run(tmp_path / "there", seeds=[0], jobs=2)
    figures = [[(each.variant, each.certified, each.clean_train) for each in one.trials] for one in (here, there)]
    assert figures[0] == figures[1]


@pytest.mark.process
def test_the_processes_of_a_killed_search_end(tmp_path: Path):
    settings = [*SMALL, "epochs=[1, 100000, 1]"]
    start = f"search('digits', [Variant('a'), Variant('b')], out='o', jobs=2, settings={settings})"
    code = f"from linfnet.search import Variant, search; {start}"
    process = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path)
    folders = [tmp_path / "o" / name / "seed-0" for name in "ab"]
    try:
        _wait(lambda: all((folder / "events.jsonl").is_file() for folder in folders))
    finally:
        process.kill()
        process.wait()
    _wait(lambda: not any(RunFolder.open(folder).locked for folder in folders))
    assert all(list((folder / "checkpoints").glob("step-*")) for folder in folders)


def _wait(done: Any) -> None:
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end
        time.sleep(0.1)


BAD = Variant("bad", ("lr=2147483647", "optimizer.eps=0", "beta2=0"))


def test_a_failed_trial_is_reported_and_the_others_continue(tmp_path: Path):
    outcome = run(tmp_path, (BAD, VARIANTS[0]), seeds=[0])
    assert [trial.variant for trial in outcome.trials] == ["published"]
    assert list(outcome.failed) == ["bad, seed 0"]
    assert "the loss is" in outcome.failed["bad, seed 0"]
    assert "Failed: bad, seed 0" in (tmp_path / "outcome.md").read_text()


@pytest.mark.process
def test_a_process_reports_its_error(tmp_path: Path):
    with pytest.raises(LinfnetError, match=r"^all trials failed; the first error: the loss is"):
        run(tmp_path, (BAD,), seeds=[0], jobs=2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("lrr=1", "variant 'wrong': unknown key 'lrr'"),
        ("lr=-1", "variant 'wrong': optimizer.lr is -1"),
        ("system.hidden=1", "variant 'wrong': unknown key 'system.hidden'"),
        ("data.name=mnist", r"changes data\.name; expected the same images"),
        ("hold_out=10", r"changes data\.hold_out"),
        ("evaluation.eps=0.2", r"changes evaluation\.eps"),
        ("seed=7", r"changes run\.seed"),
    ],
)
def test_wrong_variants_are_found_before_training(tmp_path: Path, changes: str, message: str):
    with pytest.raises(ArgumentError, match=message):
        run(tmp_path, (*VARIANTS, Variant("wrong", (changes,))))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variants": ()}, "there are no variants"),
        ({"variants": (*VARIANTS, Variant("leaky", ("lr=1",)))}, "another variant 'leaky', with clip_leak=0.2"),
        ({"variants": (Variant("a b"), Variant("a/b"))}, "two variants have the folder 'a-b'"),
        ({"seeds": []}, r"the seeds are \[\]"),
        ({"seeds": [1, 1]}, r"the seeds are \[1, 1\]"),
        ({"jobs": 0}, "jobs is 0"),
        ({"hold_out": 1437}, "hold_out is 1437; expected a number from 1 to 1436"),
        ({"settings": ["system.name=smoothing"]}, "expected a system whose certificates are cheap"),
    ],
)
def test_wrong_arguments(tmp_path: Path, options: dict[str, Any], message: str):
    with pytest.raises(ArgumentError, match=message):
        run(tmp_path, **options)
    assert list(tmp_path.iterdir()) == []


def test_other_settings_are_refused(tmp_path: Path):
    out, other, wider = tmp_path / "out", tmp_path / "other", (*SMALL, "width=13")
    run(out, seeds=[0])
    with pytest.raises(LinfnetError, match=r"contains a search with other settings in \[model\]; choose another --out"):
        run(out, settings=wider)
    with pytest.raises(LinfnetError, match=r"other settings in \[data\]"):
        run(out, hold_out=100)
    run(other, VARIANTS[:1], seeds=[0], settings=wider)
    shutil.copytree(out / "leaky", other / "leaky")
    with pytest.raises(LinfnetError, match=r"contains a run with other settings in \[model\]"):
        run(other, seeds=[0], settings=wider)


def test_verify_knows_that_a_search_deletes_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run(tmp_path, VARIANTS[:1], seeds=[0])
    trial = tmp_path / "published" / "seed-0"
    assert {state.file.name for state in verify_folder(trial) if state.deleted} == {"model.safetensors", "config.json"}
    assert main(["verify", str(trial)]) == 0
    printed = capsys.readouterr()
    assert "deleted by linfnet search after training: model.safetensors" in printed.out
    assert printed.err == ""

    results = trial / "results.json"
    results.write_text(results.read_text().replace('"epochs": 4', '"epochs": 5'))
    assert main(["verify", str(trial)]) == 2
    assert "results.json does not match its digest" in capsys.readouterr().err


def test_verify_misses_the_model_of_a_trial_that_keeps_it(tmp_path: Path):
    run(tmp_path, VARIANTS[:1], seeds=[0], keep_models=True)
    trial = tmp_path / "published" / "seed-0"
    (trial / "model.safetensors").unlink()
    assert main(["verify", str(trial)]) == 2


def test_a_discarded_trial_that_is_trained_again_is_not_discarded(tmp_path: Path):
    run(tmp_path, VARIANTS[:1], seeds=[0])
    folder = RunFolder.open(tmp_path / "published" / "seed-0")
    assert folder.discarded
    fit(folder.recipe, out=folder.path, resume=True, device="cpu")
    assert not folder.discarded
    (folder.path / "model.safetensors").unlink()
    assert main(["verify", str(folder.path)]) == 2
