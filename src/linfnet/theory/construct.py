"""Build the nets of Theorem 1 and its extension to L layers: nearest-neighbour classifiers that certify separated sets.

For pixels in [0, 1], distances are at most 1, and the constants below suffice (the paper uses larger constants, which
cause larger rounding errors):

two layers    hidden neuron i computes the distance d_i to image i; output j is the maximum of |d_i - 2| over class j
              and d_i over all other classes, minus 2. Since 2 - d_i >= 1 >= d_i', class j determines the maximum, and
              the output is minus the distance to class j.
more layers   a hidden layer contains two copies of the pixels, a prefix o_j = 1 - (smallest distance to class j so far)
              for each class, and the distances to one part of the images. All values are in [-1, 1], so with C = 2:
    pixel     |x_k + 2| - 2 = x_k, since x_k + 2 >= 2 outweighs every |z| <= 1 of the layer below;
    distance  max_k max(|x_k - (a_k - 2)|, |x_k - (a_k + 2)|) - 2 = max_k max(x_k - a_k, a_k - x_k) = |x - a|_inf, since
              one of the terms is at least 2;
    prefix    max(|o_j + 2|, |d_i - 3| over the class) - 2 = max(o_j, 1 - d_i over the class): o_j + 2 >= 1 >= |z|;
    output    like a prefix, but with - 3 instead of - 2, which gives minus the smallest distance.
    An empty prefix (-infinity in the proof) is |x - 0|_inf - 1 here. This is in [-1, 0] and never exceeds a prefix with
    images, which is in [0, 1]. Every class has an image, so no empty prefix reaches the output.
"""

import itertools
import math
from fractions import Fraction

import torch
from torch import Tensor

from linfnet.boxes import check_images
from linfnet.errors import ArgumentError, LinfnetError
from linfnet.nn import LinfNet
from linfnet.theory.separation import Separation

FAR = 2.0  # the constant C in the proofs


def nearest_neighbour_net(images: Tensor, labels: Tensor, classes: int, *, layers: int = 2) -> LinfNet:
    """Build the net whose logit j is minus the distance to the nearest image of class j.

    It certifies every image of an r-separated set at every eps < r. With two layers, the hidden layer has one neuron
    for each image; with L layers, no hidden layer has more than ceil(n / (L - 1)) + K + 2d neurons.

    Args:
        images: [n, C, H, W] in [0, 1].
        labels: [n]; each class must occur at least once.
        classes: number of classes K.
        layers: number of layers L, from 2 to n + 1.

    >>> corners = torch.tensor([0.0, 1.0]).view(2, 1, 1, 1)
    >>> net = nearest_neighbour_net(corners, torch.tensor([0, 1]), 2)
    >>> net(torch.tensor([[[[0.25]]]])).detach()
    tensor([[-0.2500, -0.7500]])
    >>> nearest_neighbour_net(corners, torch.tensor([0, 1]), 2, layers=3)(torch.tensor([[[[0.25]]]])).detach()
    tensor([[-0.2500, -0.7500]])
    """
    _check(images, labels, classes, layers)
    points = images.flatten(1).to(torch.float32)
    own = labels.unsqueeze(0) == torch.arange(classes, device=labels.device).unsqueeze(1)
    if layers == 2:
        far = points.new_full((classes,), -FAR)
        parameters = [(points, points.new_zeros(len(points))), (FAR * own.to(points.dtype), far)]
    else:
        parameters = _more_layers(points, own, layers)
    hidden = [len(weight) for weight, _ in parameters[:-1]]
    shape, biased = tuple(images.shape[1:]), layers > 2
    net = LinfNet(
        shape, classes, hidden, mean_shift=False, hidden_bias=biased, negate_logits=False, identity_init=False
    )
    state = {"scale": torch.ones(())}
    for index, (weight, bias) in enumerate(parameters):
        state |= {f"layers.{index}.weight": weight, f"layers.{index}.bias": bias}
    net.load_state_dict({name: state[name] for name in net.state_dict()})
    return net.to(images.device).eval()


def widest_layer(images: int, classes: int, features: int, layers: int) -> int:
    """Return the theorems' bound on the width of a hidden layer: n for two layers, else ceil(n / (L - 1)) + K + 2d.

    >>> widest_layer(1000, 10, 784, 2), widest_layer(1000, 10, 784, 5)
    (1000, 1828)
    """
    return images if layers == 2 else math.ceil(images / (layers - 1)) + classes + 2 * features


