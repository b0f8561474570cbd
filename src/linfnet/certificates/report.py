"""Both certificates over many images: radii for each, what holds at each epsilon, and the curve over all of them."""

import csv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import torch
from torch import Tensor

from linfnet.certificates.arithmetic import float_above
from linfnet.certificates.certificates import certified_by_interval
from linfnet.certificates.margins import certified_shares, certify_by_margin
from linfnet.certificates.program import check_plain
from linfnet.certificates.radii import STEPS, interval_radius
from linfnet.errors import LinfnetError
from linfnet.files import replacing
from linfnet.nn import Classifier, LinfNet


@dataclass(frozen=True)
class Certification:
    """What is proven about each of N images: of an l_inf-distance net, all of it for the floating-point program.

    Nets of other systems have one certificate, kept as the interval one; their margin proves nothing.
    """

    labels: Tensor
    """[N]: the classes the certificates speak of; the predictions, where no labels were given."""
    predictions: Tensor
    runners_up: Tensor
    margin_radii: Tensor
    """float64 [N], as in `MarginCertificate.radii`."""
    real_radii: Tensor
    """float64 [N]: the margin radius in real arithmetic, for comparison."""
    interval_radii: Tensor
    """float64 [N], as `interval_radius` gives them."""
    epsilons: tuple[Fraction, ...]
    by_margin: Tensor
    """bool [E, N]: certified by the margin at each epsilon."""
    by_interval: Tensor
    """bool [E, N]."""
    certificates: tuple[str, ...] = ("margin", "interval")
    """The names of the certificates there are: both, or the system's own."""
    arithmetic: str = "float32"
    """What they speak of: the program, or the real function it stands for."""
    confidence: float = 1.0
    """The probability with which each of them is right."""

    @property
    def clean(self) -> float:
        """The share of images whose label is strictly on top."""
        return (self.radii >= 0).double().mean().item()

    @property
    def radii(self) -> Tensor:
        """float64 [N]: the larger of both radii; either is a proof."""
        return torch.maximum(self.margin_radii, self.interval_radii)

    def curve(self, points: int = 50, last: float | None = None) -> list[tuple[Fraction, float, float]]:
        """(eps, certified by margin, by interval) at even steps from 0 to `last`, by default the largest radius."""
        end = Fraction(self.radii.clamp(min=0).max().item() if last is None else last)
        epsilons = [end * step / (points - 1) for step in range(points)]
        shares = (certified_shares(radii, epsilons) for radii in (self.margin_radii, self.interval_radii))
        return list(zip(epsilons, *shares, strict=True))


def certify_images(
    net: Classifier,
    batches: Iterable[tuple[Tensor, Tensor | None]],
    epsilons: Sequence[Fraction] = (),
    *,
    steps: int = STEPS,
    advance: Callable[[int], None] = lambda samples: None,
) -> Certification:
    """Certify batches of images [n, C, H, W] with their labels [n], or with None for the classes the net predicts."""
    check_plain(net)
    parts = [_certify_batch(net, images, labels, epsilons, steps, advance) for images, labels in batches]
    if not parts:
        raise LinfnetError("there are no images to certify")
    labels, first, second, margin, real, interval, by_margin, by_interval = (
        torch.cat(column, -1) for column in zip(*parts, strict=True)
    )
    proven = (labels, first, second, margin, real, interval, tuple(epsilons), by_margin, by_interval)
    if isinstance(net, LinfNet):
        return Certification(*proven)
    return Certification(*proven, (net.certificate,), net.arithmetic, net.confidence)


