"""`--help` of every command, `--import`, and tables that fit into 80 columns."""

import re
from pathlib import Path

import pytest
from rich.cells import cell_len

from linfnet.attacks import ATTACKS
from linfnet.cli.commands import COMMANDS, overview
from linfnet.cli.main import main


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_the_overview_fits_and_lists_every_command():
    assert all(cell_len(line) <= 80 for line in overview().splitlines())
    for name in (*COMMANDS, "--version", "--import", "--help"):
        assert re.search(rf"^  .*{name}\b", overview(), re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command(name: str, capsys: pytest.CaptureFixture[str]):
    assert main([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: linfnet {name} ")
    for noise in ("None", "(default: )", "--no-", "PATH [", "{None}"):
        assert noise not in text
    assert name == "doctor" or "Examples:" in text
    assert all(cell_len(line) <= 80 for line in text.splitlines() if not line.startswith("usage"))
    info = COMMANDS[name]
    assert info.load().__doc__


def test_help_of_reproduce_lists_the_studies(capsys: pytest.CaptureFixture[str]):
    main(["reproduce", "--help"])
    assert "table1" in capsys.readouterr().out


@pytest.mark.parametrize("before", [True, False])
def test_own_modules_are_imported(
    before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    name = f"my_attack_{before}"
    text = f"from linfnet.attacks import ATTACKS\n@ATTACKS.register({name!r})\ndef nothing(*_, **__): ...\n"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    command, option = ["recipes"], ["--import", f"{name}.py"]
    assert main([*option, *command] if before else [*command, *option]) == 0
    assert name in ATTACKS


@pytest.mark.parametrize(
    "command",
    [["models"], ["recipes"], ["recipes", "mnist-0.3-ibp"], ["data", "list"], ["doctor"], ["compare"], ["evaluate"]],
)
def test_tables_fit(command: list[str], place: Path, capsys: pytest.CaptureFixture[str]):
    """Lines with paths are not broken, so that they can be copied; they are no part of a table."""
    if command[0] == "evaluate":
        command = ["evaluate", "run", "--limit", "5", "--steps", "1", "--eps", "1/7", "8/255"]
    if command[0] == "compare":
        (place / "run").rename(place / "a-run-with-a-rather-long-name-of-sixty-characters-20260101-000000")
        command = ["compare", "a-run-with-a-rather-long-name-of-sixty-characters-20260101-000000"]
    capsys.readouterr()
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(cell_len(line) <= 80 or str(place) in line or line.startswith("CPU kernels") for line in lines), lines
    assert not any("…" in line for line in lines)


def test_a_recipe_is_shown_with_what_differs(capsys: pytest.CaptureFixture[str]):
    assert main(["recipes", "digits", "--set", "model.width=77"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:3] == ["*", "model.width", "77"] for line in lines)
    assert any(line.split()[:2] == ["optimizer.beta1", "0.9"] for line in lines)
