"""Projected gradient descent, as the paper runs it."""

from fractions import Fraction

import torch
from torch import Tensor

from linfnet.boxes import check_images, inner_box
from linfnet.losses import scaled_cross_entropy
from linfnet.nn import Classifier


def pgd(
    net: Classifier,
    images: Tensor,
    labels: Tensor,
    epsilon: Fraction,
    *,
    steps: int = 100,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Images within epsilon of the given ones, moved so as to raise the cross-entropy of the scaled logits.

    The start is noise N(0, (eps/4)^2) clamped to eps/2; each step moves every pixel by eps/4 along the sign of the
    gradient; the last iterate is returned. Every result is in [0, 1] and within epsilon *in floating point*.

    Args:
        net: attacked as it stands; wrap the call in `net.at_infinity()` to attack the certified net.
        images: [N, C, H, W] in [0, 1].
        labels: [N], the true classes.
        epsilon: exact, in pixel units.
        steps: number of steps.
        generator: source of the noise, on the device of the images.
    """
    lower, upper = inner_box(check_images(images), epsilon)
    size = float(epsilon)
    noise = torch.randn(images.shape, generator=generator, device=images.device, dtype=images.dtype) * (size / 4)
    moved = torch.clamp(images + noise.clamp(-size / 2, size / 2), lower, upper)
    for _ in range(steps):
        moved.requires_grad_(True)
        loss = scaled_cross_entropy(net(moved), labels, net.scale.detach())
        (slope,) = torch.autograd.grad(loss, moved)
        moved = torch.clamp(moved.detach() + size / 4 * slope.sign(), lower, upper)
    return moved.detach()
