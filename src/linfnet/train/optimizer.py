"""The schedule of a recipe at a given step, and its optimizer and weight decay."""

import math

import torch
from torch import Tensor, nn

from linfnet.nn import Classifier, DistanceModule, SparseDistance
from linfnet.ops import snapped_p
from linfnet.recipes import Recipe
from linfnet.schedules import StepState, cosine_learning_rate, relaxation_p, stepped_learning_rate
from linfnet.systems import has_effect


def step_state(recipe: Recipe, step: int, steps_per_epoch: int) -> StepState:
    """Return the state of a recipe's schedule at a step; steps are counted from 0."""
    schedule, epoch = recipe.schedule, step / steps_per_epoch
    phases = schedule.phases()
    relaxed = phases.relaxation_progress(epoch)
    p, slopes_p = relaxation_p(relaxed, start=schedule.p_start, end=schedule.p_end), schedule.largest_slopes_p(relaxed)
    if schedule.snap_p:
        p, slopes_p = snapped_p(p), snapped_p(slopes_p)
    return StepState(
        epoch=epoch,
        started=phases.start_progress(epoch),
        relaxed=relaxed,
        p=p,
        mixing=recipe.loss.mixing(relaxed) if has_effect(recipe, "loss") else 0.0,
        lr=_learning_rate(recipe, step / (phases.total * steps_per_epoch)),
        slopes_p=slopes_p,
    )


def _learning_rate(recipe: Recipe, progress: float) -> float:
    schedule, peak = recipe.schedule, recipe.optimizer.lr
    if schedule.lr_drops:
        return stepped_learning_rate(progress, peak=peak, drops=schedule.lr_drops, factor=schedule.lr_drop)
    phases = schedule.phases()
    constant = phases.start / phases.total if schedule.hold_lr else 0.0
    return cosine_learning_rate(progress, peak=peak, constant=constant)


def build_optimizer(recipe: Recipe, net: Classifier) -> torch.optim.Adam:
    """Return Adam with two groups: the weights, and the temperature s at a fraction of their learning rate."""
    settings = recipe.optimizer
    scale = [net.scale] if isinstance(net.scale, nn.Parameter) else []  # in other systems s is a constant buffer
    net.scale.requires_grad_(bool(scale) and recipe.loss.learns_scale)
    weights = [parameter for name, parameter in net.named_parameters() if name != "scale"]
    groups = [
        {"params": weights, "lr": settings.lr},
        {"params": scale, "lr": settings.lr * settings.scale_lr_factor},
    ]
    return torch.optim.Adam(groups, betas=(settings.beta1, settings.beta2), eps=settings.eps, fused=True)


@torch.no_grad()
def decay_rows(weight: Tensor, p: float, amount: float) -> None:
    """Decay each row w of a weight [out, ...] in place: w_i <- w_i - amount * (|w_i| / ||w||_p)^(p - 2) * w_i.

    This is the weight decay of the 2021 paper. At p = 2 it is ordinary weight decay. For larger p it concentrates on
    the largest entry of each row. At p = inf only that entry decays (the first of several equal ones), as in the
    authors' code. The rows of a bias [out] have one entry, for which this is ordinary weight decay at every p.
    """
    rows = weight.view(len(weight), -1)
    sizes = rows.abs()
    if math.isinf(p):
        largest = sizes.argmax(1, keepdim=True)
        rows.scatter_add_(1, largest, -amount * rows.gather(1, largest))
        return
    # Divide by the largest entry, so that no power overflows; rows of zeros do not change. |w|^(p - 1) sign(w) is
    # correct at w = 0 for every p.
    largest = sizes.amax(1, keepdim=True).clamp(min=torch.finfo(sizes.dtype).tiny)
    shares = sizes.div_(largest)
    norms = shares.pow(p).sum(1, keepdim=True).pow(1 / p).clamp(min=1)
    rows.addcmul_(shares.div_(norms).pow_(p - 1).mul_(norms * largest), rows.sign(), value=-amount)


@torch.no_grad()
def decay_connections(layer: SparseDistance, amount: float) -> None:
    """Decay the weights of a sparse layer in place, as `decay_rows` does for a row with the same entries."""
    sizes, offsets, p = layer.weight.abs(), layer.offsets.long(), layer.p
    neurons = torch.repeat_interleave(offsets.diff())
    largest = torch.segment_reduce(sizes, "max", offsets=offsets)
    if math.isinf(p):
        attained = (sizes == largest[neurons]).nonzero().squeeze(1)
        first = torch.full_like(largest, len(sizes), dtype=torch.int64)
        first.scatter_reduce_(0, neurons[attained], attained, "amin")
        layer.weight[first] -= amount * layer.weight[first]
        return
    largest.clamp_(min=torch.finfo(sizes.dtype).tiny)
    shares = sizes.div_(largest[neurons])
    norms = torch.segment_reduce(shares.pow(p), "sum", offsets=offsets).pow_(1 / p).clamp_(min=1)
    shares.div_(norms[neurons]).pow_(p - 1).mul_((norms * largest)[neurons])
    layer.weight.addcmul_(shares, layer.weight.sign(), value=-amount)


def decay_weights(net: Classifier, amount: float) -> None:
    """Decay the weights and biases of all layers: distance layers with their p, other layers with p = 2."""
    if amount == 0:
        return
    for module in list(net.modules())[1:]:  # skip the net itself: `decay_others` decays its parameter s
        for parameter in module.parameters(recurse=False):
            if isinstance(module, SparseDistance) and parameter is module.weight:
                decay_connections(module, amount)
            else:
                decay_rows(parameter, module.p if isinstance(module, DistanceModule) else 2.0, amount)


@torch.no_grad()
def decay_others(net: Classifier, amount: float, scale_amount: float) -> None:
    """Decay what is not a distance layer: parameters x of other layers, x <- x - amount * x, and s, if it is trained.

    This is the weight decay of SortNet.
    """
    if scale_amount and net.scale.requires_grad:
        net.scale.mul_(1 - scale_amount)
    if amount:
        for module in list(net.modules())[1:]:  # s is a parameter of the net itself
            if not isinstance(module, DistanceModule):
                for parameter in module.parameters(recurse=False):
                    parameter.mul_(1 - amount)
