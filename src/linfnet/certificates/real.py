"""The margin certificate of the paper in real arithmetic. It ignores rounding, so it is not sound for the program.

`linfnet.certificates.certify_by_margin` is the sound certificate. Training and the constructions of the paper's
theorems use the functions of this module, which need only the logits.
"""

from fractions import Fraction

from torch import Tensor

from linfnet.nn.label_margin import margin


def real_margin_radius(logits: Tensor, labels: Tensor, lipschitz: float) -> Tensor:
    """Return margin / (2 * lipschitz), float64 [N]: no smaller perturbation changes the class if rounding is ignored.

    The radius is negative if another class has a larger logit.

    >>> import torch
    >>> real_margin_radius(torch.tensor([[1.0, 0.5]]), torch.tensor([0]), 2.0)
    tensor([0.1250], dtype=torch.float64)
    """
    return margin(logits.double(), labels) / (2 * lipschitz)


def real_certified(logits: Tensor, labels: Tensor, lipschitz: float, epsilon: Fraction) -> Tensor:
    """Return bool [N]: which samples have a `real_margin_radius` strictly above epsilon."""
    return real_margin_radius(logits, labels, lipschitz) > float(epsilon)
