"""The paper's system with convolutional distance layers before the fully connected ones; not in the paper."""

from dataclasses import dataclass
from typing import ClassVar

from linfnet.data import SetInfo
from linfnet.errors import number
from linfnet.nn import ConvStemNet
from linfnet.nn.classifier import Classifier
from linfnet.nn.conv_stem import MOST_CONVOLUTIONS
from linfnet.recipes import Recipe
from linfnet.systems.linf import ObjectiveSystem
from linfnet.systems.system import SYSTEMS

# Default number of channels for each channel of the image: the stem has as many features as there are pixels.
CHANNELS = 4


@SYSTEMS.register("conv-stem")
@dataclass(frozen=True)
class ConvStem(ObjectiveSystem):
    """The objective of [loss]. Depth and width of the fully connected layers are in [model]."""

    net_type: ClassVar[type[Classifier]] = ConvStemNet

    convolutions: int = number(2, 1, most=MOST_CONVOLUTIONS)
    """Number of convolutional layers."""
    channels: int | None = number(None, 1)
    """Number of channels of each convolution. Default: four for each channel of the image."""

    def build(self, recipe: Recipe, info: SetInfo) -> ConvStemNet:
        """Build the net at `schedule.p_start`: convolutions, then `model.depth` layers of width `model.width`."""
        hidden, p = (recipe.model.width,) * (recipe.model.depth - 1), recipe.schedule.p_start
        return ConvStemNet(
            info.image_shape, len(info.classes), hidden,
            channels=self.channels or CHANNELS * info.image_shape[0], convolutions=self.convolutions, mean=info.mean,
            std=info.std, p=p,
        )  # fmt: skip
