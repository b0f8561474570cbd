"""The interval certificate: bounds on the logits over the box of all perturbed images, and radii by bisection."""

import torch
from torch import Tensor

from linfnet.boxes import outer_box
from linfnet.certificates.rounding import check_program
from linfnet.data.arrays import Labels
from linfnet.epsilon import Epsilon
from linfnet.inputs import Images, check_count, check_net, prepare_epsilon, prepare_images, prepare_labels
from linfnet.nn import Classifier, ProvenNet
from linfnet.nn.label_margin import label_on_top

# Default number of halvings of [0, 1]: 2^-16 is far below 1/255, the difference between two grey levels.
STEPS = 16


@torch.no_grad()
def certified_by_interval(net: Classifier, images: Images, labels: Labels, epsilon: Epsilon | Tensor) -> Tensor:
    """Return bool [N]: which samples are certified at epsilon by interval bounds. Perturbed images stay in [0, 1].

    For a `LinfNet` or a wrapped net the end points of the box are rounded outwards, and every step of the net is
    monotone in floating point, so the certificate holds for the float32 program (docs/certificates.md). Except for
    rounding, it is at least as strong as the margin certificate. Nets of other systems compute their bounds in
    `Classifier.certified`; those of nets with matrix products include the errors of these (`ProductNet`).

    Args:
        net: evaluated at p = inf in eval mode, regardless of its current p and mode.
        images: [N, C, H, W] in [0, 1].
        labels: [N].
        epsilon: in pixel units; a float64 tensor [N] contains one epsilon per image.
    """
    pixels = prepare_images(check_net(net), images)
    classes, size = prepare_labels(labels, pixels, net.classes), prepare_epsilon(epsilon, pixels)
    if net.arithmetic != "float32" or not isinstance(net, ProvenNet):
        return net.certified(pixels, classes, size)
    lower, upper = check_program(net.frozen(), pixels).bounds(*outer_box(pixels, size))
    return label_on_top(lower, classes, upper)


@torch.no_grad()
def interval_radius(net: Classifier, images: Images, labels: Labels, *, steps: int = STEPS) -> Tensor:
    """Return float64 [N]: the largest multiple of 2^-steps that is certified by interval bounds.

    The radius is found by bisection of [0, 1], at the cost of two forward passes for each of `steps` + 2 trials; every
    returned radius has itself been certified. It is -inf if the logit of the label is not strictly the largest. If the
    net has radii in closed form (`Classifier.certified_radius`), they are returned instead.

    Args:
        net: evaluated at p = inf in eval mode, regardless of its current p and mode.
        images: [N, C, H, W] in [0, 1]; perturbed images stay in [0, 1].
        labels: [N].
        steps: number of halvings of [0, 1].

    >>> from linfnet.nn import LinfNet
    >>> net = LinfNet((1, 1, 1), 2, (), identity_init=False)
    >>> _ = net.layers[0].weight.data.copy_(torch.tensor([[0.0], [1.0]]))
    >>> interval_radius(net, torch.tensor([[[[0.25]]]]), torch.tensor([0]), steps=8) >= 1 / 4 - 1 / 128
    tensor([True])
    """
    check_count("steps", steps)
    pixels = prepare_images(check_net(net), images)
    classes = prepare_labels(labels, pixels, net.classes)
    closed_form = net.certified_radius(pixels, classes)
    if closed_form is not None:
        return closed_form
    certified = torch.full(classes.shape, -torch.inf, dtype=torch.float64, device=pixels.device)
    _try(net, pixels, classes, certified, torch.zeros_like(certified))
    limit = torch.ones_like(certified)
    _try(net, pixels, classes, certified, limit)
    # All values are multiples of 2^-steps, so midpoints are exact in float64: the reported radius is the tested one.
    for _ in range(steps):
        middle = (certified.clamp(min=0) + limit) / 2
        success = _try(net, pixels, classes, certified, middle)
        limit = torch.where(success, limit, torch.minimum(limit, middle))
    return certified


def _try(net: Classifier, images: Tensor, labels: Tensor, certified: Tensor, trial: Tensor) -> Tensor:
    """Set `certified` to `trial` where that is certified; return bool [N]: which samples are certified at `trial`.

    Misclassified samples, and samples that are already certified at `trial`, are not run again.
    """
    run = ((certified >= 0) & (certified < trial)) | (trial == 0)
    success = torch.zeros_like(run)
    success[run] = certified_by_interval(net, images[run], labels[run], trial[run])
    certified[success] = trial[success]
    return success | (certified >= trial)
