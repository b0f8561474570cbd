import copy
import fcntl
import json
import math
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from steps import OnStep, at_step

from linfnet.data import augment, plan_epoch
from linfnet.epsilon import format_epsilon
from linfnet.errors import LinfnetError
from linfnet.nn import LinfNet, reestimate_means
from linfnet.ops.cuda.half import enabled
from linfnet.recipes import load_recipe
from linfnet.results import read_results
from linfnet.train import RunFolder, StoppedError, Trainer
from linfnet.train.metrics import accuracies
from linfnet.train.optimizer import build_optimizer, step_state


def test_a_run_leaves_a_whole_folder(new_trainer: Callable[..., Trainer]):
    steps: list[int] = []
    trainer = new_trainer(callbacks=[OnStep(steps.append)])
    result = trainer.run()
    folder = trainer.folder.path
    names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    assert names == {
        "recipe.toml",
        "env.json",
        "events.jsonl",
        "checkpoints",
        "model.safetensors",
        "config.json",
        "README.md",
        "results.json",
    }
    assert len(list((folder / "checkpoints").iterdir())) == 2
    assert steps == list(range(1, 16))  # 5 epochs of ceil(150 / 64) = 3 steps

    events = trainer.folder.events()
    epochs = [event for event in events if event["event"] == "epoch"]
    assert [float(event["p"]) for event in epochs] == pytest.approx(
        [8.0, *(8 * 125 ** (k / 9) for k in (2, 5, 8)), math.inf]
    )
    for event in epochs:
        assert event["above"] + event["between"] + event["below"] == pytest.approx(1)
    training = read_results(folder).training
    assert training == result
    last_test = [event for event in events if event["event"] == "test"][-1]
    assert training.test.clean == last_test["clean"]
    assert {format_epsilon(eps): share for eps, share in training.test.certified.items()} == last_test["certified"]
    environment = json.loads((folder / "env.json").read_text())
    assert environment["torch"] == torch.__version__.split("+")[0] or environment["torch"] == torch.__version__

    net = LinfNet.load(folder)
    images = trainer.test.pixels()
    with trainer.net.at_infinity():
        assert torch.equal(net(images), trainer.net(images))


def test_the_same_seed_gives_the_same_bits_and_another_does_not(new_trainer: Callable[..., Trainer]):
    def weights(*arguments: str) -> torch.Tensor:
        trainer = new_trainer(*arguments)
        trainer.run()
        return torch.cat([parameter.detach().flatten() for parameter in trainer.net.parameters()])

    first = weights("a")
    assert torch.equal(first, weights("b"))
    assert not torch.equal(first, weights("c", "seed=1"))
    assert torch.equal(first, weights("d", "clip_leak=0"))
    assert not torch.equal(first, weights("e", "clip_leak=0.1"))
    assert not torch.equal(first, weights("f", "slopes_p=16"))
    assert torch.equal(first, weights("g", "rotate=0", "zoom=0", "contrast=0", "brightness=0"))
    assert not torch.equal(first, weights("h", "rotate=10"))
    assert not torch.equal(first, weights("i", "zoom=0.1"))
    assert not torch.equal(first, weights("j", "contrast=0.1"))
    assert not torch.equal(first, weights("k", "brightness=0.1"))


def test_the_exponent_of_the_slopes_follows_the_schedule(new_trainer: Callable[..., Trainer]):
    changes = ("epochs=[1, 2, 1]", "p_end=128", "slopes_p=16", "slopes_p_end=64", "snap_p=true")
    recipe = load_recipe("digits", changes)
    states = [step_state(recipe, step, 2) for step in range(8)]
    assert [state.p for state in states] == [8, 8, 8, 16, 32, 64, math.inf, math.inf]
    assert [state.slopes_p for state in states] == [16, 16, 16, 22, 32, 46, 64, 64]
    seen: list[float] = []
    trainer = new_trainer("run", *changes, "limit=100", callbacks=[OnStep(lambda _: seen.append(trainer.net.slopes_p))])
    trainer.run()
    assert seen == [state.slopes_p for state in states]
    assert trainer.net.slopes_p == math.inf  # the trained net has exact gradients


