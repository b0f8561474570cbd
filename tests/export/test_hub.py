"""Model cards with results, and what is uploaded to the hub."""

import sys
import types
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml

from linfnet.errors import LinfnetError
from linfnet.export import push_to_hub, write_card
from linfnet.nn import LinfNet
from linfnet.results import Result, Results, add_evaluations

RESULT = Result("mnist", "test", 10000, Fraction(1, 10), 0.95, 0.875, {"margin": 0.7, "interval": 0.75})
ROW = "| MNIST, test | 10,000 | 0.1 | 95.00 | 87.50 | 70.00 | 75.00 |"


def test_the_card_takes_up_later_results(tmp_path: Path):
    net = LinfNet((1, 2, 2), 3, (4,))
    net.save(tmp_path)
    add_evaluations(tmp_path, (RESULT,))
    assert ROW in write_card(tmp_path, net).read_text()


def test_the_metadata_of_the_card_is_yaml_that_the_hub_reads(tmp_path: Path):
    net = LinfNet((1, 2, 2), 3, (4,))
    net.save(tmp_path / "my: net", class_names=["a|b", "{c}", "d"])
    other = replace(RESULT, net="nearest-neighbour", clean=0.11)
    part = replace(RESULT, count=9, limit=9, clean=0.22)
    add_evaluations(tmp_path / "my: net", (RESULT, other, part))
    start, metadata, text = write_card(tmp_path / "my: net", net).read_text().split("---\n", 2)
    assert start == ""
    found = yaml.safe_load(metadata)
    assert (found["license"], found["datasets"], found["metrics"]) == ("unknown", ["ylecun/mnist"], ["accuracy"])
    (model,) = found["model-index"]
    (entry,) = model["results"]
    assert model["name"] == "my: net"
    assert [metric["value"] for metric in entry["metrics"]] == [95.0, 87.5, 70.0, 75.0]
    assert "11.00" not in text  # a result of another net
    assert "22.00" not in text  # a result on some of the images that were all evaluated
    assert "a\\|b, {c}, d" in text


def test_the_example_of_the_card_loads_the_net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path.parent)
    net = LinfNet((1, 2, 2), 3, (4,))
    net.save(tmp_path)
    text = write_card(tmp_path, net).read_text()
    example = text.split("```python\n")[1].split("certified =")[0]
    names: dict[str, Any] = {}
    exec(example, names)
    assert names["net"].image_shape == (1, 2, 2)
    assert 'load_model("hf://me/net")' in write_card(tmp_path, net, source="hf://me/net").read_text()


def test_only_the_model_is_uploaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    LinfNet((1, 2, 2), 3, (4,)).save(tmp_path, results=Results(None, (replace(RESULT, clean=0.875),)))
    calls = []

    class Api:
        def create_repo(self, name: str, **options: object) -> str:
            if name == "bad/name":
                raise ValueError("not allowed")
            calls.append((name, options))
            return f"https://hub/{name}"

        def upload_folder(self, **options: object) -> None:
            calls.append(options)

    hub = types.ModuleType("huggingface_hub")
    hub.HfApi = Api
    hub.errors = types.SimpleNamespace(HfHubHTTPError=KeyError)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    assert push_to_hub(tmp_path, "me/net") == "https://hub/me/net"
    assert calls[0] == ("me/net", {"private": True, "exist_ok": True})
    assert calls[1]["allow_patterns"] == ["model.safetensors", "config.json", "README.md"]
    assert "| 87.50 | 87.50 |" in (tmp_path / "README.md").read_text()  # the results it was saved with are not lost
    add_evaluations(tmp_path, (RESULT,))
    push_to_hub(tmp_path, "me/net")
    assert ROW in (tmp_path / "README.md").read_text()
    with pytest.raises(LinfnetError, match="bad/name cannot be uploaded: not allowed"):
        push_to_hub(tmp_path, "bad/name")
