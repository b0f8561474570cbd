"""The schedule of a recipe at a step, its optimizer and its weight decay."""

import math

import torch
from torch import Tensor, nn

from linfnet.nn import Classifier, DistanceModule
from linfnet.ops import snapped_p
from linfnet.recipes import Recipe
from linfnet.schedules import StepState, cosine_learning_rate, relaxation_p
from linfnet.systems import has_effect


def step_state(recipe: Recipe, step: int, steps_per_epoch: int) -> StepState:
    """The schedule of a recipe at a step, counted from 0."""
    schedule, epoch = recipe.schedule, step / steps_per_epoch
    phases = schedule.phases()
    relaxed = phases.relaxation_progress(epoch)
    p = relaxation_p(relaxed, start=schedule.p_start, end=schedule.p_end)
    constant = phases.start / phases.total if schedule.hold_lr else 0.0
    return StepState(
        epoch=epoch,
        started=phases.start_progress(epoch),
        relaxed=relaxed,
        p=snapped_p(p) if schedule.snap_p else p,
        mixing=recipe.loss.mixing(relaxed) if has_effect(recipe, "loss") else 0.0,
        lr=cosine_learning_rate(step / (phases.total * steps_per_epoch), peak=recipe.optimizer.lr, constant=constant),
    )


def build_optimizer(recipe: Recipe, net: Classifier) -> torch.optim.Adam:
    """Adam with two groups: the weights, and the temperature s at a fraction of their learning rate."""
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
    """w_i <- w_i - amount * (|w_i| / ||w||_p)^(p - 2) * w_i for each row w of a weight [out, ...], in place.

    This is the weight decay of the 2021 paper. At p = 2 it is the usual one. For larger p it concentrates on the
    largest entry of each row; at p = inf only that entry decays (the first of several equal ones), as in the authors'
    code. A bias [out] has rows of one entry, which decay as usual.
    """
    rows = weight.view(len(weight), -1)
    sizes = rows.abs()
    if math.isinf(p):
        largest = sizes.argmax(1, keepdim=True)
        rows.scatter_add_(1, largest, -amount * rows.gather(1, largest))
        return
    # Relative to the largest entry, so that no power overflows; rows of zeros do not change. |w|^(p - 1) sign(w) is
    # correct at w = 0 for every p.
    largest = sizes.amax(1, keepdim=True).clamp(min=torch.finfo(sizes.dtype).tiny)
    shares = sizes.div_(largest)
    norms = shares.pow(p).sum(1, keepdim=True).pow(1 / p).clamp(min=1)
    rows.addcmul_(shares.div_(norms).pow_(p - 1).mul_(norms * largest), rows.sign(), value=-amount)


def decay_weights(net: Classifier, amount: float) -> None:
    """Decay the weights and biases of all layers: distance layers at their p, others at p = 2."""
    if amount == 0:
        return
    for module in list(net.modules())[1:]:  # without the net itself, whose own parameter s does not decay
        for parameter in module.parameters(recurse=False):
            decay_rows(parameter, module.p if isinstance(module, DistanceModule) else 2.0, amount)
