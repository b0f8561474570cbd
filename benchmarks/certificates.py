"""The time of margin certificates compared with forward passes.

Claim: for nets that are at least as large as the packaged net, certifying every image by its margin at 50 values of eps
takes at most 1.2 times as long as a forward pass. The benchmark runs both alternately, for random nets of four layers
on random images (the time does not depend on the weights). It prints the ratios of the medians in wall-clock time and
in processor time, which depends less on other processes, and writes records/certificates.json.

    python benchmarks/certificates.py [--images 10000] [--widths 256 320 1024] [--runs 9] [--threads 1]
"""

import argparse
import statistics
import time
from fractions import Fraction
from pathlib import Path

import torch
from torch import Tensor

from linfnet.certificates import certified_shares, certify_by_margin
from linfnet.files import write_json
from linfnet.nn import LinfNet
from linfnet.train import environment

BATCH = 1000
EPSILONS = [Fraction(k, 100) for k in range(50)]
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}


def forward(net: LinfNet, images: Tensor) -> None:
    for part in images.split(BATCH):
        net(part)


def certify(net: LinfNet, images: Tensor) -> None:
    certified_shares(torch.cat([certify_by_margin(net, part).radii for part in images.split(BATCH)]), EPSILONS)


@torch.no_grad()
def measure(width: int, count: int, runs: int) -> dict[str, object]:
    """Return the seconds of forward passes and certificates, run alternately, and the ratio of their medians."""
    net = LinfNet((1, 28, 28), 10, (width,) * 3, mean=0.1307, std=0.3081).eval()
    images = torch.rand(count, 1, 28, 28)
    seconds = {clock: {"forward": list[float](), "certify": list[float]()} for clock in CLOCKS}
    for turn in range(runs + 1):
        for name, work in (("forward", forward), ("certify", certify)):
            starts = {clock: now() for clock, now in CLOCKS.items()}
            work(net, images)
            for clock, now in CLOCKS.items():
                if turn:
                    seconds[clock][name].append(now() - starts[clock])
    medians = {clock: {name: statistics.median(t) for name, t in both.items()} for clock, both in seconds.items()}
    ratios = {clock: both["certify"] / both["forward"] for clock, both in medians.items()}
    print(
        f"width {width}: ratio {ratios['wall']:.3f} in wall-clock time, {ratios['processor']:.3f} in processor time",
        flush=True,
    )
    return {"width": width, "ratio_of_medians": ratios, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description="the time of margin certificates")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--widths", type=int, nargs="+", default=[256, 320, 1024])
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "records" / "certificates.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = [measure(width, options.images, options.runs) for width in options.widths]
    write_json(
        options.out,
        {
            "what": f"{options.images} images in batches of {BATCH}, 4 layers, margin certificates at 50 eps; "
            f"{options.threads} thread(s)",
            "environment": environment(),
            "rows": rows,
        },
    )


if __name__ == "__main__":
    main()
