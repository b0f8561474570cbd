"""Projected gradient descent: as in the paper, and a stronger variant with restarts and smoothed gradients.

At p = inf a neuron passes its gradient to a single input, so a sign step changes only a few pixels. At a finite p the
gradients are dense, but the outputs differ: every distance is larger, and the running means were estimated for p = inf.
Therefore `smoothed_logits` computes the outputs of each layer at p = inf and uses the finite p only for the gradient,
(|x_i - w_i| / y)^(p - 1). The logits are equal to the logits of the certified net bit for bit.
"""

import contextlib
import math
from collections.abc import Callable, Generator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from linfnet.boxes import inner_box
from linfnet.data.arrays import Labels
from linfnet.epsilon import Epsilon, parse_epsilon
from linfnet.errors import ArgumentError
from linfnet.inputs import Images, check_count, check_net, prepare_epsilon, prepare_images, prepare_labels
from linfnet.losses import scaled_cross_entropy
from linfnet.nn import Classifier
from linfnet.nn.distance import DistanceModule
from linfnet.nn.frozen import without_gradients
from linfnet.nn.label_margin import margin
from linfnet.ops import check_p

AttackObjective = Callable[[Tensor, Tensor, float], Tensor]
"""(logits [N, K], labels [N], scale) -> [N]: the value that the attack maximises for each image."""


@contextlib.contextmanager
def _only_image_gradients(net: Classifier) -> Generator[None]:
    """Context in which no gradients of the parameters of a net that is attacked as it is are computed."""
    parameters = [parameter for parameter in net.parameters() if parameter.requires_grad]
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)


def pgd(
    net: Classifier,
    images: Images,
    labels: Labels,
    epsilon: Epsilon,
    generator: torch.Generator | None = None,
    *,
    steps: int = 100,
    as_is: bool = False,
) -> Tensor:
    """Attack images by gradient ascent on the cross-entropy of the scaled logits, and return the last iterates.

    The attack starts from the image plus noise N(0, (eps/4)^2) clamped to eps/2. Each step moves every pixel by eps/4
    along the sign of the gradient. Every result is in [0, 1] and within epsilon *in floating point*.

    Args:
        net: attacked at p = inf in eval mode, regardless of its current p and mode.
        images: [N, C, H, W] in [0, 1].
        labels: [N], the true classes.
        epsilon: in pixel units.
        generator: source of the noise, on the device of the net.
        steps: number of steps.
        as_is: attack the net at its current p and in its current mode; in training mode this updates its running
            means.
    """
    check_count("steps", steps)
    pixels, exact = prepare_images(check_net(net), images), parse_epsilon(epsilon)
    truth = prepare_labels(labels, pixels, net.classes)
    lower, upper = inner_box(pixels, exact)
    size = float(exact)
    noise = torch.randn(pixels.shape, generator=generator, device=pixels.device, dtype=pixels.dtype) * (size / 4)
    moved = torch.clamp(pixels + noise.clamp(-size / 2, size / 2), lower, upper)
    attacked = net if as_is else without_gradients(net.frozen())
    with _only_image_gradients(attacked):
        for _ in range(steps):
            moved.requires_grad_(True)
            loss = scaled_cross_entropy(attacked(moved), truth, net.scale.detach())
            (slope,) = torch.autograd.grad(loss, moved)
            moved = torch.clamp(moved.detach() + size / 4 * slope.sign(), lower, upper)
    return moved.detach().view(images.shape)


def cross_entropy(logits: Tensor, labels: Tensor, scale: float) -> Tensor:
    """Return the cross-entropy of the scaled logits, [N]."""
    return F.cross_entropy(scale * logits, labels, reduction="none")


def negative_margin(logits: Tensor, labels: Tensor, scale: float) -> Tensor:
    """Return minus the margin, [N]."""
    return -margin(logits, labels)


