"""CROWN-LBP (Lyu et al., 2021): nets with ramps, trained by CROWN-IBP, certified by linear relaxation both ways."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

from torch import Tensor

from linfnet.bounds import Box, Ramp, forward_boxes, interval_boxes, linear_margins, smallest_margin
from linfnet.data import SetInfo
from linfnet.errors import ArgumentError, number
from linfnet.nn.classifier import Classifier
from linfnet.recipes import Recipe
from linfnet.schedules import StepState
from linfnet.systems.convolutional import ConvNet
from linfnet.systems.crown_ibp import CrownIbp
from linfnet.systems.layers import conv_layers, preserve_widths
from linfnet.systems.system import SYSTEMS

CERTIFICATES = ("crown-lbp", "crown-ibp")


class CrownLbpNet(ConvNet):
    """A convolutional net with ramps, certified by linear relaxation backwards.

    Args:
        architecture, batch_norm: as in `StandardNet`; ramps replace ReLU.
        certificate: how the inputs of the ramps are bounded: by linear relaxation forwards (`crown-lbp`), whose memory
            grows with the number of pixels times that of neurons, or by intervals (`crown-ibp`). For the other
            arguments, see `Classifier`.
    """

    system: ClassVar[str] = "crown-lbp"
    certificate_names: ClassVar[tuple[str, ...]] = ("linear",)
    cheap: ClassVar[bool] = False
    part: ClassVar[int] = 10

    def __init__(
        self,
        image_shape: Sequence[int],
        classes: int,
        architecture: str,
        batch_norm: bool,
        certificate: str = CERTIFICATES[0],
        *,
        mean: float | Sequence[float] = 0.0,
        std: float = 1.0,
    ) -> None:
        super().__init__(image_shape, classes, architecture, batch_norm, mean=mean, std=std)
        if certificate not in CERTIFICATES:
            raise ArgumentError(f"certificate is {certificate!r}; expected one of {', '.join(CERTIFICATES)}")
        self.certificate = certificate
        self.layers, _ = conv_layers(architecture, image_shape, batch_norm, partial(Ramp, bent=False))

    @property
    def ramps(self) -> list[Ramp]:
        """All ramps, in order."""
        return [layer for layer in self.layers if isinstance(layer, Ramp)]

    def margins(self, box: Box, labels: Tensor) -> Tensor:
        """Return the bounds of CROWN-IBP, and those of CROWN-LBP for samples that they do not certify."""
        # With lines of slope 0 at the corners, CROWN-LBP is never looser than CROWN-IBP, and that than intervals.
        found = linear_margins(self.body, interval_boxes(self.body, box), labels, "zero")
        open_ones = (smallest_margin(found, labels) <= 0).nonzero().squeeze(1)
        if self.certificate == "crown-lbp" and len(open_ones):
            part = Box(box.lower[open_ones], box.upper[open_ones])
            tight = linear_margins(self.body, forward_boxes(self.body, part, "zero"), labels[open_ones], "zero")
            found = found.index_copy(0, open_ones, tight)
        return found

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "certificate": self.certificate}


@SYSTEMS.register("crown-lbp")
@dataclass(frozen=True)
class CrownLbp(CrownIbp):
    """The loss is that of `crown-ibp`; the net has ramps instead of ReLU.

    In the first phase, the ramps are leaky ReLU. Their bends then start at the mean output of each neuron and are
    trained. The slope beside the ramps falls to 0 between two fractions of the run.
    """

    net_type: ClassVar[type[Classifier]] = CrownLbpNet

    certificate: Literal["crown-lbp", "crown-ibp"] = "crown-lbp"
    """The certificate; `crown-lbp` takes memory and time for large nets."""
    slope: float = number(0.01, most=1)
    """Slope of the ramps below 0 and above their bends at the start."""
    slope_from: float = number(0.35, most=1)
    """Fraction of the run after which the slope falls."""
    slope_to: float = number(0.7, most=1)
    """Fraction of the run after which the slope is 0."""

    def build(self, recipe: Recipe, info: SetInfo) -> Classifier:
        """Build the net of `system.architecture`; the section [model] of the recipe is ignored."""
        own = (self.architecture, self.batch_norm, self.certificate)
        net = CrownLbpNet(info.image_shape, len(info.classes), *own, mean=info.mean, std=info.std)
        if self.initialisation == "ibp":
            preserve_widths(net)
        return net

    def slope_at(self, recipe: Recipe, state: StepState) -> float:
        """Return the slope of the ramps outside their bends at a step."""
        done = state.epoch / recipe.schedule.phases().total
        if done <= self.slope_from:
            return self.slope
        return self.slope * max(self.slope_to - done, 0.0) / max(self.slope_to - self.slope_from, 1e-9)

    def loss(
        self, recipe: Recipe, net: Classifier, pixels: Tensor, labels: Tensor, state: StepState
    ) -> tuple[Tensor, Tensor]:
        """Return the loss and the logits; set the slope of the ramps, and bend them after the first phase."""
        assert isinstance(net, CrownLbpNet)
        slope, first_phase = self.slope_at(recipe, state), self.progress(state) == 0
        for ramp in net.ramps:
            ramp.slope.fill_(slope)
            ramp.recording = first_phase
        # Reading a flag from a GPU takes time, so it is read only at the start of the second phase.
        if state.relaxed * recipe.schedule.epochs[1] < 1 and not first_phase and not bool(net.ramps[0].bent):
            for ramp in net.ramps:
                ramp.bend_at_means()
        return super().loss(recipe, net, pixels, labels, state)
