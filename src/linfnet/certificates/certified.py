"""`linfnet.certify`: the certified radius of each image by one certificate of the net."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, overload

import torch
from torch import Tensor

from linfnet.boxes import check_images
from linfnet.certificates.exact import Decided, decide
from linfnet.certificates.images import certificates_of
from linfnet.certificates.margin import certified_at, certify_pixels
from linfnet.certificates.product_net import logits_of
from linfnet.certificates.rounding import float_above
from linfnet.data.arrays import Labels
from linfnet.epsilon import Epsilon, parse_epsilon
from linfnet.errors import ArgumentError, nearest
from linfnet.inputs import Images, check_net, net_device, prepare_epsilons, prepare_images, prepare_labels
from linfnet.nn import Classifier
from linfnet.results import guarantee

BATCH = 500


@dataclass(frozen=True)
class Certified:
    """The certified radii of N images; the tensors are on the device of the images."""

    radius: Tensor
    """float64 [N], rounded down, in pixel units: if no pixel changes by more than this, the net predicts the label.
    -inf if the logit of the label is not strictly the largest for the image itself."""
    prediction: Tensor
    """int64 [N]: the class with the largest logit."""
    labels: Tensor
    """int64 [N]: the certified classes; these are the predicted classes if no labels were given."""
    method: str
    """The name of the certificate, such as `margin` or `interval`."""
    arithmetic: str
    """`float32` if the certificate holds for the floating-point program, `real` if it ignores rounding."""
    confidence: float
    """The probability that each radius is correct: 1 except for methods that use random samples."""

    @property
    def guarantee(self) -> str:
        """What the radii promise, as a phrase: `proven in float32`, or that they hold with a probability."""
        return guarantee(self.arithmetic, self.confidence)

    def at(self, eps: Epsilon | Tensor) -> Tensor:
        """Return bool [N]: which images are certified at epsilon, that is, whose radius is at least epsilon.

        Args:
            eps: one epsilon for all images, or a tensor [N] with one epsilon for each image. A Python float means its
                shortest decimal form, which may be above the float (0.1 is exactly 1/10): `at(float(radius[k]))` can be
                false for image k. Tensors and fractions are exact: `at(radius[k])` and `at(Fraction(radius[k].item()))`
                are true for radii in [0, 1].
        """
        if isinstance(eps, Tensor):
            return self.radius >= prepare_epsilons(eps.expand(self.radius.shape) if not eps.dim() else eps, self.radius)
        return self.radius >= float_above(parse_epsilon(eps))

    def at_each(self, epsilons: Iterable[Epsilon]) -> Tensor:
        """Return bool [E, N]: which images are certified at each of several epsilons, each as in `at`."""
        return certified_at(self.radius, epsilons)

    def __len__(self) -> int:
        return len(self.radius)

    def __repr__(self) -> str:
        correct = int((self.radius >= 0).sum())
        return f"Certified({len(self)} images, {correct} with a radius, {self.method}: {self.guarantee})"


@overload
def certify(
    net: Classifier,
    images: Images,
    labels: Labels | None = None,
    *,
    method: Literal["exact"],
    eps: Epsilon | Tensor | None = None,
    advance: Callable[[int], None] = lambda images: None,
) -> Decided: ...


@overload
def certify(
    net: Classifier,
    images: Images,
    labels: Labels | None = None,
    *,
    method: str | None = None,
    advance: Callable[[int], None] = lambda images: None,
) -> Certified: ...


@torch.no_grad()
def certify(
    net: Classifier,
    images: Images,
    labels: Labels | None = None,
    *,
    method: str | None = None,
    eps: Epsilon | Tensor | None = None,
    advance: Callable[[int], None] = lambda images: None,
) -> Certified | Decided:
    """Compute for each image a radius within which the net provably predicts the label.

    The net is evaluated at p = inf in eval mode, regardless of its current p and mode, on the device where it is.

    Args:
        net: a net of any system, or your own module in `Classifier.wrap`.
        images: [N, C, H, W] in [0, 1], a tensor or a NumPy array of the dtype of the net (float32).
        labels: integers [N]; by default the predicted classes.
        method: a name in `net.certificate_names`; by default the first, which is `margin` for l_inf-distance nets: one
            forward pass. `interval` is usually slightly larger, at the cost of about 36 passes. `exact` decides at
            one epsilon which images are robust and which are broken, and returns a `Decided`.
        eps: the epsilon of method `exact`, or a float64 tensor [N]. Other methods compute radii without it.
        advance: called with the number of images after each batch.

    >>> from linfnet.nn import LinfNet
    >>> net = LinfNet((1, 1, 1), 2, (), identity_init=False)
    >>> _ = net.layers[0].weight.data.copy_(torch.tensor([[0.0], [1.0]]))
    >>> found = certify(net, torch.tensor([0.25, 0.75]).view(2, 1, 1, 1), [0, 0])
    >>> found.prediction, found.at("0.2")
    (tensor([0, 1]), tensor([ True, False]))
    """
    checked = check_net(net)
    if method == "exact":
        return decide(checked, images, labels, eps, advance=advance)
    if eps is not None:
        raise ArgumentError(f"eps is {eps} for method {method!r}; expected eps only with 'exact': use .at(eps)")
    name = checked.certificate_names[0] if method is None else method
    if name not in checked.certificate_names:
        names = (*checked.certificate_names, "exact")
        raise ArgumentError(f"method is {name!r}; expected one of {', '.join(names)}{nearest(str(name), names)}")
    by_margin = name == "margin" and checked.arithmetic == "float32"  # a single pass computes logits and radii
    certificate, device = None if by_margin else certificates_of(checked)[name], net_device(checked)
    pixels = prepare_images(checked, images, move=False)
    known_labels = None if labels is None else prepare_labels(labels, pixels, checked.classes)
    radii, predictions = list[Tensor](), list[Tensor]()
    for start in range(0, max(len(pixels), 1), BATCH):
        part = pixels[start : start + BATCH].to(device)
        classes = None if known_labels is None else known_labels[start : start + BATCH].to(device)
        if start:  # `advance` was called since the net and the images were checked
            check_images(check_net(checked).check_shape(part))
        if certificate is None:
            found = certify_pixels(checked, part, classes)
            radius, predicted = found.radii, found.labels if classes is None else found.logits.argmax(1)
        else:
            predicted = logits_of(checked, part).argmax(1)
            radius = certificate.radius(part, predicted if classes is None else classes)
        radii.append(radius.to(pixels.device))
        predictions.append(predicted.to(pixels.device))
        advance(len(part))
    prediction = torch.cat(predictions) if len(predictions) > 1 else predictions[0]
    return Certified(
        radius=torch.cat(radii) if len(radii) > 1 else radii[0],
        prediction=prediction,
        labels=prediction if known_labels is None else known_labels,
        method=name,
        arithmetic=checked.arithmetic,
        confidence=checked.confidence,
    )
