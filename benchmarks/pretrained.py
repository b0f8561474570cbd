"""The net that comes with the package: trained on MNIST with the recipe mnist-0.1 at a width that fits into 2 MB.

The benchmark trains a net (or reads a finished run with --run), certifies all test images, and writes the model to the
package and the results to records/pretrained-mnist.json. It needs `linfnet data fetch mnist`. benchmarks/attacks.py
measures the accuracies under attack; run `--card` after it to write the model card from both records.

    python benchmarks/pretrained.py [--run RUN | --card]
"""

import argparse
import tempfile
from fractions import Fraction
from pathlib import Path

from linfnet.certificates import certify_images
from linfnet.cli.train import TrainDisplay
from linfnet.data import load
from linfnet.files import read_json, read_table, write_json, write_table, write_text
from linfnet.nn import LinfNet, count_parameters
from linfnet.nn.model_card import model_card
from linfnet.nn.model_path import PRETRAINED
from linfnet.recipes import load_recipe, recipe_to_toml
from linfnet.results import Result, Results, read_results, results_from_json, results_to_json
from linfnet.train import RunFolder, environment, fit

CHANGES = ("model.depth=4", "model.width=320", "schedule.epochs=[7, 90, 13]", "schedule.snap_p=true")
EPSILONS = (Fraction(1, 20), Fraction(1, 10), Fraction(1, 5), Fraction(3, 10))
BATCH = 500
TARGET = PRETRAINED / "mnist-small"
RECORDS = Path(__file__).parent.parent / "records"


def recorded_results() -> Results:
    """Return the recorded results: those of training, and an evaluation for each epsilon of records/attacks.json."""
    record, attacks = (read_json(RECORDS / name) for name in ("pretrained-mnist.json", "attacks.json"))
    evaluations = [
        Result(
            data="mnist",
            split="test",
            count=10_000,
            eps=Fraction(row["eps"]),
            clean=record["clean"],
            attacked=row["left_by_each_attack_alone"]["pgd-100, the paper's"] / 10_000,
            certified=record["certified"][row["eps"]],
        )
        for row in attacks["rows"]
    ]
    training = results_from_json(record.get("results", record)).training  # old records have version 1
    return Results(training, tuple(evaluations))


def main() -> None:
    parser = argparse.ArgumentParser(description="the net that comes with the package")
    parser.add_argument("--run", type=Path)
    parser.add_argument("--card", action="store_true")
    options = parser.parse_args()
    if options.card:
        net, config = LinfNet.load(TARGET), read_table(TARGET / "config.json")
        write_text(TARGET / "README.md", model_card(config, net.describe(), count_parameters(net), recorded_results()))
        return
    test = load("mnist", "test")
    with tempfile.TemporaryDirectory() as folder:
        recipe = load_recipe("mnist-0.1", CHANGES)
        run = options.run or fit(recipe, out=Path(folder) / "run", callbacks=[TrainDisplay()]).folder
        net, trained, recipe = LinfNet.load(run), read_results(run), RunFolder.open(run).recipe
    certified = certify_images(net, zip(test.pixels().split(BATCH), test.labels.split(BATCH), strict=True), EPSILONS)
    rows = zip(EPSILONS, certified.certified["margin"], certified.certified["interval"], strict=True)
    shares = {str(e): {"margin": m.double().mean().item(), "interval": i.double().mean().item()} for e, m, i in rows}
    print(f"clean {certified.clean:.4f}, certified {shares}", flush=True)
    results = {
        "clean": certified.clean,
        "certified": shares,
        "median_radius": certified.best_radii.clamp(min=0).median().item(),
    }
    net.save(TARGET, class_names=test.info.classes, results=trained)
    write_table(TARGET / "config.json", {**read_table(TARGET / "config.json"), "data": "mnist", "eps": ["0.1"]})
    write_json(
        RECORDS / "pretrained-mnist.json",
        {
            "what": "the packaged net mnist-small: 10,000 MNIST test images certified",
            "environment": environment(),
            "recipe": recipe_to_toml(recipe),
            "results": results_to_json(trained),
            **results,
            "bytes": (TARGET / "model.safetensors").stat().st_size,
        },
    )


if __name__ == "__main__":
    main()
