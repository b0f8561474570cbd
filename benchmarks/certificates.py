"""The price of certificates on one machine.

Claim: certifying every image at 50 values of eps by the margin costs at most 1.2 times one forward pass. Times a random
net (the cost does not depend on the weights) of the given width on random images; prints the ratio of the medians of
alternating runs, and writes records/certificates.json.

    python benchmarks/certificates.py [--images 10000] [--width 1024] [--runs 5]
"""

import argparse
import statistics
import time
from fractions import Fraction
from pathlib import Path

import torch
from torch import Tensor

from linfnet.certify import certify_by_margin
from linfnet.files import write_json
from linfnet.nn import LinfNet
from linfnet.train import environment

BATCH = 500


def forward(net: LinfNet, images: Tensor) -> None:
    for part in images.split(BATCH):
        net(part)


def certify(net: LinfNet, images: Tensor, epsilons: list[Fraction]) -> None:
    for part in images.split(BATCH):
        certify_by_margin(net, part).accuracy(epsilons)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description="the price of certificates")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "records" / "certificates.json")
    options = parser.parse_args()
    net = LinfNet((1, 28, 28), 10, (options.width,) * 4, mean=0.1307, std=0.3081).eval()
    images = torch.rand(options.images, 1, 28, 28)
    epsilons = [Fraction(k, 100) for k in range(50)]
    times: dict[str, list[float]] = {"forward": [], "certify": []}
    for turn in range(options.runs + 1):
        for name in times:
            start = time.perf_counter()
            forward(net, images) if name == "forward" else certify(net, images, epsilons)
            if turn:
                times[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(values) for name, values in times.items()}
    ratio = medians["certify"] / medians["forward"]
    print(
        f"forward {medians['forward']:.3f} s, with certificates at 50 eps {medians['certify']:.3f} s: {ratio:.3f} times"
    )
    write_json(
        options.out,
        {
            "what": f"{options.images} images, 5 layers of width {options.width}, margin certificates at 50 eps",
            "environment": environment(),
            "seconds": times,
            "ratio_of_medians": ratio,
        },
    )


if __name__ == "__main__":
    main()
