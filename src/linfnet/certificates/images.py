"""Certificates by name, applied to many images: radii, certified samples at each epsilon, and the curve."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from linfnet.certificates.interval import STEPS, certified_by_interval, interval_radius
from linfnet.certificates.margin import certified_shares, certify_by_margin
from linfnet.certificates.real import real_margin_radius
from linfnet.certificates.rounding import check_plain, float_above
from linfnet.distributed.sharding import join
from linfnet.errors import LinfnetError
from linfnet.figures import new_figure, save_figure
from linfnet.nn import Classifier
from linfnet.results.storage import LABEL, PREDICTION, REAL_MARGIN_RADIUS, RUNNER_UP, radius_column, write_columns

Curve = tuple[list[Fraction], dict[str, list[float]]]
"""Epsilons, and the certified share at each of them by the name of the certificate."""


@dataclass(frozen=True)
class Certificate:
    """One method of certification, applied to one net."""

    name: str
    arithmetic: str
    """float32: it holds for the floating-point program. real: rounding is ignored."""
    confidence: float
    """The probability with which it holds: 1 except for methods that count over random samples."""
    radius: Callable[[Tensor, Tensor], Tensor]
    """(images, labels) -> float64 [N]: certified radii, -inf where the label is not strictly on top."""
    at: Callable[[Tensor, Tensor, Fraction], Tensor]
    """(images, labels, epsilon) -> bool [N]: which samples are certified."""
    resolution: float = 0.0
    """Epsilons above the radius by up to this much may also be certified: bisection is not more precise."""

    def at_each(self, images: Tensor, labels: Tensor, radii: Tensor, epsilons: Sequence[Fraction]) -> Tensor:
        """bool [E, N]: which samples are certified at each epsilon: by their radii, or by `at` close to them."""
        certified = torch.zeros(len(epsilons), len(radii), dtype=torch.bool, device=radii.device)
        for row, epsilon in zip(certified, epsilons, strict=True):
            row |= radii >= float_above(epsilon)
            if self.resolution:
                undecided = ~row & (radii + self.resolution >= float(epsilon))
                row[undecided] = self.at(images[undecided], labels[undecided], epsilon)
        return certified


def certificates_of(net: Classifier, *, steps: int = STEPS) -> dict[str, Certificate]:
    """The certificates of a net by name, in order of preference; a radius by bisection takes `steps` halvings.

    >>> from linfnet.nn import LinfNet
    >>> list(certificates_of(LinfNet((1, 8, 8), 10)))
    ['margin', 'interval']
    """
    check_plain(net)
    kind = (net.arithmetic, net.confidence)

    def margin_radius(images: Tensor, labels: Tensor) -> Tensor:
        return certify_by_margin(net, images, labels).radii

    def margin_at(images: Tensor, labels: Tensor, epsilon: Fraction) -> Tensor:
        return certify_by_margin(net, images, labels).at(epsilon)

    # For nets of other systems, all names refer to their methods `certified` and `certified_radius`.
    radius, at = partial(interval_radius, net, steps=steps), partial(certified_by_interval, net)
    resolution = 2.0**-steps if type(net).certified_radius is Classifier.certified_radius else 0.0
    found = {name: Certificate(name, *kind, radius, at, resolution) for name in net.certificate_names}
    if "margin" in found and net.arithmetic == "float32":
        found["margin"] = Certificate("margin", *kind, margin_radius, margin_at)
    return found


@dataclass(frozen=True)
class Certification:
    """What is certified about each of N images, by the name of the certificate."""

    labels: Tensor
    """[N]: the certified classes; the predictions where no labels were given."""
    predictions: Tensor
    runners_up: Tensor
    """[N]: the class with the second largest logit."""
    epsilons: tuple[Fraction, ...]
    radii: dict[str, Tensor]
    """float64 [N] for each certificate, -inf where the label is not strictly on top."""
    certified: dict[str, Tensor]
    """bool [E, N] for each certificate: which images are certified at each epsilon."""
    real_margin_radii: Tensor | None = None
    """float64 [N]: the margin radius in real arithmetic, for comparison; None for nets without a Lipschitz constant."""
    arithmetic: str = "float32"
    """float32: the certificates hold for the floating-point program. real: rounding is ignored."""
    confidence: float = 1.0
    """The probability with which each certificate holds."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the certificates, in order of preference."""
        return tuple(self.radii)

    @property
    def clean(self) -> float:
        """The share of images whose label is strictly on top."""
        return (self.best_radii >= 0).double().mean().item()

    @property
    def best_radii(self) -> Tensor:
        """float64 [N]: the largest radius of all certificates; each of them is a proof."""
        return torch.stack(list(self.radii.values())).amax(0)

    @property
    def certified_by_any(self) -> Tensor:
        """bool [E, N]: which images at least one certificate certifies at each epsilon."""
        return torch.stack(list(self.certified.values())).any(0)

    def curve(self, points: int = 50, last: float | None = None) -> Curve:
        """Certified shares at equal steps of epsilon from 0 to `last`, by default the largest radius."""
        end = Fraction(self.best_radii.clamp(min=0).max().item() if last is None else last)
        epsilons = [end * step / (points - 1) for step in range(points)]
        return epsilons, {name: certified_shares(radii, epsilons) for name, radii in self.radii.items()}


