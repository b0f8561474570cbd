"""Arguments of `linfnet.fit` and `load_model` that are honoured, or refused in one line."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from linfnet import evaluate
from linfnet.certificates import certify
from linfnet.data import load
from linfnet.errors import ArgumentError, LinfnetError
from linfnet.files import read_table
from linfnet.nn import Classifier, LinfNet, LpDistance
from linfnet.systems import load_model
from linfnet.train import Callback, Fitted, TrainingRun, fit
from linfnet.train.run_folder import RunFolder

SETTINGS = {"epochs": [1, 1, 1], "batch": 30}
VECTORS = torch.rand(90, 5, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(90) % 3


def wrapped(mean: float = 0.1, std: float = 0.5, width: int = 6, **options: Any) -> Classifier:
    torch.manual_seed(0)
    body = nn.Sequential(LpDistance(5, width, **options), LpDistance(width, 3))
    return Classifier.wrap(body, image_shape=(5,), classes=3, mean=mean, std=std)


def run(net: Classifier | None, **options: Any) -> Fitted:
    settings = SETTINGS | options.pop("settings", {})
    return fit("digits", (VECTORS, LABELS), net=net, settings=settings, device="cpu", **options)


class Stop(Callback):
    """Stops a run before its first step."""

    def __init__(self) -> None:
        self.calls = list[str]()

    def on_start(self, run: TrainingRun) -> None:
        self.calls.append(f"start {run.step}")
        run.stop()

    def on_step(self, run: TrainingRun) -> None:
        self.calls.append(f"step {run.step}")

    def on_finish(self, run: TrainingRun) -> None:
        self.calls.append(f"finish {run.step}")


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"mean": 0.2}, r"mean \[0.2.*\]; the run has mean \[0.1"),
        ({"std": 0.25}, "std 0.25; the run has std 0.5"),
        ({"bias": True}, "another structure"),
        ({"mean_shift": True}, "another structure"),
        (None, "net is None; expected the own net"),
    ],
)
def test_a_run_is_resumed_only_with_a_net_like_the_first(
    finished: bool, other: dict[str, Any] | None, message: str, tmp_path: Path
):
    after_step = [lambda run: run.stop()]
    first = run(wrapped(), out=tmp_path / "run", callbacks=[] if finished else after_step)
    assert first.finished == finished
    settings = {"title": first.recipe.title} if other is None else {}  # else the title differs
    with pytest.raises(ArgumentError, match=message):
        run(None if other is None else wrapped(**other), out=tmp_path / "run", resume=True, settings=settings)
    same = wrapped()
    same.p = 8
    resumed = run(same, out=tmp_path / "run", resume=True)
    whole = run(wrapped())
    assert all(map(torch.equal, resumed.net.state_dict().values(), whole.net.state_dict().values()))


def test_a_run_of_an_older_version_is_resumed(tmp_path: Path):
    run(wrapped(), out=tmp_path / "run")
    file = tmp_path / "run" / "env.json"
    file.write_text(json.dumps({key: value for key, value in read_table(file).items() if key != "net"}))
    assert run(wrapped(), out=tmp_path / "run", resume=True).finished


def test_a_net_trained_on_vectors_takes_vectors(tmp_path: Path):
    fitted = run(None, settings={"width": 8, "depth": 2}, out=tmp_path / "run")
    for net in (fitted.net, load_model(tmp_path / "run")):
        radius = certify(net, VECTORS, LABELS).radius
        assert torch.equal(radius, certify(net, VECTORS.view(90, 1, 1, 5), LABELS).radius)
        assert evaluate(net, (VECTORS, LABELS), 0, steps=1).clean == (radius > -math.inf).double().mean()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"settings": ["width=3"]}, "settings is a list; expected a mapping"),
        ({"settings": {3: 3}}, "settings has the key 3; expected texts"),
        ({"device": "cpuu"}, "device is 'cpuu'; expected auto, cpu, cuda or cuda:INDEX"),
        ({"device": 0}, "device is '0'; expected auto, cpu, cuda or cuda:INDEX"),
        ({"device": "cuda:99"}, "device is 'cuda:99', but torch cannot use this GPU on this machine"),
        ({"device": torch.device("cuda", 99)}, "device is 'cuda:99', but torch cannot use this GPU"),
    ],
)
def test_mistakes(options: dict[str, Any], message: str):
    with pytest.raises(ArgumentError, match=message):
        fit("digits", (VECTORS, LABELS), **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_no_gpu():
    functions: list[Any] = [
        lambda device: fit("digits", (VECTORS, LABELS), device=device),
        lambda device: load_model("mnist-small", device=device),
        lambda device: load("digits", device=device),
    ]
    for function in functions:
        with pytest.raises(ArgumentError, match="device is 'cuda', but torch cannot use this GPU on this machine"):
            function("cuda")
        with pytest.raises(ArgumentError, match="device is 'gpu'; expected auto"):
            function("gpu")


def test_numbers_of_numpy_are_settings():
    settings = {"width": np.int64(8), "depth": np.uint8(2), "epochs": np.array([1, 1, 1]), "lr": np.float32(0.1)}
    settings |= {"p_end": np.int32(100), "flip": np.bool_(False), "theta": np.float64(0.5), "batch": np.int16(30)}
    recipe = run(None, settings=settings).recipe
    assert (recipe.model.width, recipe.model.depth, recipe.schedule.epochs) == (8, 2, (1, 1, 1))
    assert (recipe.optimizer.lr, recipe.schedule.p_end, type(recipe.optimizer.lr)) == (0.1, 100.0, float)
    assert run(None, settings={**settings, "epochs": [np.int64(1)] * 3}).recipe == recipe


@pytest.mark.parametrize("own", [True, False])
def test_a_title_is_honoured(own: bool, tmp_path: Path):
    settings: dict[str, Any] = {"title": "mine"} if own else {"title": "mine", "width": 8, "depth": 2}
    for _ in range(2):  # the second time, the finished run is loaded
        found = run(wrapped() if own else None, settings=settings, out=tmp_path / "run", resume=True)
        assert found.recipe.title == RunFolder.open(tmp_path / "run").recipe.title == "mine"


def test_a_stop_at_the_start_is_before_the_first_step(tmp_path: Path):
    stop = Stop()
    settings = {"width": 8, "depth": 2}
    stopped = run(None, settings=settings, out=tmp_path / "run", callbacks=[stop])
    assert stop.calls == ["start 0", "finish 0"]
    assert not stopped.finished
    assert (stopped.result.epochs, stopped.net.p, stopped.net.training) == (0, math.inf, False)
    resumed, whole = run(None, settings=settings, out=tmp_path / "run", resume=True), run(None, settings=settings)
    assert all(map(torch.equal, resumed.net.state_dict().values(), whole.net.state_dict().values()))


def test_an_error_at_the_start_finishes_the_callbacks_that_have_started():
    class Fails(Stop):
        def on_start(self, run: TrainingRun) -> None:
            raise RuntimeError("mine")

    calls = [Stop(), Fails(), Stop()]
    with pytest.raises(RuntimeError, match=r"^mine$"):
        run(None, callbacks=calls)
    assert [each.calls for each in calls] == [["start 0", "finish 0"], [], []]


def test_a_run_of_an_own_net_is_not_a_model(tmp_path: Path):
    run(wrapped(), out=tmp_path / "run")
    with pytest.raises(LinfnetError, match=r"has only the weights of your own net; call linfnet.fit\(…, resume=True\)"):
        load_model(tmp_path / "run")


def test_a_run_that_has_not_finished_is_not_a_model(tmp_path: Path):
    run(None, settings={"width": 8, "depth": 2}, out=tmp_path / "run", callbacks=[lambda run: run.stop()])
    with pytest.raises(LinfnetError, match="has not finished"):
        load_model(tmp_path / "run")


def test_a_used_folder_is_reported_in_words_of_python_and_of_the_command(tmp_path: Path):
    settings = {"width": 8, "depth": 2}
    run(None, settings=settings, out=tmp_path / "run", callbacks=[lambda run: run.stop()])
    with pytest.raises(LinfnetError, match="or resume it by resume=True or: linfnet train --resume "):
        run(None, settings=settings, out=tmp_path / "run")
    run(None, settings=settings, out=tmp_path / "run", resume=True)
    with pytest.raises(LinfnetError, match="contains a run that has finished; choose another folder, or evaluate it: "):
        run(None, settings=settings, out=tmp_path / "run")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("eps", None, r"eps is None; expected a list such as"),
        ("eps", ["8"], "eps is 8; expected a number from 0 to 1"),
        ("data", 3, "data is 3; expected the name of a data set"),
    ],
)
def test_a_config_with_a_wrong_value_is_refused(key: str, value: object, message: str, tmp_path: Path):
    LinfNet((1, 4, 4), 3, (5,)).save(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**read_table(file), key: value}))
    with pytest.raises(LinfnetError, match=message):
        load_model(tmp_path)
