"""The running means of the mean shifts of a net: their estimation at p = inf, and their sharing between processes."""

import contextlib
import math
from collections.abc import Callable, Generator, Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd  # pyright: ignore[reportPrivateUsage]

from linfnet.distributed.group import Group
from linfnet.nn.classifier import Classifier
from linfnet.nn.distance import DistanceModule
from linfnet.nn.normalization import MeanShift


def _shifts(net: nn.Module) -> list[MeanShift]:
    return [module for module in net.modules() if isinstance(module, MeanShift)]


def share_means(net: nn.Module, group: Group) -> None:
    """Let the mean shifts of a net average over the samples of all processes in training."""
    for shift in _shifts(net):
        shift.group = group


@torch.no_grad()
def reestimate_means(net: nn.Module, batches: Iterable[Tensor]) -> None:
    """Replace the running means, which were gathered at a small p, by the averages over training images at p = inf.

    Args:
        net: a `Classifier` or another module with distance layers; its p and its mode are the same afterwards.
        batches: inputs of the net, for a `Classifier` images in [0, 1]; every batch has the same weight.
    """
    shifts, layers = _shifts(net), [module for module in net.modules() if isinstance(module, DistanceModule)]
    momenta, exponents = [shift.momentum for shift in shifts], [layer.p for layer in layers]
    modes = [(module, module.training) for module in net.modules()]
    for layer in layers:
        layer.p = math.inf
    net.train()
    for module in net.modules():
        # The means are those of the certified net, which has no dropout.
        if isinstance(module, _DropoutNd) or (isinstance(module, Classifier) and module.drops_inputs):
            module.training = False
    try:
        for shift in shifts:
            shift.reset()
            shift.momentum = None
        for batch in batches:
            net(batch)
    finally:
        for shift, momentum in zip(shifts, momenta, strict=True):
            shift.momentum = momentum
        for layer, p in zip(layers, exponents, strict=True):
            layer.p = p
        for module, training in modes:
            module.training = training


@contextlib.contextmanager
def means_at_infinity(net: Classifier, batches: Callable[[], Iterable[Tensor]]) -> Generator[Classifier]:
    """Context in which the net is at p = inf in eval mode, with means estimated there; its end restores the net."""
    shifts = _shifts(net)
    saved = [(shift.running_mean.clone(), shift.batches) for shift in shifts]
    try:
        if shifts:
            reestimate_means(net, batches())
        with net.at_infinity():
            yield net
    finally:
        for shift, (mean, count) in zip(shifts, saved, strict=True):
            shift.running_mean.copy_(mean)
            shift.batches = count
