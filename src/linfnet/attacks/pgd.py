"""Projected gradient descent: as the paper runs it, and a stronger variant with restarts and smoothed slopes.

At p = inf a neuron passes its gradient to a single input, so a sign step changes only a few pixels. A net at a finite p
has dense gradients but other values: every distance is larger, and the running means of infinity do not fit. Therefore
`smoothed_logits` keeps the value of each layer at infinity and takes only its slope, (|x_i - w_i| / y)^(p - 1), from a
finite p: the logits are bit for bit those of the certified net.
"""

import contextlib
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from linfnet.boxes import check_images, inner_box
from linfnet.errors import ArgumentError
from linfnet.losses import scaled_cross_entropy
from linfnet.nn import Classifier
from linfnet.nn.distance import DistanceModule
from linfnet.nn.label_margin import margin
from linfnet.ops import check_p

AttackObjective = Callable[[Tensor, Tensor, float], Tensor]
"""(logits [N, K], labels [N], scale) -> [N]: larger where the image is closer to misclassification."""


def pgd(
    net: Classifier,
    images: Tensor,
    labels: Tensor,
    epsilon: Fraction,
    generator: torch.Generator | None = None,
    *,
    steps: int = 100,
    as_is: bool = False,
) -> Tensor:
    """Images within epsilon of the given ones, found by gradient ascent on the cross-entropy of the scaled logits.

    The start is noise N(0, (eps/4)^2) clamped to eps/2; each step moves every pixel by eps/4 along the sign of the
    gradient; the last iterate is returned. Every result is in [0, 1] and within epsilon *in floating point*.

    Args:
        net: attacked at p = inf in eval mode, independent of its present p.
        images: [N, C, H, W] in [0, 1].
        labels: [N], the true classes.
        epsilon: exact, in pixel units.
        generator: source of the noise, on the device of the images.
        steps: number of steps.
        as_is: attack the net at its present p and in its present mode instead; in training mode this updates its
            running means.
    """
    lower, upper = inner_box(check_images(images), epsilon)
    size = float(epsilon)
    noise = torch.randn(images.shape, generator=generator, device=images.device, dtype=images.dtype) * (size / 4)
    moved = torch.clamp(images + noise.clamp(-size / 2, size / 2), lower, upper)
    with contextlib.nullcontext() if as_is else net.at_infinity():
        for _ in range(steps):
            moved.requires_grad_(True)
            loss = scaled_cross_entropy(net(moved), labels, net.scale.detach())
            (slope,) = torch.autograd.grad(loss, moved)
            moved = torch.clamp(moved.detach() + size / 4 * slope.sign(), lower, upper)
    return moved.detach()


def cross_entropy(logits: Tensor, labels: Tensor, scale: float) -> Tensor:
    """Cross-entropy of the scaled logits: [N]."""
    return F.cross_entropy(scale * logits, labels, reduction="none")


def negative_margin(logits: Tensor, labels: Tensor, scale: float) -> Tensor:
    """Minus the margin: [N]."""
    return -margin(logits, labels)


def dlr(logits: Tensor, labels: Tensor, scale: float) -> Tensor:
    """Difference-of-logits ratio, [N]: minus the margin over (first - third largest logit), or over 1 for two classes.

    >>> dlr(torch.tensor([[4.0, 2.0, 0.0]]), torch.tensor([0]), 1.0)
    tensor([-0.5000])
    """
    gap = -margin(logits, labels)
    if logits.shape[1] < 3:
        return gap
    top = logits.topk(3).values
    return gap / (top[:, 0] - top[:, 2]).clamp(min=1e-12)


OBJECTIVES: dict[str, AttackObjective] = {"ce": cross_entropy, "margin": negative_margin, "dlr": dlr}


