"""Running means at p = inf: those gathered at a small p are wrong there, and the net would look untrained."""

import contextlib
import math
from collections.abc import Callable, Generator, Iterable

import torch
from torch import Tensor, nn

from linfnet.distributed.group import Ranks
from linfnet.nn.classifier import Classifier
from linfnet.nn.mean_shift import MeanShift


def _shifts(net: nn.Module) -> list[MeanShift]:
    return [module for module in net.modules() if isinstance(module, MeanShift)]


def share_means(net: nn.Module, ranks: Ranks) -> None:
    """In training, let mean shifts take the mean over the parts of a batch that several processes hold."""
    for shift in _shifts(net):
        shift.ranks = ranks


@torch.no_grad()
def reestimate_means(net: Classifier, batches: Iterable[Tensor]) -> None:
    """Replace the running means by the even average over batches of training images [B, C, H, W] at p = inf."""
    p, training, shifts = net.p, net.training, _shifts(net)
    momenta = [shift.momentum for shift in shifts]
    net.p = math.inf
    net.train()
    try:
        for shift in shifts:
            shift.reset()
            shift.momentum = None
        for batch in batches:
            net(batch)
    finally:
        for shift, momentum in zip(shifts, momenta, strict=True):
            shift.momentum = momentum
        net.p = p
        net.train(training)


@contextlib.contextmanager
def means_at_infinity(net: Classifier, batches: Callable[[], Iterable[Tensor]]) -> Generator[Classifier]:
    """Inside the block the net stands at p = inf, in eval mode, with means re-estimated there; afterwards as before."""
    shifts = _shifts(net)
    kept = [(shift.running_mean.clone(), shift.batches) for shift in shifts]
    try:
        if shifts:
            reestimate_means(net, batches())
        with net.at_infinity():
            yield net
    finally:
        for shift, (mean, count) in zip(shifts, kept, strict=True):
            shift.running_mean.copy_(mean)
            shift.batches = count
