"""`linfnet watch`, `linfnet plot` and TensorBoard: the progress of training."""

import io
import json
import re
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from linfnet.cli import console as console_module
from linfnet.cli.main import main
from linfnet.cli.report import watch_frame
from linfnet.report import read_run, read_training
from linfnet.report.terminal import draw_lines, frame
from linfnet.train import RunFolder

RECORDS = Path(__file__).parent.parent.parent / "records"
TINY = ["--set", "limit=200", "width=16", "depth=3", "epochs=[2, 2, 1]", "batch=64", "test_every=2"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("watch") / "tiny"
    assert main(["train", "digits", "--out", str(folder), "--tensorboard", *TINY]) == 0
    return folder


def events(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]


def unfinished(run: Path, folder: Path, epochs: int) -> RunFolder:
    """Return the same run in its state after this many epochs."""
    folder.mkdir()
    (folder / "recipe.toml").write_text((run / "recipe.toml").read_text())
    early = [event for event in events(run) if event.get("epoch", 99) <= epochs]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in early))
    return RunFolder.open(folder)


def test_lines_pass_through_their_points():
    rows = draw_lines([[(0, 0), (10, 10)], [(0, 10)]], 6, 3, x=(0, 10), y=(0, 10))
    assert [len(row) for row in rows] == [6, 6, 6]
    assert rows[2][0][1] == 0
    assert rows[0][0] == ("⠁", 1), "the second line is a single dot in the upper left"
    assert rows[0][5][1] == 0
    assert rows[0][2][1] is None


@pytest.mark.parametrize("size", [(80, 24), (160, 50), (30, 10)], ids=str)
def test_once_prints_one_frame(run: Path, size: tuple[int, int], monkeypatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(console_module.console, "size", size)
    assert main(["watch", str(run), "--once"]) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[0].startswith("tiny  epoch 5/5  p ∞")
    for title in ("Accuracy", "Loss", "Training margins", "Exponent p", "Mixing λ", "Temperature s"):
        assert title in printed
    last = [event for event in events(run) if event["event"] == "epoch"][-1]
    assert f"loss {last['loss']:.4g}" in printed
    assert max(map(len, printed.splitlines())) <= max(size[0], 60)
    if size[0] >= 80:
        assert len(printed.splitlines()) <= size[1]
        assert "finished" in printed


@pytest.mark.parametrize("size", [(60, 40), (60, 24), (110, 40), (40, 20), (24, 8)], ids=str)
def test_a_frame_fills_the_terminal_and_fits(run: Path, size: tuple[int, int]):
    summary = replace(read_training(run), name="a-run-of-some-name")
    output = Console(width=size[0], height=size[1], file=io.StringIO())
    output.print(frame(summary, *size, "training"))
    lines = output.file.getvalue().splitlines()  # pyright: ignore[reportAttributeAccessIssue]
    assert size[1] - 3 <= len(lines) < size[1]
    if size[0] >= 60:
        assert lines[0].startswith("a-run-of-some-name  epoch 5/5  p ∞  ")
    if size[0] >= 40:
        assert lines[0].rstrip().endswith("training")


def test_it_follows_a_run_to_its_end(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = unfinished(run, tmp_path / "growing", 2)
    folder.lock()

    def train_on() -> None:
        for event in [event for event in events(run) if event.get("epoch", 99) > 2]:
            time.sleep(0.05)
            folder.log(event.pop("event"), **event)
        folder.release()

    thread = threading.Thread(target=train_on)
    thread.start()
    try:
        assert main(["watch", str(folder.path), "--every", "0.02"]) == 0
    finally:
        thread.join()
    printed = capsys.readouterr().out
    assert "epoch 5/5" in printed
    assert printed.endswith("\n")


def test_a_run_that_nobody_trains_is_told(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = unfinished(run, tmp_path / "stopped & left", 3)
    assert not folder.locked
    assert main(["watch", str(folder.path)]) == 0
    printed = capsys.readouterr().out
    assert "epoch 3/5" in printed
    assert "s left" not in printed  # no process is training it
    assert f"resume it with: linfnet train --resume '{folder.path}'" in printed
    (folder.path / "events.jsonl").unlink()
    assert main(["watch", str(folder.path), "--once"]) == 0
    assert "no epoch yet" in capsys.readouterr().out


def test_a_held_run_is_seen_and_left_alone(run: Path, tmp_path: Path):
    folder, other = unfinished(run, tmp_path / "held", 1), RunFolder.open(tmp_path / "held")
    folder.lock()
    assert other.locked
    assert watch_frame(folder.path)[1] == "training"
    assert read_run(folder.path).notes[0].startswith("The run is still training")
    folder.release()
    assert not other.locked


def test_mistakes(tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["watch", str(tmp_path)]) == 2
    assert "is not a run folder" in capsys.readouterr().err
    assert main(["watch", str(run), "--every", "0"]) == 2
    assert "--every is 0" in capsys.readouterr().err


def test_tensorboard_has_the_numbers_of_the_log(run: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    seen = EventAccumulator(str(run / "tensorboard")).Reload()
    epochs = [event for event in events(run) if event["event"] == "epoch"]
    assert [(point.step, point.value) for point in seen.Scalars("epoch/loss")] == [
        (event["step"], pytest.approx(event["loss"], rel=1e-6)) for event in epochs
    ]
    assert len(seen.Scalars("epoch/p")) == 4, "the infinite p of the last epoch is no number"
    tests = [event for event in events(run) if event["event"] == "test"]
    assert [point.value for point in seen.Scalars("test/certified 0.1")] == [
        pytest.approx(event["certified"]["0.1"], rel=1e-6) for event in tests
    ]


def test_without_tensorboard_nothing_is_begun(tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    assert main(["train", "--out", str(tmp_path / "run"), "--tensorboard", *TINY]) == 2
    assert "pip install 'linfnet[tensorboard]'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_figure_from_a_run_and_from_a_record(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["plot", str(run)]) == 0
    assert (run / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert main(["plot", str(RECORDS / "cifar10-8-125-epochs.json"), "--out", str(tmp_path / "c.svg")]) == 0
    assert "<svg" in (tmp_path / "c.svg").read_text()
    assert main(["plot", str(run), "--out", "x.gif"]) == 2
    for name, words in (("cifar10-8-125-epochs", ("above θ", "0 to θ")), ("mnist-0.3-ibp", ("above 0",))):
        assert main(["plot", str(RECORDS / f"{name}.json"), "--out", str(tmp_path / f"{name}.svg")]) == 0
        # Matplotlib draws text as glyphs, and writes each text next to them as a comment.
        texts = re.findall(r"<!-- (.*) -->", (tmp_path / f"{name}.svg").read_text())
        assert [text for text in texts if re.match("above|0 to", text)] == list(words)
    assert main(["plot", str(RECORDS / "demo.json")]) == 2
    assert "is not the record of a run" in capsys.readouterr().err
