"""The construction of Theorem 1: a two-layer net that is a nearest-neighbour classifier."""

import torch
from torch import Tensor

from linfnet.errors import ArgumentError
from linfnet.nn import LinfNet
from linfnet.perturbation import check_images


def nearest_neighbour_net(images: Tensor, labels: Tensor, classes: int) -> LinfNet:
    """The two-layer net whose logit j is minus the distance to the nearest image of class j.

    It certifies every image of an r-separated set at eps = r. Hidden neuron i holds image i; output j weighs the images
    of its class with C = 4 and the others with 0, which for pixels in [0, 1] leaves C minus the smallest distance.

    Args:
        images: [n, C, H, W] in [0, 1].
        labels: [n], each class at least once.
        classes: number of classes.

    >>> corners = torch.tensor([0.0, 1.0]).view(2, 1, 1, 1)
    >>> net = nearest_neighbour_net(corners, torch.tensor([0, 1]), 2)
    >>> net(torch.tensor([[[[0.25]]]])).detach()
    tensor([[-0.2500, -0.7500]])
    """
    check_images(images)
    missing = sorted(set(range(classes)) - set(labels.tolist()))
    if missing:
        raise ArgumentError(f"labels lack the classes {missing}; wanted each of the {classes} at least once")
    far = 4.0
    shape = tuple(images.shape[1:])
    net = LinfNet(shape, classes, (len(images),), mean_shift=False, negate_logits=False, identity_init=False)
    own_class = labels.unsqueeze(0) == torch.arange(classes, device=labels.device).unsqueeze(1)
    weights = {
        "layers.0.weight": images.flatten(1),
        "layers.1.weight": far * own_class,
        "layers.1.bias": torch.full((classes,), -far),
        "scale": torch.ones(()),
    }
    net.load_state_dict(weights)
    return net.to(images.device).eval()
