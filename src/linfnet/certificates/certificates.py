"""Certificates: proofs that no perturbation of up to eps per pixel changes a prediction. Ties are never certified."""

from fractions import Fraction

import torch
from torch import Tensor

from linfnet.boxes import outer_box
from linfnet.certificates.program import check_plain, check_program
from linfnet.nn import Classifier, LinfNet
from linfnet.nn.margin import margin


def margin_radius(logits: Tensor, labels: Tensor, lipschitz: float) -> Tensor:
    """The radius margin / (2 lipschitz) around each sample inside which its label stays on top: float64 [N].

    Negative where the label is not on top. Real arithmetic: the rounding of the forward pass is not accounted for.

    >>> margin_radius(torch.tensor([[1.0, 0.5]]), torch.tensor([0]), 2.0)
    tensor([0.1250], dtype=torch.float64)
    """
    return margin(logits.double(), labels) / (2 * lipschitz)


def certified_by_margin(logits: Tensor, labels: Tensor, lipschitz: float, epsilon: Fraction) -> Tensor:
    """Which samples [N] the Lipschitz constant proves at epsilon: the paper's margin / 2 > eps, strictly.

    Real arithmetic, as `margin_radius`; `certify_by_margin` proves it of the program.
    """
    return margin_radius(logits, labels, lipschitz) > float(epsilon)


@torch.no_grad()
def certified_by_interval(net: Classifier, images: Tensor, labels: Tensor, epsilon: Fraction | Tensor) -> Tensor:
    """Which samples [N] interval bounds prove at epsilon, perturbed images staying in [0, 1].

    The end points of the box are rounded outwards and every step of the net is monotone in floating point, so the proof
    holds for the float32 program itself (docs/certificates.md). It proves all that the margin proves, rounding apart.
    Nets of other systems prove by bounds of their own, in real arithmetic.

    Args:
        net: evaluated at p = inf, whatever its present p.
        images: [N, C, H, W] in [0, 1].
        labels: [N].
        epsilon: exact, in pixel units; a float64 tensor [N] gives each image its own.
    """
    check_plain(net)
    if not isinstance(net, LinfNet):
        return net.certified(images, labels, epsilon)
    check_program(net, images)
    with net.at_infinity():
        lower, upper = net.bounds(*outer_box(images, epsilon))
    column = labels.unsqueeze(1)
    return lower.gather(1, column).squeeze(1) > upper.scatter(1, column, float("-inf")).max(1).values
