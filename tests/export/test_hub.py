"""Model cards with results, and what is uploaded to the hub."""

import sys
import types
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from linfnet.errors import LinfnetError
from linfnet.export import push_to_hub, write_card
from linfnet.nn import LinfNet
from linfnet.results import Result, Results, add_evaluations

RESULT = Result("mnist", "test", 10000, Fraction(1, 10), 0.95, 0.875, {"margin": 0.7, "interval": 0.75})
ROW = "| mnist-test | 0.1 | 95.00 | 87.50 | PGD-100 | 70.00 | 75.00 |"


def test_the_card_takes_up_later_results(tmp_path: Path):
    net = LinfNet((1, 2, 2), 3, (4,))
    net.save(tmp_path)
    add_evaluations(tmp_path, (RESULT,))
    assert ROW in write_card(tmp_path, net).read_text()


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
    assert "| 87.50 |" in (tmp_path / "README.md").read_text()  # the results it was saved with are not lost
    add_evaluations(tmp_path, (RESULT,))
    push_to_hub(tmp_path, "me/net")
    assert ROW in (tmp_path / "README.md").read_text()
    with pytest.raises(LinfnetError, match="bad/name cannot be uploaded: not allowed"):
        push_to_hub(tmp_path, "bad/name")
