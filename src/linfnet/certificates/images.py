"""Certify many images by every certificate of a net: radii, certified samples at each epsilon, and the curve."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from linfnet.certificates.exact import decide, exact_radius
from linfnet.certificates.exact.radii import WIDTH
from linfnet.certificates.interval import STEPS, certified_by_interval, interval_radius
from linfnet.certificates.margin import certified_shares, certify_by_margin
from linfnet.certificates.product_net import logits_of
from linfnet.certificates.real import real_margin_radius
from linfnet.certificates.rounding import float_above, float_below
from linfnet.data.arrays import Labels
from linfnet.distributed.sharding import join
from linfnet.epsilon import Epsilon, parse_epsilons
from linfnet.errors import LinfnetError
from linfnet.figures import INK, OCHRE, TEAL, new_figure, save_figure, style_axes
from linfnet.inputs import Images, check_net, prepare_images, prepare_labels
from linfnet.nn import Classifier
from linfnet.results import guarantee
from linfnet.results.storage import (
    BROKEN_AT,
    LABEL,
    PREDICTION,
    REAL_MARGIN_RADIUS,
    RUNNER_UP,
    radius_column,
    write_columns,
)

Curve = tuple[list[Fraction], dict[str, list[float]]]
"""Epsilons, and for each certificate name the share of images that are certified at each epsilon."""


@dataclass(frozen=True)
class Certificate:
    """One method of certification, applied to one net."""

    name: str
    arithmetic: str
    """`float32` if the certificate holds for the floating-point program, `real` if it ignores rounding."""
    confidence: float
    """The probability that the certificate is correct: 1 except for methods that use random samples."""
    radius: Callable[[Tensor, Tensor], Tensor]
    """(images, labels) -> float64 [N]: certified radii; -inf if the logit of the label is not strictly the largest."""
    at: Callable[[Tensor, Tensor, Fraction], Tensor]
    """(images, labels, epsilon) -> bool [N]: which samples are certified."""
    resolution: float = 0.0
    """The precision of the bisection: an epsilon above the radius by at most this much may also be certified."""

    def at_each(self, images: Tensor, labels: Tensor, radii: Tensor, epsilons: Sequence[Fraction]) -> Tensor:
        """Return bool [E, N]: which samples are certified at each epsilon; `at` is called only close to the radii."""
        certified = torch.zeros(len(epsilons), len(radii), dtype=torch.bool, device=radii.device)
        for row, epsilon in zip(certified, epsilons, strict=True):
            row |= radii >= float_above(epsilon)
            if self.resolution:
                undecided = ~row & (radii + self.resolution >= float(epsilon))
                row[undecided] = self.at(images[undecided], labels[undecided], epsilon)
        return certified


def certificates_of(net: Classifier, *, steps: int = STEPS) -> dict[str, Certificate]:
    """Return the certificates of a net by name, in order of preference; bisections for radii use `steps` halvings.

    >>> from linfnet.nn import LinfNet
    >>> list(certificates_of(LinfNet((1, 8, 8), 10)))
    ['margin', 'interval']
    """
    check_net(net)
    kind = (net.arithmetic, net.confidence)

    def margin_radius(images: Tensor, labels: Tensor) -> Tensor:
        return certify_by_margin(net, images, labels).radii

    def margin_at(images: Tensor, labels: Tensor, epsilon: Fraction) -> Tensor:
        return certify_by_margin(net, images, labels).at(epsilon)

    # The certificates of other systems use the methods `certified` and `certified_radius` of their nets.
    radius, at = partial(interval_radius, net, steps=steps), partial(certified_by_interval, net)
    resolution = 2.0**-steps if type(net).certified_radius is Classifier.certified_radius else 0.0
    found = {name: Certificate(name, *kind, radius, at, resolution) for name in net.certificate_names}
    if "margin" in found and net.arithmetic == "float32":
        found["margin"] = Certificate("margin", *kind, margin_radius, margin_at)
    return found


@dataclass(frozen=True)
class Certification:
    """The certified radii of N images and the epsilons at which they are certified, for each certificate."""

    labels: Tensor
    """[N]: the certified classes; these are the predicted classes if no labels were given."""
    predictions: Tensor
    runners_up: Tensor
    """[N]: the class with the second largest logit."""
    epsilons: tuple[Fraction, ...]
    radii: dict[str, Tensor]
    """float64 [N] for each certificate; -inf if the logit of the label is not strictly the largest."""
    certified: dict[str, Tensor]
    """bool [E, N] for each certificate: which images are certified at each epsilon."""
    real_margin_radii: Tensor | None = None
    """float64 [N]: `real_margin_radius`, for comparison; None for nets without a known Lipschitz constant."""
    arithmetic: str = "float32"
    """`float32` if the certificates hold for the floating-point program, `real` if they ignore rounding."""
    confidence: float = 1.0
    """The probability that each certificate is correct."""
    broken_at: Tensor | None = None
    """float64 [N]: an image within this epsilon breaks the net; None without the exact method."""
    undecided: Tensor | None = None
    """bool [E, N]: the budget of the exact method ended before it decided an image at an epsilon."""

    @property
    def guarantee(self) -> str:
        """What the certificates promise, as a phrase."""
        return guarantee(self.arithmetic, self.confidence)

    @property
    def proven(self) -> bool:
        """Whether no attack on the program can break a certified image."""
        return self.arithmetic == "float32" and self.confidence == 1

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the certificates, in order of preference."""
        return tuple(self.radii)

    @property
    def clean(self) -> float:
        """The share of images for which the logit of the label is strictly the largest."""
        return (self.best_radii >= 0).double().mean().item()

    @property
    def best_radii(self) -> Tensor:
        """float64 [N]: the largest radius that any certificate proves."""
        return torch.stack(list(self.radii.values())).amax(0)

    @property
    def certified_by_any(self) -> Tensor:
        """bool [E, N]: which images are certified at each epsilon by at least one certificate."""
        return torch.stack(list(self.certified.values())).any(0)

    def curve(self, points: int = 50, last: float | None = None) -> Curve:
        """Return the certified shares at equally spaced epsilons from 0 to `last` (by default the largest radius)."""
        end = Fraction(self.best_radii.clamp(min=0).max().item() if last is None else last)
        epsilons = [end * step / (points - 1) for step in range(points)]
        return epsilons, {name: certified_shares(radii, epsilons) for name, radii in self.radii.items()}


