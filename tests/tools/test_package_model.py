"""A compressed net for the package: its files, and what the record says about it."""

from fractions import Fraction
from pathlib import Path

import pytest

from linfnet.cli.main import main
from linfnet.errors import LinfnetError
from linfnet.recipes import load_recipe, recipe_from_toml
from linfnet.results import AttackSettings, read_results, results_from_json
from tools import package_model
from tools.package_model import copy_compressed, measure

SETTINGS = ("limit=300", "width=16", "depth=3", "epochs=[1, 1, 1]", "batch=50")


def test_a_compressed_net_is_copied_and_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run, compressed = tmp_path / "run", tmp_path / "compressed"
    assert main(["train", "digits", "--out", str(run), "--set", *SETTINGS]) == 0
    assert main(["compress", str(run), "--out", str(compressed), "--passes", "1"]) == 0
    (run / "model.safetensors").unlink()
    entry = copy_compressed(compressed, run, tmp_path / "copied")
    assert sorted(path.name for path in (tmp_path / "copied").iterdir()) == ["config.json", "model.safetensors"]
    assert entry["dense_connections"] == 64 * 16 + 16 * 16 + 16 * 10
    assert recipe_from_toml(entry["recipe"], "digits", "digits") == load_recipe("digits", SETTINGS)
    assert results_from_json(entry["results"]).training == read_results(run).training
    measured = measure(tmp_path / "copied", (AttackSettings("pgd", 2),))
    assert measured["size"] == (compressed / "model.safetensors").stat().st_size
    assert [result.eps for result in measured["evaluations"]] == [Fraction(1, 10)] * 2
    other = tmp_path / "other"
    assert main(["train", "digits", "--out", str(other), "--set", *SETTINGS, "seed=17"]) == 0
    with pytest.raises(LinfnetError, match="is not the finished run whose net was compressed"):
        copy_compressed(compressed, other, tmp_path / "again")
    monkeypatch.setattr(package_model, "LARGEST", measured["size"] - 1)
    with pytest.raises(LinfnetError, match="a larger --at-least"):
        copy_compressed(compressed, run, tmp_path / "again")
