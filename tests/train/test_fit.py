"""`linfnet.train.fit`: data of all kinds, callbacks, resuming and run folders."""

import copy
import math
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from steps import OnStep, at_step
from torch.utils.data import DataLoader, TensorDataset

from linfnet.compression import compress
from linfnet.data import load, load_split
from linfnet.errors import ArgumentError, LinfnetError
from linfnet.nn import LinfNet
from linfnet.recipes import load_recipe
from linfnet.recipes.recipe import Reported
from linfnet.results import read_results
from linfnet.systems import load_model
from linfnet.train import Callback, Fitted, RunFolder, StoppedError, TrainingRun, fit

TINY = {"limit": 150, "width": 16, "depth": 3, "epochs": [1, 3, 1], "batch": 64, "test_every": 1, "pad": 1}


def small(*arguments: Any, settings: dict[str, Any] | None = None, **options: Any) -> Fitted:
    return fit("digits", *arguments, settings={**TINY, **(settings or {})}, device="cpu", **options)


def weights(fitted: Fitted) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in fitted.net.state_dict().values()])


@pytest.fixture
def arrays() -> tuple[np.ndarray, np.ndarray]:
    digits = load("digits")
    return digits.pixels().numpy(), digits.labels.numpy()


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder with a sub-folder of PNG files for each class."""
    images: Any = pytest.importorskip("PIL.Image")
    digits = load("digits")
    for number in range(60):
        folder = tmp_path / "photos" / f"digit-{digits.labels[number]}"
        folder.mkdir(parents=True, exist_ok=True)
        images.fromarray((digits.images[number, 0] * 15).numpy()).save(folder / f"{number}.png")
    return tmp_path / "photos"


class TestHeldOut:
    def test_held_out_images_replace_the_test_images(self, tmp_path: Path):
        settings = {"hold_out": 300, "limit": 0}
        fitted = small(settings=settings, out=tmp_path / "run")
        rest, held_out = load("digits").hold_out(300)
        plain = small(rest, held_out, settings={"limit": 0})
        assert torch.equal(weights(fitted), weights(plain))
        assert fitted.result.test is None
        assert fitted.result.held_out == plain.result.test
        assert fitted.history.column("clean") == plain.history.column("clean")
        assert read_results(tmp_path / "run").training == fitted.result
        assert small(settings=settings, out=tmp_path / "run", resume=True).result == fitted.result
        assert torch.equal(weights(small(load("digits"), settings=settings)), weights(fitted))

    def test_test_data_and_held_out_images_exclude_each_other(self):
        with pytest.raises(ArgumentError, match=r"data.hold_out is 100, but test is given"):
            small(load("digits"), load("digits", "test"), settings={"hold_out": 100})
        with pytest.raises(ArgumentError, match="hold_out is 1437; expected a number from 1 to 1436"):
            small(settings={"hold_out": 1437})


class TestData:
    def test_a_known_set_is_the_data_of_the_recipe(self):
        by_recipe, by_name = small(), small("digits")
        by_sets = small(load("digits", "train"), load("digits", "test"))
        assert by_recipe.recipe == by_name.recipe == by_sets.recipe
        assert by_recipe.recipe.title == load_recipe("digits").title
        assert torch.equal(weights(by_recipe), weights(by_name))
        assert torch.equal(weights(by_recipe), weights(by_sets))

    def test_the_net_is_ready_for_use(self):
        fitted = small()
        assert math.isinf(fitted.net.p)
        assert not fitted.net.training
        assert fitted.finished
        assert fitted.folder is None
        assert fitted.result.test is not None
        assert fitted.result.test.clean == fitted.history.tests[-1].clean
        assert [event.epoch for event in fitted.history.epochs] == [1, 2, 3, 4, 5]
        assert len(fitted.history.column("loss")) == len(fitted.history.column("clean")) == 5

    def test_arrays_of_any_shape_give_the_shape_the_classes_and_the_normalisation(self):
        rng = np.random.default_rng(0)
        images, labels = rng.random((90, 6, 5, 3)), np.arange(90) % 3
        fitted = fit("digits", (images, labels), settings={"width": 8, "depth": 2, "epochs": [1, 1, 1]}, device="cpu")
        assert (fitted.net.image_shape, fitted.net.classes) == ((3, 6, 5), 3)
        assert fitted.net.mean == pytest.approx(images.mean((0, 1, 2)))
        assert fitted.net.std == pytest.approx(0.2887, abs=0.01)
        assert (fitted.result.test, fitted.history.tests) == (None, [])
        assert fitted.result.train is not None
        assert len(fitted.result.train.certified) == 1

    def test_a_loader_and_a_dataset_are_data(self, arrays: tuple[np.ndarray, np.ndarray]):
        dataset = TensorDataset(*map(torch.from_numpy, arrays))
        nets = [small(data) for data in (arrays, dataset, DataLoader(dataset, batch_size=100))]
        assert all(torch.equal(weights(nets[0]), weights(other)) for other in nets[1:])
        assert nets[0].recipe.title == "own at eps = 0.1, settings of digits"
        assert nets[0].recipe.reported == Reported()

    def test_own_data_with_a_known_name_is_not_mistaken_for_the_known_set(self, tmp_path: Path):
        fitted = small(load("digits").first(100), out=tmp_path / "run")
        stored = RunFolder.open(tmp_path / "run").recipe
        assert stored == fitted.recipe
        assert (stored.data.name, stored.data.in_memory) == ("own-digits", True)
        with pytest.raises(LinfnetError, match=r"'own-digits' was passed from Python.*pass the data again"):
            load_split(stored.data, "test")

    def test_a_folder_of_images(self, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.chdir(photos.parent)
        fitted = small("photos", settings={"limit": 0, "data.resize": [8, 8]}, out="run")
        stored = RunFolder.open(Path("run")).recipe
        assert stored.data.path == str(photos)
        assert (stored.data.name, stored.data.resize) == ("photos", (8, 8))
        assert stored.title == "photos at eps = 0.1, settings of digits"
        assert "class_names" in Path("run/config.json").read_text()
        assert "digit-7" in Path("run/config.json").read_text()
        monkeypatch.chdir("/")
        test = load_split(stored.data, "test")
        assert (test.info.name, test.class_names[0]) == ("photos", "digit-0")
        assert fitted.result.test is not None
        assert len(test) == 60 - len(load_split(stored.data, "train"))

    def test_a_bad_image_is_named(self, photos: Path):
        (photos / "digit-3" / "torn.png").write_bytes(b"no image")
        with pytest.raises(LinfnetError, match=r"1 of \d+ image files cannot be used.*\n.*torn\.png"):
            small(photos)

    def test_wrong_data_is_refused(self, arrays: tuple[np.ndarray, np.ndarray]):
        images, labels = arrays
        with pytest.raises(LinfnetError, match=r"data is 'mnsit'; expected one of digits, .* or an existing folder"):
            small("mnsit")
        with pytest.raises(ArgumentError, match=r"test has images of shape \(1, 7, 8\); expected \(1, 8, 8\)"):
            small(arrays, (images[:, :, 1:], labels))
        with pytest.raises(ArgumentError, match="expected 0 to 9"):
            small(arrays, (images, labels + 1))
        with pytest.raises(ArgumentError, match=r"data.resize is .*; it has no effect"):
            small(settings={"data.resize": [8, 8]})


class TestSettings:
    def test_values_and_texts(self):
        fitted = small(load("digits").first(70), settings={"theta": "48/255", "model.width": "8"}, seed=3)
        assert (fitted.recipe.model.width, fitted.recipe.run.seed) == (8, 3)
        assert float(fitted.recipe.loss.theta) == pytest.approx(48 / 255)

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"widht": 3}, "unknown key 'widht'; did you mean 'model.width'"),
            ({"theta": 8}, r"loss.theta is 8; expected at most 2 \(pixel units\); did you mean 8/255\?"),
            ({"evaluation.eps": [8]}, r"evaluation.eps is 8; expected a number from 0 to 1 .*; did you mean 8/255\?"),
            ({"data.mode": "gray"}, "data.mode is 'gray'; expected 'grey' or 'rgb'"),
        ],
    )
    def test_mistakes(self, settings: dict[str, Any], message: str):
        with pytest.raises(ArgumentError, match=message):
            small(settings=settings)

    def test_the_random_numbers_of_the_program_do_not_change(self):
        torch.manual_seed(5)
        expected = torch.rand(3)
        torch.manual_seed(5)
        small()
        assert torch.equal(torch.rand(3), expected)


class TestOwnNet:
    def test_it_is_trained_in_place(self):
        digits = load("digits")
        net = LinfNet((1, 8, 8), 10, (12, 12), mean=digits.info.mean, std=digits.info.std)
        before = net.layers[0].weight.clone()
        fitted = fit("digits", digits, settings={"epochs": [1, 1, 1]}, net=net, device="cpu")
        assert fitted.net is net
        assert not torch.equal(net.layers[0].weight, before)
        assert fitted.recipe.title.endswith(", own net")

    def test_a_net_of_no_system_leaves_its_weights_and_resumes(self, tmp_path: Path):
        class Mine(LinfNet):
            system = "unregistered"

        def run(**options: Any) -> Fitted:
            torch.manual_seed(3)
            settings = {"epochs": [1, 1, 1], "limit": 150}
            return fit("digits", net=Mine((1, 8, 8), 10, (12,)), settings=settings, device="cpu", **options)

        whole = run()
        assert not run(out=tmp_path / "run", callbacks=[Stop(4)]).finished
        for _ in range(2):
            assert torch.equal(weights(run(out=tmp_path / "run", resume=True)), weights(whole))
        assert (tmp_path / "run" / "model.safetensors").is_file()
        assert not (tmp_path / "run" / "config.json").exists()

    @pytest.mark.parametrize("step", [4, 6])
    def test_a_net_that_draws_random_numbers_resumes(self, step: int, tmp_path: Path):
        class Dropped(LinfNet):
            system = "unregistered"

            def forward(self, images: torch.Tensor) -> torch.Tensor:
                return super().forward(torch.nn.functional.dropout(images, 0.1, self.training))

        def run(**options: Any) -> Fitted:
            torch.manual_seed(3)
            settings = {"epochs": [1, 1, 1], "limit": 150, "batch": 64}
            return fit("digits", net=Dropped((1, 8, 8), 10, (12,)), settings=settings, device="cpu", **options)

        whole = run()
        assert not run(out=tmp_path / "run", callbacks=[Stop(step)]).finished
        assert torch.equal(weights(run(out=tmp_path / "run", resume=True)), weights(whole))

    def test_a_compressed_net_is_trained_at_infinity_and_resumes(self, tmp_path: Path):
        digits = load("digits").first(150)
        dense = fit("digits", digits, settings={"epochs": [1, 1, 1], "width": 16}, device="cpu").net
        assert isinstance(dense, LinfNet)
        before = compress(dense, digits).net

        def run(**options: Any) -> Fitted:
            settings = {"epochs": [0, 0, 3], "weight_decay": 1e-3}
            return fit("digits", digits, net=copy.deepcopy(before), settings=settings, device="cpu", **options)

        whole = run()
        assert {event.p for event in whole.history.epochs} == {math.inf}
        for layer, old in zip(whole.net.layers, before.layers, strict=True):
            assert torch.equal(layer.index, old.index)
            assert not torch.equal(layer.weight, old.weight)
        assert not run(out=tmp_path / "run", callbacks=[Stop(2)]).finished
        for _ in range(2):
            assert torch.equal(weights(run(out=tmp_path / "run", resume=True)), weights(whole))
        stored = load_model(tmp_path / "run")
        assert torch.equal(stored(digits.pixels()), whole.net(digits.pixels()))

    def test_what_does_not_fit_is_refused(self):
        with pytest.raises(ArgumentError, match="net has 9 classes; the training data has 10"):
            fit("digits", net=LinfNet((1, 8, 8), 9))
        with pytest.raises(ArgumentError, match=r"net expects images of shape \(1, 8, 9\)"):
            fit("digits", net=LinfNet((1, 8, 9), 10))
        with pytest.raises(ArgumentError, match=r"settings change \[model\], which has no effect"):
            fit("digits", net=LinfNet((1, 8, 8), 10), settings={"width": 3})


class Stop(Callback):
    """Stops a run at a step, and records its calls."""

    def __init__(self, step: int) -> None:
        self.step, self.calls = step, list[str]()

    def on_start(self, run: TrainingRun) -> None:
        self.calls.append(f"start {run.step}")

    def on_step(self, run: TrainingRun) -> None:
        if run.step == self.step:
            run.stop()

    def on_test(self, run: TrainingRun) -> None:
        self.calls.append(f"test {run.history.tests[-1].epoch}")

    def on_finish(self, run: TrainingRun) -> None:
        self.calls.append(f"finish {run.step}")


class TestCallbacks:
    def test_a_function_is_called_after_each_epoch(self):
        seen: list[tuple[int, float, float]] = []
        small(callbacks=[lambda run: seen.append((run.epoch, run.p, run.metrics["loss"]))])
        assert [epoch for epoch, _, _ in seen] == [1, 2, 3, 4, 5]
        assert seen[0][1] == 8
        assert math.isinf(seen[-1][1])

    @pytest.mark.parametrize("step", [7, 9, 1])
    def test_a_stopped_run_gives_a_net_and_resumes_to_the_same_bits(
        self, step: int, tmp_path: Path, arrays: tuple[np.ndarray, np.ndarray]
    ):
        whole = small(arrays, load("digits", "test"))
        stop = Stop(step)
        stopped = small(arrays, load("digits", "test"), out=tmp_path / "run", callbacks=[stop])
        assert not stopped.finished
        assert stop.calls == ["start 0", *(f"test {k + 1}" for k in range(step // 3)), f"finish {step}"]
        assert (stopped.net.p, stopped.net.training) == (math.inf, False)
        assert stopped.result.test is not None
        assert not RunFolder.open(tmp_path / "run").finished
        resumed = small(arrays, load("digits", "test"), out=tmp_path / "run", resume=True)
        assert resumed.finished
        assert torch.equal(weights(whole), weights(resumed))
        assert [event.step for event in resumed.history] == [event.step for event in whole.history]
        assert resumed.history.column("loss") == whole.history.column("loss")
        assert resumed.result.test == whole.result.test

    def test_a_stop_in_memory_gives_usable_means(self):
        fitted = small(
            settings={"limit": 0, "epochs": [12, 1, 0], "test_every": 0, "pad": 0}, callbacks=[Stop(12 * 23)]
        )
        assert fitted.result.test is not None
        assert fitted.result.test.clean > 0.4

    def test_a_stop_at_the_last_step_finishes_the_run(self, tmp_path: Path):
        assert small(out=tmp_path / "run", callbacks=[Stop(15)]).finished
        assert RunFolder.open(tmp_path / "run").finished

    @pytest.mark.parametrize("kind", [RuntimeError, OSError])
    def test_an_error_in_a_callback_leaves_a_run_that_resumes(self, tmp_path: Path, kind: type[Exception]):
        def fail() -> None:
            raise kind("mine")

        stop = Stop(99)
        with pytest.raises(kind, match=r"^mine$"):
            small(out=tmp_path / "run", callbacks=[stop, at_step(8, fail)], settings={"checkpoint_every": 1})
        assert stop.calls[-1] == "finish 8"
        resumed = small(out=tmp_path / "run", resume=True, settings={"checkpoint_every": 1})
        assert torch.equal(weights(resumed), weights(small()))

    def test_what_is_no_callback_is_refused(self):
        wrong: list[Any] = [Callback, 3]
        for callback in wrong:
            with pytest.raises(ArgumentError, match=r"expected an instance of linfnet.Callback or a function"):
                small(callbacks=[callback])
        alone: Any = Stop(3)
        with pytest.raises(ArgumentError, match="expected a list of callbacks"):
            small(callbacks=alone)

    def test_an_interrupt_in_memory_is_pythons_own(self):
        def interrupt() -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            small(callbacks=[at_step(2, interrupt)])


class TestFolder:
    def test_a_run_folder_is_complete_and_is_not_overwritten(self, tmp_path: Path):
        fitted = small(out=tmp_path / "run")
        assert read_results(tmp_path / "run").training == fitted.result
        loaded = load_model(tmp_path / "run")
        assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), fitted.net.parameters(), strict=True))
        with pytest.raises(LinfnetError, match="already contains a run"):
            small(out=tmp_path / "run")

    def test_a_finished_run_is_loaded(self, tmp_path: Path):
        steps: list[int] = []
        first = small(out=tmp_path / "run")
        again = small(out=tmp_path / "run", resume=True, callbacks=[OnStep(steps.append)])
        assert steps == []
        assert torch.equal(weights(first), weights(again))
        assert (again.history, again.result) == (first.history, first.result)

    def test_resume_starts_a_run_if_there_is_none(self, tmp_path: Path):
        assert small(out=tmp_path / "run", resume=True).finished
        with pytest.raises(ArgumentError, match="resume is True, but out is not given"):
            small(resume=True)

    def test_other_data_or_settings_are_refused(self, tmp_path: Path, arrays: tuple[np.ndarray, np.ndarray]):
        images, labels = arrays
        small(arrays, out=tmp_path / "run", callbacks=[Stop(4)])
        with pytest.raises(LinfnetError, match=r"is not the data with which the run in .*run was started"):
            small((images[::-1].copy(), labels), out=tmp_path / "run", resume=True)
        with pytest.raises(LinfnetError, match=r"has other settings in \[model\]"):
            small(arrays, out=tmp_path / "run", resume=True, settings={"width": 17})
        with pytest.raises(LinfnetError, match=r"has other settings in "):
            small(out=tmp_path / "run", resume=True)

    def test_a_stop_by_a_signal_is_an_error_that_says_how_to_resume(self, tmp_path: Path):
        with pytest.raises(StoppedError, match=r"stopped at step 4 of \d+; resume it with"):
            small(out=tmp_path / "run", callbacks=[at_step(4, lambda: os.kill(os.getpid(), signal.SIGTERM))])
