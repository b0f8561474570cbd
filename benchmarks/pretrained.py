"""The net that comes with the package: trained on MNIST with the real recipe at a width that fits into 2 MB, certified.

Trains (or takes a finished run with --run), certifies all test images, writes the model to the package and the figures
to records/pretrained-mnist.json. Needs `linfnet data fetch mnist`. What attacks leave of it: benchmarks/attacks.py.

    python benchmarks/pretrained.py [--run RUN]
"""

import argparse
import tempfile
from fractions import Fraction
from pathlib import Path

from linfnet.certificates import certify_images
from linfnet.cli.display import train_display
from linfnet.cli.train import pick_device
from linfnet.data import load
from linfnet.files import read_json, write_json
from linfnet.nn import LinfNet
from linfnet.nn.model_path import PRETRAINED
from linfnet.recipes import load_recipe, recipe_to_toml
from linfnet.train import RunFolder, environment, start_run

CHANGES = ("model.depth=4", "model.width=320", "schedule.epochs=[7, 90, 13]", "schedule.snap_p=true")
EPSILONS = (Fraction(1, 20), Fraction(1, 10), Fraction(1, 5), Fraction(3, 10))
BATCH = 500


def main() -> None:
    parser = argparse.ArgumentParser(description="the net that comes with the package")
    parser.add_argument("--run", type=Path)
    options = parser.parse_args()
    test = load("mnist", "test")
    with tempfile.TemporaryDirectory() as folder:
        recipe = load_recipe("mnist-0.1", CHANGES)
        run = options.run or start_run(recipe, Path(folder) / "run", pick_device("auto"), display=train_display).path
        net, trained, recipe = LinfNet.load(run), read_json(run / "results.json")["train"], RunFolder.open(run).recipe
    certified = certify_images(net, zip(test.pixels().split(BATCH), test.labels.split(BATCH), strict=True), EPSILONS)
    rows = zip(EPSILONS, certified.by_margin, certified.by_interval, strict=True)
    shares = {str(e): {"margin": m.double().mean().item(), "interval": i.double().mean().item()} for e, m, i in rows}
    print(f"clean {certified.clean:.4f}, certified {shares}", flush=True)
    results = {
        "clean": certified.clean,
        "certified": shares,
        "median_radius": certified.radii.clamp(min=0).median().item(),
    }
    target = PRETRAINED / "mnist-small"
    net.save(target, class_names=test.info.classes, results={"MNIST test, 10,000 images": results})
    write_json(
        Path(__file__).parent.parent / "records" / "pretrained-mnist.json",
        {
            "what": "the packaged net mnist-small: 10,000 MNIST test images certified",
            "environment": environment(),
            "recipe": recipe_to_toml(recipe),
            "train": trained,
            **results,
            "bytes": (target / "model.safetensors").stat().st_size,
        },
    )


if __name__ == "__main__":
    main()
