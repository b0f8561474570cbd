"""`linfnet separation`, `construct` and `lipschitz`: their results, and their errors."""

import json
from fractions import Fraction
from pathlib import Path

import pytest

from linfnet.certificates import certify_by_margin
from linfnet.cli import theory
from linfnet.cli.main import main
from linfnet.data import load
from linfnet.nn import LinfNet
from linfnet.theory import set_separation


def test_separation_writes_result_and_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["separation", "digits", "--pairs", "3", "--out", str(tmp_path)]) == 0
    assert "r = 0.2188, half of the smallest distance 0.4375" in capsys.readouterr().out
    result = json.loads((tmp_path / "separation-digits-train-train.json").read_text())
    assert (result["distance"], len(result["closest"]), result["pairs"]) == ("0.4375", 3, 929086)
    assert (tmp_path / "separation-digits-train-train.png").read_bytes().startswith(b"\x89PNG")
    assert main(["separation", "digits", "--split", "test", "--against", "train", "--limit", "50"]) == 0
    printed = capsys.readouterr().out
    assert "test image" in printed
    assert "train image" in printed
    heading = next(line for line in printed.splitlines() if "distance" in line)
    assert all(cell.strip() for cell in heading.replace("┃", "│").strip("│ ").split("│"))


def test_construct_certifies_all_and_saves_an_ordinary_net(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "net"
    assert main(["construct", "digits", "--layers", "4", "--limit", "150", "--out", str(out)]) == 0
    result = json.loads((out / "construct.json").read_text())
    assert result["certified_margin"] == result["certified_interval"] == result["certified_real_margin"] == 1
    assert result["hidden"] == [50 + 10 + 128, 50 + 10 + 128, 50 + 10]
    assert main(["evaluate", str(out), "--data", "digits", "--eps", "0.05", "--limit", "10", "--steps", "2"]) == 0
    assert len(LinfNet.load(out)(load("digits", "test").first(2).pixels())) == 2
    assert main(["construct", "digits", "--out", str(out)]) == 2
    assert "already contains files" in capsys.readouterr().err


def test_construct_writes_the_sound_share_by_margin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # This epsilon is so close to r that rounding matters: in real arithmetic, more images are certified.
    monkeypatch.setattr(theory, "SHARE", 1 - Fraction(8, 10**7))
    out = tmp_path / "net"
    assert main(["construct", "digits", "--limit", "150", "--out", str(out)]) == 0
    result = json.loads((out / "construct.json").read_text())
    images = load("digits", "train").first(150)
    net, eps = LinfNet.load(out), set_separation(images, count=1).radius * theory.SHARE
    sound = certify_by_margin(net, images.pixels(), images.labels).at(eps)
    assert result["certified_margin"] == sound.double().mean().item()
    assert result["certified_margin"] < result["certified_real_margin"]


def test_lipschitz_of_a_net(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    net = LinfNet((1, 8, 8), 10, hidden=(12,), std=0.4)
    net.save(tmp_path)
    arguments = ["lipschitz", str(tmp_path), "--limit", "4", "--steps", "3", "--restarts", "1"]
    assert main(arguments) == 2
    assert "give --data" in capsys.readouterr().err
    assert main([*arguments, "--data", "digits", "--p", "8"]) == 0
    result = json.loads((tmp_path / "lipschitz-p8.json").read_text())
    assert result["upper"] == pytest.approx(64 ** (1 / 8) * 12 ** (1 / 8))
    assert result["upper_from_pixels"] == pytest.approx(result["upper"] / 0.4)
    assert 0 < result["mean"] <= result["max"] < result["upper"]
    assert (tmp_path / "lipschitz-p8.png").read_bytes().startswith(b"\x89PNG")
    assert main([*arguments, "--data", "digits", "--p", "inf"]) == 0
    assert (tmp_path / "lipschitz-pinf.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["separation", "digits", "--pairs", "0"], "--pairs is 0"),
        (["separation", "digits", "--limit", "1"], "there is one sample of class"),
        (["separation", "nothing"], "the data set is 'nothing'"),
        (["construct", "digits", "--limit", "5"], "images lack the classes"),
        (["construct", "digits", "--layers", "1", "--limit", "100"], "layers is 1"),
        (["construct", "three-points", "--layers", "9"], "--layers is 9"),
        (["lipschitz", "nowhere"], "nowhere is not a folder"),
        (["lipschitz", "nowhere", "--p", "half"], "half"),
        (["lipschitz", "nowhere", "--p", "0.5"], "--p is 0.5"),
        (["lipschitz", "nowhere", "--eps", "2"], "--eps is 2"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    printed = capsys.readouterr().err.strip().splitlines()
    assert len(printed) == 1
    assert printed[0].startswith("error: ")
    assert message in printed[0]
    assert not list(tmp_path.iterdir())
