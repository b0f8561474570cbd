"""Accuracy of a trained net under each attack, on the same samples.

Claim: PGD along smoothed slopes breaks strictly more images of the packaged net than the paper's PGD-100, at eps = 0.1
and at 0.3. The benchmark attacks every test image that is classified correctly and not certified, since no attack can
break a certified image (benchmarks/soundness.py tests this). It writes records/attacks.json.

    python benchmarks/attacks.py [--model mnist-small] [--data mnist] [--eps 0.1 0.3]
"""

import argparse
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import torch
from torch import Tensor

from linfnet.attacks import best_pgd, known_attacks, pgd
from linfnet.certificates import certified_by_interval, certify_by_margin
from linfnet.data import ImageSet, load
from linfnet.epsilon import parse_epsilon
from linfnet.files import write_json
from linfnet.nn import LinfNet
from linfnet.nn.label_margin import label_on_top
from linfnet.train import environment

BATCH = 1000
STEPS = 100


def attacks(net: LinfNet, epsilon: Fraction) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """Return all attacks by name. They run 100 steps from one start, or from two starts as in `linfnet attack`."""
    suite = known_attacks(steps=STEPS)

    def along(p: float) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda x, y: best_pgd(net, x, y, epsilon, steps=STEPS, p=p, generator=seeded())

    alone: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "pgd-100, the paper's": lambda x, y: pgd(net, x, y, epsilon, steps=STEPS, generator=seeded()),
        "best iterate, own slopes": along(math.inf),
        **{f"best iterate, slopes of p = {p}": along(float(p)) for p in (4, 8, 16, 32, 64)},
    }
    return alone | {
        f"linfnet attack: {name}": lambda x, y, attack=attack: attack(net, x, y, epsilon, seeded())
        for name, attack in suite.items()
    }


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def try_all(net: LinfNet, test: ImageSet, epsilon: Fraction) -> dict[str, object]:
    """Return the row of one epsilon: numbers of test images."""
    right: list[Tensor] = []
    certified: list[Tensor] = []
    for part in torch.arange(len(test)).split(BATCH):
        x, y = test.pixels(part), test.labels[part]
        right.append(label_on_top(net(x), y))
        certified.append(certify_by_margin(net, x, y).at(epsilon) | certified_by_interval(net, x, y, epsilon))
    proven = torch.cat(certified)
    attacked = (torch.cat(right) & ~proven).nonzero().flatten()
    images, labels = test.pixels(attacked), test.labels[attacked]
    count = len(test)
    row: dict[str, object] = {"eps": str(epsilon), "clean": int(torch.cat(right).sum()), "certified": int(proven.sum())}
    left: dict[str, int] = {}
    for name, attack in attacks(net, epsilon).items():
        with torch.enable_grad():
            found = attack(images, labels).detach()
        left[name] = int(proven.sum() + label_on_top(net(found), labels).sum())
        print(f"eps = {float(epsilon):g}, {name}: {left[name]} of {count} images survived", flush=True)
    return {**row, "left_by_each_attack_alone": left}


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description="accuracy of a trained net under each attack")
    parser.add_argument("--model", default="mnist-small")
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--eps", nargs="+", default=["0.1", "0.3"])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "records" / "attacks.json")
    options = parser.parse_args()
    net, test = LinfNet.load(options.model), load(options.data, "test")
    rows = [try_all(net, test, parse_epsilon(eps)) for eps in options.eps]
    write_json(
        options.out,
        {
            "what": f"{options.model} on all {len(test)} test images of {options.data}: how many images each attack "
            "leaves; certified ones are counted as left",
            "environment": environment(),
            "rows": rows,
        },
    )


if __name__ == "__main__":
    main()
