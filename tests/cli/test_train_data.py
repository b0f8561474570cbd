"""`linfnet train --data`: own data, conversions, resuming, and mistakes."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linfnet.cli.inputs import find_inputs
from linfnet.cli.main import main
from linfnet.data import Conversion, load, load_split
from linfnet.files import read_table, write_json
from linfnet.nn import LinfNet
from linfnet.recipes.recipe import Reported
from linfnet.train import RunFolder, fit

SMALL = ["--set", "width=8", "depth=2", "epochs=[1, 1, 1]", "--device", "cpu"]


@pytest.fixture(autouse=True)
def _photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder `mnist` of PNG files in class folders, and the same images as `mnist.npz` and `mnist.csv`."""
    images: Any = pytest.importorskip("PIL.Image")
    monkeypatch.chdir(tmp_path)
    digits = load("digits").first(60)
    rows = ["file,label"]
    for number in range(len(digits)):
        file = Path("mnist", f"digit-{digits.labels[number]}", f"{number}.png")
        file.parent.mkdir(parents=True, exist_ok=True)
        images.fromarray((digits.images[number, 0] * 15).numpy()).save(file)
        rows.append(f"{file},digit-{digits.labels[number]}")
    Path("mnist.csv").write_text("\n".join(rows))
    np.savez("mnist.npz", images=(digits.images * 15).numpy(), labels=digits.labels.numpy())


@pytest.mark.parametrize("path", ["./mnist", "mnist.csv", "mnist.npz"])
def test_a_path_that_is_named_like_a_data_set(path: str, capsys: pytest.CaptureFixture[str]):
    assert main(["train", "digits", "--data", path, "--out", "run", *SMALL]) == 0
    recipe = RunFolder.open(Path("run")).recipe
    assert (recipe.data.name, recipe.data.path) == ("own-mnist", str(Path(path).resolve()))
    assert recipe.title == "own-mnist at eps = 0.1, settings of digits"
    assert recipe.reported == Reported()
    trained, tested = (len(load_split(recipe.data, split)) for split in ("train", "test"))
    assert trained + tested == 60
    net = LinfNet.load("run")
    assert net.mean == load_split(recipe.data, "train").info.mean
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"own-mnist: {trained} training and {tested} test images of 1x8x8, 10 classes (")
    assert lines[0].endswith("parameters; cpu")
    assert any(re.search(r"test: clean \d+\.\d\d, certified@0\.1 \d+\.\d\d ", line) for line in lines)  # p is infinite
    assert any(line.startswith("done in") for line in lines)


def test_a_recipe_with_a_path_has_its_own_title():
    Path("mine.toml").write_text('title = "Leaves"\n[data]\npath = "mnist"\n')
    assert main(["train", "mine.toml", "--out", "run", *SMALL]) == 0
    recipe = RunFolder.open(Path("run")).recipe
    assert (recipe.title, recipe.data.path) == ("Leaves", str(Path("mnist").resolve()))


def test_conversions():
    options = ["--data", "./mnist", "--resize", "6x5", "--rgb"]
    assert main(["train", "digits", *options, "--out", "run", *SMALL]) == 0
    recipe = RunFolder.open(Path("run")).recipe
    assert (recipe.data.resize, recipe.data.mode) == ((6, 5), "rgb")
    assert LinfNet.load("run").image_shape == (3, 6, 5)


