"""PGD that gives its best: restarts, shrinking steps, the best iterate, and a smoothed gradient."""

import math
from fractions import Fraction

import torch
from torch import Tensor

from linfnet.attacks.objectives import find_objective
from linfnet.attacks.smoothed import smoothed_logits
from linfnet.boxes import check_images, inner_box
from linfnet.errors import ArgumentError
from linfnet.nn import Classifier
from linfnet.nn.margin import margin
from linfnet.ops import check_p


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
    rival: int = 0,
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
        rival: k aims at the k-th runner-up of the image; 0 at every step at whichever class is nearest by then.
        generator: source of the starts, on the device of the images.
    """
    find_objective(objective)
    check_p(p)
    if not 0 <= rival < net.classes:
        raise ArgumentError(f"rival is {rival}; wanted a number from 0 to {net.classes - 1}, the net's other classes")
    lower, upper = inner_box(check_images(images), epsilon)
    sizes = epsilon if isinstance(epsilon, Tensor) else torch.full(labels.shape, float(epsilon), device=images.device)
    sizes = sizes.to(images).view(-1, 1, 1, 1)
    best, gap = images.clone(), torch.full(labels.shape, math.inf, device=images.device, dtype=images.dtype)
    with net.at_infinity():
        against = _runners_up(net, images, labels)[:, rival - 1] if rival else None
        for start in range(restarts):
            open_ = gap > 0
            if not bool(open_.any()):
                break
            low, high = lower[open_], upper[open_]
            noise = torch.rand(low.shape, generator=generator, device=low.device, dtype=low.dtype)
            first = images[open_] if start == 0 else torch.clamp(low + noise * (high - low), low, high)
            aims = None if against is None else torch.stack([labels[open_], against[open_]], 1)
            found, least = _descend(net, first, labels[open_], aims, low, high, sizes[open_], steps, objective, p)
            better = least < gap[open_]
            best[open_] = torch.where(better.view(-1, 1, 1, 1), found, best[open_])
            gap[open_] = torch.minimum(least, gap[open_])
    return best


@torch.no_grad()
def _runners_up(net: Classifier, images: Tensor, labels: Tensor) -> Tensor:
    """The other classes [N, K - 1] of each image, the nearest first."""
    others = net(images).scatter(1, labels.unsqueeze(1), -math.inf)
    return others.argsort(1, descending=True)[:, :-1]


def _descend(
    net: Classifier,
    start: Tensor,
    labels: Tensor,
    aims: Tensor | None,
    low: Tensor,
    high: Tensor,
    size: Tensor,
    steps: int,
    name: str,
    p: float,
) -> tuple[Tensor, Tensor]:
    """The best iterate of one start and its margin, for every sample; `aims` [n, 2]: its class and its one rival."""
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
        if aims is None:
            raised = objective(logits, labels[active], scale)
        else:  # as if there were no other classes
            raised = objective(logits.gather(1, aims[active]), torch.zeros_like(active), scale)
        (slope,) = torch.autograd.grad(raised.sum(), moved)
        active = active[going]
        pace = size[active] / 4 * (1 + math.cos(math.pi * step / steps))
        ahead = moved.detach()[going] + pace * slope[going].sign()
        moved = torch.clamp(ahead, low[active], high[active])
    return best, least
