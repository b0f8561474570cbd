"""Damaged, foreign and unwritable files cause one clear line and exit code 2, and are not changed."""

import contextlib
import json
import math
import os
import random
import resource
import shutil
from collections.abc import Callable, Generator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from linfnet.cli.main import main
from linfnet.files import read_table, read_tensors, write_tensors
from linfnet.systems.smoothing import SmoothedNet
from linfnet.train import RunFolder


def test_damaged_checkpoints(place: Path, refused: Callable[..., str]):
    checkpoints = sorted((place / "stopped" / "checkpoints").iterdir())
    for path in checkpoints:
        path.write_bytes(path.read_bytes()[:500])
    assert "is truncated or not a safetensors file" in refused("train", "--resume", "stopped")
    for path in checkpoints:
        shutil.copy(place / "run" / "model.safetensors", path)
    assert "is not a checkpoint of this library" in refused("train", "--resume", "stopped")
    assert not RunFolder.open(place / "stopped").locked


def test_a_checkpoint_for_other_images(place: Path, refused: Callable[..., str]):
    recipe = place / "stopped" / "recipe.toml"
    edited = recipe.read_text().replace("width = 8", "width = 9")
    recipe.write_text(edited)
    assert "after an edit, delete its line '# digest: '" in refused("train", "--resume", "stopped")
    recipe.write_text(edited[edited.index("\n") :])
    assert "belongs to another net" in refused("train", "--resume", "stopped")
    config = place / "run" / "config.json"
    settings = read_table(config)
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
        (np.full((8, 8), 1.5, np.float32), "expected [0, 1]"),
        (np.full((8, 8), 1 + 1e-12), "expected [0, 1]"),
        (np.full((8, 8), np.inf, np.float32), "expected [0, 1]"),
        (np.zeros((8, 8), bool), "contains bool"),
        (np.zeros((8, 8), complex), "contains complex128"),
        (np.float32(0.5), "has shape ()"),
        (np.full((8, 8), -0.1, np.float32), "expected [0, 1]"),
        (np.full((8, 8), np.nan, np.float32), "expected [0, 1]"),
        (np.zeros((9, 9), np.float32), "has shape (9, 9); the net expects images of shape (1, 8, 8)"),
        (np.zeros((8, 8), np.int64), "contains int64"),
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
    settings = read_table(config)
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
    ("arguments", "room", "message"),
    [
        (["evaluate", "run", "--limit", "5", "--steps", "1"], 0, "run/samples-digits-test-first-5"),
        (["plot", "run"], 0, "run/curves.png: "),
        (["plot", "run", "--out", "curves.svg"], 5000, "curves.svg: File too large"),
        (["report", "run"], 5000, "run/report.html: File too large"),
        (["plot", "run", "--out", "absent/x.png"], None, "absent/x.png: No such file or directory"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_a_full_disk_is_told_with_the_file(
    arguments: list[str], room: int | None, message: str, refused: Callable[..., str]
):
    """A limit on the size of files causes the same failure as a full disk, and needs no privileges."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before[0] if room is None else room, before[1]))
        assert refused(*arguments).startswith(f"error: {message}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("command", [["report", "run"], ["compare", "run"], ["evaluate", "run"]])
def test_results_that_were_edited(command: list[str], place: Path, refused: Callable[..., str]):
    file = place / "run" / "results.json"
    results = read_table(file)
    file.write_text(json.dumps({**results, "training": {**results["training"], "seconds": "long"}}))
    assert "run/results.json: 'seconds' of training is 'long'; expected a number" in refused(*command)
    file.write_text(json.dumps({**results, "evaluations": [{"data": "digits", "split": "test", "count": "many"}]}))
    assert "'count' of evaluation 1 is 'many'; expected a whole number of at least 0" in refused(*command)


def test_records_that_were_edited(place: Path, refused: Callable[..., str]):
    unnamed = [{"recipe": "", "events": name} for name in ("", ".", "elsewhere/log.gz")]
    for record in ({"recipe": 7, "events": "x"}, {"recipe": "", "events": ["x"]}, ["recipe", "events"], *unnamed):
        (place / "record.json").write_text(json.dumps(record))
        assert "record.json is not the record of a run" in refused("plot", "record.json")


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        ("config.json", {"hidden": "abc"}),
        ("config.json", {"class_names": 5}),
        ("results.json", {"train": {"clean": 0.9, "certified": {"0.1": 0.5}}}),
    ],
    ids=str,
)
def test_odd_values_do_not_stop_a_report(place: Path, file: str, changes: dict[str, object]):
    assert main(["evaluate", "run", "--limit", "20", "--steps", "1"]) == 0
    if file == "results.json":  # without an evaluation, the report shows the results of training
        (place / "run" / file).write_text("{}")
    values = read_table(place / "run" / file)
    (place / "run" / file).write_text(json.dumps({**values, **changes}))
    assert main(["report", "run"]) == 0


def test_odd_class_names_do_not_stop_an_evaluation(place: Path):
    config = place / "run" / "config.json"
    config.write_text(json.dumps({**read_table(config), "class_names": 5}))
    assert main(["evaluate", "run", "--limit", "5", "--steps", "1"]) == 0
    assert "numbered 0 to 9" in (place / "run" / "README.md").read_text()


def test_an_epoch_before_the_first_is_none(place: Path):
    events = place / "run" / "events.jsonl"
    last = [json.loads(line) for line in events.read_text().splitlines() if '"event": "epoch"' in line][-1]
    with events.open("a") as file:
        file.write(json.dumps({**last, "epoch": 0}) + "\n")
    assert main(["watch", "run", "--once"]) == 0


def test_odd_events_do_not_stop_a_resume(place: Path):
    (place / "stopped" / "events.jsonl").write_bytes(b'123\n{"step": "a"}\n\xff\n{"event": "epoch", "step": 1}\n{"half')
    assert main(["train", "--resume", "stopped"]) == 0


def test_paths_with_brackets_are_told_as_they_are(place: Path, capsys: pytest.CaptureFixture[str]):
    tiny = ["--set", "limit=100", "width=8", "depth=2", "epochs=[1, 1, 1]", "test_every=0"]
    assert main(["train", "digits", "--out", "x[bold]y", *tiny]) == 0
    assert "run folder: x[bold]y" in capsys.readouterr().out


def test_a_picture_that_is_none(place: Path, refused: Callable[..., str]):
    (place / "image.png").write_bytes(b"not a picture")
    assert "image.png: is not an image in a supported format" in refused("predict", "run", "image.png")


def test_a_picture_of_another_mode_or_size(place: Path, refused: Callable[..., str]):
    Image.new("RGB", (8, 8)).save(place / "colour.png")
    assert "colour.png: is RGB; the net expects grey images: pass --grey" in refused("predict", "run", "colour.png")
    Image.new("L", (9, 8)).save(place / "wide.png")
    assert "has 8 x 9 pixels (height x width); expected 8 x 8: pass --resize 8x8" in refused(
        "predict", "run", "wide.png"
    )
    np.save(place / "stack.npy", np.zeros((3, 1, 9, 9), np.float32))
    assert "the net expects images of shape (1, 8, 8)" in refused("certify", "run", "--data", "stack.npy")
    np.save(place / "last.npy", np.zeros((3, 8, 8, 1), np.float32))
    for command in ("certify", "attack"):
        assert "the channels are last, expected first: [N, C, H, W]" in refused(command, "run", "--data", "last.npy")
    np.save(place / "none.npy", np.zeros((0, 8, 8), np.float32))
    assert "the net expects images of shape (1, 8, 8)" in refused("certify", "run", "--data", "none.npy")


def test_pictures_are_never_converted_in_silence(place: Path, refused: Callable[..., str]):
    grey = Image.new("L", (8, 8), 99)
    for mode in ("RGBA", "LA", "P", "1", "I;16", "CMYK"):
        name = "picture.jpg" if mode == "CMYK" else "picture.png"
        (Image.new("I;16", (8, 8)) if mode == "I;16" else grey.convert(mode)).save(place / name)
        message = refused("predict", "run", name)
        assert f"{name}: its pixels are stored as " in message
        assert "pass --grey" in message
    for name in ("frames.png", "frames.tiff"):
        grey.save(place / name, save_all=True, append_images=[Image.new("L", (8, 8), 7)])
        assert "has 2 frames; expected one" in refused("predict", "run", name)
    Image.new("1", (14_000, 14_000)).save(place / "bomb.png")
    assert "bomb.png: has too many pixels" in refused("predict", "run", "bomb.png")
    whole = (place / "frames.png").read_bytes()
    for cut in (0, 10, 40, len(whole) // 2):
        (place / "cut.png").write_bytes(whole[:cut])
        assert "cut.png" in refused("predict", "run", "cut.png")


def test_odd_names_and_folders(place: Path, refused: Callable[..., str], capsys: pytest.CaptureFixture[str]):
    Image.new("RGB", (8, 8)).save(place / "two\nlines.png")
    assert "two lines.png: is RGB" in refused("predict", "run", "two\nlines.png")
    name = os.fsdecode(b"caf\xe9.png")  # not UTF-8
    Image.new("L", (8, 8)).save(place / name)
    assert main(["predict", "run", name]) == 0
    (place / "folder.png").mkdir()
    assert "folder folder.png contains no images" in refused("predict", "run", "folder.png")
    (place / "loop.png").symlink_to("loop.png")
    assert "loop.png: does not exist" in refused("predict", "run", "loop.png")


def test_a_folder_that_may_not_be_read(place: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch):
    def forbidden(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", forbidden)
    assert "cache: Permission denied" in refused("certify", "run", "--data", "cache")


def test_weights_of_another_type_are_another_net(place: Path, refused: Callable[..., str]):
    np.save(place / "image.npy", np.zeros((8, 8), np.float32))
    weights = place / "run" / "model.safetensors"
    tensors, metadata = read_tensors(weights)
    write_tensors(weights, {name: tensor.view(torch.int32) for name, tensor in tensors.items()}, metadata)
    assert "has dtype torch.int32, the net expects torch.float32" in refused("predict", "run", "image.npy")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_damaged_bytes_are_one_line_or_a_net(
    name: str, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """Try 60 damaged files of each kind. A flipped bit is always noticed."""
    np.save(place / "image.npy", np.zeros((8, 8), np.float32))
    path, draw = place / "run" / name, random.Random(0)
    whole = path.read_bytes()
    end = len(whole)
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
        assert code == 2 or kind != "flip", at
        refusals += code == 2
    assert refusals > 55


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alpha": 2}, "system.alpha is 2.0; expected a number of at most 0.5"),
        ({"alpha": 0}, "system.alpha is 0.0; expected a number above 0"),
        ({"alpha": math.nan}, "system.alpha is nan; expected a number above 0"),
        ({"votes": 0}, "system.votes is 0; expected a number of at least 1"),
        ({"votes": True}, "system.votes is True; expected a whole number"),
        ({"sigma": "x"}, "system.sigma is 'x'; expected a number"),
        ({"samples": 1.5}, "system.samples is 1.5; expected a whole number"),
        ({"samples": 10**12}, "system.samples is too large"),
    ],
    ids=str,
)
def test_a_config_of_a_smoothed_net_has_the_ranges_of_a_recipe(
    changes: dict[str, object], message: str, place: Path, refused: Callable[..., str]
):
    np.save(place / "image.npy", np.zeros((8, 8), np.float32))
    SmoothedNet((1, 8, 8), 10, "small", 0.25, 10, 0.001, 2).save(place / "smoothed")
    config = place / "smoothed" / "config.json"
    config.write_text(json.dumps({**read_table(config), **changes}))
    assert message in refused("predict", "smoothed", "image.npy")


def test_a_config_allocates_no_more_than_the_weights(place: Path, refused: Callable[..., str]):
    config = place / "run" / "config.json"
    settings = read_table(config)
    for changes in ({"hidden": [10**6, 10**6, 8]}, {"image_shape": [1, 10**5, 10**5]}, {"classes": 10**10}):
        config.write_text(json.dumps({**settings, **changes}))
        with limited_memory(2**30):
            assert "run/model.safetensors" in refused("certify", "run", "--data", "digits")
    config.write_text(json.dumps({**settings, "hidden": [1] * 10**6}))
    assert "run/model.safetensors lacks the weights of 1000000 layers" in refused("certify", "run", "--data", "digits")
    for system in ("hybrid", "ibp", "smoothing"):
        changes = {"hidden": [10**6], "mlp_hidden": 10**6, "architecture": "cnn7", "batch_norm": True, "sigma": 0.1}
        more = {"samples": 10, "alpha": 0.1, "votes": 1, "image_shape": [1, 10**4, 10**4], "system": system}
        keys = {"hybrid": ("hidden", "mlp_hidden"), "ibp": ("architecture", "batch_norm")}.get(system, ())
        about = {key: settings[key] for key in ("format", "classes", "mean", "std", "class_names")}
        smoothed = () if keys else ("architecture", "sigma", "samples", "alpha", "votes")
        own = {key: {**changes, **more}[key] for key in (*keys, *smoothed, "image_shape", "system")}
        config.write_text(json.dumps({**about, **own}))
        with limited_memory(2**30):
            assert "run/model.safetensors" in refused("certify", "run", "--data", "digits")


@contextlib.contextmanager
def limited_memory(more: int) -> Generator[None]:
    """Context in which the process may allocate only some more bytes."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_one_mean_for_all_channels(place: Path):
    config = place / "run" / "config.json"
    config.write_text(json.dumps({**read_table(config), "mean": 0.3}))
    assert main(["export", "run", "--card"]) == 0
    assert "| normalisation | mean 0.3, " in (place / "run" / "README.md").read_text()
    assert main(["evaluate", "run", "--limit", "5", "--steps", "1"]) == 0


def test_class_names_do_not_control_the_terminal(place: Path, capsys: pytest.CaptureFixture[str]):
    np.save(place / "image.npy", np.zeros((8, 8), np.float32))
    config = place / "run" / "config.json"
    names = [f"\x1b]0;x\x07\x1b[2J\x9b31m\ud800\n{number}" for number in range(10)]
    config.write_text(json.dumps({**read_table(config), "class_names": names}))
    for command in (["predict", "run", "image.npy"], ["certify", "run", "--data", "image.npy"]):
        capsys.readouterr()
        assert main(command) == 0
        printed = capsys.readouterr().out
        assert "x1b" in printed
        assert not set(printed) & {"\x1b", "\x07", "\x9b", "\ud800"}
    assert main(["export", "run", "--card"]) == 0
    assert "\\x1b]0;x\\x07" in (place / "run" / "README.md").read_text()
    config.write_text(json.dumps({**read_table(config), "system": "\x1b[2J"}))
    assert main(["predict", "run", "image.npy"]) == 2
    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.parametrize("key", ["system", "format", "hidden"])
def test_a_long_value_gives_a_short_line(place: Path, refused: Callable[..., str], key: str):
    config = place / "run" / "config.json"
    config.write_text(json.dumps({**read_table(config), key: "A" * 100_000}))
    assert len(refused("evaluate", "run")) < 2100
