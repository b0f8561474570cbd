"""After a crash or on a full disk, only the steps since the last checkpoint are lost."""

import errno
import io
import random
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import faults_worker
import pytest
import torch
from steps import at_step

from linfnet.cli.console import console
from linfnet.cli.main import main
from linfnet.errors import LinfnetError
from linfnet.files import read_tensors
from linfnet.results import read_results
from linfnet.train import RunFolder, Trainer, loop
from linfnet.train.checkpoint import find_checkpoints
from tools.record import main as record_run

SETTINGS = ["--set", "limit=200", "width=48", "depth=3", "epochs=[3, 12, 3]", "batch=32", "test_every=3"]


def same_model(first: Path, second: Path) -> bool:
    expected, got = (read_tensors(folder / "model.safetensors")[0] for folder in (first, second))
    return expected.keys() == got.keys() and all(torch.equal(tensor, got[name]) for name, tensor in expected.items())


def test_kills_at_random_moments_lose_only_steps(processes: None, tmp_path: Path):
    """The process is killed at random times, from before the folder is created until the model is written."""
    whole, killed, log = tmp_path / "whole", tmp_path / "killed", tmp_path / "log"
    train = ["train", "digits", *SETTINGS, "checkpoint_every=1", "--out"]
    faults_worker.start(["--version"], log).join()  # the server has loaded torch now
    begin = time.monotonic()
    process = faults_worker.start([*train, str(whole)], log)
    process.join()
    seconds = time.monotonic() - begin
    assert process.exitcode == 0, log.read_text()

    moments = random.Random(5)
    kills, steps = 0, 0
    while not (killed / "results.json").exists():
        again = (killed / "recipe.toml").exists()
        process = faults_worker.start(["train", "--resume", str(killed)] if again else [*train, str(killed)], log)
        process.join(moments.uniform(0, 0.2) * seconds if kills < 6 else None)
        if process.is_alive():
            process.kill()
            process.join()
            kills += 1
        else:
            assert process.exitcode == 0, log.read_text()
        if "resuming at step" in log.read_text():
            assert f"resuming at step {steps} of 126" in log.read_text()  # at the last complete checkpoint, not earlier
        written = find_checkpoints(killed / "checkpoints") if killed.exists() else []
        if written:
            read_tensors(written[0])  # the file is complete
            assert int(written[0].stem.removeprefix("step-")) >= steps
            steps = int(written[0].stem.removeprefix("step-"))
    assert kills >= 3
    assert (whole / "model.safetensors").read_bytes() == (killed / "model.safetensors").read_bytes()
    names = [sorted(str(path.relative_to(run)) for path in run.rglob("*")) for run in (whole, killed)]
    assert names[0] == names[1]  # the same checkpoints, no temporary file
    events = [
        [{**event, "seconds": 0} for event in RunFolder.open(run).events() if event["event"] != "resume"]
        for run in (whole, killed)
    ]
    assert events[0] == events[1]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 140 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=140k", "tmpfs", str(place)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this user may not mount a file system")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_stops_the_run_and_keeps_the_last_checkpoint(
    small_disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    whole, run = tmp_path / "whole", small_disk / "run"
    train = ["train", "digits", *SETTINGS, "checkpoint_every=1", "keep_checkpoints=99", "--out"]
    assert main([*train, str(whole)]) == 0
    assert main([*train, str(run)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    kept = find_checkpoints(run / "checkpoints")
    assert 1 <= len(kept) < 18
    assert "No space left on device" in line
    assert f"its last checkpoint is {kept[0].stem};" in line
    assert line.endswith(f"resume it with: linfnet train --resume {run}")
    assert not list(run.rglob("*.tmp"))
    assert main(["train", "--resume", str(run)]) == 2  # the disk is still full
    assert find_checkpoints(run / "checkpoints") == kept
    subprocess.run(["mount", "-o", "remount,size=9m", str(small_disk)], check=True)
    capsys.readouterr()
    assert main(["train", "--resume", str(run)]) == 0
    assert f"resuming at step {int(kept[0].stem.removeprefix('step-'))} of" in capsys.readouterr().out
    assert same_model(whole, run)
    epochs = [line for line in (run / "events.jsonl").read_text().splitlines() if '"event": "epoch"' in line]
    assert len(epochs) == 18


def test_a_file_size_limit_is_told_like_a_full_disk(new_trainer: Callable[..., Trainer]):
    whole = new_trainer("whole")
    whole.run()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The checkpoints of steps 3 and 6 are written; the checkpoint of step 9 does not fit.
    tighten = at_step(7, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1])))
    trainer = new_trainer("limited", callbacks=[tighten])
    try:
        with pytest.raises(LinfnetError, match="File too large; its last checkpoint is step-000000006"):
            trainer.run()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.stem for path in find_checkpoints(trainer.folder.checkpoints)] == ["step-000000006", "step-000000003"]
    assert not list(trainer.folder.path.rglob("*.tmp"))
    again = Trainer(trainer.recipe, trainer.images, trainer.test, torch.device("cpu"), folder=trainer.folder)
    assert again.resume() == []
    assert again.progress.step == 6
    again.run()
    assert same_model(whole.folder.path, trainer.folder.path)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS])
