"""Several processes train like a single one, and a killed process is replaced."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import group_worker
import pytest
import torch
from torch.distributed import TCPStore

from linfnet.cli.main import main
from linfnet.distributed.group import ALONE, GradientSum, Group, joined
from linfnet.errors import ArgumentError, LinfnetError
from linfnet.train import StoppedError

WORKER = Path(__file__).with_name("group_worker.py")


@pytest.fixture(scope="module")
def together(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of two processes after twenty steps."""
    out = tmp_path_factory.mktemp("together")
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    address = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(store.port)}
    environment = {**os.environ, **address, "TORCHELASTIC_USE_AGENT_STORE": "True"}  # as torchrun sets it
    started = [
        subprocess.Popen([sys.executable, WORKER, out], env={**environment, "RANK": str(rank)}, stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    errors = [process.communicate(timeout=120)[1] for process in started]
    assert [process.returncode for process in started] == [0, 0], errors
    return out


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_two_processes_follow_the_single_run(together: Path, dtype: torch.dtype, tmp_path: Path):
    alone = group_worker.train(tmp_path, dtype)
    first, second = (torch.load(together / f"{str(dtype).removeprefix('torch.')}-{rank}.pt") for rank in range(2))
    assert all(torch.equal(tensor, second[key]) for key, tensor in first.items())
    assert len(first["records"]) == 20
    torch.testing.assert_close(first["records"][:, 0], alone["records"][:, 0], rtol=0, atol=1e-5)
    if dtype == torch.float64:
        for key, tensor in alone.items():
            torch.testing.assert_close(first[key], tensor, rtol=0, atol=1e-9, msg=lambda m, key=key: f"{key}: {m}")


def started_by(launcher: int) -> dict[str, int]:
    """The processes of a launcher, by their rank."""
    found: dict[str, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            settings = dict(item.partition("=")[::2] for item in (folder / "environ").read_text().split("\0"))
        except OSError:
            continue  # it has ended
        if parent == launcher and "RANK" in settings:
            found[settings["RANK"]] = int(folder.name)
    return found


def test_a_killed_process_is_replaced_and_the_run_finishes(processes: None, tmp_path: Path):
    out = tmp_path / "run"
    settings = ["limit=149", "width=48", "depth=3", "epochs=[4, 16, 4]", "batch=32"]
    command = ["train", "digits", "--out", str(out), "--set", *settings, "checkpoint_every=1", "test_every=0"]
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1", "-m", "linfnet"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen([sys.executable, *launch, *command], stdout=log, stderr=log, env=environment) as launcher,
    ):
        try:
            deadline = time.monotonic() + 120
            while not list(out.glob("checkpoints/step-*.safetensors")):
                assert launcher.poll() is None, (tmp_path / "log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.005)
            os.kill(started_by(launcher.pid)["1"], signal.SIGKILL)
            assert launcher.wait(timeout=120) == 0, (tmp_path / "log").read_text()
        finally:
            launcher.terminate()
    printed = (tmp_path / "log").read_text()
    assert printed.count("resuming at step") == 1
    assert printed.count("run folder:") == 1  # only the first process prints
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    assert [event["epoch"] for event in events if event["event"] == "epoch"] == list(range(1, 25))
    (resumed,) = [event["step"] for event in events if event["event"] == "resume"]
    assert 0 < resumed < 120
    assert json.loads((out / "results.json").read_text())["training"]["processes"] == 2


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("[third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1", LinfnetError),
        ("[third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 3000ms for recv", LinfnetError),
        ("Application timeout caused pair closure", LinfnetError),
        ("mat1 and mat2 shapes cannot be multiplied", RuntimeError),
    ],
)
def test_a_process_that_died_or_hangs_is_reported_in_a_line(
    words: str, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("linfnet.distributed.group._join", lambda device: Group(0, 2))
    monkeypatch.setattr("torch.distributed.destroy_process_group", lambda: None)
    with pytest.raises(kind) as raised, joined(torch.device("cpu")):
        raise RuntimeError(words)
    lost = f"connection to another process was lost: {words}"
    assert str(raised.value) == (lost if kind is LinfnetError else words)


@pytest.mark.parametrize("rank", [0, 1])
def test_only_the_first_process_says_that_the_run_was_stopped(
    rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def stop(*_: object, **__: object) -> None:
        raise StoppedError("stopped")

    monkeypatch.setattr("linfnet.cli.train.joined", lambda device: contextlib.nullcontext(Group(rank, 1)))
    monkeypatch.setattr("linfnet.cli.train.fit", stop)
    assert main(["train", "digits", "--out", str(tmp_path / "run")]) == 130
    assert capsys.readouterr().err == ("" if rank else "stopped\n")


def test_every_sample_is_in_one_share():
    for samples in range(12):
        for size in range(1, 7):
            taken = [index for rank in range(size) for index in range(samples)[Group(rank, size).share(samples)]]
            assert taken == list(range(samples))
            sizes = [len(range(samples)[Group(rank, size).share(samples)]) for rank in range(size)]
            assert max(sizes) - min(sizes) <= 1


def test_alone_everything_stays_as_it_is():
    x = torch.rand(3, 2)
    assert ALONE.first
    assert ALONE.sum(x) is x
    assert ALONE.gather(x, 3) is x
    assert (ALONE.any(True), ALONE.any(False)) == (True, False)
    assert ALONE.from_first(lambda: 3) == 3


def test_too_many_processes_for_a_batch_are_refused(tmp_path: Path):
    with pytest.raises(ArgumentError, match=r"optimizer.batch is 64: it leaves a last batch of 21 images, too few"):
        group_worker.train(tmp_path, torch.float32, Group(0, 22))


def test_a_temperature_that_does_not_learn_is_left_out_of_the_sums():
    """Objectives without s do not train it, and torch refuses a hook on a parameter without gradient."""
    learned, fixed = torch.nn.Parameter(torch.ones(())), torch.nn.Parameter(torch.ones(()), requires_grad=False)
    GradientSum(Group(0, 2), [learned, fixed])
    assert learned._post_accumulate_grad_hooks
    assert not fixed._post_accumulate_grad_hooks
