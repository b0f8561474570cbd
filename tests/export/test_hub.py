import json
import sys
import types
from pathlib import Path

import pytest

from linfnet.errors import LinfnetError
from linfnet.export import push_to_hub, write_card
from linfnet.nn import LinfNet


def test_the_card_takes_up_later_results(tmp_path: Path):
    LinfNet((1, 2, 2), 3, (4,)).save(tmp_path)
    (tmp_path / "results.json").write_text(json.dumps({"mnist-test eps=0.1": {"certified_interval": 0.75}}))
    assert "| mnist-test eps=0.1 certified_interval | 0.75 |" in write_card(tmp_path).read_text()


def test_only_the_model_is_uploaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    LinfNet((1, 2, 2), 3, (4,)).save(tmp_path, results={"clean": 0.875})
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
    assert "| clean | 0.875 |" in (tmp_path / "README.md").read_text()  # what it was saved with is not lost
    (tmp_path / "results.json").write_text(json.dumps({"mnist-test eps=0.1": {"certified_interval": 0.75}}))
    push_to_hub(tmp_path, "me/net")
    assert "| mnist-test eps=0.1 certified_interval | 0.75 |" in (tmp_path / "README.md").read_text()
    with pytest.raises(LinfnetError, match="bad/name cannot be uploaded: not allowed"):
        push_to_hub(tmp_path, "bad/name")
