"""Add a net to the package, or measure a packaged net again; write its record and card and the tables of the docs.

    python -m tools.package_model NAME COLLECTION.tar [--which WHICH] [--at-least N] [--float16] [--device cuda]
    python -m tools.package_model NAME

The first form makes a compressed net of the connections that a GPU machine collected (see tools/collected.py), saves it
as src/linfnet/nn/pretrained/NAME and measures it. The collection also contains recipe.toml and results.json of the run
that trained the dense net. The second form measures a packaged net again.

The net is evaluated on all test images. Only images that are classified correctly and not certified are attacked: no
attack can break a certified image, which tests and benchmarks/soundness.py check. The results are added to
records/zoo.json, from which the model card, the figures in config.json and the tables are generated.
"""

import argparse
import hashlib
import itertools
import json
import math
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch

from linfnet.attacks import attack
from linfnet.data import ImageSet, load
from linfnet.epsilon import parse_epsilon
from linfnet.errors import LinfnetError
from linfnet.evaluation import evaluate
from linfnet.evaluation.outcome import share
from linfnet.files import read_table, write_json, write_table
from linfnet.nn import Classifier, SparseNet
from linfnet.nn.label_margin import label_on_top
from linfnet.nn.model_path import PRETRAINED, KnownData
from linfnet.recipes import recipe_from_toml
from linfnet.results import PGD_100, AttackSettings, Result, Results, results_from_json, results_to_json
from linfnet.systems import load_model
from linfnet.train.run_folder import environment
from tools import collected, generate_docs
from tools.collected import KINDS, Collection, read_collection, read_member, sparse_net
from tools.records import RECORDS
from tools.zoo import SMOOTHED, results_of

# Largest size of model.safetensors in bytes.
LARGEST = 5_000_000
# Number of test images on which the ordinary tests reproduce the record.
FIRST = 500


def fitting_net(collection: Collection, which: str, at_least: int | None, dtype: torch.dtype) -> tuple[SparseNet, int]:
    """Return the compressed net and `at_least`: by default the smallest number for which the net is not too large."""
    for least in range(1, 33) if at_least is None else (at_least,):
        net = sparse_net(collection, which, least).round_weights_(dtype)
        if net.saved_size() <= LARGEST:
            return net, least
    raise LinfnetError(f"the net has more than {LARGEST:,} bytes; choose a larger --at-least or --float16")


def save_compressed(path: Path, folder: Path, which: str, at_least: int | None, dtype: torch.dtype) -> dict[str, Any]:
    """Save the compressed net of a collection; return what the record says about its training."""
    collection, recipe = read_collection(path), read_member(path, "recipe.toml").decode()
    net, least = fitting_net(collection, which, at_least, dtype)
    net.save(folder, class_names=collection.config["class_names"])
    data = recipe_from_toml(recipe, folder.name, folder.name).data.name
    about = KnownData(data, (collection.eps,)).to_json()
    write_table(folder / "config.json", {**read_table(folder / "config.json"), **about})
    trained = results_from_json(json.loads(read_member(path, "results.json")))
    widths = [math.prod(net.image_shape), *collection.config["hidden"], net.classes]
    return {
        "collection": path.name,
        "selection": {"which": which, "at_least": least, "dtype": str(dtype).removeprefix("torch.")},
        "dense_connections": sum(a * b for a, b in itertools.pairwise(widths)),
        "identical": collected.measure(net, collection, data)["identical"],
        "recipe": recipe,
        "results": results_to_json(Results(trained.training)),
        "dense": results_to_json(Results(None, trained.evaluations)),
    }


def evaluations(net: Classifier, test: ImageSet, eps: Fraction, attacks: Sequence[AttackSettings]) -> list[Result]:
    """Return an evaluation for each attack, with the exact accuracy; certified images are not attacked."""
    found = evaluate(net, test, eps, attack=None, exact=True)
    right, results = label_on_top(found.logits, found.labels).cpu(), list[Result]()
    left = (right & ~found.at[0].certified_by_any.cpu()).nonzero().flatten()
    for settings in attacks:
        start, survived = time.perf_counter(), right.clone()
        if len(left):
            options: dict[str, Any] = {"method": settings.name, "steps": settings.steps}
            survived[left] = ~attack(net, test.pixels(left), test.labels[left], eps, **options).success.cpu()
        seconds = round(time.perf_counter() - start, 2)
        results.append(replace(found.result, attacked=share(survived), attack=settings, seconds=seconds))
    return results


@torch.no_grad()
def milliseconds(net: Classifier, test: ImageSet, *, rounds: int = 7, calls: int = 100) -> float:
    """Return the milliseconds of a forward pass of one image on one core: the smallest median of several rounds."""
    image, threads = test.pixels(slice(0, 1)), torch.get_num_threads()
    torch.set_num_threads(1)
    medians: list[float] = []
    for _ in range(rounds):
        times: list[float] = []
        for _ in range(calls):
            start = time.perf_counter()
            net(image)
            times.append(time.perf_counter() - start)
        medians.append(statistics.median(times))
    torch.set_num_threads(threads)
    return round(1000 * min(medians), 3)


def measure(folder: Path, attacks: Sequence[AttackSettings], device: str = "cpu") -> dict[str, Any]:
    """Return the figures of a packaged net: results, size, hash and time."""
    config, weights = read_table(folder / "config.json"), (folder / "model.safetensors").read_bytes()
    test, (eps,) = load(config["data"], "test"), map(parse_epsilon, config["eps"])
    net = load_model(folder, device=device)
    words = (Path(word).name if word.endswith(".tar") else word for word in sys.argv[1:])
    return {
        "size": len(weights),
        "sha256": hashlib.sha256(weights).hexdigest(),
        "milliseconds": milliseconds(load_model(folder), test),
        "environment": environment() | {"command": f"python -m tools.package_model {' '.join(words)}"},
        "evaluations": [
            *evaluations(net, test, eps, attacks),
            *evaluations(net, test.first(FIRST), eps, (PGD_100,)),
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("collection", type=Path, nargs="?")
    parser.add_argument("--which", choices=KINDS, default="first")
    parser.add_argument("--at-least", type=int, help="default: the smallest number for which the net is at most 5 MB")
    parser.add_argument("--float16", action="store_true", help="round the weights to float16")
    parser.add_argument("--no-smoothed", action="store_true", help="leave out smoothed PGD, which takes long")
    parser.add_argument("--device", default="cpu", help="where the net is attacked")
    given = parser.parse_args()
    folder, record = PRETRAINED / given.name, RECORDS / "zoo.json"
    attacks = (PGD_100,) if given.no_smoothed else (PGD_100, SMOOTHED)
    with tempfile.TemporaryDirectory() as temporary:
        new, entry = folder, dict[str, Any]()
        if given.collection:
            new, dtype = Path(temporary) / given.name, torch.float16 if given.float16 else torch.float32
            entry = save_compressed(given.collection, new, given.which, given.at_least, dtype)
        measured = measure(new, attacks, given.device)
        if given.collection:
            shutil.copytree(new, folder, dirs_exist_ok=True)
    entries = read_table(record)  # only now: another net may have been measured at the same time
    entry = entry or entries[given.name]
    results = Results(results_of(entry).training, tuple(measured.pop("evaluations")))
    entries[given.name] = {**entry, **measured, "results": results_to_json(results)}
    write_json(record, dict(sorted(entries.items())))
    generate_docs.main()


if __name__ == "__main__":
    main()
