"""The user's own modules register losses, systems and attacks: by `import_modules`, and by entry points."""

import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from linfnet import plugins
from linfnet.attacks import ATTACKS
from linfnet.cli.main import main
from linfnet.errors import ArgumentError, LinfnetError
from linfnet.losses import LOSSES
from linfnet.plugins import import_modules, origin
from linfnet.recipes import load_recipe
from linfnet.systems import SYSTEMS
from linfnet.train import RunFolder, fit

CODE = """
from dataclasses import dataclass
from linfnet.attacks import ATTACKS
from linfnet.losses import LOSSES, Hinge
from linfnet.systems import SYSTEMS, Linf

@LOSSES.register("my_loss")
@dataclass(frozen=True)
class MyLoss(Hinge):
    power: float = 2.0
    \"\"\"The exponent.\"\"\"

@SYSTEMS.register("my_system")
@dataclass(frozen=True)
class MySystem(Linf): ...

@ATTACKS.register("my_attack")
def attack(*arguments, **options): ...
"""
SMALL = {"limit": 100, "width": 8, "depth": 2, "epochs": [1, 1, 1]}


@pytest.fixture(autouse=True)
def _own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers is removed afterwards."""
    monkeypatch.chdir(tmp_path)
    for registry in (LOSSES, SYSTEMS, ATTACKS):
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    (tmp_path / "my_module.py").write_text(CODE)
    plugins.load_entry_points.cache_clear()
    yield
    plugins.load_entry_points.cache_clear()
    sys.modules.pop("my_module", None)


@pytest.mark.parametrize("name", ["my_module", "my_module.py", "./my_module.py"])
def test_a_module_in_the_current_folder_is_imported_once(name: str):
    with pytest.raises(ArgumentError, match=r"loss.name is 'my_loss'; .*\(import your own module first"):
        load_recipe("digits", ["loss.name=my_loss"])
    path = list(sys.path)
    import_modules([name])
    import_modules([name, "my_module"])
    assert sys.path == path
    assert load_recipe("digits", ["loss.name=my_loss", "power=3"]).loss.name == "my_loss"
    assert "my_system" in SYSTEMS
    assert "my_attack" in ATTACKS


def test_wrong_names_are_told():
    with pytest.raises(ArgumentError, match=r"import is 'my_modul'; expected a module.*did you mean 'my_module'"):
        import_modules(["my_modul"])
    with pytest.raises(ArgumentError, match=r"import is 'other.py'; there is no such file"):
        import_modules(["other.py"])
    Path("broken.py").write_text("import absent_module\n")
    Path("wrong.py").write_text("1 / 0\n")
    for name in ("broken", "broken.py", "wrong", "wrong.py"):
        with pytest.raises(LinfnetError, match=rf"{name} cannot be imported: (No module|ModuleNotFound|ZeroDivision)"):
            import_modules([name])
    Path("json.py").write_text("")
    with pytest.raises(ArgumentError, match="another module is called 'json'"):
        import_modules(["json.py"])


@pytest.mark.parametrize("name", ["my_module", "my_module.py"])
@pytest.mark.parametrize("key", ["loss.name", "system.name"])
def test_a_run_says_which_import_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, key: str
):
    with monkeypatch.context() as patch:
        for registry in (LOSSES, SYSTEMS, ATTACKS):
            patch.setattr(registry, "_entries", dict(registry._entries))
        import_modules([name])
        fit("digits", settings={**SMALL, key: f"my_{key.split('.')[0]}"}, out="run", device="cpu")
        assert RunFolder.open(Path("run")).finished
    expected = "my_module" if name == "my_module" else str(tmp_path / "my_module.py")
    for arguments in (["evaluate", "run"], ["train", "--resume", "run"]):
        assert main(arguments) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"{key} is 'my_" in line
        assert line.endswith(f"import the modules of the run first (--import): {expected}")


def test_entries_of_the_package_need_no_import():
    assert origin(LOSSES["mixture"]) is None
    (module,) = import_modules(["my_module"])
    assert origin(module.MyLoss) == "my_module"


def test_entry_points_are_loaded_for_an_unknown_name_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    asked: list[str] = []

    def entry_points(*, group: str) -> list[metadata.EntryPoint]:
        asked.append(group)
        return [metadata.EntryPoint("mine", "my_module", group)]

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert LOSSES["hinge"]
    assert asked == []
    assert LOSSES["my_loss"].__name__ == "MyLoss"
    assert SYSTEMS["my_system"].__name__ == "MySystem"
    assert asked == ["linfnet.plugins"]


def test_an_entry_point_that_fails_is_named(monkeypatch: pytest.MonkeyPatch):
    points = [metadata.EntryPoint("mine", "absent_module:thing", "linfnet.plugins")]
    monkeypatch.setattr(metadata, "entry_points", lambda group: points)
    with pytest.raises(LinfnetError, match=r"plugin 'mine' \(absent_module:thing\) cannot be loaded: ModuleNotFound"):
        LOSSES["my_loss"]