def rounding(layers: int) -> Fraction:
    """Return an upper bound on how much float32 rounding lowers a certified radius of the constructed net.

    Rounding changes numbers from 1 to 2 by up to 2^-24, and numbers from 2 to 4 by up to 2^-23; adding 2 or 3 to the
    results is exact. In units of 2^-25, the error for two layers is 1 for a distance and 2 for 2 - d_i. For any larger
    number of layers, it is 4 each for a copied pixel (only once, since the copy is a multiple of 2^-22), for a weight
    a_k + 2, for their difference, and for 3 - d_i. In both cases, add 2 for the ends of the box around an image, and 1
    because pixels k/255 are themselves rounded. The radius is half the difference of two logits, so its error is at
    most the error of one logit.
    """
    return Fraction(6, 2**25) if layers == 2 else Fraction(19, 2**25)


def check_separation(separation: Separation, epsilon: Fraction, layers: int) -> None:
    """Raise an error if the constructed net cannot certify its own set at epsilon."""
    closest = separation.pairs[0]
    if closest.distance == 0:
        raise LinfnetError(
            f"images {closest.first} and {closest.second} are equal and of different classes: "
            "the set is not separated, and no net classifies both correctly"
        )
    proven = separation.radius - rounding(layers)
    if epsilon > proven:
        raise LinfnetError(
            f"eps is {float(epsilon):.9g}, but the distance {float(closest.distance):.9g} between images "
            f"{closest.first} and {closest.second} gives r = {float(separation.radius):.9g}, and float32 rounding with "
            f"{layers} layers lowers it by up to {float(rounding(layers)):.3g}; expected eps <= {float(proven):.9g}"
        )


def _check(images: Tensor, labels: Tensor, classes: int, layers: int) -> None:
    if images.dim() != 4 or labels.shape != images.shape[:1]:
        raise ArgumentError(
            f"images have shape {tuple(images.shape)}, labels {tuple(labels.shape)}; expected [n, C, H, W] and [n]"
        )
    check_images(images)
    found = set(labels.tolist())
    if found != set(range(classes)):
        raise ArgumentError(f"labels have the classes {sorted(found)}; expected every class from 0 to {classes - 1}")
    if not 2 <= layers <= len(images) + 1:
        raise ArgumentError(f"layers is {layers}; expected 2 to {len(images) + 1} (the number of images plus 1)")


def _more_layers(points: Tensor, own: Tensor, layers: int) -> list[tuple[Tensor, Tensor]]:
    """Return (weight, bias) of each layer; a hidden layer has pixels, pixels again, prefixes, and then distances."""
    n, features, classes = len(points), points.shape[1], len(own)
    ends = [-(-n * part // (layers - 1)) for part in range(layers)]
    shares = [slice(a, b) for a, b in itertools.pairwise(ends)]
    pixel = -FAR * torch.eye(features, device=points.device)
    prefix = -FAR * torch.eye(classes, device=points.device)
    first = points[shares[0]]
    weight = torch.cat([pixel, pixel, points.new_zeros(classes, features), first])
    parameters = [(weight, _column(points, (-FAR, 2 * features), (-1.0, classes), (0.0, len(first))))]
    for layer in range(1, layers):
        before = shares[layer - 1]
        added = (FAR + 1) * own[:, before].to(points.dtype)
        merged = torch.cat([points.new_zeros(classes, 2 * features), prefix, added], 1)
        if layer == layers - 1:
            parameters.append((merged[:, -parameters[-1][0].shape[0] :], _column(points, (-FAR - 1, classes))))
            break
        images = points[shares[layer]]
        blank = points.new_zeros(len(images), classes + before.stop - before.start)
        copies = torch.cat([pixel, points.new_zeros(features, merged.shape[1] - features)], 1)
        rows = [merged, torch.cat([images - FAR, images + FAR, blank], 1)]
        biases = [(-FAR, classes + len(images))]
        # The layer before the last needs no pixels: no later layer uses them.
        if layer < layers - 2:
            rows = [copies, copies, *rows]
            biases = [(-FAR, 2 * features), *biases]
        parameters.append((torch.cat(rows), _column(points, *biases)))
    return parameters


def _column(like: Tensor, *parts: tuple[float, int]) -> Tensor:
    return torch.cat([like.new_full((size,), value) for value, size in parts])
