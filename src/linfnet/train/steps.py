"""The parts of a training step besides the loss: schedule, optimizer, weight decay, and the metrics of an epoch."""

import math

import torch
from torch import Tensor, nn

from linfnet.errors import LinfnetError
from linfnet.losses import margin_shares
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
    scale = [net.scale] if isinstance(net.scale, nn.Parameter) else []  # a constant buffer in other systems
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
    # Relative to the largest entry, so that no power overflows; rows of zeros do not change. |w|^(p - 1) sign(w) is
    # correct at w = 0 for every p.
    largest = sizes.amax(1, keepdim=True).clamp(min=torch.finfo(sizes.dtype).tiny)
    shares = sizes.div_(largest)
    norms = shares.pow(p).sum(1, keepdim=True).pow(1 / p).clamp(min=1)
    rows.addcmul_(shares.div_(norms).pow_(p - 1).mul_(norms * largest), rows.sign(), value=-amount)


def decay_weights(net: Classifier, amount: float) -> None:
    """Decay the weights and biases of all layers: distance layers at their p, others as usual (p = 2).

    The temperature s does not decay.
    """
    if amount == 0:
        return
    for module in net.modules():
        if module is not net:
            for parameter in module.parameters(recurse=False):
                decay_rows(parameter, module.p if isinstance(module, DistanceModule) else 2.0, amount)


# Columns of the record: loss; numbers of samples that are correct, with a margin above theta, in [0, theta], below 0.
RECORD_COLUMNS = 5


def record_step(record: Tensor, row: int, loss: Tensor, logits: Tensor, labels: Tensor, threshold: float) -> None:
    """Write the metrics of one step to a row of the epoch's record [steps, 5], without synchronising the device."""
    shares = margin_shares(logits, labels, threshold)
    correct = (logits.argmax(1) == labels).sum()
    record[row] = torch.cat([torch.stack([loss, correct.to(loss.dtype)]), shares.to(loss.dtype)])


def check_finite(record: Tensor, first_step: int, recipe: Recipe, steps_per_epoch: int) -> None:
    """Raise an error that names the step if a loss in the record is NaN or infinite."""
    bad = (~record[:, 0].isfinite()).nonzero()
    if len(bad) == 0:
        return
    step = first_step + int(bad[0])
    state = step_state(recipe, step, steps_per_epoch)
    raise LinfnetError(
        f"the loss is {record[int(bad[0]), 0].item()} at step {step} (epoch {step // steps_per_epoch + 1}, "
        f"p = {state.p:g}, lr = {state.lr:g}): check optimizer.lr, optimizer.eps and the images; "
        "nothing was saved since the last checkpoint"
    )


def summarise(record: Tensor, sizes: Tensor) -> dict[str, float]:
    """Means over the samples of an epoch (or of its steps so far): loss, accuracy and the three margin shares."""
    record = record.double().cpu()
    samples = sizes.sum().item()
    loss = (record[:, 0] * sizes).sum().item() / samples if samples else math.nan
    counts = (record[:, 1:].sum(0) / samples).tolist()
    return dict(zip(("loss", "accuracy", "above", "between", "below"), [loss, *counts], strict=True))
