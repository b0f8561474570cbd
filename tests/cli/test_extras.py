"""Commands without their optional dependencies: each says which extra it needs, and does the rest of its work."""

import sys
from pathlib import Path

import pytest

from linfnet.cli.main import main

TINY = ["--set", "limit=100", "width=8", "depth=2", "epochs=[4, 4, 1]", "batch=16", "test_every=0"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("extras") / "run"
    assert main(["train", "digits", "--out", str(folder), *TINY]) == 0
    return folder


@pytest.mark.parametrize(
    ("module", "extra", "command", "status"),
    [
        ("matplotlib.figure", "plots", ["plot"], 2),
        ("matplotlib.figure", "plots", ["certify", "--limit", "5", "--out", "radii"], 0),
        ("matplotlib.figure", "plots", ["lipschitz", "--limit", "2", "--steps", "1", "--restarts", "1"], 0),
        ("onnx", "onnx", ["export", "--onnx", "net.onnx"], 2),
        ("onnxruntime", "onnx", ["export", "--onnx", "net.onnx"], 2),
        ("huggingface_hub", "hub", ["export", "--hub", "me/net"], 2),
        ("fastapi", "serve", ["serve"], 2),
        ("art.attacks.evasion", "autoattack", ["attack", "--limit", "50", "--attacks", "autoattack"], 2),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_a_missing_extra_is_named(
    module: str,
    extra: str,
    command: list[str],
    status: int,
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    assert main([command[0], str(run), *command[1:]]) == status
    printed = capsys.readouterr()
    assert f"pip install 'linfnet[{extra}]'" in printed.out + printed.err
    if status:
        assert not list(tmp_path.iterdir())
