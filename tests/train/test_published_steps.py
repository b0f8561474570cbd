"""Complete runs of the two systems of 2021 agree with a plain float64 implementation of the published steps."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from linfnet.data import load
from linfnet.recipes import load_recipe
from linfnet.train import Trainer

FEW = ["data.name=digits", "data.limit=96", "optimizer.batch=32", "data.pad=1", "schedule.epochs=[2, 4, 1]"]
LR, DECAY, BETA1, BETA2, EPS = 0.02, 5e-3, 0.9, 0.99, 1e-10


def distances(x: Tensor, weight: Tensor, p: float) -> Tensor:
    gaps = (x.unsqueeze(1) - weight).abs()
    if math.isinf(p):
        return gaps.amax(2)
    largest = gaps.amax(2, keepdim=True).detach()
    return (gaps / largest).pow(p).sum(2).pow(1 / p) * largest.squeeze(2)


def hinge_of_2021(weights: dict[str, Tensor], x: Tensor, labels: Tensor, p: float, ramp: float, std: float) -> Tensor:
    for name in ("layers.0.weight", "layers.1.weight"):
        x = distances(x, weights[name], p)
        x = x - x.mean(0)
    logits = -(distances(x, weights["layers.2.weight"], p) + weights["layers.2.bias"])
    theta = 80 / 255 / std
    lacks = (theta + logits - logits.gather(1, labels[:, None])).scatter(1, labels[:, None], 0.0).clamp(min=0)
    return (0.75 * lacks.amax(1).mean() + 0.25 * lacks.mean()) / theta


def worst_case_of_the_mlp(
    weights: dict[str, Tensor], x: Tensor, labels: Tensor, p: float, ramp: float, std: float
) -> Tensor:
    for name in ("layers.0.weight", "layers.1.weight"):
        x = distances(x, weights[name], p)
        x = x - x.mean(0)
    first, last = (
        weights[f"{name}.weight"] / math.sqrt(weights[f"{name}.weight"].shape[1]) for name in ("first", "last")
    )
    centre, reach = x @ first.T + weights["first.bias"], ramp * 1.1 * 8 / 255 / std * first.abs().sum(1)
    low, high = (centre - reach).tanh(), (centre + reach).tanh()
    # The rows of the last layer minus the row of the label: how much each class j may gain over the label.
    rows, lead = last - last[labels].unsqueeze(1), weights["last.bias"] - weights["last.bias"][labels].unsqueeze(1)
    gains = torch.where(rows > 0, rows * high.unsqueeze(1), rows * low.unsqueeze(1)).sum(2) + lead
    return F.cross_entropy(gains, labels)


def decayed(weight: Tensor, p: float, amount: float) -> Tensor:
    if math.isinf(p):
        largest = weight.abs().amax(1, keepdim=True)
        return torch.where(weight.abs() == largest, (1 - amount) * weight, weight)
    norms = torch.linalg.vector_norm(weight, p, 1, keepdim=True)
    return weight - amount * (weight.abs() / norms).pow(p - 2) * weight


@pytest.mark.parametrize(
    ("name", "loss_of", "depth"),
    [("cifar10-8-2021", hinge_of_2021, 3), ("cifar10-8-hybrid", worst_case_of_the_mlp, 2)],
)
def test_a_run_takes_the_published_steps(name: str, loss_of: Callable[..., Tensor], depth: int):
    recipe = load_recipe(name, [*FEW, f"model.depth={depth}", "model.width=24", "run.test_every=0"])
    images = load("digits", "train")
    trainer = Trainer(recipe, images, images.first(10), torch.device("cpu"))
    net, steps = trainer.net.train(), trainer.steps_per_epoch
    weights = {key: value.detach().double() for key, value in net.named_parameters() if key != "scale"}
    first, second = ({key: torch.zeros_like(value) for key, value in weights.items()} for _ in range(2))
    for epoch in range(7):
        for row, (pixels, labels) in enumerate(trainer.batches.epoch(epoch)):
            step = epoch * steps + row
            trainer._step(row, pixels, labels)
            trainer.progress.step += 1
            # Two epochs at p = 8 and the full learning rate; then p rises for four epochs and the rate falls for five.
            ramp, risen = min(step / (2 * steps), 1.0), max(step / steps - 2, 0.0)
            p = 8 * 125 ** (risen / 4) if risen < 4 else math.inf
            rate = LR * 0.5 * (1 + math.cos(math.pi * risen / 5))
            leaves = {key: value.requires_grad_() for key, value in weights.items()}
            x = ((pixels.double() - images.info.mean[0]) / images.info.std).flatten(1)
            loss = loss_of(leaves, x, labels, p, ramp, images.info.std)
            assert trainer.record[row, 0].item() == pytest.approx(loss.item(), rel=1e-4)
            slopes = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
            for key, slope in slopes.items():
                weight = weights[key].detach()
                measures = key.startswith("layers") and key.endswith("weight")
                weight = decayed(weight, p, rate * DECAY) if measures else (1 - rate * DECAY) * weight
                first[key] = BETA1 * first[key] + (1 - BETA1) * slope
                second[key] = BETA2 * second[key] + (1 - BETA2) * slope.square()
                size = (second[key] / (1 - BETA2 ** (step + 1))).sqrt() + EPS
                weights[key] = weight - rate / (1 - BETA1 ** (step + 1)) * first[key] / size
    for key, value in net.named_parameters():
        if key != "scale":
            off = (value - weights[key]).abs()
            # If a neuron copies its input, its gradients cancel in the mean shift, and rounding decides Adam's steps.
            # Without the decay, the steps of the other layers would differ by 4e-3 or more.
            if key == "layers.1.weight":
                assert off.median().item() < 1e-5
            else:
                assert off.max().item() < 1e-4
