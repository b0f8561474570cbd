"""Randomised smoothing with consistency regularisation (Jeong and Shin, 2020)."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from linfnet.errors import number
from linfnet.nn.classifier import Classifier
from linfnet.systems.smoothadv import SmoothAdv
from linfnet.systems.smoothing import SmoothedNet
from linfnet.systems.system import SYSTEMS


class ConsistencyNet(SmoothedNet):
    """A smoothed net, as in `SmoothedNet`; only the training differs."""

    system: ClassVar[str] = "consistency"


@SYSTEMS.register("consistency")
@dataclass(frozen=True)
class Consistency(SmoothAdv):
    """The loss adds to that of `smoothadv` a penalty for predictions that differ between noisy copies.

    The penalty is consistency * (mean divergence of the mean probabilities from those of each copy) + entropy *
    (entropy of the mean probabilities). With attack_eps = 0 the images are not attacked.
    """

    net_type: ClassVar[type[Classifier]] = ConsistencyNet

    attack_eps: float = number(0.0)
    """The l2 radius of the attack, in pixel units; 0 for no attack."""
    consistency: float = number(10.0)
    """Weight of the divergence between noisy copies (lambda)."""
    entropy: float = number(0.5)
    """Weight of the entropy (eta)."""

    def loss_of_copies(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of the logits [copies, B, K] of noisy copies."""
        logs = logits.log_softmax(2)
        mean = logs.exp().mean(0)
        log_mean = mean.clamp(min=1e-20).log()
        divergence = (mean * (log_mean - logs)).sum(2).mean()
        entropy = -(mean * log_mean).sum(1).mean()
        return super().loss_of_copies(logits, labels) + self.consistency * divergence + self.entropy * entropy
