"""A dense gradient for a net whose own is one-pixel sparse: values at p = inf, slopes of the l_p distance.

At p = inf a neuron passes its gradient to a single input, so the sign step of PGD moves a handful of pixels. A net that
is simply set to a finite p has dense gradients, but other values: every distance grows, and the running means of
infinity no longer fit. So each layer keeps its value at infinity and lends only its slope, (|x_i - w_i| / y)^(p - 1),
from finite p: the logits are bit for bit those of the certified net, whatever p.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from linfnet.nn import Classifier
from linfnet.nn.distance import DistanceModule


class _SlopeOf(torch.autograd.Function):
    """The value of the second argument with the gradient of the first."""

    @staticmethod
    def forward(ctx: Any, slope: Tensor, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


def smoothed_logits(net: Classifier, images: Tensor, p: float) -> Tensor:
    """Logits [N, K] of the net at infinity, whose gradient in the images is that of l_p distances.

    Args:
        net: in eval mode; its p is infinity again afterwards. Without distance layers this is `net(images)`.
        images: [N, C, H, W].
        p: exponent of the slopes; small is smooth.
    """
    if math.isinf(p):
        return net(images)

    def lend_slope(layer: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        assert isinstance(layer, DistanceModule)
        layer.p = math.inf
        with torch.no_grad():
            value = layer.forward(inputs[0])
        layer.p = p
        return _SlopeOf.apply(output, value)  # pyright: ignore[reportReturnType]

    layers = [module for module in net.modules() if isinstance(module, DistanceModule)]
    handles = [layer.register_forward_hook(lend_slope) for layer in layers]
    net.p = p
    try:
        return net(images)
    finally:
        net.p = math.inf
        for handle in handles:
            handle.remove()
