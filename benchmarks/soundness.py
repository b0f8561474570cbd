"""Soundness campaign: certified samples attacked by everything, at 0.999 of their certified radius.

Claim: no sample is broken. Random nets of many shapes (and trained ones, given as run folders with their data set) are
certified; each sample is attacked inside its own larger certified radius by the paper's PGD, by best-iterate PGD along
sparse and smoothed slopes, by Square, and, where a sample has at most 12 pixels, by all corners of its box. (The
paper's PGD takes one eps: forty neighbours in radius share the smallest; AutoAttack is left out, being too slow.)
Prints one line per net kind and writes records/soundness.json.

    python benchmarks/soundness.py [--samples 100000] [--model RUN DATA]...
"""

import argparse
import itertools
import math
import time
from fractions import Fraction
from pathlib import Path

import torch
from torch import Tensor

from linfnet.attack import best_pgd, pgd, square_attack
from linfnet.certify import certify_images
from linfnet.data import load
from linfnet.files import write_json
from linfnet.losses import margin
from linfnet.nn import LinfNet, reestimate_means
from linfnet.perturbation import inner_box
from linfnet.train import environment

SHAPES = [(1, 1, 2), (1, 2, 2), (1, 2, 5), (1, 3, 4), (3, 2, 2), (1, 8, 8), (3, 6, 6)]
BATCH = 400


def random_net(seed: int) -> LinfNet:
    """Shapes, depths, widths, spreads of weights and kinds of steps by turns."""
    torch.manual_seed(seed)
    shape = SHAPES[seed % len(SHAPES)]
    hidden = tuple(int(width) for width in torch.randint(2, 24, (seed % 4,)))
    net = LinfNet(
        shape, 2 + seed % 5, hidden, mean=0.4, std=0.1 + 0.9 * torch.rand(()).item(), hidden_bias=seed % 3 == 0,
        mean_shift=seed % 5 > 0, negate_logits=seed % 2 == 0, identity_init=seed % 3 > 0,
    )  # fmt: skip
    with torch.no_grad():
        for parameter in net.parameters():
            if seed % 7 == 6 and parameter.dim():
                parameter.mul_(10.0 ** (seed % 6 - 1))  # magnitudes where rounding counts
    reestimate_means(net, [torch.rand(64, *shape)])
    return net.eval()


def corners(net: LinfNet, images: Tensor, labels: Tensor, epsilons: Tensor) -> Tensor:
    """The least margin [n] over all corners of the boxes, where a net is most likely to break."""
    low, high = (end.flatten(1).unsqueeze(1) for end in inner_box(images, epsilons))
    choice = torch.tensor(list(itertools.product([False, True], repeat=low.shape[2])))
    gaps = []
    for k in range(0, len(images), 50):
        part = torch.where(choice, high[k : k + 50], low[k : k + 50])
        logits = net(part.view(-1, *net.image_shape))
        gaps.append(margin(logits, labels[k : k + 50].repeat_interleave(len(choice))).view(-1, len(choice)).amin(1))
    return torch.cat(gaps)


@torch.no_grad()
def least_margins(net: LinfNet, images: Tensor, labels: Tensor, epsilons: Tensor, steps: int) -> dict[str, Tensor]:
    """The margin [n] that each attack leaves of samples attacked at their own epsilons."""
    generator = torch.Generator().manual_seed(0)
    found: dict[str, Tensor] = {}
    with torch.enable_grad():
        for p in (4.0, 32.0, math.inf):
            for objective in ("margin", "dlr", "ce"):
                found[f"{objective} p={p:g}"] = best_pgd(
                    net, images, labels, epsilons,
                    steps=steps, restarts=2, objective=objective, p=p, generator=generator,
                )  # fmt: skip
        # The paper's PGD knows one epsilon: neighbours in radius share the smallest of theirs.
        moved = images.clone()
        for part in epsilons.argsort().split(40):
            least = Fraction(epsilons[part].min().item())
            moved[part] = pgd(net, images[part], labels[part], least, steps=steps, generator=generator)
        found["pgd"] = moved
    found["square"] = square_attack(net, images, labels, epsilons, queries=4 * steps, generator=generator)
    gaps = {name: margin(net(moved), labels) for name, moved in found.items()}
    if images[0].numel() <= 12:
        gaps["corners"] = corners(net, images, labels, epsilons)
    return gaps


def try_net(net: LinfNet, images: Tensor, steps: int) -> tuple[int, int, float]:
    """(certified samples attacked, samples broken, least margin left as a share of the clean one)."""
    certified = certify_images(net, [(images, None)])
    radii = certified.radii
    x, y, radii = images[radii > 0], certified.labels[radii > 0], radii[radii > 0]
    if not len(x):
        return 0, 0, 1.0
    gaps = torch.stack(list(least_margins(net, x, y, radii * 0.999, steps).values())).amin(0)
    clean = margin(net(x), y).detach()
    return len(x), int((gaps <= 0).sum()), (gaps / clean).min().item()


def main() -> None:
    parser = argparse.ArgumentParser(description="soundness campaign")
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--model", nargs=2, action="append", default=[], metavar=("RUN", "DATA"))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "records" / "soundness.json")
    options = parser.parse_args()
    rows: list[dict[str, object]] = []
    start = time.perf_counter()

    def report(name: str, count: int, broken: int, least: float) -> None:
        rows.append({"nets": name, "certified_and_attacked": count, "broken": broken, "least_margin_left": least})
        print(f"{name}: {count} attacked, {broken} broken, least share of margin left {least:.2e}", flush=True)

    done = 0
    for run, data in options.model:
        net, images = LinfNet.load(run), load(data, "test")
        parts = [images.pixels(slice(k, k + BATCH)) for k in range(0, len(images), BATCH)]
        counts = [try_net(net, part, options.steps) for part in parts]
        done += sum(c[0] for c in counts)
        report(f"trained on {data}", sum(c[0] for c in counts), sum(c[1] for c in counts), min(c[2] for c in counts))
    seed = total = bad = 0
    least = 1.0
    while done + total < options.samples:
        net = random_net(seed)
        count, broken, left = try_net(net, torch.rand(BATCH, *net.image_shape), options.steps)
        total, bad, least, seed = total + count, bad + broken, min(least, left), seed + 1
    report(f"{seed} random", total, bad, least)
    write_json(
        options.out,
        {
            "what": "certified samples attacked at 0.999 of their certified radius (the larger of margin and interval)",
            "attacks": f"PGD-{options.steps}, best iterates (2 starts) along p = 4, 32, inf with three objectives, "
            f"Square-{4 * options.steps}, all corners up to 12 pixels",
            "environment": environment(),
            "rows": rows,
            "seconds": round(time.perf_counter() - start, 1),
        },
    )


if __name__ == "__main__":
    main()
