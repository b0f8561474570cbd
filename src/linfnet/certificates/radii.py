"""How far the interval certificate reaches, image by image."""

import torch
from torch import Tensor

from linfnet.certificates.certificates import certified_by_interval
from linfnet.nn import Classifier

# 2^-16 of a pixel is far below the 1/255 between two grey levels.
STEPS = 16


@torch.no_grad()
def interval_radius(net: Classifier, images: Tensor, labels: Tensor, *, steps: int = STEPS) -> Tensor:
    """float64 [N]: the largest multiple of 2^-steps that the interval certificate proves, by bisection on [0, 1].

    Every number returned was certified itself, at cost of two forward passes for each of `steps` + 2 trials. -inf where
    the label is not on top.

    Args:
        net: evaluated at p = inf.
        images: [N, C, H, W] in [0, 1]; perturbed images stay in [0, 1].
        labels: [N].
        steps: halvings of [0, 1].

    >>> from linfnet.nn import LinfNet
    >>> net = LinfNet((1, 1, 1), 2, (), identity_init=False)
    >>> _ = net.layers[0].weight.data.copy_(torch.tensor([[0.0], [1.0]]))
    >>> interval_radius(net, torch.tensor([[[[0.25]]]]), torch.tensor([0]), steps=8) >= 1 / 4 - 1 / 128
    tensor([True])
    """
    closed_form = net.certified_radius(images, labels)
    if closed_form is not None:
        return closed_form
    proven = torch.full(labels.shape, -torch.inf, dtype=torch.float64, device=labels.device)
    _try(net, images, labels, proven, torch.zeros_like(proven))
    open_end = torch.ones_like(proven)
    _try(net, images, labels, proven, open_end)
    # Dyadic ends: their middle is exact in float64, so what is tried is what is reported.
    for _ in range(steps):
        middle = (proven.clamp(min=0) + open_end) / 2
        held = _try(net, images, labels, proven, middle)
        open_end = torch.where(held, open_end, torch.minimum(open_end, middle))
    return proven


def _try(net: Classifier, images: Tensor, labels: Tensor, proven: Tensor, trial: Tensor) -> Tensor:
    """Raise `proven` to `trial` where it is certified; samples that are wrong or settled are not run again."""
    run = ((proven >= 0) & (proven < trial)) | (trial == 0)
    held = torch.zeros_like(run)
    held[run] = certified_by_interval(net, images[run], labels[run], trial[run])
    proven[held] = trial[held]
    return held | (proven >= trial)