@torch.no_grad()
def certify_images(
    net: Classifier,
    batches: Iterable[tuple[Images, Labels | None]],
    epsilons: Epsilon | Sequence[Epsilon] = (),
    *,
    steps: int = STEPS,
    exact: bool = False,
    width: Epsilon = WIDTH,
    advance: Callable[[int], None] = lambda samples: None,
) -> Certification:
    """Certify batches of images by all certificates of the net, and return the joined result.

    Args:
        net: evaluated at p = inf in eval mode, regardless of its current p and mode.
        batches: images [n, C, H, W] in [0, 1] with their labels [n], or with None to certify the predicted classes.
        epsilons: in pixel units.
        steps: number of halvings of [0, 1] if radii are computed by bisection.
        exact: whether to add the exact method under the name `exact`: exact radii, and decisions at each epsilon.
        width: the width of the exact radii.
        advance: called with the number of images after each batch.
    """
    certificates = certificates_of(net, steps=steps)
    parts: list[Certification] = []
    sizes = parse_epsilons(epsilons)
    for images, labels in batches:
        pixels = prepare_images(net, images)
        known = None if labels is None else prepare_labels(labels, pixels, net.classes)
        logits = logits_of(net, pixels)
        best = logits.topk(2).indices
        classes = best[:, 0] if known is None else known
        radii = {name: certificate.radius(pixels, classes) for name, certificate in certificates.items()}
        certified = {name: certificates[name].at_each(pixels, classes, radii[name], sizes) for name in radii}
        # The program divides by the std in float32, which differs slightly from `net.std`.
        lipschitz = 1 / net.normalize.std.item()
        real = real_margin_radius(logits, classes, lipschitz) if net.lipschitz is not None else None
        named = (classes, best[:, 0], best[:, 1], sizes, radii, certified, real)
        found = Certification(*named, net.arithmetic, net.confidence)
        parts.append(_decided(found, net, pixels, width) if exact else found)
        advance(len(pixels))
    if not parts:
        raise LinfnetError("there are no images to certify")
    return join(parts, partial(torch.cat, dim=-1))


