"""What each training step runs with, and what an epoch of steps leaves behind."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from linfnet.errors import LinfnetError
from linfnet.losses import margin_shares
from linfnet.nn import Classifier
from linfnet.ops import snapped_p
from linfnet.recipes import Recipe
from linfnet.schedules import cosine_learning_rate, relaxation_p
from linfnet.systems import looks_at


@dataclass(frozen=True)
class StepValues:
    """p, the mixing coefficient lambda and the learning rate of one step."""

    p: float
    mixing: float
    lr: float


def step_values(recipe: Recipe, step: int, steps_per_epoch: int) -> StepValues:
    """The values of a step (counted from 0), a pure function of the recipe."""
    schedule = recipe.schedule
    phases = schedule.phases()
    relaxed = phases.relaxation_progress(step / steps_per_epoch)
    p = relaxation_p(relaxed, start=schedule.p_start, end=schedule.p_end)
    held = phases.start / phases.total if schedule.hold_lr else 0.0
    return StepValues(
        p=snapped_p(p) if schedule.snap_p else p,
        mixing=recipe.loss.mixing(relaxed) if looks_at(recipe, "loss") else 0.0,
        lr=cosine_learning_rate(step / (phases.total * steps_per_epoch), peak=recipe.optimizer.lr, held=held),
    )


def build_optimizer(recipe: Recipe, net: Classifier) -> torch.optim.Adam:
    """Adam with two groups: the weights, and the temperature s at a fraction of their rate."""
    settings = recipe.optimizer
    scale = [net.scale] if isinstance(net.scale, nn.Parameter) else []  # other systems may have a fixed one
    net.scale.requires_grad_(bool(scale) and recipe.loss.learns_scale)
    weights = [parameter for name, parameter in net.named_parameters() if name != "scale"]
    groups = [
        {"params": weights, "lr": settings.lr},
        {"params": scale, "lr": settings.lr * settings.scale_lr_factor},
    ]
    return torch.optim.Adam(groups, betas=(settings.beta1, settings.beta2), eps=settings.eps, fused=True)


# Columns of the record: loss, correct samples, and samples with a margin above theta, in [0, theta], below 0.
RECORD_COLUMNS = 5


def record_step(record: Tensor, row: int, loss: Tensor, logits: Tensor, labels: Tensor, threshold: float) -> None:
    """Note one step in the epoch's record [steps, 5] on the device, without waiting for it."""
    shares = margin_shares(logits, labels, threshold)
    correct = (logits.argmax(1) == labels).sum()
    record[row] = torch.cat([torch.stack([loss, correct.to(loss.dtype)]), shares.to(loss.dtype)])


def check_finite(record: Tensor, first_step: int, recipe: Recipe, steps_per_epoch: int) -> None:
    """Stop the run if a loss in the record is NaN or infinite, with the step and what to look at."""
    bad = (~record[:, 0].isfinite()).nonzero()
    if len(bad) == 0:
        return
    step = first_step + int(bad[0])
    values = step_values(recipe, step, steps_per_epoch)
    raise LinfnetError(
        f"the loss is {record[int(bad[0]), 0].item()} at step {step} (epoch {step // steps_per_epoch + 1}, "
        f"p = {values.p:g}, lr = {values.lr:g}): look at optimizer.lr, optimizer.eps and the images; "
        "nothing since the last checkpoint was kept"
    )


def summarise(record: Tensor, sizes: Tensor) -> dict[str, float]:
    """Means over the samples of an epoch (or of its steps so far): loss, accuracy and the three margin shares."""
    record = record.double().cpu()
    samples = sizes.sum().item()
    loss = (record[:, 0] * sizes).sum().item() / samples if samples else math.nan
    counts = (record[:, 1:].sum(0) / samples).tolist()
    return dict(zip(("loss", "accuracy", "above", "between", "below"), [loss, *counts], strict=True))