def _certify_batch(
    net: Classifier,
    images: Tensor,
    labels: Tensor | None,
    epsilons: Sequence[Fraction],
    steps: int,
    advance: Callable[[int], None],
) -> list[Tensor]:
    if not isinstance(net, LinfNet):
        return _certify_by_system(net, images, labels, epsilons, steps, advance)
    margins = certify_by_margin(net, images, labels)
    reach = interval_radius(net, images, margins.labels, steps=steps)
    best = margins.logits.topk(2).indices
    none = torch.zeros(0, len(reach), dtype=torch.bool, device=reach.device)
    by_margin = torch.stack([margins.at(epsilon) for epsilon in epsilons]) if epsilons else none
    held = [_held_at(net, images, margins.labels, reach, epsilon, steps) for epsilon in epsilons]
    advance(len(images))
    by_interval = torch.stack(held) if held else none
    radii = (margins.radii, margins.real_radii, reach)
    return [margins.labels, best[:, 0], best[:, 1], *radii, by_margin, by_interval]


@torch.no_grad()
def _certify_by_system(
    net: Classifier,
    images: Tensor,
    labels: Tensor | None,
    epsilons: Sequence[Fraction],
    steps: int,
    advance: Callable[[int], None],
) -> list[Tensor]:
    """As `_certify_batch`, with nothing proven by the margin."""
    with net.at_infinity():
        best = net(images).topk(2).indices
    classes = best[:, 0] if labels is None else labels
    reach = interval_radius(net, images, classes, steps=steps)
    none = torch.full_like(reach, -torch.inf)
    held = torch.zeros(len(epsilons), len(reach), dtype=torch.bool, device=reach.device)
    for row, epsilon in enumerate(epsilons):
        held[row] = _held_at(net, images, classes, reach, epsilon, steps)
    advance(len(images))
    return [classes, best[:, 0], best[:, 1], none, none, reach, torch.zeros_like(held), held]


def _held_at(net: Classifier, images: Tensor, labels: Tensor, reach: Tensor, epsilon: Fraction, steps: int) -> Tensor:
    """Whether the interval certificate holds at epsilon: bisection leaves the samples open that it stopped short of."""
    held = reach >= float_above(epsilon)
    undecided = ~held & (reach + 2.0**-steps >= float(epsilon))
    held[undecided] = certified_by_interval(net, images[undecided], labels[undecided], epsilon)
    return held


def write_radii(certification: Certification, path: Path, names: Sequence[str] = ()) -> None:
    """Write a CSV with a row for each image; radii are in pixel units, written in full."""
    c = certification
    known = {"margin": c.margin_radii, "interval": c.interval_radii}
    columns = {"label": c.labels, "prediction": c.predictions, "runner_up": c.runners_up}
    columns |= {f"{name}_radius": known.get(name, c.interval_radii) for name in c.certificates}
    if "margin" in c.certificates:
        columns["real_margin_radius"] = c.real_radii
    images = list(names) or list(map(str, range(len(c.labels))))
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["image", *columns])
        writer.writerows(zip(images, *(column.tolist() for column in columns.values()), strict=True))


def write_curve(
    rows: Sequence[tuple[Fraction, float, float]], path: Path, certificates: Sequence[str] = ("margin", "interval")
) -> None:
    """Write the curve as CSV: eps, certified share by each certificate."""
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["eps", *(f"certified_{name}" for name in certificates)])
        writer.writerows((float(epsilon), *shares[-len(certificates) :]) for epsilon, *shares in rows)


def plot_curve(
    rows: Sequence[tuple[Fraction, float, float]],
    path: Path,
    title: str,
    certificates: Sequence[str] = ("margin", "interval"),
) -> None:
    """Draw the curve as PNG, SVG or PDF, by the ending of the path; needs matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise LinfnetError("drawing needs matplotlib: pip install 'linfnet[plots]'") from None
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    sizes = [float(row[0]) for row in rows]
    axes.plot(sizes, [100 * row[2] for row in rows], label=certificates[-1])
    if len(certificates) > 1:
        axes.plot(sizes, [100 * row[1] for row in rows], "--", label=certificates[0])
    axes.set(xlabel="ε (pixels in [0, 1])", ylabel="certified accuracy in %", title=title, ylim=(0, 100))
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    axes.legend()
    with replacing(path) as temporary:
        figure.savefig(temporary, format=path.suffix.removeprefix("."), dpi=150)
