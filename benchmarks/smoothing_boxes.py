"""Size of the box of an image within epsilon after the clamping and averaging of smoothed nets.

Each row has quantiles over training images: the largest l2 distance of a prepared image to that of any image within
epsilon, divided by the range of its pixels and by 1 / pool, the share of the noise that averaging leaves. So it is the
radius that a smoothed net of images in [0, 1] would need under as much noise.

    python benchmarks/smoothing_boxes.py [--images 3000] [--record records/smoothing-boxes.json]
"""

import argparse
from fractions import Fraction
from pathlib import Path

import torch

import linfnet
from linfnet.epsilon import format_epsilon
from linfnet.files import write_json
from linfnet.systems.smoothing import SmoothedNet
from linfnet.train import environment

SETS = {"mnist": Fraction(1, 10), "cifar10": Fraction(8, 255)}
RANGES = ((0.0, 1.0), (0.1, 0.9), (0.1, 0.8), (0.2, 0.8), (0.3, 0.7))
QUANTILES = (0.5, 0.9, 0.95)


def main() -> None:
    parser = argparse.ArgumentParser(description="boxes after clamping and averaging")
    parser.add_argument("--images", type=int, default=3000)
    parser.add_argument("--record", type=Path, default=None)
    options = parser.parse_args()
    rows = list[dict[str, object]]()
    for name, epsilon in SETS.items():
        data = linfnet.load(name, "train")
        images = data.pixels(slice(0, options.images))
        for low, high in RANGES:
            for pool in (1, 2):
                net = SmoothedNet(data.info.image_shape, 10, "small", 1.0, 1, 0.001, 1, low=low, high=high, pool=pool)
                sizes = net.box_radius(images, torch.full((len(images),), float(epsilon))) * pool / (high - low)
                found = torch.quantile(sizes, torch.tensor(QUANTILES, dtype=torch.float64)).tolist()
                row = {"data": name, "eps": format_epsilon(epsilon), "low": low, "high": high, "pool": pool}
                rows.append({**row, "quantiles": [round(each, 3) for each in found]})
                print(rows[-1], flush=True)
    if options.record is not None:
        what = "l2 size of the box of training images within eps, relative to the range of pixels and to the noise"
        record = {"what": what, "images": options.images, "quantiles": QUANTILES, "rows": rows}
        write_json(options.record, {**record, "environment": environment()})


if __name__ == "__main__":
    main()
