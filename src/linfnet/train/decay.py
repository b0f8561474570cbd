"""The weight decay of the 2021 training, which follows p: rows shrink in the l_p norm their neurons measure in."""

import math

import torch
from torch import Tensor

from linfnet.nn import Classifier, DistanceModule


@torch.no_grad()
def decay_rows(weight: Tensor, p: float, amount: float) -> None:
    """w_i <- w_i - amount * (|w_i| / ||w||_p)^(p - 2) * w_i for each row w of a weight [out, ...], in place.

    At p = 2 this is plain decay. As p grows it gathers on the largest entry, and at p = inf that entry alone decays
    (the first one, where several are as large), as in the authors' code. A bias [out] has rows of one entry: plain.

    >>> weight = torch.tensor([[4.0, -2.0], [0.0, 0.0]])
    >>> decay_rows(weight, math.inf, 0.25)
    >>> weight
    tensor([[ 3., -2.],
            [ 0.,  0.]])
    """
    rows = weight.view(len(weight), -1)
    sizes = rows.abs()
    if math.isinf(p):
        largest = sizes.argmax(1, keepdim=True)
        rows.scatter_add_(1, largest, -amount * rows.gather(1, largest))
        return
    # Relative to the largest, so that no power overflows; a row of zeros stays one. Written with |w|^(p - 1) sign(w),
    # which is right at w = 0 for every p.
    largest = sizes.amax(1, keepdim=True).clamp(min=torch.finfo(sizes.dtype).tiny)
    shares = sizes.div_(largest)
    norms = shares.pow(p).sum(1, keepdim=True).pow(1 / p).clamp(min=1)
    rows.addcmul_(shares.div_(norms).pow_(p - 1).mul_(norms * largest), rows.sign(), value=-amount)


def decay_weights(net: Classifier, amount: float) -> None:
    """Decay the weights and biases of all layers, those that measure distances each at its own p.

    The temperature s does not decay.
    """
    if amount == 0:
        return
    for module in net.modules():
        if isinstance(module, DistanceModule):
            for parameter in module.parameters(recurse=False):
                decay_rows(parameter, module.p, amount)
        elif module is not net:
            for parameter in module.parameters(recurse=False):
                decay_rows(parameter, 2.0, amount)
