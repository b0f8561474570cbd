"""Exact radii: how far every pixel may change before some image changes the class, between two bounds."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from linfnet.certificates.exact.decide import BATCH, BRANCHES, SECONDS, Verifier
from linfnet.certificates.margin import certify_by_margin
from linfnet.data.arrays import Labels
from linfnet.epsilon import Epsilon, parse_rational
from linfnet.errors import ArgumentError
from linfnet.inputs import Images, net_device, prepare_images, prepare_labels
from linfnet.nn import Classifier
from linfnet.nn.label_margin import label_on_top

WIDTH = "1/1024"


@dataclass(frozen=True)
class ExactRadii:
    """The radii of N images, between a proof and a witness; the tensors are on the device of the images."""

    radius: Tensor
    """float64 [N]: proven robust at this epsilon (at most 1). -inf if the label is not strictly on top."""
    broken_at: Tensor
    """float64 [N]: `witness` is within this epsilon; infinity if there is no witness in [0, 1]."""
    witness: Tensor
    """[N, C, H, W]: an image for which the label is not strictly on top; the image itself if there is none."""
    undecided: Tensor
    """bool [N]: the budget ended, so `broken_at` may be above `radius` by more than the width."""

    def __len__(self) -> int:
        return len(self.radius)


@torch.no_grad()
def exact_radius(
    net: Classifier,
    images: Images,
    labels: Labels | None = None,
    *,
    width: Epsilon = WIDTH,
    branches: int = BRANCHES,
    seconds: float = SECONDS,
    advance: Callable[[int], None] = lambda images: None,
) -> ExactRadii:
    """Compute exact radii up to a width: `radius` is proven, and an image within `radius + width` breaks the net.

    The search starts at the radius of the margin certificate, takes steps of one width, two, four …, and then bisects
    between the largest epsilon that is proven and the nearest witness.

    Args:
        net, images, labels: as in `decide`.
        width: the largest difference of `broken_at` and `radius`.
        branches, seconds: the budget of each decision for an image.
        advance: called with the number of images after each batch.

    >>> from linfnet.nn import LinfNet
    >>> net = LinfNet((1, 1, 1), 2, (), identity_init=False)
    >>> _ = net.layers[0].weight.data.copy_(torch.tensor([[0.0], [1.0]]))
    >>> found = exact_radius(net, torch.tensor([[[[0.25]]]]), [0], width="0.01")
    >>> 0.24 <= found.radius.item() <= 0.25 <= found.broken_at.item() <= 0.26
    True
    """
    step = parse_width(width)
    verifier = Verifier(net, branches=branches, seconds=seconds)
    pixels, device = prepare_images(net, images, move=False), net_device(net)
    known = None if labels is None else prepare_labels(labels, pixels, net.classes)
    parts: list[tuple[Tensor, ...]] = []
    for start in range(0, max(len(pixels), 1), BATCH):
        own = slice(start, start + BATCH)
        classes = None if known is None else known[own].to(device)
        found = _radii(verifier, pixels[own].to(device), classes, step)
        parts.append(tuple(column.to(pixels.device) for column in found))
        advance(len(found[0]))
    radius, broken_at, witness, undecided = (torch.cat(columns) for columns in zip(*parts, strict=True))
    return ExactRadii(radius, broken_at, witness.view(tuple(images.shape)), undecided)


def parse_width(width: Epsilon, name: str = "width") -> float:
    """Return the width of exact radii as a number; raise an error that calls it `name` if it is out of range."""
    step = float(parse_rational(width, name))
    if not 2**-20 <= step <= 1:
        raise ArgumentError(f"{name} is {width}; expected a number from 2^-20 to 1")
    return step


def _radii(verifier: Verifier, images: Tensor, labels: Tensor | None, width: float) -> tuple[Tensor, ...]:
    """Return the radii, the epsilons of the witnesses, the witnesses, and which images are undecided."""
    proof = certify_by_margin(verifier.net, images, labels)
    classes, right = proof.labels, label_on_top(proof.logits, proof.labels)
    radius = torch.where(right, proof.radii.clamp(0.0, 1.0), -math.inf)
    broken_at, witness = torch.where(right, math.inf, torch.zeros_like(radius)), images.clone()
    undecided, step = torch.zeros_like(classes, dtype=torch.bool), torch.full_like(radius, width)
    while True:
        # Without a witness the next epsilon is a step further; with one it is in the middle.
        open_ = (broken_at - radius > width) & (radius < 1) & right & ~undecided
        chosen = open_.nonzero().flatten()
        if not len(chosen):
            return radius, broken_at, witness, undecided
        further = (radius + step).clamp(max=1.0)
        eps = torch.where(broken_at.isinf(), further, (radius + broken_at) / 2)[chosen]
        robust, broken, moved, *_ = verifier.decide(images[chosen], classes[chosen], eps, None, lambda count: None)
        radius[chosen[robust]] = eps[robust]
        step[chosen[robust]] *= 2
        # Differences of float32 numbers round to the nearest float64 number: one more is above.
        change = (moved.double() - images[chosen].double()).abs().flatten(1).amax(1)
        reach = torch.minimum(torch.nextafter(change, torch.full_like(change, math.inf)), eps)
        broken_at[chosen[broken]], witness[chosen[broken]] = reach[broken], moved[broken]
        undecided[chosen] = ~(robust | broken)
