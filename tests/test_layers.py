"""Imports point backwards along the flow of the data."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "linfnet"

# A folder (or module) may import those before it and itself. Those in one set do not import each other.
ORDER: list[set[str]] = [
    {"errors", "version"},
    {"plugins"},
    {"boxes", "epsilon", "files", "registry"},
    {"figures", "results"},
    {"distributed"},
    {"bounds", "data", "ops"},
    {"nn"},
    {"inputs"},
    {"schedules"},
    {"losses"},
    {"recipes"},
    {"certificates"},
    {"systems"},
    {"train"},
    {"attacks", "theory"},
    {"evaluation"},
    {"comparison", "compression", "export", "reproduce", "serve", "verification"},
    {"report", "search"},
    {"cli"},
    {"__init__"},
    {"__main__"},
]
RANK = {room: rank for rank, rooms in enumerate(ORDER) for room in rooms}


def _room(parts: list[str]) -> str:
    """Return the folder of a module, or the module itself if it has a separate rank."""
    return ".".join(parts[:2]) if ".".join(parts[:2]) in RANK else parts[0]


def imported_rooms(source: str) -> set[str]:
    """Return the folders that a module imports; `from linfnet import x` is folder x or the package itself."""
    rooms: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "linfnet":
            parts = node.module.split(".")
            names = [_room(parts[1:])] if len(parts) > 1 else [alias.name for alias in node.names]
            rooms |= {name if name in RANK else "__init__" for name in names}
        if isinstance(node, ast.Import):
            for alias in node.names:
                parts = alias.name.split(".")
                if parts[0] == "linfnet":
                    rooms.add(_room(parts[1:]) if len(parts) > 1 else "__init__")
        assert not (isinstance(node, ast.ImportFrom) and node.level), "relative imports hide where they point"
    return rooms


def forward_imports(room: str, source: str) -> list[str]:
    return sorted(name for name in imported_rooms(source) - {room} if RANK[name] >= RANK[room])


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_backwards(path: Path):
    relative = path.relative_to(SOURCE)
    room = _room([part.removesuffix(".py") for part in relative.parts])
    assert room in RANK, f"{room} has no rank: add it to ORDER"
    assert forward_imports(room, path.read_text()) == []


def test_a_wrong_import_is_seen():
    assert forward_imports("nn", "from linfnet.train import Trainer") == ["train"]
    assert forward_imports("nn", "import linfnet.cli.main") == ["cli"]
    assert forward_imports("ops", "from linfnet import LinfNet") == ["__init__"]
    assert forward_imports("attacks", "from linfnet.theory import construct") == ["theory"]
    assert forward_imports("train", "from linfnet.data import load") == []


@pytest.mark.process
def test_importing_touches_no_gpu():

    code = "import linfnet, torch; assert not torch.cuda.is_initialized()"
    subprocess.run([sys.executable, "-c", code], check=True)
