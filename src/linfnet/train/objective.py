"""The loss of a training step and its gradients, on a GPU replayed from CUDA graphs where the system allows it."""

from collections.abc import Callable

from torch import Tensor

from linfnet.nn import Classifier
from linfnet.recipes import Recipe
from linfnet.schedules import StepState
from linfnet.systems import FeatureModule, FeatureSystem, LossModule, System, WeightedSystem
from linfnet.train.cuda_graphs import GraphedLoss, GraphedModule


class Objective:
    """The function that training minimises.

    Args:
        recipe: the settings.
        system: the system of the recipe.
        net: the net in training.
    """

    def __init__(self, recipe: Recipe, system: System, net: Classifier) -> None:
        self.recipe, self.system, self.net = recipe, system, net
        self.graphed_features: GraphedModule | None = None
        self.graphed_loss: GraphedLoss | None = None

    def use_graphs(self, batch: int, later: Callable[[], StepState]) -> None:
        """Replay CUDA graphs for batches of `batch` images, if the system is a feature or a weighted system.

        Args:
            batch: the number of images.
            later: returns the state of the schedule after STEPS_TO_PAY_OFF more steps.
        """
        if isinstance(self.system, FeatureSystem):

            def exponents() -> tuple[float, float]:
                return self.net.p, self.net.slopes_p

            def stay() -> bool:
                state = later()
                return (state.p, state.slopes_p) == exponents()

            self.graphed_features = GraphedModule(FeatureModule(self.system, self.net), batch, exponents, stay)
        elif isinstance(self.system, WeightedSystem) and type(self.system).loss is WeightedSystem.loss:
            self.graphed_loss = GraphedLoss(LossModule(self.system, self.net), batch)

    def backward(self, pixels: Tensor, labels: Tensor, state: StepState, share: float = 1.0) -> tuple[Tensor, Tensor]:
        """Compute the gradients of the parameters; return the loss and the logits [B, K].

        Args:
            pixels: [B, C, H, W] in [0, 1].
            labels: [B].
            state: the schedule at this step.
            share: the share of this process in the batch, by which the loss is multiplied; 1 with CUDA graphs.
        """
        if self.graphed_loss and isinstance(self.system, WeightedSystem):
            return self.graphed_loss(pixels, labels, self.system.weights(state))
        if self.graphed_features and isinstance(self.system, FeatureSystem):
            features = self.graphed_features(pixels)
            loss, logits = self.system.loss_from_features(self.recipe, self.net, features, labels, state)
        else:
            loss, logits = self.system.loss(self.recipe, self.net, pixels, labels, state)
        if share != 1:
            loss = loss * share
        loss.backward()
        return loss, logits
