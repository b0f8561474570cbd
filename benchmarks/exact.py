"""Decide all test images of nets exactly, and write the figures to a record.

    python benchmarks/exact.py NET DATA EPS [EPS ...] [--name NAME] [--radii WIDTH] [--attacks NAME ...] [--out FILE]

Entries of other nets remain in the record. The order certified <= exact <= attacked is checked for every image.
"""

import argparse
import os
import time
from pathlib import Path
from typing import Any

import torch

from linfnet.attacks import attack
from linfnet.certificates import Decided, certified_by_interval, certify_by_margin, decide, exact_radius
from linfnet.data import load
from linfnet.epsilon import format_epsilon, parse_epsilon
from linfnet.files import read_table, write_json
from linfnet.nn import Classifier
from linfnet.nn.label_margin import label_on_top
from linfnet.systems import load_model
from linfnet.train.run_folder import environment

BATCH = 500


def accuracy(flags: torch.Tensor) -> float:
    return round(flags.double().mean().item(), 6)


def batched(function: Any, *columns: torch.Tensor) -> torch.Tensor:
    return torch.cat([function(*part) for part in zip(*(column.split(BATCH) for column in columns), strict=True)])


def check_witnesses(net: Classifier, images: torch.Tensor, labels: torch.Tensor, found: Decided) -> int:
    """Return the number of witnesses after checking each of them: in [0, 1], within epsilon, and misclassified."""
    chosen = found.broken
    change = (found.witness[chosen].double() - images[chosen].double()).abs().flatten(1).amax(1)
    assert bool((change <= float(found.eps)).all())
    assert float(found.witness.min()) >= 0
    assert float(found.witness.max()) <= 1
    kept = batched(lambda x, y: label_on_top(net(x), y), found.witness[chosen], labels[chosen])
    assert not bool(kept.any())
    return len(kept)


def measure(
    net: Classifier, images: torch.Tensor, labels: torch.Tensor, eps: str, attacks: list[str]
) -> dict[str, Any]:
    exact_eps = parse_epsilon(eps)
    start, cpu = time.perf_counter(), time.process_time()
    found = decide(net, images, labels, exact_eps)
    entry: dict[str, Any] = {
        "eps": format_epsilon(exact_eps),
        "images": len(images),
        "exact": accuracy(found.robust),
        "undecided": int(found.undecided.sum()),
        "seconds": round(time.perf_counter() - start, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "searched": int((found.branches > 0).sum()),
        "branches_max": int(found.branches.max()),
        "branches_total": int(found.branches.sum()),
        "witnesses": check_witnesses(net, images, labels, found),
    }
    certified = {
        "margin": batched(lambda x, y: certify_by_margin(net, x, y).at(exact_eps), images, labels),
        "interval": batched(lambda x, y: certified_by_interval(net, x, y, exact_eps), images, labels),
    }
    clean = batched(lambda x, y: label_on_top(net(x), y), images, labels)
    entry["clean"] = accuracy(clean)
    for name, flags in certified.items():
        assert not bool((flags & found.broken).any()), f"{name} certifies a broken image"
        entry[name] = accuracy(flags)
    for name in attacks:
        survived, open_ = clean.clone(), clean & ~certified["interval"]  # certified images cannot be broken
        survived[open_] = attack(net, images[open_], labels[open_], exact_eps, name).survived
        assert not bool((found.robust & ~survived).any()), f"{name} breaks a robust image"
        entry[name] = accuracy(survived)
    return entry


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("net")
    parser.add_argument("data")
    parser.add_argument("eps", nargs="+")
    parser.add_argument("--name")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--radii", metavar="WIDTH", help="also compute exact radii to this width")
    parser.add_argument("--attacks", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("records/exact.json"))
    arguments = parser.parse_args()
    net = load_model(arguments.net, device=arguments.device)
    data = load(arguments.data, "test").first(arguments.limit)
    images, labels = data.pixels().to(arguments.device), data.labels.to(arguments.device)
    with torch.no_grad(), net.at_infinity():
        rows = [measure(net, images, labels, eps, arguments.attacks) for eps in arguments.eps]
    record = read_table(arguments.out) if arguments.out.exists() else {}
    entry: dict[str, Any] = {"data": arguments.data, "load": [round(value, 1) for value in os.getloadavg()], "at": rows}
    if arguments.radii:
        start, cpu = time.perf_counter(), time.process_time()
        radii = exact_radius(net, images, labels, width=arguments.radii)
        right = radii.radius >= 0
        margins = batched(lambda x, y: certify_by_margin(net, x, y).radii, images, labels)
        entry["radii"] = {
            "width": arguments.radii,
            "undecided": int(radii.undecided.sum()),
            "seconds": round(time.perf_counter() - start, 1),
            "cpu_seconds": round(time.process_time() - cpu, 1),
            "median": round(radii.radius.clamp(min=0).median().item(), 6),
            "median_margin": round(margins.clamp(min=0).median().item(), 6),
            "largest_gain": round((radii.radius - margins)[right].max().item(), 6),
        }
    known = {**record.get("nets", {}), arguments.name or Path(arguments.net).name: entry}
    what = "exact robust accuracy on all test images, beside certificates and attacks"
    write_json(arguments.out, {"what": what, "environment": environment(), "nets": known})


if __name__ == "__main__":
    main()