def _decided(found: Certification, net: Classifier, images: Tensor, width: Epsilon) -> Certification:
    """Add the exact radii of images, and whether they are robust at each epsilon."""
    radii = exact_radius(net, images, found.labels, width=width)
    robust = torch.zeros(len(found.epsilons), len(images), dtype=torch.bool, device=images.device)
    undecided = robust.clone()
    for row, unknown, epsilon in zip(robust, undecided, found.epsilons, strict=True):
        row |= radii.radius >= float_above(epsilon)
        between = ~row & (radii.broken_at > float_below(epsilon))
        if bool(between.any()):
            verdict = decide(net, images[between], found.labels[between], epsilon, witness=radii.witness[between])
            row[between], unknown[between] = verdict.robust, verdict.undecided
    return replace(
        found,
        radii={**found.radii, "exact": radii.radius},
        certified={**found.certified, "exact": robust},
        broken_at=radii.broken_at,
        undecided=undecided,
    )


def write_radii(certification: Certification, path: Path, names: Sequence[str] = (), *, labelled: bool = True) -> None:
    """Write a CSV file with a row for each image; radii are in pixel units and written with all digits.

    `labelled`: whether labels were given. Without them the predicted classes are certified: no column `label`.
    """
    c = certification
    columns = {LABEL: c.labels} if labelled else {}
    columns |= {PREDICTION: c.predictions, RUNNER_UP: c.runners_up}
    columns |= {radius_column(name): radii for name, radii in c.radii.items()}
    if c.broken_at is not None:
        columns[BROKEN_AT] = c.broken_at
    if c.real_margin_radii is not None:
        columns[REAL_MARGIN_RADIUS] = c.real_margin_radii
    images, tables = names or range(len(c.labels)), {name: column.tolist() for name, column in columns.items()}
    write_columns(path, {"image": images, **tables, "guarantee": [c.guarantee] * len(c.labels)})


def write_curve(curve: Curve, path: Path, guarantee: str = "") -> None:
    """Write a curve as a CSV file with a column for epsilon and one for each certificate.

    `guarantee`: what certificates promise, for a further column.
    """
    epsilons, shares = curve
    columns: dict[str, Sequence[float | str]] = {f"certified_{name}": column for name, column in shares.items()}
    if guarantee:
        columns["guarantee"] = [guarantee] * len(epsilons)
    write_columns(path, {"eps": map(float, epsilons), **columns})


_STYLES = {"margin": ("--", OCHRE), "exact": (":", INK)}


def plot_curve(curve: Curve, path: Path, title: str) -> None:
    """Plot a curve as PNG, SVG or PDF, depending on the suffix of the path; needs matplotlib."""
    figure = new_figure(6, 4)
    axes = figure.subplots()
    epsilons, shares = curve
    for name, column in shares.items():
        style, colour = _STYLES.get(name, ("-", TEAL))
        axes.plot(list(map(float, epsilons)), [100 * share for share in column], style, color=colour, label=name)
    axes.set(xlabel="ε (pixels in [0, 1])", ylabel="certified accuracy in %", title=title, ylim=(0, 100))
    axes.set_xlim(left=0)
    style_axes(axes)
    axes.legend(frameon=False)
    save_figure(figure, path)
