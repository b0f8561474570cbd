"""Where the data of a recipe is."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from linfnet.data import content_digest, from_arrays, is_known, load, load_split, named_or_path, parse_size
from linfnet.errors import ArgumentError, LinfnetError
from linfnet.recipes import Data


def test_a_split_of_a_known_set():
    assert torch.equal(load_split(Data(name="digits"), "test").images, load("digits", "test").images)


def test_a_run_keeps_the_name_of_its_data(tmp_path: Path):
    np.savez(tmp_path / "digits.npz", images=np.zeros((20, 4, 4), np.uint8), labels=np.arange(20) % 2)
    source = Data(path=str(tmp_path / "digits.npz"))
    assert load_split(source, "train").info.name == "own-digits"
    assert load_split(replace(source, name="other", digest="0"), "train").info.name == "other"
    seeds = [load_split(replace(source, split_seed=seed), "train") for seed in (0, 1)]
    assert len(seeds[0]) == len(seeds[1]) == 16
    with pytest.raises(LinfnetError, match=r"pass the data again .*--data PATH"):
        load_split(Data(name="own", digest="0"), "test")


def test_the_digest_depends_on_images_labels_and_classes():
    images, labels = torch.zeros(6, 1, 2, 2, dtype=torch.uint8), [0, 1, 0, 1, 0, 1]
    one = from_arrays(images, labels)
    assert content_digest(one) == content_digest(from_arrays(images.clone(), labels, name="x"))
    others = [from_arrays(images + 1, labels), from_arrays(images, labels[::-1])]
    others.append(from_arrays(images, labels, classes=3))
    assert len({content_digest(each) for each in (one, *others)}) == 4


def test_only_the_whole_unchanged_set_is_known():
    digits = load("digits")
    assert is_known(digits, "train")
    assert not is_known(digits, "test")
    assert not is_known(replace(digits, labels=digits.labels.flip(0)), "train")
    assert not is_known(from_arrays(digits.images, digits.labels, name="digits"), "train")


def test_names_come_before_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("mnist").mkdir()
    assert named_or_path("mnist") == ("mnist", None)
    assert named_or_path(Path("mnist")) == named_or_path("./mnist") == (None, tmp_path / "mnist")


@pytest.mark.parametrize("text", ["", "x", "28x", "0x3", "1x2x3", "-3", "2.5", "99999"])
def test_wrong_sizes(text: str):
    with pytest.raises(ArgumentError, match="expected HxW such as 28x28"):
        parse_size(text)
