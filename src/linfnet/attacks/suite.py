"""All attacks in turn: only samples that nothing has broken yet go on, from the smallest epsilon to the largest."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from linfnet.attacks.objectives import still_right
from linfnet.attacks.pgd import pgd
from linfnet.attacks.restarts import best_pgd
from linfnet.attacks.square import square_attack
from linfnet.boxes import inner_box
from linfnet.epsilon import format_epsilon
from linfnet.errors import ArgumentError, LinfnetError
from linfnet.nn import Classifier
from linfnet.ops import check_p

BATCH = 500
# On the packaged net, slopes of p = 16 to 64 break most; p = 4 leads astray, p = inf touches too few pixels.
EXPONENTS = (16.0, 64.0)
# Runners-up of an image that are also aimed at one by one.
RIVALS = 3

Attack = Callable[[Classifier, Tensor, Tensor, Fraction, torch.Generator], Tensor]
"""(net at p = inf, images, labels, epsilon, generator on the CPU or the device) -> images within epsilon."""


def known_attacks(
    *, steps: int = 100, restarts: int = 2, exponents: Sequence[float] = EXPONENTS, queries: int = 1000
) -> dict[str, Attack]:
    """The attacks by name, cheapest first.

    pgd: the paper's; best-pgd: best iterate and restarts on the net's own gradient; smoothed: the same along slopes of
    l_p, for each exponent, with both margin objectives and against each of three runners-up; square: without gradients.
    """
    for p in exponents:
        check_p(p)
    if min(steps, restarts, queries) < 1:
        raise ArgumentError(f"{steps=}, {restarts=}, {queries=}; wanted at least 1 of each")

    def paper(net: Classifier, x: Tensor, y: Tensor, epsilon: Fraction, generator: torch.Generator) -> Tensor:
        return pgd(net, x, y, epsilon, steps=steps, generator=generator)

    def sparse(net: Classifier, x: Tensor, y: Tensor, epsilon: Fraction, generator: torch.Generator) -> Tensor:
        return best_pgd(net, x, y, epsilon, steps=steps, restarts=restarts, generator=generator)

    def smoothed(net: Classifier, x: Tensor, y: Tensor, epsilon: Fraction, generator: torch.Generator) -> Tensor:
        moved, open_ = x.clone(), torch.ones_like(y, dtype=torch.bool)
        rivals = range(1, min(RIVALS, net.classes - 1) + 1)
        tries = [("margin", p, 0) for p in exponents] + [("dlr", p, 0) for p in exponents]
        for objective, p, rival in tries + [("margin", p, k) for p in exponents for k in rivals]:
            found = best_pgd(
                net, x[open_], y[open_], epsilon,
                steps=steps, restarts=restarts, objective=objective, p=p, rival=rival, generator=generator,
            )  # fmt: skip
            moved[open_] = found
            with torch.no_grad():
                open_[open_.clone()] = still_right(net(found), y[open_])
        return moved

    def square(net: Classifier, x: Tensor, y: Tensor, epsilon: Fraction, generator: torch.Generator) -> Tensor:
        source = torch.Generator().manual_seed(generator.initial_seed())
        return square_attack(net, x, y, epsilon, queries=queries, generator=source)

    return {"pgd": paper, "best-pgd": sparse, "smoothed": smoothed, "square": square}


@dataclass(frozen=True)
class Attacked:
    """What is left of N samples at one epsilon."""

    epsilon: Fraction
    clean: Tensor
    """bool [N]: rightly classified to begin with."""
    survived: Tensor
    """bool [N]: right, and not broken by any attack."""
    after: dict[str, float]
    """The share of samples left after each attack in turn."""
    images: Tensor
    """[N, C, H, W]: within epsilon; where `survived` is false (and `clean` true), images that are misclassified."""

    @property
    def robust(self) -> float:
        """The share that survived everything."""
        return self.survived.double().mean().item()


@torch.no_grad()
def attack_all(
    net: Classifier,
    images: Tensor,
    labels: Tensor,
    epsilons: Sequence[Fraction],
    attacks: Mapping[str, Attack],
    *,
    seed: int = 0,
    tell: Callable[[str, Fraction, int], None] = lambda name, epsilon, left: None,
) -> list[Attacked]:
    """Attack rightly classified samples at each epsilon, in rising order; what broke at a smaller one stays broken.

    `tell` hears the name of each attack before it runs, the epsilon, and how many samples are left.
    """
    with net.at_infinity():
        clean = still_right(net(images), labels)
        survived, moved = clean.clone(), images.clone()
        results: list[Attacked] = []
        for epsilon in sorted(epsilons):
            after: dict[str, float] = {}
            for name, attack in attacks.items():
                left = survived.nonzero().flatten()
                tell(name, epsilon, len(left))
                generator = torch.Generator(images.device).manual_seed(seed)
                # Nothing moves at 0, and fresh noise, by which some nets are judged, is no attack.
                for part in left.split(BATCH) if len(left) and epsilon else ():
                    with torch.enable_grad():
                        found = attack(net, images[part], labels[part], epsilon, generator).detach()
                    check_inside(found, images[part], epsilon, name)
                    lost = ~net.keeps_class(found, labels[part])
                    moved[part[lost]], survived[part[lost]] = found[lost], False
                after[name] = survived.double().mean().item()
            results.append(Attacked(epsilon, clean, survived.clone(), after, moved.clone()))
    return results


def check_inside(found: Tensor, images: Tensor, epsilon: Fraction, name: str) -> None:
    """An attack that leaves the ball proves nothing: refuse its result."""
    lower, upper = inner_box(images, epsilon)
    if not bool(((found >= lower) & (found <= upper)).all()):
        raise LinfnetError(f"attack {name!r} left the ball of eps = {format_epsilon(epsilon)}: its result is void")


def check_sandwich(attacked: Attacked, certified: Tensor) -> None:
    """Certified samples that are broken would be a bug in this library: name them, never average them away.

    Args:
        attacked: the result at one epsilon.
        certified: bool [N]: proven at that epsilon.
    """
    wrong = (certified & ~attacked.survived).nonzero().flatten().tolist()
    if wrong:
        more = f" and {len(wrong) - 20} more" if len(wrong) > 20 else ""
        raise LinfnetError(
            f"samples {wrong[:20]}{more} are certified at eps = {format_epsilon(attacked.epsilon)} and yet broken: "
            "this is a bug, please report it"
        )


def parse_exponents(text: str) -> tuple[float, ...]:
    """Exponents from `4,16,inf`.

    >>> parse_exponents("4, inf")
    (4.0, inf)
    """
    try:
        return tuple(check_p(math.inf if part.strip() == "inf" else float(part), "--p") for part in text.split(","))
    except ValueError:
        raise ArgumentError(f"--p is {text!r}; wanted numbers of at least 1, as 16,64 or inf") from None
