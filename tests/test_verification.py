"""`linfnet verify` and the files that it checks."""

import random
import shutil
from pathlib import Path

import pytest

from linfnet.cli.main import main
from linfnet.errors import LinfnetError
from linfnet.files import read_table, read_tensors, write_json, write_table, write_tensors
from linfnet.systems import load_model
from linfnet.train import RunFolder
from linfnet.verification import verify_folder

TINY = ["--set", "limit=100", "width=8", "depth=2", "epochs=[1, 1, 1]", "checkpoint_every=1", "test_every=1"]
FILES = {
    "model.safetensors",
    "config.json",
    "results.json",
    "env.json",
    "recipe.toml",
    "events.jsonl",
    "step-000000001.safetensors",
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "run"
    assert main(["train", "digits", "--out", str(run), *TINY]) == 0
    assert main(["evaluate", str(run), "--limit", "20", "--steps", "1", "--eps", "0.5", "--exact"]) == 0
    return run


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def test_a_finished_run_is_whole(run: Path, capsys: pytest.CaptureFixture[str]):
    states = verify_folder(run)
    assert {state.file.name for state in states} >= FILES - {"step-000000001.safetensors"}
    for images in (".broken.safetensors", ".witnesses.safetensors"):
        assert any(state.file.name.endswith(images) for state in states)
    assert all(state.has_digest and not state.problem for state in states)
    assert main(["verify", str(run)]) == 0
    printed = capsys.readouterr()
    assert printed.out.count("intact: ") == len(states)
    assert printed.err == ""


def test_a_flipped_bit_of_any_file_is_found(run: Path, capsys: pytest.CaptureFixture[str]):
    draw = random.Random(3)
    for file in [state.file for state in verify_folder(run)]:
        whole = bytearray(file.read_bytes())
        # The last event, `finish`, was written after the last checkpoint; only its form is checked.
        covered = whole.rindex(b'{"event": "finish"') if file.name == "events.jsonl" else len(whole)
        for _ in range(10):
            damaged, bit = whole[:], draw.randrange(8 * covered)
            damaged[bit // 8] ^= 1 << bit % 8
            file.write_bytes(damaged)
            found = [state for state in verify_folder(run) if state.problem]
            assert [state.file for state in found] == [file], (bit, found)
        capsys.readouterr()
        assert main(["verify", str(run)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert str(file) in line
        file.write_bytes(whole)


def test_a_damaged_end_of_the_log_is_found(run: Path, capsys: pytest.CaptureFixture[str]):
    log = run / "events.jsonl"
    whole = log.read_bytes()
    count = whole.count(b"\n")
    for damaged, message in (
        (whole[:-1], "its last line is incomplete"),
        (whole[:-20], "its last line is incomplete"),
        (whole + b'{"event": "no', "its last line is incomplete"),
        (whole.replace(b'{"event": "finish"', b'{"event" "finish"'), f"line {count} is not an event"),
        (whole + b'{"event": "note", "v": NaN}\n', f"line {count + 1} is not an event"),
    ):
        log.write_bytes(damaged)
        capsys.readouterr()
        assert main(["verify", str(run)]) == 2
        assert capsys.readouterr().err == f"{log} is damaged: {message}\n"


@pytest.mark.parametrize("name", ["results.json", "env.json", "events.jsonl"])
def test_a_folder_in_the_place_of_a_file_is_found(run: Path, name: str):
    (run / name).unlink()
    (run / name).mkdir()
    assert [state.file.name for state in verify_folder(run) if state.problem] == [name]


def test_a_checkpoint_that_says_nothing_about_the_log_is_skipped(run: Path):
    for file in (run / "checkpoints").iterdir():
        tensors, metadata = read_tensors(file)
        write_tensors(file, tensors, {**metadata, "log": "none"})
    (log,) = (state for state in verify_folder(run) if state.file.name == "events.jsonl")
    assert not log.has_digest
    assert not log.problem


def test_a_recipe_that_ends_too_early_is_found(run: Path):
    file = run / "recipe.toml"
    text = file.read_text()
    lines = text.splitlines(keepends=True)
    for end in range(len(lines)):
        file.write_text("".join(lines[:end]))
        (problem,) = [state.problem for state in verify_folder(run) if state.problem]
        assert str(file) in problem
    # Older versions wrote the digest as the last line, or none.
    for old, has_digest in (("".join([*lines[1:], "\n", lines[0]]), True), ("".join(lines[1:]), False)):
        file.write_text(old)
        (state,) = [state for state in verify_folder(run) if state.file == file]
        assert (state.problem, state.has_digest) == ("", has_digest)
    assert len(lines) > 20


def test_missing_and_old_files_are_told(run: Path, capsys: pytest.CaptureFixture[str]):
    write_json(run / "config.json", read_table(run / "config.json"))
    (run / "model.safetensors").unlink()
    (run / "checkpoints" / ".tmp123456").touch()
    capsys.readouterr()
    assert main(["verify", str(run)]) == 2
    printed = capsys.readouterr()
    assert "readable, but without a digest: config.json" in printed.out
    assert "temporary, of a process that writes now or was killed: checkpoints/.tmp123456" in printed.out
    assert printed.err == f"{run / 'model.safetensors'} does not exist\n"


def test_a_run_that_has_not_finished_needs_no_model(run: Path):
    for name in ("model.safetensors", "config.json", "results.json"):
        (run / name).unlink()
    assert not any(state.problem for state in verify_folder(run))


def test_a_lost_or_damaged_config_is_written_again(run: Path, capsys: pytest.CaptureFixture[str]):
    config = run / "config.json"
    whole = config.read_bytes()
    config.unlink()
    with pytest.raises(LinfnetError, match=r"has lost its config\.json; call linfnet\.fit"):
        load_model(run)
    assert not RunFolder.open(run).complete
    assert main(["train", "--resume", str(run)]) == 0
    assert config.read_bytes() == whole
    config.write_bytes(whole.replace(b'"classes": 10', b'"classes": 11'))
    with pytest.raises(LinfnetError, match=r"config\.json does not match its digest"):
        load_model(run)
    assert main(["train", "--resume", str(run)]) == 0
    assert config.read_bytes() == whole
    assert RunFolder.open(run).complete


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_files_of_two_models_are_not_mixed(run: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]):
    net, names = load_model(run), read_table(run / "config.json")["class_names"]
    next(net.parameters()).data += 1
    net.save(tmp_path / "other", class_names=names[::-1])
    whole = (run / name).read_bytes()
    shutil.copy(tmp_path / "other" / name, run / name)
    with pytest.raises(LinfnetError, match=r"config\.json and model\.safetensors do not belong together") as caught:
        load_model(run)
    assert "\n" not in str(caught.value)
    assert [state.file.name for state in verify_folder(run) if state.problem] == ["config.json"]
    assert not RunFolder.open(run).complete
    assert main(["train", "--resume", str(run)]) == 0
    assert (run / name).read_bytes() == whole


def test_a_config_of_an_older_version_is_read_with_a_line(run: Path, caplog: pytest.LogCaptureFixture):
    config = read_table(run / "config.json")
    del config["weights"]
    write_table(run / "config.json", config)
    load_model(run)
    load_model(run)
    (line,) = caplog.messages
    assert line == f"{run / 'config.json'} does not name its weights: those of another model would be accepted"
    assert RunFolder.open(run).complete


def test_equal_models_are_equal_files(run: Path, tmp_path: Path):
    net = load_model(run)
    net.save(tmp_path / "copy", class_names=read_table(run / "config.json")["class_names"])
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "copy" / name).read_bytes() == (run / name).read_bytes()