@torch.no_grad()
def certify_images(
    net: Classifier,
    batches: Iterable[tuple[Tensor, Tensor | None]],
    epsilons: Sequence[Fraction] = (),
    *,
    steps: int = STEPS,
    advance: Callable[[int], None] = lambda samples: None,
) -> Certification:
    """Certify batches of images by all certificates of the net.

    Args:
        net: evaluated at p = inf, independent of its present p.
        batches: images [n, C, H, W] in [0, 1] with their labels [n], or with None for the predicted classes.
        epsilons: exact, in pixel units.
        steps: halvings of [0, 1] where radii need a bisection.
        advance: called with the number of images after each batch.
    """
    certificates = certificates_of(net, steps=steps)
    parts: list[Certification] = []
    for images, labels in batches:
        with net.at_infinity():
            logits = net(images)
        best = logits.topk(2).indices
        classes = best[:, 0] if labels is None else labels
        radii = {name: certificate.radius(images, classes) for name, certificate in certificates.items()}
        certified = {name: certificates[name].at_each(images, classes, radii[name], epsilons) for name in radii}
        # With the std as the program stores it, in float32.
        lipschitz = 1 / net.normalize.std.item()
        real = real_margin_radius(logits, classes, lipschitz) if net.lipschitz is not None else None
        named = (classes, best[:, 0], best[:, 1], tuple(epsilons), radii, certified, real)
        parts.append(Certification(*named, net.arithmetic, net.confidence))
        advance(len(images))
    if not parts:
        raise LinfnetError("there are no images to certify")
    return join(parts, partial(torch.cat, dim=-1))


def write_radii(certification: Certification, path: Path, names: Sequence[str] = ()) -> None:
    """Write a CSV with a row for each image; radii are in pixel units and not rounded."""
    c = certification
    columns = {LABEL: c.labels, PREDICTION: c.predictions, RUNNER_UP: c.runners_up}
    columns |= {radius_column(name): radii for name, radii in c.radii.items()}
    if c.real_margin_radii is not None:
        columns[REAL_MARGIN_RADIUS] = c.real_margin_radii
    images = names or range(len(c.labels))
    write_columns(path, {"image": images, **{name: column.tolist() for name, column in columns.items()}})


def write_curve(curve: Curve, path: Path) -> None:
    """Write a curve as CSV: eps and the certified share by each certificate."""
    epsilons, shares = curve
    columns = {f"certified_{name}": column for name, column in shares.items()}
    write_columns(path, {"eps": map(float, epsilons), **columns})


def plot_curve(curve: Curve, path: Path, title: str) -> None:
    """Plot a curve as PNG, SVG or PDF, by the suffix of the path; needs matplotlib."""
    figure = new_figure(6, 4)
    axes = figure.subplots()
    epsilons, shares = curve
    for name, column in shares.items():
        style = "--" if name == "margin" else "-"
        axes.plot([float(epsilon) for epsilon in epsilons], [100 * share for share in column], style, label=name)
    axes.set(xlabel="ε (pixels in [0, 1])", ylabel="certified accuracy in %", title=title, ylim=(0, 100))
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    axes.legend()
    save_figure(figure, path)
