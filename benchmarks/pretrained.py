"""The net that comes with the package: trained on MNIST with the recipe mnist-0.1 at a width that fits into 2 MB.

The benchmark trains a net (or reads a finished run with --run), certifies all test images, and writes the model to the
package and the results to records/pretrained-mnist.json and records/zoo.json. It needs `linfnet data fetch mnist`.
After it, `python -m tools.package_model mnist-small` measures the net under attack and writes its card.

    python benchmarks/pretrained.py [--run RUN]
"""

import argparse
import tempfile
from fractions import Fraction
from pathlib import Path

from linfnet.certificates import certify_images
from linfnet.cli.train import TrainDisplay
from linfnet.data import load
from linfnet.files import read_table, write_json, write_table
from linfnet.nn import LinfNet
from linfnet.nn.model_path import PRETRAINED
from linfnet.recipes import load_recipe, recipe_to_toml
from linfnet.results import Results, read_results, results_to_json
from linfnet.train import RunFolder, environment, fit

CHANGES = ("model.depth=4", "model.width=320", "schedule.epochs=[7, 90, 13]", "schedule.snap_p=true")
EPSILONS = (Fraction(1, 20), Fraction(1, 10), Fraction(1, 5), Fraction(3, 10))
BATCH = 500
TARGET = PRETRAINED / "mnist-small"
RECORDS = Path(__file__).parent.parent / "records"


def main() -> None:
    parser = argparse.ArgumentParser(description="the net that comes with the package")
    parser.add_argument("--run", type=Path)
    options = parser.parse_args()
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
    entry = {"recipe": recipe_to_toml(recipe), "results": results_to_json(Results(trained.training))}
    write_json(RECORDS / "zoo.json", {**read_table(RECORDS / "zoo.json"), TARGET.name: entry})


if __name__ == "__main__":
    main()
