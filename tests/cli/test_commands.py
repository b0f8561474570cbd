"""The commands on a small run: what they print and write."""

import csv
import io
import re
import shlex
import shutil
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from linfnet.certificates import Certification, certify_images
from linfnet.cli.console import console
from linfnet.cli.main import main
from linfnet.data import load
from linfnet.epsilon import parse_epsilon
from linfnet.recipes import recipe_names
from linfnet.results import AttackSettings, read_results
from linfnet.systems import load_model

TINY = ["--set", "limit=400", "width=24", "depth=3", "--set", "epochs=[4, 4, 2]", "--set", "batch=32"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    assert main(["train", "digits", "--out", str(folder), *TINY]) == 0
    return folder


def test_classes_that_are_never_predicted_are_named(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    net = load_model(run)
    for name, bias in (("plain", 0.0), ("biased", 1000.0)):
        with torch.no_grad():
            net.layers[-1].bias[[2, 7]] += bias  # logits are negated: classes 2 and 7 have the smallest
        net.save(tmp_path / name)
        where = ("--data", "digits", "--limit", "120", "--steps", "1", "--eps", "0.1")
        assert main(["evaluate", str(tmp_path / name), *where]) == 0
        printed = capsys.readouterr().out
        with next((tmp_path / name).glob("samples-*.csv")).open(newline="") as file:
            rows = list(csv.DictReader(file))
        missing = sorted({row["label"] for row in rows} - {row["prediction"] for row in rows})
        assert {"2", "7"} <= set(missing) or not bias
        line = f"never predicted: {', '.join(missing)} ({len(missing)} of 10 classes)"
        assert line in printed if missing else "never predicted" not in printed


def test_evaluate(run: Path, capsys: pytest.CaptureFixture[str]):
    assert (
        main(["evaluate", str(run), "--eps", "8/255", "--eps", "0.1", "0.02", "--limit", "120", "--steps", "15"]) == 0
    )
    printed = capsys.readouterr().out
    for word in ("clean", "PGD-15", "certified (margin)", "certified (interval)", "8/255", "results.json"):
        assert word in printed
    results = read_results(run)
    assert results.training is not None
    with (run / "samples-digits-test-first-120-pgd-15-eps-0.02_8-255_0.1.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 120
    assert all(row["runner_up"] != row["prediction"] for row in rows)
    card = (run / "README.md").read_text()
    for eps in ("8/255", "0.1", "0.02"):
        found = results.find("digits", parse_epsilon(eps), limit=120, attack=AttackSettings("pgd", 15))
        assert found.certified["margin"] <= found.certified["interval"] <= found.attacked <= found.clean
        assert found.clean == sum(float(row["margin"]) > 0 for row in rows) / 120 > 0.3
        assert found.attacked == sum(row[f"pgd15@{eps}"] == "1" for row in rows) / 120
        assert found.certified["interval"] == sum(row[f"certified_interval@{eps}"] == "1" for row in rows) / 120
        assert (
            found.certified["margin"]
            == sum(float(row["margin_radius"]) > (8 / 255 if "/" in eps else float(eps)) for row in rows) / 120
        )
        accuracies = f"{100 * found.clean:.2f} | {100 * found.attacked:.2f}"
        assert f"| Hand-written digits, test | 120 | {eps} | {accuracies}" in card


def test_evaluate_writes_the_card_without_loading_the_model_again(run: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("linfnet.export.hub.load_model", None)
    assert main(["evaluate", str(run), "--limit", "9", "--steps", "1"]) == 0
    assert "| Hand-written digits, test | 9 |" in (run / "README.md").read_text()


def test_a_second_evaluation_keeps_the_first(run: Path):
    assert main(["evaluate", str(run), "--limit", "30", "--steps", "3", "--split", "train"]) == 0
    before = read_results(run)
    assert main(["evaluate", str(run), "--limit", "31", "--steps", "3", "--split", "train"]) == 0
    *others, added = read_results(run).evaluations
    assert tuple(others) == before.evaluations
    assert (added.images, added.eps) == ("digits-train-first-31-pgd-3", Fraction(1, 10))


def test_samples_of_many_epsilons_have_files_with_names_that_fit(run: Path, tmp_path: Path):
    folder = shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("samples-*"))
    for last in ("0.061", "0.062"):
        epsilons = [f"0.{k:03d}" for k in range(1, 61)]
        assert main(["evaluate", str(folder), "--limit", "5", "--steps", "1", "--eps", *epsilons, last]) == 0
    assert len(list(folder.glob("samples-digits-test-first-5-pgd-1-eps-0.001_*.csv"))) == 2
    assert len(list(folder.glob("samples-digits-test-first-5-pgd-1-eps-0.001_*.broken.safetensors"))) == 2


def test_predict(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    digits = load("digits", "test")
    np.save(tmp_path / "floats.npy", digits.pixels(slice(0, 1))[0].numpy())
    grey = (digits.pixels(slice(0, 1))[0, 0].numpy() * 255).round().astype(np.uint8)
    np.save(tmp_path / "bytes.npy", grey)
    Image.fromarray(grey).save(tmp_path / "picture.png")
    names = [str(tmp_path / name) for name in ("floats.npy", "bytes.npy", "picture.png")]
    capsys.readouterr()
    assert main(["predict", str(run), *names]) == 0
    printed = capsys.readouterr().out
    assert "certified radius" in printed
    assert printed.count("0.") >= 3


def test_certify(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "out"
    assert main(["certify", str(run), "--eps", "0.02", "0.1", "--limit", "60", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    for word in ("60 images of digits test", "certified (margin)", "certified (interval)", "median radius"):
        assert word in printed
    with (out / "radii.csv").open(newline="") as file:
        radii = [float(row["margin_radius"]) for row in csv.DictReader(file)]
    assert len(radii) == 60
    assert f"{100 * sum(radius >= 0.1 for radius in radii) / 60:.2f}" in printed
    assert (out / "curve.png").is_file()
    assert len((out / "curve.csv").read_text().splitlines()) == 51


def test_certify_exactly(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    arguments = ["--eps", "0.1", "--limit", "30", "--exact", "--width", "0.01", "--out", str(tmp_path)]
    assert main(["certify", str(run), *arguments]) == 0
    assert "(exact)" in capsys.readouterr().out
    with (tmp_path / "radii.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        radius, broken_at = float(row["exact_radius"]), float(row["broken_at"])
        assert float(row["margin_radius"]) <= radius
        assert radius < 0 or broken_at - radius <= 0.01


def test_evaluate_exactly(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    arguments = ["--eps", "0.1", "--limit", "60", "--steps", "3", "--exact", "--out", str(tmp_path / "exact")]
    assert main(["evaluate", str(run), *arguments]) == 0
    (found,) = read_results(tmp_path / "exact").evaluations
    assert found.best_certified <= found.exact.robust <= found.attacked
    assert not (tmp_path / "exact" / ".exact").exists()
    assert f"{100 * found.exact.robust:.2f}" in capsys.readouterr().out
    assert main(["compare", str(tmp_path / "exact"), "--csv"]) == 0
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert float(row["exact"]) == found.exact.robust


def test_a_killed_evaluation_in_another_folder_continues(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    out, copy = tmp_path / "out", shutil.copyfile
    command = ["evaluate", str(run), "--eps", "0.1", "--limit", "10", "--steps", "1", "--exact", "--out", str(out)]

    def killed(source: Path, target: Path) -> None:
        copy(source, target)
        if Path(source).name == "config.json":
            target.write_bytes(target.read_bytes()[:100])
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", killed)
        assert main(command) == 130
    assert {file.name for file in out.iterdir()} == {".exact", "model.safetensors"}
    (out / "model.safetensors").rename(out / ".model.safetensors.01234567.tmp")
    assert main(command) == 0
    assert main(["verify", str(out)]) == 0
    (out / "model.safetensors").unlink()
    assert main(command) == 2  # the folder contains results of another model


def test_certify_own_images(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    pixels = load("digits", "test").pixels(slice(0, 3))
    np.save(tmp_path / "stack.npy", pixels.numpy())
    folder = tmp_path / "pictures"
    folder.mkdir()
    for index, picture in enumerate(pixels[:, 0]):
        Image.fromarray((picture.numpy() * 255).round().astype(np.uint8)).save(folder / f"{index}.png")
    (folder / "notes.txt").write_text("not an image")
    capsys.readouterr()
    assert main(["certify", str(run), "--data", str(tmp_path / "stack.npy"), "--eps", "0.01"]) == 0
    printed = capsys.readouterr().out
    assert "stack.npy[2]" in printed
    assert "interval radius" in printed
    assert main(["certify", str(run), "--data", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "2.png" in printed
    assert "notes" not in printed


def test_attack(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    few = ["--limit", "40", "--steps", "8", "--queries", "20", "--restarts", "1", "--out", str(tmp_path)]
    capsys.readouterr()
    assert main(["attack", str(run), "--eps", "0.1", "8/255", *few, "--all"]) == 0
    printed, progress = capsys.readouterr()
    for word in ("certified", "robust", "smoothed", "square", "clean", "holds for every sample"):
        assert word in printed
    assert progress.startswith("pgd at eps = 8/255: ")
    assert all(re.search(r": \d+ images? left$", line) for line in progress.splitlines())
    assert np.load(tmp_path / "attacked-8-of-255.npy").shape == (40, 1, 8, 8)
    with (tmp_path / "attacked.csv").open(newline="") as file:
        assert next(csv.DictReader(file)).keys() == {"image", "label", "survived@8/255", "survived@0.1"}


def test_certified_images_are_not_attacked(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    few = ["--eps", "0.02", "0.1", "--limit", "40", "--attacks", "pgd", "--steps", "8"]
    tables: list[list[dict[str, str]]] = []
    lines: list[list[str]] = []
    for more in ([], ["--all"]):
        capsys.readouterr()
        assert main(["attack", str(run), *few, *more, "--out", str(tmp_path)]) == 0
        printed, progress = capsys.readouterr()
        assert ("certified images were not attacked" in printed) is not bool(more)
        lines.append(progress.splitlines())
        with (tmp_path / "attacked.csv").open(newline="") as file:
            tables.append(list(csv.DictReader(file)))
    fewer, whole = ([int(line.split()[-3]) for line in progress] for progress in lines)
    assert sum(fewer) < sum(whole)
    net, digits = load_model(run), load("digits", "test").first(40)
    found = certify_images(net, [(digits.pixels(), digits.labels)], [Fraction(1, 50), Fraction(1, 10)])
    for eps, certified in zip(("0.02", "0.1"), found.certified_by_any.tolist(), strict=True):
        for skipped, attacked, proven in zip(*tables, certified, strict=True):
            assert not proven or (skipped[f"survived@{eps}"], attacked[f"survived@{eps}"]) == ("1", "1")


def test_a_broken_certificate_fails_loudly(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def boast(*arguments: object, **options: object) -> Certification:
        found = certify_images(*arguments, **options)
        return replace(found, certified={name: torch.ones_like(flags) for name, flags in found.certified.items()})

    monkeypatch.setattr("linfnet.cli.certify.certify_images", boast)
    assert (
        main(["attack", str(run), "--eps", "0.3", "--limit", "40", "--attacks", "pgd", "--steps", "20", "--all"]) == 2
    )
    error = capsys.readouterr().err
    assert "are certified at eps = 0.3, but an attack broke them" in error
    assert "samples [" in error


def test_export(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = tmp_path / "properties"
    arguments = ["--vnnlib", str(folder), "--samples", "0", "7", "--eps", "8/255", "0.1", "--card"]
    assert main(["export", str(run), "--onnx", str(tmp_path / "new" / "net.onnx"), *arguments]) == 0
    printed = capsys.readouterr().out
    assert "bitwise equal to the net on 16 random images" in printed
    assert "4 properties" in printed
    assert (tmp_path / "new" / "net.onnx").is_file()
    names = ["0-eps-0.1.vnnlib", "0-eps-8-of-255.vnnlib", "7-eps-0.1.vnnlib", "7-eps-8-of-255.vnnlib"]
    assert sorted(file.name for file in folder.iterdir()) == names
    label = load("digits", "test").labels[7].item()
    assert f"; class {label} within" in (folder / names[2]).read_text()
    assert "| training | 10 epochs in" in (run / "README.md").read_text()


def test_the_packaged_net_predicts_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    picture = np.zeros((28, 28), np.uint8)
    picture[4:24, 13:16] = 255  # a one
    Image.fromarray(picture).save(tmp_path / "one.png")
    assert main(["predict", "mnist-small", str(tmp_path / "one.png")]) == 0
    row = capsys.readouterr().out.splitlines()[-3].split("│")
    assert row[2].strip() == "1"
    assert float(row[3]) > 0.1
    assert main(["certify", "mnist-small", "--data", str(tmp_path), "--eps", "0.1"]) == 0
    assert "one.png" in capsys.readouterr().out


def test_recipes_and_doctor(capsys: pytest.CaptureFixture[str]):
    assert main(["recipes"]) == 0
    assert "cifar10-16" in capsys.readouterr().out
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
    for word in ("torch", "distance kernels", "digits", "verified"):
        assert word in printed


def test_resume_of_a_finished_run_is_refused_and_help_is_there(run: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["train", "--resume", str(run)]) == 2
    assert "has finished" in capsys.readouterr().err
    for arguments in ([], ["--help"], ["train", "--help"], ["data", "--help"], ["data", "fetch", "--help"]):
        assert main(arguments) == 0
        assert "Options" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("linfnet 0.")


def test_commands_that_are_told_can_be_copied(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """For any folder name, a shell understands the commands that messages recommend."""
    run = tmp_path / "a run; here"
    tiny = ["--set", "limit=100", "width=8", "depth=2", "epochs=[1, 1, 1]"]
    assert main(["train", "digits", "--out", str(run), *tiny]) == 0
    message = [capsys.readouterr().out.partition("next: ")[2]]
    for arguments in (["train", "--resume", str(run)], ["train", "digits", "--out", str(run)]):
        assert main(arguments) == 2
        message.append(capsys.readouterr().err)
    (run / "results.json").unlink()
    for command in ("evaluate", "certify", "compare"):
        assert main([command, str(run)]) == 2
        message.append(capsys.readouterr().err)
    assert all(shlex.split(line)[-1] == str(run) for line in message), message


def test_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "more.toml").write_text("[slow]\nlr = 0.001\n")
    variants = [
        "--vary",
        "clip_leak=none,0.1",
        "--variant",
        "wide",
        "width=30",
        "--variants",
        str(tmp_path / "more.toml"),
    ]
    assert main(["search", "digits", *TINY, *variants, "--seeds", "1", "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    for word in ("unchanged", "clip_leak=0.1", "wide", "slow", "143 held-out", "outcome.json", "outcome.png"):
        assert word in printed
    assert (tmp_path / "out" / "outcome.png").is_file()


def test_training_with_held_out_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["train", "digits", *TINY, "--set", "hold_out=100", "--out", str(tmp_path / "run")]) == 0
    printed = capsys.readouterr().out
    assert "on held-out training images" in printed
    assert "held-out images: " in printed
    assert "The model was saved without results." in (tmp_path / "run" / "README.md").read_text()
    assert main([*shlex.split(printed.split("next: linfnet ")[1]), "--steps", "1"]) == 0
    results = read_results(tmp_path / "run")
    assert results.training is not None
    assert results.training.held_out is not None
    assert (found := results.evaluations[-1]).split == "held-out"
    assert (found.count, found.clean) == (100, results.training.held_out.clean)


def test_held_out_images_keep_their_names(tmp_path: Path):
    run, out = tmp_path / "run", tmp_path / "out"
    assert main(["train", "digits", *TINY, "--set", "hold_out=100", "--out", str(run)]) == 0
    assert main(["certify", str(run), "--split", "held-out", "--out", str(out)]) == 0
    images, rows = load("digits"), list(csv.DictReader(io.StringIO((out / "radii.csv").read_text())))
    indices = [int(row["image"]) for row in rows]
    assert torch.equal(images.images[indices], images.hold_out(100)[1].images)


def test_a_run_that_held_out_nothing(run: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["evaluate", str(run), "--split", "held-out"]) == 2
    assert "held out no images" in capsys.readouterr().err


def test_nothing_is_cut_off_in_a_narrow_terminal(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    folder = Path(shutil.copytree(run, tmp_path / "compared-with-another"))
    assert main(["evaluate", str(folder), "--eps", "8/255", "--limit", "20", "--steps", "1"]) == 0
    monkeypatch.setattr(console, "_width", 60)
    capsys.readouterr()
    assert main(["recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines} >= set(recipe_names())
    assert lines[1].split() == ["name", "eps", "clean", "certified", "whose"]
    assert main(["compare", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "run eps clean attacked certified" in " ".join(printed.split())
    assert "…" not in "".join(lines) + printed
