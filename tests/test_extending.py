"""The examples of docs/extending.md run as they stand."""

import re
import sys
from pathlib import Path

import pytest

from linfnet import losses as objectives
from linfnet import systems
from linfnet.cli.main import main
from linfnet.errors import LinfnetError
from linfnet.recipes import load_recipe
from linfnet.train import read_results

PAGE = (Path(__file__).parent.parent / "docs" / "extending.md").read_text(encoding="utf-8")


@pytest.fixture
def _own_objectives(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the example registers is forgotten afterwards."""
    monkeypatch.setattr(objectives, "_KNOWN", dict(objectives._KNOWN))


@pytest.mark.usefixtures("_own_objectives")
def test_a_new_objective_is_a_class_and_a_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    section = PAGE.split("## An objective\n")[1].split("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (text,) = re.findall(r"```toml\n(.*?)```", section, re.DOTALL)
    recipe = tmp_path / "squared-hinge.toml"
    recipe.write_text(text)
    with pytest.raises(LinfnetError, match=r"loss\.name is 'squared_hinge'; wanted one of"):
        load_recipe(recipe)
    exec(compile(code, "extending.md", "exec"), {"__name__": "example"})
    out = tmp_path / "run"
    assert main(["train", str(recipe), "--out", str(out), "--set", "loss.ceiling=2", "--device", "cpu"]) == 0
    assert 'name = "squared_hinge"\ntheta = "0.4"\nceiling = 2.0\n' in (out / "recipe.toml").read_text()
    assert read_results(out)["train"]["clean"] > 0.5
    assert main(["evaluate", str(out), "--limit", "20", "--steps", "2"]) == 0
    assert main(["train", str(recipe), "--set", "loss.ceiling=0"]) == 2
    assert "loss.ceiling is 0.0; wanted a number above 0" in capsys.readouterr().err
    assert load_recipe("cifar10-8", ["loss.name=squared_hinge"]).loss.name == "squared_hinge"


def test_a_new_system_is_a_file_and_a_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    section = PAGE.split("## A system\n")[1].split("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (text,) = re.findall(r"```toml\n(.*?)```", section, re.DOTALL)
    folder = tmp_path / "systems"
    folder.mkdir()
    (folder / "linear.py").write_text(code)
    recipe = tmp_path / "linear.toml"
    recipe.write_text(text)
    out = tmp_path / "run"
    assert main(["train", str(recipe), "--out", str(out), "--device", "cpu"]) == 2
    assert "unknown system 'linear'" in capsys.readouterr().err
    # As if the file lay in the package's own folder.
    monkeypatch.setattr(systems, "__path__", [*systems.__path__, str(folder)])
    monkeypatch.delitem(sys.modules, "linfnet.systems.linear", raising=False)
    try:
        assert main(["train", str(recipe), "--out", str(out), "--device", "cpu"]) == 0
        assert main(["evaluate", str(out), "--steps", "20", "--device", "cpu"]) == 0
        assert main(["certify", str(out), "--limit", "20", "--device", "cpu"]) == 0
        assert main(["attack", str(out), "--limit", "20", "--steps", "5", "--queries", "10", "--device", "cpu"]) == 0
        assert main(["compare", str(out)]) == 0
    finally:
        sys.modules.pop("linfnet.systems.linear", None)
    entry = read_results(out)["digits-test-pgd-20 eps=0.02"]
    # Interval bounds of a linear net are exact: what PGD cannot break is certified, but for its last iterate's luck.
    assert 0.5 < entry["certified_interval"] <= entry["pgd"] <= entry["clean"]
    assert entry["pgd"] - entry["certified_interval"] < 0.05