def test_float16_is_enabled_for_the_training_steps_of_its_run_only(new_trainer: Callable[..., Trainer]):
    for name, changes, expected in (("on", ("run.float16=true",), True), ("off", (), False)):
        seen: list[bool] = []
        new_trainer(name, *changes, "limit=100", callbacks=[OnStep(lambda _, seen=seen: seen.append(enabled()))]).run()
        assert set(seen) == {expected}
        assert not enabled()

    def fail(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        new_trainer("fails", "run.float16=true", callbacks=[OnStep(fail)]).run()
    assert not enabled()


LOSS = ("clip_leak=0.1", "clip_leak_end=0", "theta_end=0.1")
OPTIONS = (*LOSS, "slopes_p=8", "slopes_p_end=64", "rotate=10", "zoom=0.1", "contrast=0.3", "brightness=0.1")


@pytest.mark.parametrize(
    ("number", "options"), [(signal.SIGTERM, ()), (signal.SIGHUP, OPTIONS)], ids=["SIGTERM", "SIGHUP"]
)
def test_a_stop_request_writes_a_checkpoint_in_mid_epoch_and_resume_repeats_every_bit(
    new_trainer: Callable[..., Trainer], number: signal.Signals, options: tuple[str, ...]
):
    whole = new_trainer("whole", "checkpoint_every=0", *options)
    whole.run()

    stop = at_step(7, lambda: os.kill(os.getpid(), number))
    stopped = new_trainer("stopped", "checkpoint_every=0", *options, callbacks=[stop])
    with pytest.raises(StoppedError, match=r"stopped at step 7 of \d+; resume it with: linfnet train --resume"):
        stopped.run()
    resumed = Trainer(stopped.recipe, stopped.images, stopped.test, torch.device("cpu"), folder=stopped.folder)
    assert resumed.resume() == []
    assert resumed.progress.step == 7
    resumed.run()
    for name, tensor in whole.net.state_dict().items():
        assert torch.equal(tensor, resumed.net.state_dict()[name]), name

    def shown(trainer: Trainer) -> list[dict]:
        kept = [event for event in trainer.folder.events() if event["event"] in ("epoch", "test")]
        return [{key: value for key, value in event.items() if key != "seconds"} for event in kept]

    assert shown(resumed) == shown(whole)


@pytest.mark.parametrize("last_step", [15, 14, 12])
def test_a_run_killed_at_its_end_finishes_with_the_same_model(new_trainer: Callable[..., Trainer], last_step: int):
    """A run that resumes at or near its last step writes the same model as a run that was never stopped."""
    stop = at_step(last_step, lambda: os.kill(os.getpid(), signal.SIGTERM))
    trainer = new_trainer("run", "keep_checkpoints=9", callbacks=[stop])
    whole = new_trainer("whole")
    whole.run()
    if last_step == 15:
        trainer.run()  # the last step has finished, so there is nothing to stop
        for name in ("model.safetensors", "config.json", "results.json"):
            (trainer.folder.path / name).unlink()
    else:
        with pytest.raises(StoppedError):
            trainer.run()
    resumed = Trainer(trainer.recipe, trainer.images, trainer.test, torch.device("cpu"), folder=trainer.folder)
    resumed.resume()
    assert resumed.progress.step == last_step
    resumed.run()
    expected = LinfNet.load(whole.folder.path).state_dict()
    for name, tensor in LinfNet.load(resumed.folder.path).state_dict().items():
        assert torch.equal(tensor, expected[name]), name
    tests = [[event["step"] for event in t.folder.events() if event["event"] == "test"] for t in (whole, resumed)]
    assert tests[0] == tests[1]


def test_schedule_values_reach_the_net_and_the_optimizer(new_trainer: Callable[..., Trainer]):
    trainer = new_trainer()
    trainer.progress.step = 5
    pixels, labels = next(trainer.batches.epoch(1, 2))
    trainer._step(2, pixels, labels)
    values = step_state(trainer.recipe, 5, 3)
    assert trainer.net.p == values.p == pytest.approx(8 * 125 ** (2 / 9))
    rates = [group["lr"] for group in trainer.optimizer.param_groups]
    assert rates == pytest.approx([values.lr, values.lr / 5])


def test_adam_has_the_papers_constants_and_a_group_for_the_scale(new_trainer: Callable[..., Trainer]):
    trainer = new_trainer()
    optimizer = build_optimizer(trainer.recipe, trainer.net)
    weights, scale = optimizer.param_groups
    assert len(scale["params"]) == 1
    assert scale["params"][0] is trainer.net.scale
    assert len(weights["params"]) == len(list(trainer.net.parameters())) - 1
    for group in (weights, scale):
        assert group["betas"] == (0.9, 0.99)
        assert group["eps"] == 1e-10
        assert group["weight_decay"] == 0


@pytest.mark.parametrize("name", ["hinge", "cross_entropy", "thresholded_cross_entropy", "mixture"])
def test_every_objective_trains_stops_and_resumes(new_trainer: Callable[..., Trainer], name: str):
    changes = ("limit=0", "pad=0", "epochs=[2, 2, 1]", "weight_decay=5e-3", "hold_lr=true", f"loss.name={name}")
    trainer = new_trainer(name, *changes)
    trainer.run()
    losses = trainer.view.history.column("loss")
    assert losses[1] < losses[0]
    assert (trainer.net.scale.item() == 1.0) is (not trainer.recipe.loss.learns_scale)
    (trainer.folder.path / "results.json").unlink()
    resumed = Trainer(trainer.recipe, trainer.images, trainer.test, torch.device("cpu"), folder=trainer.folder)
    assert resumed.resume() == []
    assert all(torch.equal(a, b) for a, b in zip(trainer.net.parameters(), resumed.net.parameters(), strict=True))


def test_a_diverging_loss_stops_the_run_and_keeps_the_last_checkpoint(new_trainer: Callable[..., Trainer]):
    trainer = new_trainer(callbacks=[at_step(7, lambda: trainer.net.layers[0].weight.data.fill_(math.nan))])
    with pytest.raises(LinfnetError, match=r"the loss is nan at step 7 \(epoch 3, p = .*check optimizer.lr"):
        trainer.run()
    assert [path.name for path in trainer.folder.checkpoints.iterdir()].count("step-000000006.safetensors") == 1
    assert not trainer.folder.finished


def test_the_metrics_at_infinity_use_means_of_infinity(new_trainer: Callable[..., Trainer]):
    trainer = new_trainer("run", "epochs=[12, 1, 0]", "limit=0", "test_every=12", "pad=0")
    trainer.run()
    first = trainer.view.history.tests[0]
    assert first.accuracy_at_p > 0.5
    assert first.clean > 0.8 * first.accuracy_at_p  # with outdated means, the accuracy would be near chance
    # A run that ends at a finite p still writes a model whose means are estimated at p = inf.
    assert read_results(trainer.folder.path).training.test.clean > 0.4


def test_a_test_at_a_finite_p_uses_means_of_infinity(new_trainer: Callable[..., Trainer]):
    trainer = new_trainer("run", "evaluation.eps=[0, 0.01, 0.02, 0.03]")
    for row, (pixels, labels) in enumerate(trainer.batches.epoch(0)):
        trainer._step(row, pixels, labels)
    expected = copy.deepcopy(trainer.net)
    outdated = accuracies(expected.frozen(), trainer.test, trainer.recipe.evaluation.eps)
    reestimate_means(expected, trainer.batches.for_means())
    found = trainer._test(trainer.test)
    wanted = accuracies(expected.frozen(), trainer.test, trainer.recipe.evaluation.eps)
    assert (found.clean, found.certified) == (wanted.clean, wanted.certified)
    assert outdated.certified != wanted.certified
    assert trainer.net.p == 8
    assert trainer.net.training


def test_a_run_without_tests_is_tested_at_its_end(new_trainer: Callable[..., Trainer]):
    trainer = new_trainer("run", "test_every=0", "epochs=[1, 1, 0]")
    trainer.run()
    assert [event.epoch for event in trainer.view.history.tests] == [2]


def test_a_run_that_ends_at_a_finite_p_has_means_of_infinity(new_trainer: Callable[..., Trainer]):
    trainer = new_trainer("run", "epochs=[1, 1, 0]")
    trainer.run()
    expected = copy.deepcopy(trainer.net)
    reestimate_means(expected, trainer.batches.for_means())
    for name, tensor in expected.state_dict().items():
        assert torch.equal(tensor, trainer.net.state_dict()[name]), name


def test_every_epoch_of_a_seed_has_its_order_and_its_crops(new_trainer: Callable[..., Trainer]):
    for seed, epoch in ((0, 0), (0, 1), (3, 0), (3, 4)):
        trainer = new_trainer(f"{seed} {epoch}", f"seed={seed}")
        plan = plan_epoch(150, seed, epoch, pad=1)
        images = trainer.images.images[plan.order]
        expected = trainer.images.as_pixels(augment(images, plan.top, plan.left, plan.flip, 1))
        pixels, labels = zip(*trainer.batches.epoch(epoch), strict=True)
        assert torch.equal(torch.cat(pixels), expected)
        assert torch.equal(torch.cat(labels), trainer.images.labels[plan.order])


def test_checkpoints_come_by_the_clock_too(new_trainer: Callable[..., Trainer]):
    seldom = new_trainer("seldom", "checkpoint_every=0", "checkpoint_minutes=60")
    seldom.run()
    assert [path.name for path in seldom.folder.checkpoints.iterdir()] == ["step-000000015.safetensors"]
    often = new_trainer("often", "checkpoint_every=0", "checkpoint_minutes=0", "keep_checkpoints=9")
    often.run()
    assert len(list(often.folder.checkpoints.iterdir())) == 5
    # An epoch may take hours, so checkpoints are also written within an epoch.
    always = new_trainer("always", "checkpoint_every=0", "checkpoint_minutes=1e-9", "keep_checkpoints=99")
    always.run()
    assert len(list(always.folder.checkpoints.iterdir())) == 15


def test_a_folder_serves_one_process(new_trainer: Callable[..., Trainer], tmp_path: Path):
    trainer = new_trainer()
    with pytest.raises(LinfnetError, match="in use by another process"):
        RunFolder.open(trainer.folder.path).lock()
    with pytest.raises(LinfnetError, match="already contains a run"):
        new_trainer()


def test_a_test_of_the_lock_does_not_prevent_a_run_from_starting(tmp_path: Path):
    """`locked` acquires the lock for a moment; other releases may acquire a shared lock."""
    folder = RunFolder(tmp_path, load_recipe("digits"))
    folder.lock()
    folder.release()
    testing = os.open(tmp_path / ".lock", os.O_RDONLY)
    fcntl.flock(testing, fcntl.LOCK_SH)
    end = threading.Timer(0.05, os.close, [testing])
    end.start()
    folder.lock()
    end.join()
    assert folder.locked
    folder.release()
    assert not folder.locked


def test_tests_of_the_lock_do_not_disturb_each_other(tmp_path: Path):
    folder = RunFolder(tmp_path, load_recipe("digits"))
    folder.lock()
    folder.release()
    with ThreadPoolExecutor(4) as pool:
        assert not any(pool.map(lambda _: RunFolder(tmp_path, folder.recipe).locked, range(40)))


def test_without_a_folder_nothing_is_written(
    new_trainer: Callable[..., Trainer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    expected = new_trainer()
    recipe, images, test = expected.recipe, expected.images, expected.test
    before = sorted(tmp_path.rglob("*"))
    trainer = Trainer(recipe, images, test, torch.device("cpu"))
    result = trainer.run()
    assert sorted(tmp_path.rglob("*")) == before
    expected.run()
    assert all(torch.equal(a, b) for a, b in zip(trainer.net.parameters(), expected.net.parameters(), strict=True))
    assert result.test == read_results(expected.folder.path).training.test
