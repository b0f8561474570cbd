"""Ten steps of the trainer are bitwise equal to a plain loop: one forward pass, one backward pass, Adam."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from linfnet.data import load
from linfnet.nn import LinfNet
from linfnet.recipes import load_recipe
from linfnet.systems.hybrid import HybridNet
from linfnet.train import Trainer
from linfnet.train.optimizer import decay_weights

# Each epoch has two steps: two steps at p = 8, six with rising p, two at infinity.
TEN = ("limit=100", "batch=50", "epochs=[1, 3, 1]", "width=16", "depth=3", "test_every=0", "weight_decay=0")
THETA = 0.2


def schedule(step: int) -> tuple[float, float, float, float]:
    """Return the progress of the first phase, p, lambda and the learning rate of a step."""
    progress = min(max((step / 2 - 1) / 3, 0.0), 1.0)
    p = 8.0 * (1000.0 / 8.0) ** progress if progress < 1 else math.inf
    return min(step / 2, 1.0), p, 0.1 * (5e-4 / 0.1) ** progress, 0.5 * 0.03 * (1 + math.cos(math.pi * (step / 10)))


def mixture(net: LinfNet, pixels: Tensor, labels: Tensor, started: float, mixing: float) -> Tensor:
    logits = net(pixels)
    others = logits.scatter(1, labels.unsqueeze(1), -math.inf).max(1).values
    margin = logits.gather(1, labels.unsqueeze(1)).squeeze(1) - others
    hinge = (1 - margin / (THETA / net.std)).clamp(min=0, max=1).mean()
    return mixing * F.cross_entropy(net.scale * logits, labels) + hinge


def worst_case(net: HybridNet, pixels: Tensor, labels: Tensor, started: float, mixing: float) -> Tensor:
    features, radius = net.features(pixels), 0.05 / net.std * started
    logits = net.head(features)
    margins = net.head_margins(features - radius, features + radius, labels)
    return 0.5 * F.cross_entropy(-margins, labels) + (1 - 0.5) * F.cross_entropy(logits, labels)


LINF = ["loss.theta=0.2", "mixing_start=0.1", "mixing_end=5e-4", "lr=0.03"]


@pytest.mark.parametrize(
    ("loss_of", "changes"),
    [
        (mixture, LINF),
        (mixture, [*LINF, "weight_decay=0.1"]),
        (
            worst_case,
            ["system.name=hybrid", "system.eps_train=0.05", "system.worst_share=0.5", "system.hidden=8", "lr=0.03"],
        ),
    ],
    ids=["linf", "linf with decay", "hybrid"],
)
def test_ten_steps_are_those_of_a_plain_loop(loss_of, changes: list[str]):
    recipe = load_recipe("digits", [*TEN, *changes])
    images = load("digits", "train")
    trainer = Trainer(recipe, images, images.first(10), torch.device("cpu"))
    trainer.net.train()
    assert trainer.steps_per_epoch == 2

    torch.manual_seed(recipe.run.seed)
    net = trainer.objective.system.build(recipe, images.info).train()
    scale = [net.scale] if loss_of is mixture else []
    weights = [parameter for name, parameter in net.named_parameters() if name != "scale"]
    groups = [{"params": weights}, {"params": scale}]
    optimizer = torch.optim.Adam(groups, betas=(0.9, 0.99), eps=1e-10, fused=True)

    for step in range(10):
        pixels, labels = next(trainer.batches.epoch(step // 2, step % 2))
        trainer._step(step % 2, pixels, labels)
        trainer.progress.step += 1

        started, net.p, mixing, lr = schedule(step)
        optimizer.param_groups[0]["lr"], optimizer.param_groups[1]["lr"] = lr, lr * 0.2
        loss = loss_of(net, pixels, labels, started, mixing)
        optimizer.zero_grad()
        loss.backward()
        decay_weights(net, lr * recipe.optimizer.weight_decay)
        optimizer.step()

        assert trainer.net.p == net.p
        assert trainer.record[step % 2, 0].item() == loss.item(), step
        for name, tensor in net.state_dict().items():
            assert torch.equal(trainer.net.state_dict()[name], tensor), (step, name)
    assert math.isinf(net.p)