def dlr(logits: Tensor, labels: Tensor, scale: float) -> Tensor:
    """Return the difference-of-logits ratio, [N]: minus the margin / (largest - third largest logit).

    For two classes the divisor is 1.

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
    """Return the second argument, but pass gradients to the first."""

    @staticmethod
    def forward(ctx: Any, slope: Tensor, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


def smoothed_logits(net: Classifier, images: Tensor, p: float) -> Tensor:
    """Return the logits [N, K] of the net at p = inf, with the gradients of l_p distances.

    Args:
        net: must be in eval mode; its p is set to infinity. Without distance layers the result is `net(images)`.
        images: [N, C, H, W].
        p: exponent of the gradients; a small p gives smooth gradients.
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
    images: Images,
    labels: Labels,
    epsilon: Epsilon | Tensor,
    generator: torch.Generator | None = None,
    *,
    steps: int = 100,
    restarts: int = 1,
    objective: str = "margin",
    p: float = math.inf,
    rival: int = 0,
    stop: Callable[[], bool] = lambda: False,
) -> Tensor:
    """Attack images by PGD and return, for each image, the iterate with the smallest margin over all steps and starts.

    The first start is the image itself; further starts are uniform in the ball. The step size falls from eps/2 to 0
    along a cosine, and the search for a sample ends when it is misclassified. Every result is in [0, 1] and within
    epsilon in floating point.

    Args:
        net, images, labels: as in `pgd`.
        epsilon: in pixel units; a float64 tensor [N] contains one epsilon per image.
        generator: source of the random starts, on the device of the net.
        steps: number of steps from each start.
        restarts: number of starts.
        objective: "margin", "dlr" or "ce".
        p: exponent of the gradients that the steps follow; infinity for the sparse gradient of the net itself.
        rival: k > 0 targets the class with the k-th largest logit, the label excluded; 0 targets the closest class
            at each step.
        stop: called before each step; if it returns true, the attack ends with the result so far.
    """
    check_net(net)
    check_count("steps", steps)
    check_count("restarts", restarts)
    if objective not in OBJECTIVES:
        raise ArgumentError(f"objective is {objective!r}; expected one of {', '.join(OBJECTIVES)}")
    check_p(p)
    if not 0 <= rival < net.classes:
        raise ArgumentError(f"rival is {rival}; expected a number from 0 to {net.classes - 1}, the net's other classes")
    pixels = prepare_images(net, images)
    truth, exact = prepare_labels(labels, pixels, net.classes), prepare_epsilon(epsilon, pixels)
    lower, upper = inner_box(pixels, exact)
    sizes = exact if isinstance(exact, Tensor) else torch.full(truth.shape, float(exact), device=pixels.device)
    sizes = sizes.to(pixels).view(-1, *[1] * (pixels.dim() - 1))
    best, least = pixels.clone(), torch.full(truth.shape, math.inf, device=pixels.device, dtype=pixels.dtype)
    goal, scale, targets = OBJECTIVES[objective], net.scale.item(), None
    net = without_gradients(net.frozen())
    if rival:
        with torch.no_grad():
            others = net(pixels).scatter(1, truth.unsqueeze(1), -math.inf).argsort(1, descending=True)
        targets = torch.stack([truth, others[:, rival - 1]], 1)
    for start in range(restarts):
        active = (least > 0).nonzero().flatten()
        if not len(active) or (start and stop()):
            break
        low, high = lower[active], upper[active]
        noise = torch.rand(low.shape, generator=generator, device=low.device, dtype=low.dtype)
        moved = pixels[active] if start == 0 else torch.clamp(low + noise * (high - low), low, high)
        for step in range(steps + 1):
            moved.requires_grad_(True)
            logits = smoothed_logits(net, moved, p)
            gap = margin(logits.detach(), truth[active])
            better = gap < least[active]
            best[active[better]], least[active[better]] = moved.detach()[better], gap[better]
            # These are the logits of the net: a sample with margin <= 0 is misclassified and needs no further step.
            going = gap > 0
            if step == steps or not bool(going.any()) or stop():
                break
            if targets is None:
                value = goal(logits, truth[active], scale)
            else:  # use only the logits of the label and of the targeted class
                value = goal(logits.gather(1, targets[active]), torch.zeros_like(active), scale)
            (slope,) = torch.autograd.grad(value.sum(), moved)
            active = active[going]
            pace = sizes[active] / 4 * (1 + math.cos(math.pi * step / steps))
            ahead = moved.detach()[going] + pace * slope[going].sign()
            moved = torch.clamp(ahead, lower[active], upper[active])
    return best.view(images.shape)
