"""PGD that gives its best: restarts, shrinking steps, the best iterate, and a smoothed gradient."""

import math
from fractions import Fraction

import torch
from torch import Tensor

from linfnet.attack.objectives import find_objective
from linfnet.attack.smoothed import smoothed_logits
from linfnet.losses import margin
from linfnet.nn import Classifier
from linfnet.ops import check_p
from linfnet.perturbation import check_images, inner_box


def best_pgd(
    net: Classifier,
    images: Tensor,
    labels: Tensor,
    epsilon: Fraction | Tensor,
    *,
    steps: int = 100,
    restarts: int = 1,
    objective: str = "margin",
    p: float = math.inf,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Images within epsilon of the given ones with the smallest margin that was met on the way.

    Starts are the images themselves first, then uniform in the ball; steps shrink from eps/2 to 0 along a cosine;
    samples that are broken stop. Every result is in [0, 1] and within epsilon in floating point.

    Args:
        net: attacked at p = inf in eval mode, whatever its present p.
        images: [N, C, H, W] in [0, 1].
        labels: [N], the true classes.
        epsilon: exact, in pixel units; a float64 tensor [N] gives each image its own.
        steps: steps of each start.
        restarts: number of starts.
        objective: "margin", "dlr" or "ce".
        p: exponent whose slopes the steps follow; infinity for the net's own sparse gradient.
        generator: source of the starts, on the device of the images.
    """
    find_objective(objective)
    check_p(p)
    lower, upper = inner_box(check_images(images), epsilon)
    sizes = epsilon if isinstance(epsilon, Tensor) else torch.full(labels.shape, float(epsilon), device=images.device)
    sizes = sizes.to(images).view(-1, 1, 1, 1)
    best, gap = images.clone(), torch.full(labels.shape, math.inf, device=images.device, dtype=images.dtype)
    with net.at_infinity():
        for start in range(restarts):
            open_ = gap > 0
            if not bool(open_.any()):
                break
            low, high = lower[open_], upper[open_]
            noise = torch.rand(low.shape, generator=generator, device=low.device, dtype=low.dtype)
            first = images[open_] if start == 0 else torch.clamp(low + noise * (high - low), low, high)
            found, least = _descend(net, first, labels[open_], low, high, sizes[open_], steps, objective, p)
            better = least < gap[open_]
            best[open_] = torch.where(better.view(-1, 1, 1, 1), found, best[open_])
            gap[open_] = torch.minimum(least, gap[open_])
    return best


def _descend(
    net: Classifier,
    start: Tensor,
    labels: Tensor,
    low: Tensor,
    high: Tensor,
    size: Tensor,
    steps: int,
    name: str,
    p: float,
) -> tuple[Tensor, Tensor]:
    """The best iterate of one start and its margin, for every sample."""
    objective, scale = find_objective(name), net.scale.item()
    best, least = start.clone(), torch.full(labels.shape, math.inf, device=start.device, dtype=start.dtype)
    active, moved = torch.arange(len(labels), device=start.device), start
    for step in range(steps + 1):
        moved.requires_grad_(True)
        logits = smoothed_logits(net, moved, p)
        gap = margin(logits.detach(), labels[active])
        better = gap < least[active]
        best[active[better]], least[active[better]] = moved.detach()[better], gap[better]
        # The value is the program's own, so a broken sample is broken for certain and needs no more steps.
        going = gap > 0
        if step == steps or not bool(going.any()):
            break
        (slope,) = torch.autograd.grad(objective(logits, labels[active], scale).sum(), moved)
        active = active[going]
        pace = size[active] / 4 * (1 + math.cos(math.pi * step / steps))
        ahead = moved.detach()[going] + pace * slope[going].sign()
        moved = torch.clamp(ahead, low[active], high[active])
    return best, least
