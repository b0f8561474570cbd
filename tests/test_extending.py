"""The examples of docs/extending.md run as they stand."""

import re
from pathlib import Path

import pytest

from linfnet.cli.main import main
from linfnet.errors import LinfnetError
from linfnet.losses import objectives
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
    assert len(code.strip().splitlines()) <= 20
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
