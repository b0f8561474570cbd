"""The examples of docs/extending.md run unchanged."""

import importlib
import re
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest

from linfnet.cli.main import main
from linfnet.errors import LinfnetError
from linfnet.losses import LOSSES
from linfnet.recipes import load_recipe
from linfnet.results import AttackSettings, read_results
from linfnet.systems import SYSTEMS

PAGE = (Path(__file__).parent.parent / "docs" / "extending.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def _own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The user's module `mine` can be imported; what it registers is removed afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for registry in (LOSSES, SYSTEMS):
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    yield
    sys.modules.pop("mine", None)


def test_a_new_loss_is_a_class_and_a_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    section = PAGE.split("## A loss\n")[1].split("\n## ")[0]
    code, script = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (text,) = re.findall(r"```toml\n(.*?)```", section, re.DOTALL)
    recipe = tmp_path / "squared-hinge.toml"
    recipe.write_text(text)
    with pytest.raises(LinfnetError, match=r"loss\.name is 'squared_hinge'; expected one of"):
        load_recipe(recipe)
    (tmp_path / "mine.py").write_text(code)
    importlib.import_module("mine")
    out = tmp_path / "run"
    assert main(["train", str(recipe), "--out", str(out), "--set", "loss.ceiling=2", "--device", "cpu"]) == 0
    assert 'name = "squared_hinge"\ntheta = "0.4"\nceiling = 2.0\n' in (out / "recipe.toml").read_text()
    training = read_results(out).training
    assert training is not None
    assert training.test.clean > 0.5
    assert main(["evaluate", str(out), "--limit", "20", "--steps", "2"]) == 0
    exec(compile(script, "extending.md", "exec"), {"__name__": "script"})
    assert read_results(Path("runs/mine")).training is not None
    assert main(["train", str(recipe), "--set", "loss.ceiling=0"]) == 2
    assert "loss.ceiling is 0.0; expected a number above 0" in capsys.readouterr().err
    assert load_recipe("cifar10-8", ["loss.name=squared_hinge"]).loss.name == "squared_hinge"


def test_a_new_system_is_a_module_and_a_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    section = PAGE.split("## A system\n")[1].split("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (text,) = re.findall(r"```toml\n(.*?)```", section, re.DOTALL)
    (tmp_path / "mine.py").write_text(code)
    recipe = tmp_path / "linear.toml"
    recipe.write_text(text)
    out = tmp_path / "run"
    assert main(["train", str(recipe), "--out", str(out), "--device", "cpu"]) == 2
    assert "system.name is 'linear'; expected one of" in capsys.readouterr().err
    importlib.import_module("mine")
    assert main(["train", str(recipe), "--out", str(out), "--device", "cpu"]) == 0
    assert main(["evaluate", str(out), "--steps", "20", "--device", "cpu"]) == 0
    assert main(["certify", str(out), "--limit", "20", "--device", "cpu"]) == 0
    assert main(["attack", str(out), "--limit", "20", "--steps", "5", "--queries", "10", "--device", "cpu"]) == 0
    assert main(["compare", str(out)]) == 0
    result = read_results(out).find("digits", Fraction(1, 50), attack=AttackSettings("pgd", 20))
    assert result is not None
    # Interval bounds of a linear net are exact: almost all samples that PGD cannot change are certified.
    assert 0.5 < result.certified["interval"] <= result.attacked <= result.clean
    assert result.attacked - result.certified["interval"] < 0.05