@pytest.mark.parametrize("given", [False, True])
def test_a_compressed_net_has_the_conversion_and_the_split_of_its_data(given: bool):
    changes = [*SMALL[:-2], "data.split_seed=3", *SMALL[-2:]]
    options = ["--data", "./mnist", "--resize", "6x5", "--rgb"]
    assert main(["train", "digits", *options, "--out", "run", *changes]) == 0
    options = options if given else []
    assert main(["compress", "run", "--passes", "1", "--out", "small", "--device", "cpu", *options]) == 0
    found = find_inputs(Path("small"), None)
    assert found.conversion == Conversion((6, 5), "rgb")
    assert found.seed == (0 if given else 3)  # as for a run: --data is split by the seed 0
    assert found.data == str(Path("mnist").resolve())
    assert main(["evaluate", "small", "--steps", "1", "--device", "cpu"]) == 0
    assert find_inputs(Path("small"), "mnist").conversion == Conversion()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"resize": "6by5"}, "resize is '6by5'; expected HxW"),
        ({"mode": "blue"}, "mode is 'blue'; expected 'grey'"),
        ({"split_seed": "x"}, "split_seed is 'x'; expected a whole number"),
    ],
)
def test_a_config_with_wrong_settings_of_its_data(
    changes: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
):
    LinfNet((1, 8, 8), 10, (4,)).save("net", class_names=[f"digit-{k}" for k in range(10)])
    config = {**read_table(Path("net/config.json")), "data": str(Path("mnist").resolve()), "eps": ["0.1"], **changes}
    write_json(Path("net/config.json"), config)
    assert main(["evaluate", "net", "--device", "cpu"]) == 2
    assert message in capsys.readouterr().err


def test_a_known_set_by_name(capsys: pytest.CaptureFixture[str]):
    assert main(["train", "mnist-cpu", "--data", "digits", "--out", "run", *SMALL]) == 0
    recipe = RunFolder.open(Path("run")).recipe
    assert (recipe.data.name, recipe.data.path) == ("digits", None)
    assert recipe.title == "Hand-written digits at eps = 0.1, settings of mnist-cpu"


def test_a_stopped_run_on_own_data_resumes_only_with_the_same_images(capsys: pytest.CaptureFixture[str]):
    settings = {"width": 8, "depth": 2, "epochs": [1, 1, 1]}
    fit("digits", "mnist.npz", settings=settings, out="run", callbacks=[lambda run: run.stop()], device="cpu")
    saved = Path("mnist.npz").read_bytes()
    np.savez("mnist.npz", images=np.zeros((60, 8, 8), np.uint8), labels=load("digits").first(60).labels.numpy())
    assert main(["train", "--resume", "run", "--device", "cpu"]) == 2
    assert "the training data is not the data with which the run in run was started" in capsys.readouterr().err
    Path("mnist.npz").write_bytes(saved)
    assert main(["train", "--resume", "run", "--device", "cpu"]) == 0
    assert RunFolder.open(Path("run")).complete


def test_a_run_on_data_from_python_says_how_to_resume(capsys: pytest.CaptureFixture[str]):
    arrays = np.random.default_rng(0).random((40, 4, 4)), np.arange(40) % 2
    stop = [lambda run: run.stop()]
    fit("digits", arrays, settings={"width": 8, "epochs": [1, 1, 1]}, out="run", callbacks=stop, device="cpu")
    assert main(["train", "--resume", "run"]) == 2
    assert "was trained on data from Python; resume it by linfnet.fit" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data", "absent"], "data is 'absent'; expected one of digits, mnist"),
        (["--data", "./mnist", "--resize", "8by8"], "resize is '8by8'; expected HxW such as 28x28"),
        (["--data", "./mnist", "--grey", "--rgb"], "--grey and --rgb are both given"),
        (["--grey"], "convert image files only; give their path by --data"),
        (["--data", "mnist.npz", "--grey"], "resize and mode convert image files only"),
        (["--set", "theta=8"], "loss.theta is 8; expected at most 2 (pixel units); did you mean 8/255?"),
    ],
)
def test_mistakes(options: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    assert main(["train", "digits", "--out", "run", *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not Path("run").exists()


def test_a_bad_image_stops_the_training_and_is_named(capsys: pytest.CaptureFixture[str]):
    Path("mnist/digit-3/torn.png").write_bytes(b"no image")
    assert main(["train", "digits", "--data", "./mnist", "--out", "run", *SMALL]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "torn.png: is not an image in a supported format" in line
