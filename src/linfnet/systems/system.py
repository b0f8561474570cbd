"""What a system is: how a recipe builds its net, and the loss of a training step. How it is certified is in the net."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from linfnet.data import SetInfo
from linfnet.nn.classifier import Classifier
from linfnet.recipes import Recipe

RELAXATION = ("model", "schedule.p_start", "schedule.p_end", "schedule.snap_p")
OBJECTIVE = ("loss", "optimizer.scale_lr_factor")


@dataclass(frozen=True)
class System(ABC):
    """A frozen dataclass in a file of this folder; its fields are the keys of a recipe's [system], besides the name.

    The file is the system's name, and says `SYSTEM = TheClass`.
    """

    net_type: ClassVar[type[Classifier]]
    unused: ClassVar[tuple[str, ...]] = ()
    """Keys of a recipe, or whole sections, that the system does not look at: changing them is refused, and reports say
    nothing of them. Without distance layers this is `RELAXATION`; with a loss of one's own, `OBJECTIVE`."""

    @abstractmethod
    def build(self, recipe: Recipe, info: SetInfo) -> Classifier:
        """The net with freshly drawn weights, for the images of a set."""

    @abstractmethod
    def loss(
        self, recipe: Recipe, net: Classifier, pixels: Tensor, labels: Tensor, epoch: float
    ) -> tuple[Tensor, Tensor]:
        """The loss of a batch, and the net's logits [B, K] on it.

        Args:
            recipe: the run's.
            net: what `build` gave, in training mode, at the p of this step.
            pixels: [B, C, H, W] in [0, 1].
            labels: [B].
            epoch: epochs done so far, with a fraction.
        """


class SeenSystem(System):
    """A system whose loss sees the images through one tensor alone, the logits or another: it may be computed apart."""

    replayable: ClassVar[bool] = False
    """Whether the way to that tensor depends on p and on tensors alone, so that a CUDA graph may stand for it."""

    def seen(self, net: Classifier, pixels: Tensor) -> Tensor:
        """What the loss sees of images [B, C, H, W]: [B, ...]; by default the net's logits."""
        logits: Tensor = net(pixels)
        return logits

    @abstractmethod
    def loss_of_seen(
        self, recipe: Recipe, net: Classifier, seen: Tensor, labels: Tensor, epoch: float
    ) -> tuple[Tensor, Tensor]:
        """The loss of a batch by what was seen of it, and the net's logits [B, K]; the rest as in `loss`."""

    def loss(
        self, recipe: Recipe, net: Classifier, pixels: Tensor, labels: Tensor, epoch: float
    ) -> tuple[Tensor, Tensor]:
        """What is seen and the loss by it."""
        return self.loss_of_seen(recipe, net, self.seen(net, pixels), labels, epoch)


class Seen(nn.Module):
    """The way from images to what a loss sees of them, as a module."""

    def __init__(self, system: SeenSystem, net: Classifier) -> None:
        super().__init__()
        self.system, self.net = system, net

    def forward(self, pixels: Tensor) -> Tensor:
        return self.system.seen(self.net, pixels)
