"""Each mistake gives one clear line on standard error and exit code 2, and changes nothing on disk."""

import json
import os
import random
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from linfnet.cli.main import main
from linfnet.train import RunFolder

TINY = ["--set", "limit=100", "width=8", "depth=2", "epochs=[1, 1, 1]", "checkpoint_every=1", "test_every=0"]


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "run"
    assert main(["train", "digits", "--out", str(run), *TINY]) == 0
    return run


@pytest.fixture
def place(tmp_path: Path, finished_run: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a finished run, a stopped run and an empty cache, in which commands are run."""
    shutil.copytree(finished_run, tmp_path / "run")
    shutil.copytree(finished_run, tmp_path / "stopped")
    for name in ("model.safetensors", "config.json", "results.json"):
        (tmp_path / "stopped" / name).unlink()
    (tmp_path / "cache").mkdir()
    monkeypatch.setenv("LINFNET_DATA", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def snapshot(folder: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


@pytest.fixture
def refused(place: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run(*arguments: str) -> str:
        before = snapshot(place)
        capsys.readouterr()
        try:
            code = main(list(arguments))
        except SystemExit as stop:
            code = stop.code
        assert code == 2
        lines = capsys.readouterr().err.strip().splitlines()
        assert len(lines) == 1, lines
        assert lines[0].startswith("error: ")
        assert snapshot(place) == before
        return lines[0]

    return run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "digitz"], "unknown recipe 'digitz'; did you mean 'digits'?"),
        (["train", "digits", "--set", "widht=3"], "unknown key 'widht'; did you mean 'model.width'?"),
        (["train", "digits", "--set", "p_start=0.5"], "schedule.p_start is 0.5; wanted a number >= 1"),
        (["train", "digits", "--set", "data.name=mnits"], "did you mean 'mnist'?"),
        (["train", "digits", "--out", "run"], "output folder run already holds a run"),
        (["train", "digits", "--out", "run/config.json/x"], "output folder run/config.json/x cannot be"),
        (["train", "digits", "--out", "run/config.json"], "output folder run/config.json cannot be used"),
        (["train", "digits", "--set", "width=100000000000"], "model.width is too large"),
        (["train", "digits", "--set", "width=" + "9" * 5000], "model.width is"),
        (["train", "digits", "--set", "width=900000", "depth=900"], "the net cannot be built"),
        (["train", "digits", "--set", "seed=18446744073709551616"], "run.seed is too large"),
        (["train", "digits", "--set", "seed=-1"], "run.seed is -1"),
        (["train", "digits", "--set", "pad=100000000000000000000000"], "data.pad is too large"),
        (["train", "digits", "--set", "lr=" + "1" * 400], "optimizer.lr is too large"),
        (["train", "digits", "--set", "pad=1001"], "data.pad is 1001; wanted a number of at most 1000"),
        (["train", "digits", "--set", "theta=1e400"], "loss.theta is 'inf'"),
        (["train", "digits", "--set", "theta="], "loss.theta is ''"),
        (["train", "digits", "--set", "epochs=" + "[" * 3000], "schedule.epochs"),
        (["train", "mnist-0.3-hybrid", "--set", "theta=0.5"], "loss.theta is 1/2, but the system 'hybrid' does not"),
        (["train", "mnist-0.3-hybrid", "--set", "loss.name=hinge"], "but the system 'hybrid' does not look at it"),
        (["train", "mnist-0.3-ibp", "--set", "width=64"], "model.width is 64, but the system 'ibp' does not"),
        (["train", "mnist-0.3-ibp", "--set", "p_end=99"], "schedule.p_end is 99.0, but the system 'ibp' does not"),
        (["train", "digits", "--device", "meta"], "device is 'meta'"),
        (["train", "digits", "--device", "cuda:77"], "no such GPU"),
        (["trian"], "trian"),
        (["train", "--foo"], "--foo"),
        (["evaluate", "run", "--split", "foo"], "foo"),
        ([], "Expected one of"),
        (["evaluate", "run", "--eps", "1e-999999999"], "--eps is '1e-999999999'"),
        (["train", "digits", "--device", "tpu9"], "device is 'tpu9'"),
        (["train", "mnist-0.1"], "linfnet data fetch mnist"),
        (["train", "--resume", "run"], "has finished"),
        (["train", "--resume", "cache"], "is not a run folder"),
        (["train", "--resume", "stopped", "--set", "width=3"], "takes no recipe"),
        (["evaluate", "run", "--eps", "8/0"], "--eps is '8/0'"),
        (["evaluate", "run", "--eps", "abc"], "--eps is 'abc'"),
        (["evaluate", "run", "--eps", "-1"], "--eps is -1"),
        (["evaluate", "run", "--eps", "0.1", "--eps", "2"], "--eps is 2"),
        (["evaluate", "run", "--limit", "0"], "--limit is 0"),
        (["evaluate", "run", "--steps", "0"], "--steps is 0"),
        (["evaluate", "absent"], "absent is not a folder"),
        (["evaluate", "cache"], "has no recipe.toml: give --data and --eps"),
        (["evaluate", "stopped"], "has not finished"),
        (["evaluate", "run", "--data", "cifar10"], "linfnet data fetch cifar10"),
        (["reproduce", "table2"], "there is no study 'table2'; wanted one of table1"),
        (["reproduce", "table1", "--row", "cifar"], "--row is 'cifar'; table1 has mnist-0.1, "),
        (["reproduce", "table1", "--scale", "0"], "--scale is 0; wanted a number above 0, at most 1"),
        (["reproduce", "table1", "--seeds", "0"], "--seeds is 0"),
        (["reproduce", "table1", "--set", "widht=3"], "unknown key 'widht'"),
        (["reproduce", "table1", "--row", "mnist-0.1"], "linfnet data fetch mnist"),
        (["certify", "absent"], "absent is not a folder"),
        (["certify", "stopped"], "has not finished"),
        (["certify", "cache"], "has no recipe.toml: give --data"),
        (["certify", "run", "--eps", "x"], "--eps is 'x'"),
        *(
            (["certify", "run", f"--eps={e}"], "--eps is")
            for e in ("-1", "nan", "inf", "1e400", "8/0", "８/255", "1/0.5")
        ),
        (["certify", "run", "--data", "cache"], "folder cache holds no images"),
        (["certify", "run", "--data", "digitz"], "did you mean 'digits'?"),
        (["certify", "run", "--limit", "0"], "--limit is 0"),
        (["certify", "run", "--data", "run/config.json"], "cannot be read"),
        (["attack", "run", "--attacks", "magic"], "--attacks has 'magic'; known are pgd"),
        (["attack", "run", "--attacks"], "--attacks names none; known are pgd"),
        (["attack", "run", "--p", "0"], "--p is"),
        (["attack", "run", "--steps", "0"], "steps=0"),
        (["attack", "run", "--eps", "2"], "--eps is 2"),
        (["attack", "cache"], "has no recipe.toml: give --data and --eps"),
        (["export", "run"], "nothing to export"),
        (["export", "run", "--onnx", "cache"], "--onnx is the folder cache"),
        (["export", "run", "--vnnlib", "new", "--samples", "99999"], "--samples has 99999; digits test has 0 to 359"),
        (["export", "run", "--vnnlib", "run/config.json", "--eps", "0.1"], "cannot be written"),
        (["export", "absent", "--onnx", "x.onnx"], "absent is not a folder"),
        (["predict", "run", "absent.png"], "absent.png does not exist"),
        *(
            ([*command, "mnist-small"], "linfnet certify, attack, predict and serve take it")
            for command in (["report"], ["compare"], ["evaluate"], ["plot"], ["record", "--out", "x.json"])
        ),
        (["plot", "absent.json"], "absent.json is neither a run folder nor a record"),
        (["predict", "run/checkpoints", "absent.png"], "does not exist"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes(arguments: list[str], message: str, refused: Callable[..., str]):
    assert message in refused(*arguments)


def test_a_run_is_held_before_it_is_looked_at(place: Path, refused: Callable[..., str]):
    (place / "run" / ".results.json.x.tmp").write_text("an evaluation under way")
    other = RunFolder.open(place / "run")
    other.lock()
    assert "run is in use by another process" in refused("train", "--resume", "run")
    other.release()
    assert "run has finished" in refused("train", "--resume", "run")
    assert not other.held


def test_damaged_checkpoints(place: Path, refused: Callable[..., str]):
    checkpoints = sorted((place / "stopped" / "checkpoints").iterdir())
    for path in checkpoints:
        path.write_bytes(path.read_bytes()[:500])
    assert "is truncated or not a safetensors file" in refused("train", "--resume", "stopped")
    for path in checkpoints:
        shutil.copy(place / "run" / "model.safetensors", path)
    assert "is not a checkpoint of this library" in refused("train", "--resume", "stopped")
    assert not RunFolder.open(place / "stopped").held


def test_a_checkpoint_for_other_images(place: Path, refused: Callable[..., str]):
    recipe = place / "stopped" / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("width = 8", "width = 9"))
    assert "belongs to another net" in refused("train", "--resume", "stopped")
    config = place / "run" / "config.json"
    settings = json.loads(config.read_text())
    config.write_text(json.dumps({**settings, "image_shape": [1, 9, 9]}))
    assert "other images" in refused("evaluate", "run")


def test_a_net_for_other_images_than_the_data(place: Path, refused: Callable[..., str]):
    images, labels = np.zeros((2, 28, 28), np.uint8), np.zeros(2, np.uint8)
    folder = place / "cache" / "mnist"
    folder.mkdir()
    for stem, array in (("images-idx3", images), ("labels-idx1", labels)):
        header = bytes([0, 0, 8, array.ndim]) + b"".join(int(s).to_bytes(4, "big") for s in array.shape)
        for split in ("train", "t10k"):
            (folder / f"{split}-{stem}-ubyte").write_bytes(header + array.tobytes())
    assert "mnist" in refused("train", "mnist-0.1")  # present, but not the real content
    assert "mnist" in refused("evaluate", "run", "--data", "mnist")


def test_missing_and_foreign_weights(place: Path, refused: Callable[..., str]):
    weights = place / "run" / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-10])
    assert "truncated" in refused("evaluate", "run")
    weights.write_bytes(b"<html>")
    assert "truncated or not a safetensors file" in refused("predict", "run", "x.npy")


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.full((8, 8), 1.5, np.float32), "wanted [0, 1]"),
        (np.full((8, 8), 1 + 1e-12), "wanted [0, 1]"),
        (np.full((8, 8), np.inf, np.float32), "wanted [0, 1]"),
        (np.zeros((8, 8), bool), "holds bool"),
        (np.zeros((8, 8), complex), "holds complex128"),
        (np.float32(0.5), "has shape (1,)"),
        (np.full((8, 8), -0.1, np.float32), "wanted [0, 1]"),
        (np.full((8, 8), np.nan, np.float32), "wanted [0, 1]"),
        (np.zeros((9, 9), np.float32), "has shape (1, 9, 9); the net wants (1, 8, 8)"),
        (np.zeros((8, 8), np.int64), "holds int64"),
        (np.array([{}], dtype=object), "is not a NumPy array"),
    ],
)
def test_images_that_do_not_fit(place: Path, refused: Callable[..., str], array: np.ndarray, message: str):
    np.save(place / "image.npy", array, allow_pickle=True)
    assert message in refused("predict", "run", "image.npy")
    assert message.split(" (")[0] in refused("certify", "run", "--data", "image.npy")


@pytest.mark.parametrize("shape", ["(10**13, 8, 8)", "(10000000000000, 8, 8)", "(9" + "0" * 30 + ", 8)", "(3, (", "7"])
def test_an_array_whose_header_lies(place: Path, refused: Callable[..., str], shape: str):
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    lie = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(64)
    (place / "image.npy").write_bytes(lie)
    assert "is not a NumPy array" in refused("predict", "run", "image.npy")
    assert "is not a NumPy array" in refused("certify", "run", "--data", "image.npy")


def test_the_ending_of_an_array_may_be_in_capitals(place: Path):
    np.save(place / "image.npy", np.zeros((8, 8), np.float32))
    (place / "image.npy").rename(place / "IMAGE.NPY")
    assert main(["predict", "run", "IMAGE.NPY"]) == 0
    assert main(["certify", "run", "--data", "IMAGE.NPY"]) == 0


def test_an_archive_is_no_image(place: Path, refused: Callable[..., str]):
    with (place / "image.npy").open("wb") as file:
        np.savez(file, a=np.zeros((8, 8)))
    assert "is not a NumPy array" in refused("predict", "run", "image.npy")


def test_damaged_folders(place: Path, refused: Callable[..., str]):
    results, config = place / "run" / "results.json", place / "run" / "config.json"
    kept = results.read_text()
    for text in ("[1]", "{"):
        results.write_text(text)
        assert "results.json" in refused("evaluate", "run", "--limit", "5", "--steps", "1")
    results.write_text(kept)
    settings = json.loads(config.read_text())
    np.save(place / "image.npy", np.zeros((8, 8), np.float32))
    for change in (
        {"hidden": [16.0]},
        {"hidden": [10**30]},
        {"hidden": "x"},
        {"negate_logits": "no"},
        {"class_names": 7},
    ):
        config.write_text(json.dumps({**settings, **change}))
        assert "error: " in refused("predict", "run", "image.npy")
    config.write_text("[" * 100_000)
    assert "config.json" in refused("predict", "run", "image.npy")
    (place / "stopped" / "recipe.toml").write_bytes(b"\xff\xfe")
    assert "recipe.toml cannot be read" in refused("train", "--resume", "stopped")


@pytest.mark.parametrize(
    ("arguments", "room", "told"),
    [
        (["evaluate", "run", "--limit", "5", "--steps", "1"], 0, "run/results.json: File too large"),
        (["plot", "run"], 0, "run/curves.png: "),
        (["plot", "run", "--out", "curves.svg"], 5000, "curves.svg: File too large"),
        (["report", "run"], 5000, "run/report.html: File too large"),
        (["record", "run", "--out", "kept.json"], 0, "kept.events.jsonl.gz: File too large"),
        (["record", "run", "--out", "kept.json"], 1500, "kept.json: File too large"),
        (["plot", "run", "--out", "absent/x.png"], None, "absent/x.png: No such file or directory"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_a_full_disk_is_told_with_the_file(
    arguments: list[str], room: int | None, told: str, refused: Callable[..., str]
):
    """A limit on the size of files fails as a full disk does, and needs no rights."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before[0] if room is None else room, before[1]))
        assert refused(*arguments).startswith(f"error: {told}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    "command", [["report", "run"], ["compare", "run"], ["record", "run", "--out", "x.json"], ["evaluate", "run"]]
)
def test_results_that_were_edited(command: list[str], place: Path, refused: Callable[..., str]):
    file = place / "run" / "results.json"
    results = json.loads(file.read_text())
    file.write_text(json.dumps({**results, "train": {**results["train"], "seconds": "long"}}))
    assert "run/results.json: 'seconds' of 'train' is 'long'; wanted a number" in refused(*command)
    file.write_text(json.dumps({**results, "digits-test eps=0.1": {"clean": 98.5}}))
    assert "'clean' of 'digits-test eps=0.1' is 98.5; wanted a share from 0 to 1" in refused(*command)


def test_records_that_were_edited(place: Path, refused: Callable[..., str]):
    (place / "run" / "results.json").write_text("{}")
    assert "has no 'train' with 'seconds'" in refused("record", "run", "--out", "x.json")
    for record in ({"recipe": 7, "events": "x"}, {"recipe": "", "events": ["x"]}, ["recipe", "events"]):
        (place / "record.json").write_text(json.dumps(record))
        assert "record.json is not the record of a run" in refused("plot", "record.json")


def test_odd_events_do_not_stop_a_resume(place: Path):
    (place / "stopped" / "events.jsonl").write_bytes(b'123\n{"step": "a"}\n\xff\n{"event": "epoch", "step": 1}\n{"half')
    assert main(["train", "--resume", "stopped"]) == 0


def test_paths_with_brackets_are_told_as_they_are(place: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["train", "digits", "--out", "x[bold]y", *TINY]) == 0
    assert "run folder: x[bold]y" in capsys.readouterr().out


def test_a_picture_that_is_none(place: Path, refused: Callable[..., str]):
    (place / "image.png").write_bytes(b"not a picture")
    assert "image.png cannot be read" in refused("predict", "run", "image.png")


def test_a_picture_of_another_mode_or_size(place: Path, refused: Callable[..., str]):
    Image.new("RGB", (8, 8)).save(place / "colour.png")
    assert "colour.png has mode RGB; the net wants L" in refused("predict", "run", "colour.png")
    Image.new("L", (9, 8)).save(place / "wide.png")
    assert "has shape (1, 8, 9); the net wants (1, 8, 8)" in refused("predict", "run", "wide.png")
    np.save(place / "stack.npy", np.zeros((3, 1, 9, 9), np.float32))
    assert "the net wants images of shape (1, 8, 8)" in refused("certify", "run", "--data", "stack.npy")
    np.save(place / "none.npy", np.zeros((0, 8, 8), np.float32))
    assert "the net wants images of shape (1, 8, 8)" in refused("certify", "run", "--data", "none.npy")


def test_pictures_are_never_converted_in_silence(place: Path, refused: Callable[..., str]):
    grey = Image.new("L", (8, 8), 99)
    for mode in ("RGBA", "LA", "P", "1", "I;16", "CMYK"):
        name = "picture.jpg" if mode == "CMYK" else "picture.png"
        (Image.new("I;16", (8, 8)) if mode == "I;16" else grey.convert(mode)).save(place / name)
        assert f"{name} has mode {mode}; the net wants L" in refused("predict", "run", name)
    for name in ("frames.png", "frames.tiff"):
        grey.save(place / name, save_all=True, append_images=[Image.new("L", (8, 8), 7)])
        assert "has 2 frames; wanted one" in refused("predict", "run", name)
    Image.new("1", (14_000, 14_000)).save(place / "bomb.png")
    assert "bomb.png cannot be read" in refused("predict", "run", "bomb.png")
    whole = (place / "frames.png").read_bytes()
    for cut in (0, 10, 40, len(whole) // 2):
        (place / "cut.png").write_bytes(whole[:cut])
        assert "cut.png" in refused("predict", "run", "cut.png")


def test_odd_names_and_folders(place: Path, refused: Callable[..., str], capsys: pytest.CaptureFixture[str]):
    Image.new("RGB", (8, 8)).save(place / "two\nlines.png")
    assert "two lines.png has mode RGB" in refused("predict", "run", "two\nlines.png")
    name = os.fsdecode(b"caf\xe9.png")  # not UTF-8
    Image.new("L", (8, 8)).save(place / name)
    assert main(["predict", "run", name]) == 0
    (place / "folder.png").mkdir()
    assert "folder.png does not exist" in refused("predict", "run", "folder.png")
    (place / "loop.png").symlink_to("loop.png")
    assert "loop.png does not exist" in refused("predict", "run", "loop.png")


def test_a_folder_that_may_not_be_read(place: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch):
    def forbidden(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", forbidden)
    assert "cache: Permission denied" in refused("certify", "run", "--data", "cache")


def test_weights_of_another_type_are_another_net(place: Path, refused: Callable[..., str]):
    np.save(place / "image.npy", np.zeros((8, 8), np.float32))
    weights = place / "run" / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole.replace(b'"F32"', b'"I32"', 1))
    assert "holds torch.int32, the net wants torch.float32" in refused("predict", "run", "image.npy")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_damaged_bytes_are_one_line_or_a_net(
    name: str, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """60 damaged files of each kind; those in the weights' own bytes are skipped, any bits being some net."""
    np.save(place / "image.npy", np.zeros((8, 8), np.float32))
    path, draw = place / "run" / name, random.Random(0)
    whole = path.read_bytes()
    end = len(whole) if name == "config.json" else 8 + int.from_bytes(whole[:8], "little")
    refusals = 0
    for _ in range(60):
        data, at = bytearray(whole), draw.randrange(end)
        kind = draw.choice(("flip", "cut", "insert", "repeat"))
        if kind == "flip":
            data[at] ^= 1 << draw.randrange(8)
        elif kind == "cut":
            data = data[:at]
        else:
            data[at:at] = (
                draw.choice((b"9", b"-", b'"', b"{", b"NaN", b"1e999")) if kind == "insert" else data[: at + 1]
            )
        path.write_bytes(data)
        capsys.readouterr()
        code = main(["predict", "run", "image.npy"])
        lines = capsys.readouterr().err.splitlines()
        assert (code, len(lines)) in ((0, 0), (2, 1)), (kind, at, lines)
        refusals += code == 2
    assert refusals > 40


def test_what_torchrun_may_not_start(refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "a study runs in one process" in refused("reproduce", "table1")
    assert "under torchrun give --out" in refused("train", "digits")
