"""The user's own images: folders of classes, CSV and .npz files, image folders without labels, and bad files."""

import csv
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from linfnet.cli.main import main
from linfnet.data import load
from linfnet.results import read_results

COUNT = 40


@pytest.fixture(scope="module")
def run(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shutil.copytree(finished_run, tmp_path_factory.mktemp("own") / "run")


@pytest.fixture(scope="module")
def pictures() -> list[tuple[Image.Image, int]]:
    """Test images as 8-bit pictures, with their labels."""
    digits = load("digits", "test").first(COUNT)
    grey = (digits.pixels()[:, 0].numpy() * 255).round().astype(np.uint8)
    return [(Image.fromarray(image), int(label)) for image, label in zip(grey, digits.labels, strict=True)]


@pytest.fixture
def class_folders(tmp_path: Path, pictures: list[tuple[Image.Image, int]]) -> Path:
    """The pictures in a folder for each class; class folders are in `test` and, as the data needs it, in `train`."""
    for index, (picture, label) in enumerate(pictures):
        for split in ("train", "test"):
            folder = tmp_path / "photos" / split / str(label)
            folder.mkdir(parents=True, exist_ok=True)
            picture.save(folder / f"{index}.png")
    return tmp_path / "photos"


def flat(folder: Path, pictures: list[tuple[Image.Image, int]], count: int = 3) -> Path:
    folder.mkdir()
    for index, (picture, _) in enumerate(pictures[:count]):
        picture.save(folder / f"{index}.png")
    return folder


def test_evaluate_own_folder(run: Path, class_folders: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """Byte images are rounded, so results may differ slightly from those of the data set, but not in their order."""
    few = ["--eps", "0.01", "--steps", "2"]
    assert main(["evaluate", str(run), "--data", str(class_folders), *few]) == 0
    assert f"{COUNT} test images of photos" in capsys.readouterr().out
    found = read_results(run).evaluations[-1]
    assert (found.data, found.split, found.count) == ("photos", "test", COUNT)
    assert found.best_certified <= found.attacked <= found.clean
    assert main(["compare", str(run), "--data", str(class_folders), "--json"]) == 0
    assert [row["images"] for row in json.loads(capsys.readouterr().out)] == ["photos-test-pgd-2"]
    assert main(["compare", str(run), "--data", "mnist"]) == 2
    assert "has no results on mnist" in capsys.readouterr().err
    assert main(["report", str(run), "--out", str(tmp_path / "report.html")]) == 0


def test_every_source_has_the_same_labels(
    run: Path, class_folders: Path, tmp_path: Path, pictures: list[tuple[Image.Image, int]]
):
    images = np.stack([np.asarray(picture) for picture, _ in pictures])
    labels = np.array([label for _, label in pictures])
    np.savez(tmp_path / "arrays.npz", x_test=images, y_test=labels, x_train=images, y_train=labels)
    lines = [f"photos/test/{label}/{index}.png,{label},test" for index, (_, label) in enumerate(pictures)]
    lines += [line.replace("test", "train") for line in lines]
    (tmp_path / "list.csv").write_text("\n".join(["file,label,split", *lines]))
    correct: list[float] = []
    for source in (class_folders, tmp_path / "arrays.npz", tmp_path / "list.csv"):
        out = tmp_path / f"out-{source.stem}"
        assert main(["certify", str(run), "--data", str(source), "--eps", "0.01", "--out", str(out)]) == 0
        with (out / "radii.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == COUNT
        assert sorted(row["label"] for row in rows) == sorted(map(str, labels.tolist()))
        correct.append(sum(row["label"] == row["prediction"] for row in rows))
    assert correct == [correct[0]] * 3


def test_some_classes_are_matched_by_name(run: Path, tmp_path: Path, pictures: list[tuple[Image.Image, int]]):
    for index, (picture, label) in enumerate(pictures):
        if label in (3, 7):
            (tmp_path / "two" / str(label)).mkdir(parents=True, exist_ok=True)
            picture.save(tmp_path / "two" / str(label) / f"{index}.png")
    out = tmp_path / "out"
    assert main(["certify", str(run), "--data", str(tmp_path / "two"), "--split", "all", "--out", str(out)]) == 0
    with (out / "radii.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["label"] for row in rows} == {"3", "7"}
    assert {row["image"].split("/")[0] for row in rows} == {"3", "7"}


def test_classes_that_the_net_does_not_have(
    run: Path, tmp_path: Path, pictures: list[tuple[Image.Image, int]], capsys: pytest.CaptureFixture[str]
):
    for name in ("cat", "dog"):
        flat(tmp_path / name, pictures)
    assert main(["evaluate", str(run), "--data", str(tmp_path)]) == 2
    assert "has the class 'cat'; the net has the classes 0, 1, 2" in capsys.readouterr().err


def test_unlabelled_images_have_radii_but_no_accuracy(
    run: Path, tmp_path: Path, pictures: list[tuple[Image.Image, int]], capsys: pytest.CaptureFixture[str]
):
    folder, out = flat(tmp_path / "flat", pictures), tmp_path / "out"
    assert main(["certify", str(run), "--data", str(folder), "--out", str(out)]) == 0
    with (out / "radii.csv").open(newline="") as file:
        row = next(csv.DictReader(file))
    assert "label" not in row
    assert "prediction" in row
    capsys.readouterr()
    assert main(["evaluate", str(run), "--data", str(folder)]) == 2
    assert "has no labels, which this command needs" in capsys.readouterr().err


def test_one_bad_image_among_many(
    run: Path, tmp_path: Path, pictures: list[tuple[Image.Image, int]], capsys: pytest.CaptureFixture[str]
):
    folder = flat(tmp_path / "flat", pictures)
    Image.new("RGB", (8, 8)).save(folder / "colour.png")
    for command in (["predict", str(run), str(folder)], ["certify", str(run), "--data", str(folder)]):
        capsys.readouterr()
        assert main(command) == 2
        printed = capsys.readouterr()
        assert printed.err.count("\n") == 1
        assert "colour.png: is RGB; the net expects grey images: pass --grey" in printed.err
        assert all(f"{index}.png" in printed.out for index in range(3))
    assert main(["predict", str(run), str(folder), "--grey"]) == 0
    assert main(["attack", str(run), "--data", str(folder), "--eps", "0.1"]) == 2


def test_predict_writes_json_and_csv(
    run: Path, tmp_path: Path, pictures: list[tuple[Image.Image, int]], capsys: pytest.CaptureFixture[str]
):
    folder = flat(tmp_path / "flat", pictures)
    pictures[0][0].resize((20, 16)).convert("RGB").save(folder / "3.png")
    arguments = [
        "predict",
        str(run),
        str(folder),
        "--grey",
        "--resize",
        "8x8",
        "--eps",
        "0.001",
        "1",
        "--device",
        "cpu",
    ]
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["image"] for row in rows] == [f"{index}.png" for index in range(4)]
    for row in rows:
        assert row["class"] == str(row["prediction"]) != row["runner_up"]
        assert row["certified"] == {"0.001": (row["radius"] or 0) >= 0.001, "1": False}
    assert main([*arguments, "--csv"]) == 0
    table = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [float(row["radius"]) for row in table] == [row["radius"] for row in rows]
    assert list(table[0])[-2:] == ["certified@0.001", "certified@1"]
    assert main(arguments) == 0
    assert "at 0.001" in capsys.readouterr().out
    assert main([*arguments, "--csv", "--json"]) == 2


def test_a_packaged_net_is_evaluated_outside_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    images, labels = np.zeros((20, 28, 28), np.uint8), np.arange(20) % 10
    np.savez(tmp_path / "own.npz", x_test=images, y_test=labels, x_train=images, y_train=labels)
    monkeypatch.chdir(tmp_path)
    assert main(["evaluate", "mnist-small", "--data", "own.npz", "--steps", "1"]) == 0
    (folder,) = (tmp_path / "runs").glob("evaluate-mnist-small-*")
    assert read_results(folder).evaluations[0].data == "own"
    few = ["--data", "own.npz", "--steps", "1"]
    assert main(["evaluate", "mnist-small", *few, "--out", str(folder), "--eps", "0.2"]) == 0
    assert len(read_results(folder).evaluations) == 2
    capsys.readouterr()
    assert main(["compare", str(folder)]) == 0
    assert main(["evaluate", "mnist-small", *few, "--out", str(tmp_path)]) == 2
    assert "contains other files" in capsys.readouterr().err
