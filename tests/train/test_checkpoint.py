import json
import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from steps import OnStep

from linfnet.errors import LinfnetError
from linfnet.files import read_tensors, write_tensors
from linfnet.results import read_results
from linfnet.train import Callbacks, RunFolder, StoppedError, Trainer
from linfnet.train.checkpoint import find_checkpoints, load_checkpoint
from linfnet.train.run_folder import find_leftovers


@pytest.fixture
def trained(new_trainer: Callable[..., Trainer]) -> Trainer:
    trainer = new_trainer()
    trainer.run()
    return trainer


def fresh(trainer: Trainer, callbacks: Callbacks = ()) -> Trainer:
    return Trainer(
        trainer.recipe, trainer.images, trainer.test, torch.device("cpu"), folder=trainer.folder, callbacks=callbacks
    )


def test_a_checkpoint_holds_model_optimizer_and_random_state(trained: Trainer):
    newest, before = find_checkpoints(trained.folder.checkpoints)
    assert (newest.name, before.name) == ("step-000000015.safetensors", "step-000000012.safetensors")
    tensors, metadata = read_tensors(newest)
    names = {name for name, _ in trained.net.named_parameters()}
    assert {f"optimizer.{name}.{key}" for name in names for key in ("exp_avg", "exp_avg_sq", "step")} <= set(tensors)
    assert {f"model.{name}" for name in trained.net.state_dict()} <= set(tensors)
    assert {"random", "record"} <= set(tensors)
    assert metadata["linfnet"] == "linfnet-checkpoint-1"


def test_a_damaged_checkpoint_is_recognised_and_the_one_before_used(trained: Trainer):
    newest, before = find_checkpoints(trained.folder.checkpoints)
    newest.write_bytes(newest.read_bytes()[:-100])
    again = fresh(trained)
    (complaint,) = again.resume()
    assert "step-000000015.safetensors is truncated" in complaint
    assert again.progress.step == 12
    before.write_bytes(b"not a checkpoint at all")
    with pytest.raises(LinfnetError, match="is truncated or not a safetensors file"):
        fresh(trained).resume()
    for path in (newest, before):
        path.unlink()
    again = fresh(trained)  # killed before its first checkpoint: the run starts again and is the same
    assert again.resume() == []
    assert again.progress.step == 0


def test_a_run_without_its_folder_of_checkpoints_begins_again(trained: Trainer):
    weights = {name: tensor.clone() for name, tensor in trained.net.state_dict().items()}
    shutil.rmtree(trained.folder.checkpoints)
    again = fresh(trained)
    assert again.resume() == []
    again.run()
    assert len(find_checkpoints(trained.folder.checkpoints)) == 2
    assert all(torch.equal(tensor, weights[name]) for name, tensor in again.net.state_dict().items())


def test_a_damaged_checkpoint_is_not_kept_in_the_place_of_a_whole_one(trained: Trainer):
    newest = find_checkpoints(trained.folder.checkpoints)[0]
    newest.write_bytes(newest.read_bytes()[:-100])
    again = fresh(trained, callbacks=[OnStep(lambda step: os.kill(os.getpid(), signal.SIGTERM))])
    again.resume()
    with pytest.raises(StoppedError, match="stopped at step 13"):
        again.run()
    kept = find_checkpoints(trained.folder.checkpoints)
    assert [path.stem for path in kept] == ["step-000000013", "step-000000012"]


def test_foreign_checkpoints_change_nothing(trained: Trainer, new_trainer: Callable[..., Trainer]):
    newest = find_checkpoints(trained.folder.checkpoints)[0]
    tensors, metadata = read_tensors(newest)
    wider = new_trainer("wider", "width=20")
    before = {name: tensor.clone() for name, tensor in wider.net.state_dict().items()}

    def refuse(path, message: str) -> None:
        with pytest.raises(LinfnetError, match=message):
            load_checkpoint(path, wider.net, wider.optimizer, wider.record, wider.recipe_digest)
        assert all(torch.equal(tensor, before[name]) for name, tensor in wider.net.state_dict().items())
        assert not wider.optimizer.state

    refuse(newest, "belongs to another net")
    model = trained.folder.path / "model.safetensors"
    refuse(model, "is not a checkpoint of this library")
    part = trained.folder.path / "part.safetensors"
    write_tensors(part, {"record": tensors["record"]}, metadata)
    refuse(part, "is incomplete")
    write_tensors(part, {**tensors, "record": torch.zeros(2, 5)}, metadata)
    refuse(part, "different data or a different batch size")


