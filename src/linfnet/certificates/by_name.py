"""The certificates of a net by name."""

from dataclasses import dataclass
from fractions import Fraction

from torch import Tensor

from linfnet.certificates.arithmetic import float_above
from linfnet.certificates.certificates import certified_by_interval
from linfnet.certificates.margins import certify_by_margin
from linfnet.certificates.radii import STEPS, interval_radius
from linfnet.nn import Classifier, LinfNet


@dataclass(frozen=True)
class Certificate:
    """One way to certify a net."""

    net: Classifier
    name: str
    arithmetic: str
    """float32: holds for the floating-point program. real: ignores rounding."""
    confidence: float
    resolution: float
    """0 if radii are in closed form; else larger epsilons may be certified, by up to this much."""

    def radius(self, images: Tensor, labels: Tensor) -> Tensor:
        """float64 [N]: certified radii; -inf where the label is not strictly on top."""
        if self.name == "margin":
            assert isinstance(self.net, LinfNet)
            return certify_by_margin(self.net, images, labels).radii
        return interval_radius(self.net, images, labels)

    def at(self, images: Tensor, labels: Tensor, eps: Fraction) -> Tensor:
        """bool [N]: which samples are certified at epsilon."""
        if not self.resolution:
            return self.radius(images, labels) >= float_above(eps)
        return certified_by_interval(self.net, images, labels, eps)


def certificates_of(net: Classifier) -> dict[str, Certificate]:
    """The certificates of a net by name, in order of preference."""
    pixels = net.normalize.mean.new_zeros(0, *net.image_shape)
    closed = net.certified_radius(pixels, pixels.new_zeros(0).long())
    names = {net.certificate: 2.0**-STEPS if closed is None else 0.0}
    if isinstance(net, LinfNet):
        names = {"margin": 0.0, **names}
    return {name: Certificate(net, name, net.arithmetic, net.confidence, size) for name, size in names.items()}
