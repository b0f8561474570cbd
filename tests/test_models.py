"""The models of the package: hashes, loading time, and the recorded figures on test images."""

import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import linfnet
from linfnet.cli.main import main
from linfnet.data import ImageSet, cache_folder, load, present, set_info
from linfnet.nn.model_path import PRETRAINED, pretrained_names
from linfnet.results import PGD_100, Result
from linfnet.systems import load_model
from tools.package_model import FIRST, LARGEST, evaluations
from tools.records import read_record
from tools.zoo import figures, on_all_images, results_of

REAL_CACHE = cache_folder()  # before any test changes the environment variable
NAMES = pretrained_names()
RECORD = read_record("zoo")
LOAD = """
import json, socket, sys, time
import linfnet, linfnet.systems

def refused(*arguments, **options):
    raise AssertionError("a model of the package was searched for on the network")

socket.socket = refused
seconds = {}
for name in sys.argv[1:]:
    start = time.process_time()
    linfnet.load_model(name)
    seconds[name] = min(seconds.get(name, 60), time.process_time() - start)
print(json.dumps(seconds))
"""


def test_every_model_has_a_record():
    assert tuple(RECORD) == NAMES
    assert tuple(linfnet.list_models()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_weights_are_those_of_the_record(name: str):
    weights, info = (PRETRAINED / name / "model.safetensors").read_bytes(), linfnet.list_models()[name]
    assert hashlib.sha256(weights).hexdigest() == info.sha256 == RECORD[name]["sha256"]
    assert info.sha256 in (PRETRAINED / name / "README.md").read_text(encoding="utf-8")
    assert len(weights) == info.size <= LARGEST
    for attacked in (info.pgd, info.smoothed):
        assert attacked is None or info.certified <= attacked <= info.clean


@pytest.mark.process
def test_every_model_is_loaded_offline_in_under_a_second(processes: None, tmp_path: Path):
    """In processor time, which depends less on other processes."""
    command = [sys.executable, "-c", LOAD, *NAMES, *NAMES]
    shown = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path).stdout
    seconds = json.loads(shown)
    assert max(seconds.values()) < 1, seconds


def first_images(data: str) -> ImageSet:
    """Return the first test images; those of MNIST are in the repository."""
    if data == "mnist":
        with np.load(Path(__file__).parent / "data" / "mnist-500.npz") as file:
            images, labels = torch.from_numpy(file["images"]), torch.from_numpy(file["labels"]).long()
        return ImageSet(images, labels, set_info(data), "test")
    return all_images(data).first(FIRST)


def all_images(data: str) -> ImageSet:
    if not present(data, folder=REAL_CACHE):
        pytest.skip(f"{data} is not in {REAL_CACHE}; fetch it with: linfnet data fetch {data}")
    return load(data, "test", folder=REAL_CACHE)


def accuracies(result: Result) -> Result:
    """Return the result without the times."""
    return replace(result, seconds=0.0, certify_seconds={})


@pytest.mark.parametrize("name", NAMES)
def test_the_figures_of_the_first_images(name: str):
    (recorded,) = (one for one in results_of(RECORD[name]).evaluations if one.limit == FIRST)
    (found,) = evaluations(load_model(name), first_images(recorded.data), recorded.eps, (PGD_100,))
    assert accuracies(found) == accuracies(recorded)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_figures_of_all_images(name: str):
    recorded = on_all_images(RECORD[name])[PGD_100]
    found = linfnet.evaluate(load_model(name), all_images(recorded.data), recorded.eps, attack=None, exact=True).result
    expected = replace(recorded, attack=found.attack, attacked=found.attacked)
    assert accuracies(found) == accuracies(expected)


def test_the_command(capsys: pytest.CaptureFixture[str]):
    assert main(["models", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in document] == list(NAMES)
    for row in document:
        assert figures(RECORD[row["name"]]).items() <= row.items()
        assert row["eps"] == json.loads((PRETRAINED / row["name"] / "config.json").read_text())["eps"]
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines if line} >= set(NAMES)
