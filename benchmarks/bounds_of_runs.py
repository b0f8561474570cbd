"""Interval bounds compared with CROWN-IBP bounds on trained nets, on all test images.

Claim: the bound of system `crown-ibp` on a margin is never looser than the interval bound of the same net, up to
rounding. The benchmark writes for each run how often each bound is tighter, the largest difference and the share of
positive bounds.

    python benchmarks/bounds_of_runs.py RUN [RUN ...] --out records/bounds-of-runs.json
"""

import argparse
from pathlib import Path
from typing import Any

import torch

from linfnet.bounds import interval_boxes, interval_margins, smallest_margin
from linfnet.data import load
from linfnet.files import write_json
from linfnet.systems import load_model
from linfnet.systems.convolutional import full_precision
from linfnet.systems.crown_ibp import CrownIbpNet
from linfnet.train import RunFolder, environment

BATCH = 100


@torch.no_grad()
def compare(run: Path, device: str) -> dict[str, Any]:
    """Return counts and accuracies of one run of system `crown-ibp`."""
    recipe, net = RunFolder.open(run).recipe, load_model(run).to(device)
    assert isinstance(net, CrownIbpNet), "expected a run of system crown-ibp"
    test, eps = load(recipe.data.name, "test"), float(recipe.evaluation.eps[0])
    by_interval: list[torch.Tensor] = []
    by_lines: list[torch.Tensor] = []
    for pixels, labels in zip(test.pixels().split(BATCH), test.labels.split(BATCH), strict=True):
        images, own = pixels.to(device), labels.to(device)
        with full_precision(images):
            box = net.box_around(images, eps, centre=False)
            margins = interval_margins(net.body, interval_boxes(net.body, box), own)
            by_interval.append(smallest_margin(margins, own).cpu())
            by_lines.append(smallest_margin(net.margins(box, own), own).cpu())
    interval, lines = torch.cat(by_interval).double(), torch.cat(by_lines).double()
    rounding = 1e-5 * (1 + interval.abs())
    return {
        "recipe": recipe.name,
        "eps": str(recipe.evaluation.eps[0]),
        "images": len(interval),
        "crown_ibp_tighter": int((lines > interval + rounding).sum()),
        "interval_tighter": int((interval > lines + rounding).sum()),
        "largest_lead_of_interval": float((interval - lines).max()),
        "mean_difference": float((lines - interval).mean()),
        "positive": {
            "interval": float((interval > 0).double().mean()),
            "crown-ibp": float((lines > 0).double().mean()),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="interval bounds and CROWN-IBP bounds of trained nets")
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    found = [compare(run, options.device) for run in options.runs]
    for row in found:
        print(row, flush=True)
    what = "interval bounds and CROWN-IBP bounds of the same trained nets, smallest margins over all test images"
    write_json(options.out, {"what": what, "environment": environment(), "runs": found})


if __name__ == "__main__":
    main()