@pytest.mark.parametrize("name", ["events.jsonl", "model.safetensors", "results.json"])
def test_any_file_may_be_the_one_that_fails(
    new_trainer: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch, name: str, number: int
):
    trainer = new_trainer("run", "epochs=[1, 1, 1]")
    whole, opened = Path.replace, Path.open

    def replace(path: Path, target: Path) -> Path:
        if target.name == name:
            raise OSError(number, "no", str(target))
        return whole(path, target)

    def open_file(path: Path, *arguments, **options):
        if path.name == name == "events.jsonl" and trainer.progress.step == 6:
            raise OSError(number, "no", str(path))
        return opened(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replace)
        patch.setattr(Path, "open", open_file)
        with pytest.raises(LinfnetError, match=f"the run stopped: .*{name}: no; its last checkpoint is step-"):
            trainer.run()
    assert not trainer.folder.finished
    again = Trainer(trainer.recipe, trainer.images, trainer.test, torch.device("cpu"), folder=trainer.folder)
    again.resume()
    again.run()
    assert again.folder.finished


@pytest.mark.parametrize("moment", ["finish", "results"])
def test_a_kill_in_the_last_moment_can_be_resumed_and_recorded(
    new_trainer: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, moment: str
):
    trainer = new_trainer("run", "epochs=[1, 1, 1]")
    logged = RunFolder.log

    def log(folder: RunFolder, event: str, **values: object) -> None:
        if event == "finish":
            raise KeyboardInterrupt
        logged(folder, event, **values)

    def write_training(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if moment == "finish":
            patch.setattr(RunFolder, "log", log)
        else:
            patch.setattr(loop, "write_training", write_training)
        with pytest.raises(KeyboardInterrupt):
            trainer.run()
    trainer.folder.release()
    assert main(["train", "--resume", str(trainer.folder.path)]) == 0
    assert [event["event"] for event in trainer.folder.events()].count("finish") == 1
    assert record_run([str(trainer.folder.path), "--out", str(tmp_path / "record.json")]) == 0


@pytest.mark.parametrize("share", [0.0, 0.999])
def test_a_cut_model_is_written_again_from_the_last_checkpoint(
    new_trainer: Callable[..., Trainer], capsys: pytest.CaptureFixture[str], share: float
):
    trainer = new_trainer("run", "epochs=[1, 1, 1]")
    trainer.run()
    trainer.folder.release()
    run, model = str(trainer.folder.path), trainer.folder.path / "model.safetensors"
    assert main(["evaluate", run, "--limit", "10", "--steps", "2"]) == 0
    content, results = model.read_bytes(), read_results(trainer.folder.path)
    assert main(["train", "--resume", run]) == 2  # it has finished
    model.write_bytes(content[: int(share * len(content))])
    assert main(["evaluate", run]) == 2
    assert f"{model} is truncated" in capsys.readouterr().err
    assert main(["train", "--resume", run]) == 0
    assert "resuming at step 9 of 9" in capsys.readouterr().out
    written = read_tensors(model)[0]
    assert all(torch.equal(tensor, written[name]) for name, tensor in trainer.net.state_dict().items())
    assert read_results(trainer.folder.path) == results


@pytest.mark.parametrize("kept", ["", "[data]", "[schedule]", "[reported]"])
def test_a_cut_recipe_is_told_and_not_filled_up_with_defaults(new_trainer: Callable[..., Trainer], kept: str):
    folder = new_trainer().folder.path
    whole = (folder / "recipe.toml").read_text()
    (folder / "recipe.toml").write_text(whole[: whole.index(kept)] if kept else "")
    with pytest.raises(LinfnetError, match=r"recipe.toml is truncated"):
        RunFolder.open(folder)


def test_a_recipe_is_complete_in_any_order_of_its_sections(new_trainer: Callable[..., Trainer]):
    folder = new_trainer().folder
    head, *sections = (folder.path / "recipe.toml").read_text().split("\n[")
    text = "\n[".join([head, *(section.rstrip() + "\n" for section in reversed(sections))])
    (folder.path / "recipe.toml").write_text(text)
    assert RunFolder.open(folder.path).recipe == folder.recipe


def test_a_file_system_without_locks_is_not_taken_for_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    assert main(["train", "digits", *SETTINGS, "--out", str(tmp_path / "run")]) == 2
    assert "run cannot be locked: No locks available" in capsys.readouterr().err


def test_a_place_where_nothing_can_be_made_is_told_at_once(capsys: pytest.CaptureFixture[str]):
    assert main(["train", "digits", "--out", "/proc/linfnet-run"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: output folder /proc/linfnet-run cannot be written: ")


class Gone(io.StringIO):
    """A terminal that was closed."""

    def write(self, text: str) -> int:
        raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("ignored", [False, True], ids=["terminal", "nohup"])
def test_a_closed_terminal_stops_the_run_with_a_checkpoint_unless_hangups_are_ignored(
    ignored: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(console, "_file", Gone())
    monkeypatch.setattr(console, "quiet", False)
    run, before = tmp_path / "run", signal.getsignal(signal.SIGHUP)
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
        code = main(["train", "digits", *SETTINGS, "--out", str(run)])
    finally:
        signal.signal(signal.SIGHUP, before)
    steps = [path.stem for path in find_checkpoints(run / "checkpoints")]
    assert (code, steps) == ((0, ["step-000000126"]) if ignored else (130, ["step-000000021"]))
    assert ("stopped at step 21 of " in capsys.readouterr().err) == (not ignored)


def test_a_second_process_is_kept_out_and_the_first_goes_on(processes: None, tmp_path: Path):
    run, log = tmp_path / "run", tmp_path / "log"
    long = ["--set", "limit=200", "width=48", "depth=3", "epochs=[200, 100, 6]", "batch=32", "checkpoint_every=1"]
    first = faults_worker.start(["train", "digits", *long, "--out", str(run)], tmp_path / "first")
    deadline = time.monotonic() + 60
    while not list(run.glob("checkpoints/step-*.safetensors")):
        assert time.monotonic() < deadline
        assert first.is_alive(), (tmp_path / "first").read_text()
        time.sleep(0.005)
    for arguments, message in (
        (["train", "--resume", str(run)], f"error: {run} is in use by another process"),
        (["train", "digits", *long, "--out", str(run)], f"error: output folder {run} already contains a run"),
    ):
        second = faults_worker.start(arguments, log)
        second.join()
        assert second.exitcode == 2
        assert log.read_text().startswith(message)
    assert first.is_alive()
    first.terminate()  # SIGTERM: a checkpoint is written
    first.join()
    assert first.exitcode == 130
    assert "stopped at step" in (tmp_path / "first").read_text()


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_a_cut_checkpoint_is_passed_over(new_trainer: Callable[..., Trainer], share: float):
    trainer = new_trainer()
    trainer.run()
    newest = find_checkpoints(trainer.folder.checkpoints)[0]
    newest.write_bytes(newest.read_bytes()[: int(share * newest.stat().st_size)])
    again = Trainer(trainer.recipe, trainer.images, trainer.test, torch.device("cpu"), folder=trainer.folder)
    (complaint,) = again.resume()
    assert f"{newest.name} is truncated" in complaint
    assert again.progress.step == 12