def test_a_checkpoint_of_the_same_shape_but_another_recipe_is_refused(
    trained: Trainer, new_trainer: Callable[..., Trainer]
):
    newest = find_checkpoints(trained.folder.checkpoints)[0]
    other = new_trainer("other", "seed=1")
    with pytest.raises(LinfnetError, match="was written by a run with a different recipe"):
        load_checkpoint(newest, other.net, other.optimizer, other.record, other.recipe_digest)
    tensors, metadata = read_tensors(newest)
    bare = {name: tensor for name, tensor in tensors.items() if not name.startswith("optimizer.layers.1.weight")}
    write_tensors(newest, bare, metadata)
    again = fresh(trained)
    with pytest.raises(LinfnetError, match=r"is incomplete: it has no optimizer state for layers\.1\.weight"):
        load_checkpoint(newest, again.net, again.optimizer, again.record, again.recipe_digest)


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def test_a_flipped_bit_of_the_newest_checkpoint_is_noticed(trained: Trainer):
    newest = find_checkpoints(trained.folder.checkpoints)[0]
    whole, draw = newest.read_bytes(), random.Random(1)
    for _ in range(20):
        newest.write_bytes(whole)
        flip(newest, draw.randrange(8 * len(whole)))
        again = fresh(trained)
        (complaint,) = again.resume()
        assert newest.name in complaint
        assert again.progress.step == 12


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        (b"exp_avg_sq", b"exp_avg_sp", "has no optimizer state"),
        (rb"\"step\": 15", rb"\"step\": 13", "is damaged: it contains step 13"),
        (b'"random":{"dtype":"U8"', b'"random":{"dtype":"I8"', "'random' has dtype torch.int8"),
        (b'scale.step":{"dtype":"F32"', b'scale.step":{"dtype":"I32"', "has dtype torch.int32"),
    ],
)
def test_a_damaged_header_of_an_old_checkpoint_is_noticed(
    trained: Trainer, before: bytes, after: bytes, complaint: str, caplog: pytest.LogCaptureFixture
):
    newest = find_checkpoints(trained.folder.checkpoints)[0]
    tensors, metadata = read_tensors(newest)
    safetensors.torch.save_file(tensors, newest, metadata)
    content = newest.read_bytes()
    assert content.count(before)
    newest.write_bytes(content.replace(before, after, 1))
    again = fresh(trained)
    (found,) = again.resume()
    assert complaint in found
    assert again.progress.step == 12
    assert "has no digest" in caplog.text


def test_more_checkpoints_than_wanted_are_deleted_by_a_resumed_run(trained: Trainer):
    """A run may be killed after it has written a checkpoint and before it deletes the oldest one."""
    kept = find_checkpoints(trained.folder.checkpoints)
    shutil.copy(kept[-1], trained.folder.checkpoints / "step-000000009.safetensors")
    fresh(trained).resume()
    assert find_checkpoints(trained.folder.checkpoints) == kept


def test_temporary_files_of_this_and_of_older_versions_are_removed(trained: Trainer):
    folder = trained.folder
    for path in (folder.path / ".tmpAUWZVT", folder.checkpoints / ".tmpsdKJkY", folder.path / ".config.json.x.tmp"):
        path.touch()
    assert len(find_leftovers(folder.path)) == 3
    fresh(trained).resume()
    assert find_leftovers(folder.path) == []


def test_numbers_that_json_does_not_have_do_not_stop_a_resumed_run(trained: Trainer):
    log = trained.folder.path / "events.jsonl"
    whole = [event for event in trained.folder.events() if event["event"] != "finish"]
    with log.open("a") as file:
        file.write('{"event": "note", "v": NaN}\n{"event": "note", "step": 1e400}\n{"event": "note", "v": 1e400}\n')
    fresh(trained).resume()
    kept = [event for event in trained.folder.events() if event["event"] not in ("resume", "note")]
    assert kept == whole


def test_the_lock_can_be_written_only_by_its_owner(trained: Trainer):
    lock = trained.folder.path / ".lock"
    assert lock.stat().st_mode & 0o777 == 0o644
    lock.chmod(0o444)
    other = RunFolder.open(trained.folder.path)
    assert other.locked
    trained.folder.release()
    assert not other.locked


def test_processor_time_is_summed_over_the_parts_of_a_run(trained: Trainer):
    newest, before = find_checkpoints(trained.folder.checkpoints)
    whole, part = (json.loads(read_tensors(file)[1]["progress"])["cpu_seconds"] for file in (newest, before))
    assert 0 < part < whole
    newest.unlink()
    again = fresh(trained)
    again.resume()
    assert again.progress.cpu_seconds == part
    result = again.run()
    assert again.progress.cpu_seconds > part
    assert result.cpu_seconds == read_results(again.folder.path).training.cpu_seconds
    assert result.cpu_seconds == round(again.progress.cpu_seconds, 1)


def test_a_run_that_an_older_version_started_has_no_processor_time(trained: Trainer):
    newest, before = find_checkpoints(trained.folder.checkpoints)
    newest.unlink()
    tensors, metadata = read_tensors(before)
    write_tensors(before, tensors, {**metadata, "progress": '{"step": 12, "seconds": 1.5}'})
    again = fresh(trained)
    again.resume()
    assert again.run().cpu_seconds is None
    assert read_results(again.folder.path).training.cpu_seconds is None
