"""Add a net to the package, or measure a packaged net again; write its record and card and the tables of the docs.

    linfnet compress RUN --out COMPRESSED     # on the machine that trained the net; --at-least N for a smaller file
    python -m tools.package_model NAME COMPRESSED RUN [--device cuda]
    python -m tools.package_model NAME

The first form copies a compressed net to src/linfnet/nn/pretrained/NAME and measures it. Of RUN, only recipe.toml and
results.json are needed, not the dense weights. The second form measures a packaged net again.

The net is evaluated on all test images. Only images that are classified correctly and not certified are attacked: no
attack can break a certified image, which tests and benchmarks/soundness.py check. The results are added to
records/zoo.json, from which the model card, the figures in config.json and the tables are generated.
"""

import argparse
import hashlib
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
from linfnet.cli.compress import training_cost
from linfnet.data import ImageSet, load
from linfnet.epsilon import parse_epsilon
from linfnet.errors import LinfnetError
from linfnet.evaluation import evaluate
from linfnet.evaluation.outcome import share
from linfnet.files import read_table, write_json
from linfnet.nn import Classifier
from linfnet.nn.label_margin import label_on_top
from linfnet.nn.model_path import PRETRAINED
from linfnet.recipes import recipe_to_toml
from linfnet.results import PGD_100, AttackSettings, Result, Results, read_results, results_to_json
from linfnet.systems import load_model
from linfnet.train import RunFolder
from linfnet.train.run_folder import environment
from tools import generate_docs
from tools.records import RECORDS
from tools.zoo import SMOOTHED, results_of

# Largest size of model.safetensors in bytes.
LARGEST = 5_000_000
# Number of test images on which the ordinary tests reproduce the record.
FIRST = 500


def copy_compressed(compressed: Path, run: Path, folder: Path) -> dict[str, Any]:
    """Copy the compressed net of a run; return what the record says about its training."""
    recipe, trained, cost = RunFolder.open(run).recipe, read_results(run), read_results(compressed).training
    if trained.training is None or cost is None or cost != training_cost(trained.training, cost.parameters):
        raise LinfnetError(f"{run} is not the finished run whose net was compressed to {compressed}")
    classes = read_table(compressed / "config.json")["classes"]
    size = (compressed / "model.safetensors").stat().st_size
    if size > LARGEST:
        raise LinfnetError(f"the net has {size:,} bytes; compress it with a larger --at-least, or with --float16")
    folder.mkdir()
    for name in ("model.safetensors", "config.json"):
        shutil.copyfile(compressed / name, folder / name)
    return {
        # The other parameters of the dense net are a bias for each class, and the scale.
        "dense_connections": trained.training.parameters - classes - 1,
        "recipe": recipe_to_toml(recipe),
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
    return {
        "size": len(weights),
        "sha256": hashlib.sha256(weights).hexdigest(),
        "milliseconds": milliseconds(load_model(folder), test),
        "environment": environment() | {"command": f"python -m tools.package_model {folder.name}"},
        "evaluations": [
            *evaluations(net, test, eps, attacks),
            *evaluations(net, test.first(FIRST), eps, (PGD_100,)),
        ],
    }


def main() -> int:
    """Run the tool and return the exit code: 0, or 2 for a user error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("compressed", type=Path, nargs="?", help="the folder that linfnet compress wrote")
    parser.add_argument("run", type=Path, nargs="?", help="the folder of the run")
    parser.add_argument("--no-smoothed", action="store_true", help="leave out smoothed PGD, which takes long")
    parser.add_argument("--device", default="cpu", help="where the net is attacked")
    given = parser.parse_args()
    if (given.compressed is None) != (given.run is None):
        parser.error("expected COMPRESSED and RUN, or neither")
    try:
        package(given)
    except (LinfnetError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


def package(given: argparse.Namespace) -> None:
    """Add the net, or measure it again."""
    folder, record = PRETRAINED / given.name, RECORDS / "zoo.json"
    if given.compressed is None and given.name not in read_table(record):
        raise LinfnetError(f"{given.name} is no packaged model; give COMPRESSED and RUN to add it")
    attacks = (PGD_100,) if given.no_smoothed else (PGD_100, SMOOTHED)
    with tempfile.TemporaryDirectory() as temporary:
        new, entry = folder, dict[str, Any]()
        if given.compressed:
            new = Path(temporary) / given.name
            entry = copy_compressed(given.compressed, given.run, new)
        measured = measure(new, attacks, given.device)
        if given.compressed:
            shutil.copytree(new, folder, dirs_exist_ok=True)
    entries = read_table(record)  # only now: another net may have been measured at the same time
    entry = entry or entries[given.name]
    results = Results(results_of(entry).training, tuple(measured.pop("evaluations")))
    entries[given.name] = {**entry, **measured, "results": results_to_json(results)}
    write_json(record, dict(sorted(entries.items())))
    generate_docs.main()


if __name__ == "__main__":
    sys.exit(main())