class _SlopeOf(torch.autograd.Function):
    """Returns its second argument, but passes gradients to its first."""

    @staticmethod
    def forward(ctx: Any, slope: Tensor, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


def smoothed_logits(net: Classifier, images: Tensor, p: float) -> Tensor:
    """Logits [N, K] of the net at infinity, with the gradient of l_p distances.

    Args:
        net: in eval mode; its p is infinity afterwards. Without distance layers the result is `net(images)`.
        images: [N, C, H, W].
        p: exponent of the slopes; a small p is smooth.
    """
    if math.isinf(p):
        return net(images)

    def replace_value(layer: DistanceModule, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        layer.p = math.inf
        with torch.no_grad():
            value = layer.forward(inputs[0])
        layer.p = p
        return _SlopeOf.apply(output, value)  # pyright: ignore[reportReturnType]

    handles = [layer.register_forward_hook(replace_value) for layer in net.distance_layers()]
    net.p = p
    try:
        return net(images)
    finally:
        net.p = math.inf
        for handle in handles:
            handle.remove()


def best_pgd(
    net: Classifier,
    images: Tensor,
    labels: Tensor,
    epsilon: Fraction | Tensor,
    generator: torch.Generator | None = None,
    *,
    steps: int = 100,
    restarts: int = 1,
    objective: str = "margin",
    p: float = math.inf,
    rival: int = 0,
) -> Tensor:
    """The iterate with the smallest margin, over all steps and restarts of PGD.

    The first start is the image itself, further ones are uniform in the ball; steps shrink from eps/2 to 0 along a
    cosine; misclassified samples stop. Every result is in [0, 1] and within epsilon in floating point.

    Args:
        net, images, labels: as in `pgd`.
        epsilon: exact, in pixel units; a float64 tensor [N] contains one epsilon per image.
        generator: source of the starts, on the device of the images.
        steps: steps of each start.
        restarts: number of starts.
        objective: "margin", "dlr" or "ce".
        p: exponent whose slopes the steps follow; infinity for the sparse gradient of the net itself.
        rival: k > 0 targets the k-th runner-up of the image; 0 targets the nearest class at each step.
    """
    if objective not in OBJECTIVES:
        raise ArgumentError(f"objective is {objective!r}; wanted one of {', '.join(OBJECTIVES)}")
    check_p(p)
    if not 0 <= rival < net.classes:
        raise ArgumentError(f"rival is {rival}; wanted a number from 0 to {net.classes - 1}, the net's other classes")
    lower, upper = inner_box(check_images(images), epsilon)
    sizes = epsilon if isinstance(epsilon, Tensor) else torch.full(labels.shape, float(epsilon), device=images.device)
    sizes = sizes.to(images).view(-1, 1, 1, 1)
    best, least = images.clone(), torch.full(labels.shape, math.inf, device=images.device, dtype=images.dtype)
    goal, scale, targets = OBJECTIVES[objective], net.scale.item(), None
    with net.at_infinity():
        if rival:
            with torch.no_grad():
                others = net(images).scatter(1, labels.unsqueeze(1), -math.inf).argsort(1, descending=True)
            targets = torch.stack([labels, others[:, rival - 1]], 1)
        for start in range(restarts):
            active = (least > 0).nonzero().flatten()
            if not len(active):
                break
            low, high = lower[active], upper[active]
            noise = torch.rand(low.shape, generator=generator, device=low.device, dtype=low.dtype)
            moved = images[active] if start == 0 else torch.clamp(low + noise * (high - low), low, high)
            for step in range(steps + 1):
                moved.requires_grad_(True)
                logits = smoothed_logits(net, moved, p)
                gap = margin(logits.detach(), labels[active])
                better = gap < least[active]
                best[active[better]], least[active[better]] = moved.detach()[better], gap[better]
                # The logits are those of the program: without a margin, a sample is misclassified and needs no step.
                going = gap > 0
                if step == steps or not bool(going.any()):
                    break
                if targets is None:
                    value = goal(logits, labels[active], scale)
                else:  # only the logits of the label and of its one rival
                    value = goal(logits.gather(1, targets[active]), torch.zeros_like(active), scale)
                (slope,) = torch.autograd.grad(value.sum(), moved)
                active = active[going]
                pace = sizes[active] / 4 * (1 + math.cos(math.pi * step / steps))
                ahead = moved.detach()[going] + pace * slope[going].sign()
                moved = torch.clamp(ahead, lower[active], upper[active])
    return best
