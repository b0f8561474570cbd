"""Run AutoAttack (the extra `autoattack`) on certified samples at 0.999 of their certified radius.

Claim: no sample is broken. AutoAttack is slow and accepts one eps for all samples, so it is not part of soundness.py:
twenty samples with similar radii are attacked at the smallest of them. The same attack at twice that eps shows whether
it is effective. The benchmark writes records/soundness-autoattack.json.

    python benchmarks/soundness_autoattack.py [--model mnist-small] [--data mnist] [--images 400]
"""

import argparse
import time
from fractions import Fraction
from pathlib import Path

import torch

from linfnet.attacks.suite import auto_attack
from linfnet.certificates import certify_images
from linfnet.data import load
from linfnet.files import write_json
from linfnet.nn import LinfNet
from linfnet.nn.label_margin import margin
from linfnet.train import environment

GROUP = 20
EFFORT = {"steps": 20, "restarts": 1, "queries": 200}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mnist-small")
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent.parent / "records" / "soundness-autoattack.json"
    )
    options = parser.parse_args()
    net = LinfNet.load(options.model)
    images = load(options.data, "test").pixels(slice(options.images))
    certified = certify_images(net, [(images, None)])
    proven = certified.best_radii > 0
    images, labels, radii = images[proven], certified.labels[proven], certified.best_radii[proven] * 0.999
    generator, start, attacked = torch.Generator().manual_seed(0), time.perf_counter(), 0
    broken = {1: 0, 2: 0}
    for part in radii.argsort().split(GROUP):
        epsilon = Fraction(radii[part].min().item())
        for factor in broken:
            moved = auto_attack(net, images[part], labels[part], factor * epsilon, generator, **EFFORT)
            with torch.no_grad():
                broken[factor] += int((margin(net(moved), labels[part]) <= 0).sum())
        attacked += len(part)
        print(f"{attacked} attacked, {broken[1]} broken, {broken[2]} at twice the radius", flush=True)
        write_json(
            options.out,
            {
                "what": "certified samples attacked by AutoAttack at 0.999 of the smallest of 20 similar radii",
                "model": options.model,
                "data": f"{options.data} test",
                "effort": EFFORT,
                "environment": environment(),
                "certified_and_attacked": attacked,
                "broken": broken[1],
                "broken_at_twice_that": broken[2],
                "seconds": round(time.perf_counter() - start, 1),
            },
        )


if __name__ == "__main__":
    main()
