"""Accuracy by class of evaluated nets, from the CSV files that `linfnet evaluate` writes.

    linfnet evaluate cifar10-8 --steps 1 --out OUT
    python benchmarks/by_class.py --record records/by-class.json cifar10-8=OUT/samples-cifar10-test-pgd-1-eps-8-255.csv

The record has, for each net, the counts for each class: samples, predictions, correct and certified samples.
"""

import argparse
import csv
from pathlib import Path

from linfnet.files import write_json


def count(path: Path) -> dict[str, dict[str, int]]:
    """Return the counts by class; a sample is certified if any certificate proves it at the first epsilon."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    first = next(name for name in rows[0] if name.startswith("certified_")).partition("@")[2]
    certified = [name for name in rows[0] if name.startswith("certified_") and name.endswith(f"@{first}")]
    classes = {
        name: {"samples": 0, "predictions": 0, "correct": 0, "certified": 0}
        for name in sorted({row["label"] for row in rows})
    }
    for row in rows:
        own = classes[row["label"]]
        own["samples"] += 1
        own["correct"] += row["label"] == row["prediction"]
        own["certified"] += any(row[name] == "1" for name in certified)
        if row["prediction"] in classes:
            classes[row["prediction"]]["predictions"] += 1
    return classes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="+", metavar="NAME=CSV")
    parser.add_argument("--record", type=Path, required=True)
    options = parser.parse_args()
    pairs = (net.split("=", 1) for net in options.nets)
    write_json(options.record, {name: count(Path(path)) for name, path in pairs})


if __name__ == "__main__":
    main()
