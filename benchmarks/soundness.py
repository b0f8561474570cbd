"""Soundness campaign: run all attacks on certified samples at 0.999 of their certified radius.

Claim: no sample is broken. Random nets of many shapes and trained ones (a model with its data set) are certified; each
sample is attacked inside the larger of its two certified radii by the paper's PGD, by best-iterate PGD along sparse and
smoothed slopes with three objectives and against two single rivals, by Square, and, where a sample has at most 12
pixels, by all corners of its box. (The paper's PGD takes one eps: forty samples with similar radii share the smallest.
AutoAttack is too slow for this.) The benchmark works in shards and writes records/soundness.json after each shard; the
same command resumes an interrupted run.

    python benchmarks/soundness.py [--samples 100000] [--steps 10] [--model RUN DATA COUNT]...
"""

import argparse
import itertools
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from linfnet.attacks import best_pgd, pgd, square_attack
from linfnet.boxes import inner_box
from linfnet.certificates import certify_images
from linfnet.data import load
from linfnet.errors import LinfnetError
from linfnet.files import read_json, write_json
from linfnet.nn import LinfNet, reestimate_means
from linfnet.nn.label_margin import margin
from linfnet.systems import load_model
from linfnet.train import environment

SHAPES = [(1, 1, 2), (1, 2, 2), (1, 2, 5), (1, 3, 4), (3, 2, 2), (1, 8, 8), (3, 6, 6)]
BATCH = 400


def random_net(seed: int) -> LinfNet:
    """Yield nets of varying shapes, depths, widths, spreads of weights and kinds of steps."""
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
                parameter.mul_(10.0 ** (seed % 6 - 1))  # magnitudes at which rounding matters
    reestimate_means(net, [torch.rand(64, *shape)])
    return net.eval()


def corners(net: LinfNet, images: Tensor, labels: Tensor, epsilons: Tensor) -> Tensor:
    """Return the smallest margin [n] over all corners of the boxes."""
    low, high = (end.flatten(1).unsqueeze(1) for end in inner_box(images, epsilons))
    choice = torch.tensor(list(itertools.product([False, True], repeat=low.shape[2])))
    gaps = []
    for k in range(0, len(images), 50):
        part = torch.where(choice, high[k : k + 50], low[k : k + 50])
        logits = net(part.view(-1, *net.image_shape))
        gaps.append(margin(logits, labels[k : k + 50].repeat_interleave(len(choice))).view(-1, len(choice)).amin(1))
    return torch.cat(gaps)


def gradient_attacks(classes: int) -> Iterator[tuple[str, str, float, int]]:
    """Return (name, objective, p, rival) of each gradient attack."""
    for p in (16.0, 64.0, math.inf):
        for objective in ("margin", "dlr", "ce"):
            yield f"{objective} p={p:g}", objective, p, 0
    for rival in range(1, min(classes, 3)):
        yield f"rival {rival} p=64", "margin", 64.0, rival


@torch.no_grad()
def least_margins(net: LinfNet, images: Tensor, labels: Tensor, epsilons: Tensor, steps: int) -> dict[str, Tensor]:
    """Return the margins [n] after each attack; every sample has a separate epsilon."""
    generator = torch.Generator().manual_seed(0)
    found: dict[str, Tensor] = {}
    with torch.enable_grad():
        for name, objective, p, rival in gradient_attacks(net.classes):
            found[name] = best_pgd(
                net, images, labels, epsilons,
                steps=steps, restarts=2, objective=objective, p=p, rival=rival, generator=generator,
            )  # fmt: skip
        # The paper's PGD takes one epsilon: samples with similar radii share the smallest.
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


