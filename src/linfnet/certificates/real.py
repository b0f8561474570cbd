"""The margin certificate of the paper in real arithmetic. It ignores rounding, so it is not sound for the program.

`linfnet.certificates.certify_by_margin` is the sound certificate. Training and the constructions of the paper's
theorems use the functions of this module, which need only the logits.
"""

from torch import Tensor

from linfnet.data.arrays import Labels
from linfnet.epsilon import Epsilon, parse_epsilon
from linfnet.errors import at_least
from linfnet.inputs import prepare_labels, prepare_logits
from linfnet.nn.label_margin import margin


def real_margin_radius(logits: Tensor, labels: Labels, lipschitz: float) -> Tensor:
    """Return margin / (2 * lipschitz), float64 [N]: no smaller perturbation changes the class if rounding is ignored.

    The radius is negative if another class has a larger logit.

    >>> import torch
    >>> real_margin_radius(torch.tensor([[1.0, 0.5]]), torch.tensor([0]), 2.0)
    tensor([0.1250], dtype=torch.float64)
    """
    values = prepare_logits(logits)
    return radius_of_margin(margin(values.double(), prepare_labels(labels, values, values.shape[1])), lipschitz)


def radius_of_margin(gap: Tensor, lipschitz: float) -> Tensor:
    """Return the radii of `real_margin_radius` for margins, float64 [N]."""
    at_least("lipschitz", lipschitz, 0, strictly=True)
    # torch divides by a Python number differently on a GPU: by a tensor, all devices give the same bits.
    return gap / gap.new_tensor(2 * lipschitz)


def real_certified(logits: Tensor, labels: Labels, lipschitz: float, epsilon: Epsilon) -> Tensor:
    """Return bool [N]: which samples have a `real_margin_radius` strictly above epsilon."""
    return real_margin_radius(logits, labels, lipschitz) > float(parse_epsilon(epsilon))
