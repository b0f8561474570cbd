"""SmoothAdv (Salman et al., 2019): randomised smoothing trained on adversarial examples of the smoothed net."""

from dataclasses import asdict, dataclass, fields
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from linfnet.data import SetInfo
from linfnet.errors import number
from linfnet.nn.classifier import Classifier
from linfnet.recipes import Recipe
from linfnet.schedules import StepState
from linfnet.systems.smoothing import SmoothedNet, Smoothing
from linfnet.systems.system import SYSTEMS, step_source


class SmoothAdvNet(SmoothedNet):
    """A smoothed net, as in `SmoothedNet`; only the training differs."""

    system: ClassVar[str] = "smoothadv"


@SYSTEMS.register("smoothadv")
@dataclass(frozen=True)
class SmoothAdv(Smoothing):
    """The loss is the cross-entropy of the base net on noisy copies of adversarial images.

    The images are attacked by PGD in an l2 ball; the attack maximises the cross-entropy of the mean probabilities over
    the same noisy copies. Its radius grows from 0 to attack_eps during the first phase of the schedule.
    """

    net_type: ClassVar[type[Classifier]] = SmoothAdvNet

    attack_eps: float = number(1.0)
    """The l2 radius of the attack, in pixel units; 0 for no attack."""
    attack_steps: int = number(10, 1)
    """Number of steps of the attack."""
    copies: int = number(2, 1)
    """Number of noisy copies of each image in training."""

    def build(self, recipe: Recipe, info: SetInfo) -> SmoothedNet:
        """Build the net of `system.architecture`, with batch norm."""
        own = {field.name: asdict(self)[field.name] for field in fields(Smoothing)}
        kind = self.net_type
        assert issubclass(kind, SmoothedNet)
        return kind(info.image_shape, len(info.classes), **own, mean=info.mean, std=info.std)

    def loss(
        self, recipe: Recipe, net: Classifier, pixels: Tensor, labels: Tensor, state: StepState
    ) -> tuple[Tensor, Tensor]:
        assert isinstance(net, SmoothedNet)
        source = step_source(recipe, state, pixels.device)
        pixels = net.prepared(pixels)
        noise = self.sigma * torch.randn(self.copies, *pixels.shape, generator=source, device=pixels.device)
        radius = self.attack_eps * state.started
        if radius > 0:
            training = net.training
            pixels = attacked(net.eval(), pixels, labels, noise, radius, self.attack_steps)
            net.train(training)
        logits = net.base_logits((pixels + noise).flatten(0, 1)).unflatten(0, noise.shape[:2])
        return self.loss_of_copies(logits, labels), logits.mean(0)

    def loss_of_copies(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of the logits [copies, B, K] of noisy copies."""
        return F.cross_entropy(logits.flatten(0, 1), labels.repeat(len(logits)))


def attacked(net: SmoothedNet, pixels: Tensor, labels: Tensor, noise: Tensor, radius: float, steps: int) -> Tensor:
    """Return prepared images within an l2 ball, with a large cross-entropy of the mean probabilities over noise.

    Args:
        net: the smoothed net.
        pixels: [B, C, H, W], prepared by the net.
        labels: [B].
        noise: [copies, B, C, H, W].
        radius: the l2 radius.
        steps: number of steps of PGD; each has length 2 * radius / steps before it is projected.
    """
    change = torch.zeros_like(pixels)
    shape = (-1, *[1] * (pixels.dim() - 1))
    for _ in range(steps):
        change.requires_grad_()
        logits = net.base_logits((pixels + change + noise).flatten(0, 1)).unflatten(0, noise.shape[:2])
        loss = F.nll_loss(logits.log_softmax(2).logsumexp(0), labels, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, change)
        with torch.no_grad():
            length = gradient.flatten(1).norm(dim=1).clamp(min=1e-12).view(shape)
            change = (pixels + change + 2 * radius / steps * gradient / length).clamp(net.low, net.high) - pixels
            change = change * (radius / change.flatten(1).norm(dim=1).clamp(min=radius)).view(shape)
    return (pixels + change).detach()