def try_net(net: LinfNet, images: Tensor, steps: int) -> tuple[int, int, dict[str, float]]:
    """Return the numbers of attacked and broken samples, and for each attack the smallest ratio of margins.

    Only certified samples are attacked. The ratio is the margin after the attack divided by the clean margin.
    """
    certified = certify_images(net, [(images, None)])
    radii = certified.best_radii
    x, y, radii = images[radii > 0], certified.labels[radii > 0], radii[radii > 0]
    if not len(x):
        return 0, 0, {}
    gaps = least_margins(net, x, y, (radii * 0.999).clamp(max=1), steps)
    clean = margin(net(x), y).detach()
    least = {name: (gap / clean).min().item() for name, gap in gaps.items()}
    return len(x), int((torch.stack(list(gaps.values())).amin(0) <= 0).sum()), least


Shard = tuple[str, Callable[[], Iterator[tuple[LinfNet, Tensor]]]]


def trained_shards(run: str, data: str, count: int) -> Iterator[Shard]:
    """Yield shards of a thousand test images."""
    net, test = cast(LinfNet, load_model(run)), load(data, "test")  # or a compressed net
    for start in range(0, min(count, len(test)), 1000):
        stop = min(start + 1000, count, len(test))
        parts = [slice(k, min(k + BATCH, stop)) for k in range(start, stop, BATCH)]
        name = f"{Path(run).name}, trained on {data}: test images {start} to {stop - 1}"
        yield name, lambda parts=parts: ((net, test.pixels(part)) for part in parts)


def random_shards() -> Iterator[Shard]:
    """Yield an endless sequence of shards of twenty random nets."""
    for first in itertools.count(0, 20):
        yield f"random nets {first} to {first + 19}", lambda first=first: map(random_case, range(first, first + 20))


def random_case(seed: int) -> tuple[LinfNet, Tensor]:
    net = random_net(seed)
    return net, torch.rand(BATCH, *net.image_shape, generator=torch.Generator().manual_seed(seed))


def attack_shard(name: str, cases: Iterator[tuple[LinfNet, Tensor]], steps: int) -> dict[str, object]:
    """Return one row of the record."""
    count = broken = 0
    least: dict[str, float] = {}
    for net, images in cases:
        more, lost, left = try_net(net, images, steps)
        count, broken = count + more, broken + lost
        least = {key: min(least.get(key, 1.0), left.get(key, 1.0)) for key in {**least, **left}}
    print(f"{name}: {count} attacked, {broken} broken, smallest ratio of margins {min(least.values()):.2e}", flush=True)
    return {"nets": name, "certified_and_attacked": count, "broken": broken, "least_share_of_margin_left": least}


def main() -> None:
    parser = argparse.ArgumentParser(description="soundness campaign")
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--model", nargs=3, action="append", default=[], metavar=("RUN", "DATA", "COUNT"))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "records" / "soundness.json")
    options = parser.parse_args()
    attacks = (
        f"PGD-{options.steps}; best iterates of {options.steps} steps from 2 starts along p = 16, 64, inf with three "
        f"objectives, and along p = 64 against two rivals; Square-{4 * options.steps}; all corners up to 12 pixels"
    )
    try:
        earlier = read_json(options.out)
    except LinfnetError:
        earlier = {}
    rows = {row["nets"]: row for row in earlier.get("rows", [])} if earlier.get("attacks") == attacks else {}
    shards = itertools.chain(*(trained_shards(run, data, int(n)) for run, data, n in options.model), random_shards())
    total = 0
    for name, cases in shards:
        if total >= options.samples:
            break
        if name not in rows:
            rows[name] = attack_shard(name, cases(), options.steps)
        total += rows[name]["certified_and_attacked"]
        write_json(
            options.out,
            {
                "what": "certified samples attacked at 0.999 of their certified radius (the larger of both)",
                "attacks": attacks,
                "environment": environment(),
                "certified_and_attacked": sum(row["certified_and_attacked"] for row in rows.values()),
                "broken": sum(row["broken"] for row in rows.values()),
                "rows": list(rows.values()),
            },
        )


if __name__ == "__main__":
    main()
